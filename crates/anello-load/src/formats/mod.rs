//! The forms in which a load's intervals are written for other programs, and read again.
//!
//! ```text
//!                    ┌─► hdr_log   latencies alone, loss-free; read by the tools around HdrHistogram, and by `merge`
//!   Interval ────────┤
//!                    └─► IntervalRecord ─┬─► ndjson   a stream: one object a line, as it happens
//!                                        └─► csv      a table for spreadsheets and plots
//! ```
//!
//! Every writer passes whole lines on and flushes after each: what is there when a run is killed can be read.
//! `docs/reference/load-report.md` describes the formats for those who read them.

pub mod csv;
pub mod hdr_log;
pub mod ndjson;
mod record;

pub use record::IntervalRecord;
