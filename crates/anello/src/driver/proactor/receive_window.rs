//! Observation of the receive ring after it has grown.
//!
//! While the ring is larger than initially, its use is observed in windows of [`WINDOW_NS`]. If at most a quarter of the
//! buffers were in use during a whole window, the ring shrinks at its end. An even load therefore keeps its memory. A ring
//! of the initial size costs nothing, and an idle worker whose ring has grown wakes up only until the ring has shrunk.

use crate::driver::Wait;

const WINDOW_NS: u64 = 3_000_000_000;

/// Use of the receive ring since the start of the window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    end_ns: u64,
    /// Number of receives when the worker last waited.
    receives: u64,
    /// Maximum number of buffers that were in use at the same time, or slightly more.
    pub peak: u64,
}

impl ReceiveWindow {
    /// Opens a window. `receives` is the number of receives so far.
    pub fn new(now_ns: u64, receives: u64) -> Self {
        Self { end_ns: now_ns.saturating_add(WINDOW_NS), receives, peak: 0 }
    }

    /// Records the use since the last wait. The buffers that were in use then were received since, or are still leased.
    pub fn record(&mut self, receives: u64, leased: u64) {
        self.peak = self.peak.max(receives - self.receives + leased);
        self.receives = receives;
    }

    pub fn has_ended(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns
    }

    /// Shortens a wait to the end of the window.
    pub fn limit(&self, wait: Wait, now_ns: u64) -> Wait {
        let remaining_ns = self.end_ns.saturating_sub(now_ns);
        match wait {
            Wait::None => Wait::None,
            Wait::For(nanoseconds) => Wait::For(nanoseconds.min(remaining_ns)),
            Wait::Forever => Wait::For(remaining_ns),
        }
    }
}
