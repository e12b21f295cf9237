//! Tasks and cooperative scheduling.
//!
//! A worker runs its tasks one at a time. Each task runs until it waits. To prevent a task that never waits from
//! starving the others, each poll has a budget of operations; see [`consume_budget`].
//!
//! # Differences from tokio
//!
//! - Tasks stay on their worker, so [`spawn`] takes futures that are not `Send`. It corresponds to tokio's
//!   `spawn_local`, and every runtime is a `LocalSet`.
//! - There is no `block_in_place`. In tokio, it moves the other tasks to another thread. Here, tasks, sockets and timers
//!   belong to their thread, so they would all wait. [`spawn_blocking`] runs the closure on another thread instead.

pub mod join_set;

pub use crate::executor::{
    AbortHandle, AccessError, BlockedPoll, Builder, Cooperative, Dump, Id, JoinError, JoinHandle, LocalKey,
    MAX_BLOCKING_THREADS, TaskDump, TaskLocalFuture, TaskState, consume_budget, cooperative, dump,
    has_budget_remaining, id, spawn, spawn_blocking, try_id, unconstrained, yield_now,
};
pub use join_set::JoinSet;
