//! Results for other programs: interval formats, and merging of logs.

pub mod formats;
pub mod merge;
