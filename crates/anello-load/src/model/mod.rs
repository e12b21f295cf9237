//! Data model of a load run: configuration, errors, measurements and the report.

pub(crate) mod config;
pub(crate) mod errors;
pub(crate) mod histogram;
pub(crate) mod interval;
pub(crate) mod report;
pub(crate) mod shard;
pub mod tls;
