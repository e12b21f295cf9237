//! Observation of the receive ring after it has grown.
//!
//! While the ring is larger than initially, its use is observed in windows of [`WINDOW_NS`]. If at most a quarter of the
//! buffers were in use during a whole window, the ring shrinks at its end. An even load therefore keeps its memory. A ring
//! of the initial size costs nothing, and an idle worker whose ring has grown wakes up only until the ring has shrunk as far
//! as the buffers in use allow.

use crate::driver::kernel::op::Wait;
use crate::driver::memory::buffer::RingUsage;

pub(super) const WINDOW_NS: u64 = 3_000_000_000;

/// Use of the receive ring since the start of the window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    end_ns: u64,
    /// Maximum number of buffers that were in use at the same time, or more.
    pub peak: u32,
    latest: RingUsage,
    has_changed: bool,
    /// `true` if waits end with the window. If nothing has changed in a window, the next one would have the same result.
    limits_waits: bool,
}

impl ReceiveWindow {
    pub fn new(now_ns: u64, usage: RingUsage) -> Self {
        Self {
            end_ns: now_ns.saturating_add(WINDOW_NS),
            peak: 0,
            latest: usage,
            has_changed: false,
            limits_waits: true,
        }
    }

    /// Returns the window that follows this one.
    pub fn next(&self, now_ns: u64) -> Self {
        Self { limits_waits: self.has_changed, ..Self::new(now_ns, self.latest) }
    }

    /// Records the use since the last call. The buffers that were in use then had been in use before, or were filled
    /// since.
    pub fn record(&mut self, usage: RingUsage) {
        let filled = u32::from(usage.filled.wrapping_sub(self.latest.filled));
        self.peak = self.peak.max(self.latest.in_use + filled);
        if usage != self.latest {
            (self.has_changed, self.limits_waits) = (true, true);
        }
        self.latest = usage;
    }

    pub fn has_ended(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns
    }

    /// Shortens a wait to the end of the window.
    pub fn limit(&self, wait: Wait, now_ns: u64) -> Wait {
        // The window may have ended during a long turn.
        let remaining_ns = self.end_ns.saturating_sub(now_ns);
        match wait {
            Wait::For(nanoseconds) if self.limits_waits => Wait::For(nanoseconds.min(remaining_ns)),
            Wait::Forever if self.limits_waits => Wait::For(remaining_ns),
            _ => wait,
        }
    }
}
