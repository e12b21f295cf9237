//! Results for other programs: formats of intervals, and merging of logs.

pub mod formats;
pub mod merge;
