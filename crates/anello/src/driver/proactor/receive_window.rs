//! Shrinking the receive ring after a burst of traffic.
//!
//! While the ring is larger than initially, its use is observed in windows of [`WINDOW_NS`]. If less than a quarter of the
//! buffers were in use during a whole window, the ring shrinks at its end. An even load therefore keeps its memory. A ring
//! of the initial size costs nothing, and an idle worker whose ring has grown wakes up only until the ring has shrunk.

use super::Proactor;
use crate::driver::{CompletionKernel, Pools, Sockets, Wait};

const WINDOW_NS: u64 = 3_000_000_000;

/// Use of the receive ring since the start of the window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    end_ns: u64,
    /// Number of receives when the worker last waited.
    receives: u64,
    /// Maximum number of buffers that were in use at the same time, or slightly more.
    peak: u64,
}

impl<K: CompletionKernel> Proactor<K> {
    /// Makes the receive ring larger. Returns `false` if it has reached its limit.
    #[cold]
    pub(super) fn grow_ring(&mut self) -> bool {
        let has_grown = self.pools.ring.as_ref().is_some_and(|ring| ring.grow());
        if has_grown && self.receive_window.is_none() {
            self.open_receive_window();
        }
        has_grown
    }

    fn open_receive_window(&mut self) {
        let end_ns = self.kernel.sockets().now_ns().saturating_add(WINDOW_NS);
        self.receive_window = Some(ReceiveWindow { end_ns, receives: self.metrics.receives, peak: 0 });
    }

    /// Shrinks the receive ring if the window has ended and few buffers were in use. Otherwise, shortens the wait to the
    /// end of the window.
    #[cold]
    #[inline(never)]
    pub(super) fn shrink_ring_before_wait(&mut self, wait: Wait) -> Wait {
        let (Some(window), Some(ring)) = (&mut self.receive_window, &self.pools.ring) else { return wait };
        // The buffers that were in use since the last wait were received since then, or are still leased.
        let receives = self.metrics.receives;
        let in_use = receives - window.receives + Pools::leased(&self.pools, 2);
        window.receives = receives;
        window.peak = window.peak.max(in_use);
        let now_ns = self.kernel.sockets().now_ns();
        if now_ns >= window.end_ns {
            let kept = u32::try_from(window.peak * 2).unwrap_or(u32::MAX);
            if !ring.shrink(kept, || self.kernel.receive_ring_head()) || !ring.has_grown() {
                self.receive_window = None;
                return wait;
            }
            self.open_receive_window();
        }
        let remaining_ns = self.receive_window.as_ref().map_or(WINDOW_NS, |window| window.end_ns - now_ns);
        match wait {
            Wait::None => Wait::None,
            Wait::For(nanoseconds) => Wait::For(nanoseconds.min(remaining_ns)),
            Wait::Forever => Wait::For(remaining_ns),
        }
    }
}
