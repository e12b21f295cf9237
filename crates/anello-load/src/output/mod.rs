//! Output for other programs: formats for intervals, and the merging of logs.

pub mod formats;
pub mod merge;
