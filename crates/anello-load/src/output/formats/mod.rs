//! Output formats for the intervals of a load run, for use by other programs.
//!
//! ```text
//!                    ┌─► hdr_log   lossless latencies only; read by HdrHistogram tools and by `merge`
//!   Interval ────────┤
//!                    └─► IntervalRecord ─┬─► ndjson   stream of JSON objects, one per line
//!                                        └─► csv      table for spreadsheets and plotting tools
//! ```
//!
//! Every writer writes whole lines and flushes after each line, so the output of a killed run remains readable.
//! `docs/reference/load-report.md` documents the formats.

pub mod csv;
pub mod hdr_log;
pub mod ndjson;

pub use crate::model::interval::IntervalRecord;
