//! Tasks, timers, channels, event loops, metrics, and the end of a runtime.

#[path = "../common/mod.rs"]
mod common;

mod blocked_polls;
mod blocking;
mod compat_timer;
mod deferred_release;
mod event_loop;
mod handles;
mod hostile_subscriber;
mod isolation;
mod join_set;
mod metrics;
mod metrics_facade;
mod other_runtime;
mod panic_locations;
mod shut_down;
mod spawn_on;
mod sync;
mod task_info;
mod task_locals;
mod task_memory;
mod tasks;
mod time;
mod tracing;
mod wakes;
