//! Submission of writes to the page cache, which kernel threads perform.
//!
//! Each completion wakes a worker that waits, even one that waits for several completions (`io_req_local_work_add` in
//! Linux 6.18). On a core that the worker shares with a kernel thread, the two would therefore switch after every write.
//! A worker without work instead submits a few writes and yields the core: the kernel thread performs them, and the
//! worker then processes their completions together. If the kernel thread runs on another core, the yield returns
//! immediately, and the worker waits as usual. If another process takes the core instead, the worker does not yield for
//! some time.
//!
//! Events of sockets are processed after the yield. To delay them only by a few writes, the other writes stay queued
//! until then, or until a turn that does not wait. No write stays queued while the worker waits.

use std::time::{Duration, Instant};
use std::{io, thread};

use super::Proactor;
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::Wait;

/// Maximum number of writes in flight up to which more are submitted before a yield.
const MAX_WRITES_PER_YIELD: usize = 8;

/// Minimum duration of a yield after which the driver assumes that another process has taken the core.
const LONG_YIELD_THRESHOLD: Duration = Duration::from_millis(1);

/// Number of waits without a yield after a long yield.
const WAITS_WITHOUT_YIELD: u32 = 1000;

impl<K: CompletionKernel> Proactor<K> {
    /// Submits queued writes, and yields the core if the caller is about to wait. Returns how to wait afterwards.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_writes(&mut self, wait: Wait) -> io::Result<Wait> {
        // A single write completes sooner if the worker waits for it.
        let waits_for_writes = wait != Wait::None && self.incomplete_writes > 1;
        if waits_for_writes && self.waits_without_yield > 0 {
            self.waits_without_yield -= 1;
        } else if waits_for_writes {
            debug_assert!(
                self.incomplete_writes >= self.queued_writes.len(),
                "invariant 8: a queued write is complete"
            );
            let in_flight = self.incomplete_writes - self.queued_writes.len();
            // Turns that do not wait submit all writes, so more can be in flight.
            self.push_writes(MAX_WRITES_PER_YIELD.saturating_sub(in_flight));
            self.enter(Wait::None)?;
            if !self.kernel.has_pending_work() {
                let start = Instant::now();
                thread::yield_now();
                if start.elapsed() >= LONG_YIELD_THRESHOLD {
                    self.waits_without_yield = WAITS_WITHOUT_YIELD;
                }
            }
            if self.kernel.has_pending_work() {
                return Ok(Wait::None);
            }
        }
        self.push_writes(usize::MAX);
        Ok(wait)
    }

    /// Moves up to `limit` writes to the submission queue.
    pub(super) fn push_writes(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(key) = self.queued_writes.pop_front() else { return };
            self.push_file(key);
        }
    }
}
