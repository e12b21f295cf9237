//! Measurement of polls, and the warning about slow ones. Active only if the builder of the runtime requests it.

use std::time::Duration;

use super::context::Shared;
use super::task_info::Info;
use crate::driver::log_event;

impl Shared {
    /// Polls a task or, if `info` is `None`, the main future. Records the duration if polls are measured. Publishes the
    /// poll while it lasts if the worker is watched.
    #[inline]
    pub(super) fn measure_poll<T>(&self, info: Option<&Info>, poll: impl FnOnce() -> T) -> T {
        let Some(longest_ns) = &self.tasks.counters.longest_poll_ns else { return poll() };
        let started_ns = self.now_ns();
        // The stack frames of the poll have lower addresses.
        let stack_end = 0_u8;
        let watched = self.inbox.watched.as_ref();
        let watched =
            watched.map(|worker| worker.start_poll(info, started_ns, (&raw const stack_end).addr()));
        let polled = poll();
        drop(watched);
        let duration_ns = self.now_ns().saturating_sub(started_ns);
        longest_ns.set(longest_ns.get().max(duration_ns));
        if let Some(info) = info {
            info.record_poll(duration_ns);
        }
        if self.tasks.counters.slow_poll_ns.is_some_and(|slow_ns| duration_ns >= slow_ns) {
            warn_about(info, Duration::from_nanos(duration_ns));
        }
        polled
    }
}

/// Called after a slow poll. No borrow is active, because a `tracing` subscriber is application code.
#[cold]
fn warn_about(info: Option<&Info>, duration: Duration) {
    const MESSAGE: &str =
        "slow poll: the other tasks of the worker had to wait (use spawn_blocking or yield_now)";
    match info {
        Some(info) => log_event!(
            WARN,
            task_id = %info.id,
            task_name = info.name(),
            spawned_at = %info.location,
            ?duration,
            "{MESSAGE}"
        ),
        None => log_event!(WARN, task_name = "block_on", ?duration, "{MESSAGE}"),
    }
}
