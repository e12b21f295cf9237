//! The executor: an event loop that runs the tasks, the timers and the driver of one thread.
//!
//! ```text
//!   ┌─> run ready tasks (POLLS_PER_TURN polls, or one each) ─> turn the driver ─> fire timers ─┐
//!   └────────────────────────── call wakers, drain the mailbox <───────────────────────────────┘
//! ```
//!
//! A turn of the driver submits the operations that the tasks have queued. If no task is ready, the turn also sleeps
//! until an operation completes, another thread notifies the worker or the next timer is due. Submitting and waiting
//! take a single system call.
//!
//! Fairness: the driver gets a turn after a bounded number of polls and a bounded time ([`turn_limit`]), however busy the
//! tasks are. A task whose sockets are always ready must yield when its budget is exhausted.

mod accepted_writes;
mod affinity;
mod blocking;
mod builder;
#[cfg(debug_assertions)]
mod check;
mod context;
mod coop;
mod dump;
mod file_queue;
mod handle;
mod heap_trim;
mod join;
mod join_error;
mod mailbox;
mod measure;
mod metrics;
mod origin;
mod own_thread;
pub(crate) mod page_cache;
mod pin_watch;
mod random;
mod runtime;
mod runtime_builder;
#[cfg(feature = "compat-hyper")]
mod runtime_clock;
mod schedule;
#[cfg(all(feature = "backtrace", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod stack_sample;
#[cfg(feature = "sim")]
mod step;
mod task;
mod task_counters;
mod task_info;
mod task_local;
mod task_memory;
mod task_pages;
mod topology;
mod turn_limit;
#[cfg(all(feature = "backtrace", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwind;
mod wait_queue;
mod watchdog;
mod wheel;
mod workers;

pub(crate) use accepted_writes::AcceptedWrite;
pub use blocking::{MAX_BLOCKING_THREADS, spawn_blocking, spawn_file_operation};
pub(crate) use blocking::{disk, spawn_limited_file_operation};
pub use builder::Builder;
pub(crate) use context::{
    ExhaustionLog, Shared, current, flush_wakes_before_blocking, has_budget_or_yield, try_current,
    with_current,
};
pub use coop::{Cooperative, consume_budget, cooperative, has_budget_remaining, unconstrained, yield_now};
pub(crate) use coop::{assert_may_block, poll_cooperatively};
pub use dump::{Dump, TaskDump, TaskState, dump, id, try_id};
pub(crate) use file_queue::FileQueue;
pub use handle::{Handle, TryCurrentError};
pub use heap_trim::HeapTrim;
pub use join::{AbortHandle, JoinHandle};
pub use join_error::JoinError;
pub use metrics::RuntimeMetrics;
pub use random::fill_random;
pub use runtime::{EnterGuard, Runtime, current_driver, current_driver_metrics};
pub use runtime_builder::RuntimeBuilder;
pub use schedule::spawn;
#[cfg(feature = "sim")]
pub(crate) use step::SteppedRuntime;
pub use task_info::Id;
pub use task_local::{AccessError, LocalKey, TaskLocalFuture};
pub use topology::{Core, Topology, parse_core_list};
pub(crate) use wait_queue::WaitQueue;
pub use watchdog::BlockedPoll;
pub(crate) use wheel::{TimerKey, Wheel};
pub use workers::{WorkerContext, Workers, WorkersBuilder, allowed_cores};
