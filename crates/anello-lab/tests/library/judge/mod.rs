//! Tests for statistics and verdicts.

mod latency;
mod phases;
mod statistics;
mod verdict;
