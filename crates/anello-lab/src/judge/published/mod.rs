//! Published benchmark results, for comparison with the results of a run.
//!
//! The tables and their sources are in the directory `published/` of the crate and are compiled in. Absolute figures
//! from another machine cannot be compared, but their *ratios* are claims ("io_uring answers 1.5 times as many requests
//! as epoll at 300 connections") that a run on this machine can confirm or refute. [`compare_with_published()`]
//! compares the same pair of servers in the same cell.

mod comparison;
mod sources;
mod table;

pub use comparison::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedComparison, compare_with_published, judge,
};
pub use sources::{Claim, Pair, SOURCES, Source};
pub(crate) use table::PEAKS_OF;
pub use table::{Figure, PublishedCell, TableError, parse, peak};
