//! Analysis of runs: statistics, verdicts, findings, and comparisons with published figures.

pub mod analysis;
mod cells;
pub mod comparisons;
pub mod findings;
pub mod pairs;
pub mod peak;
pub mod published;
pub mod statistics;
pub mod verdict;
