//! Tasks and cooperative scheduling.
//!
//! A worker runs its tasks one at a time. Each task runs until it waits. To prevent a task that never waits from
//! starving the others, each poll has a budget of operations; see [`consume_budget`].

pub use crate::executor::{JoinError, JoinHandle, consume_budget, spawn, unconstrained, yield_now};
