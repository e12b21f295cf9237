//! Tasks, and how they share a worker.
//!
//! Tasks of a worker run one at a time until they wait. So that a task which never waits does not starve the others, each poll
//! has a budget of operations: see [`consume_budget`].

pub use crate::executor::{JoinError, JoinHandle, consume_budget, spawn, unconstrained, yield_now};
