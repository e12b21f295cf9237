//! The clocks of the drivers. They can be read while the driver is borrowed, because the destructor of a waker may read
//! the time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// Nanoseconds by which each read advances the virtual clock, so that time passes for code that only polls the clock.
const CLOCK_READ_NS: u64 = 50;

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The Linux monotonic clock, relative to the given instant.
    Monotonic(Instant),
    /// The clock of a simulated network, in nanoseconds.
    Virtual(Rc<Cell<u64>>),
}

impl Clock {
    /// Returns the nanoseconds since the driver was opened.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic(started) => u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Self::Virtual(now_ns) => {
                now_ns.set(now_ns.get().saturating_add(CLOCK_READ_NS));
                now_ns.get()
            }
        }
    }
}
