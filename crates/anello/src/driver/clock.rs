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
    /// The clock of a simulated network.
    Virtual(VirtualClock),
}

/// A clock that moves only when it is advanced. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct VirtualClock(Rc<Cell<u64>>);

impl Clock {
    /// Returns the nanoseconds since the driver was opened.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic(started) => u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Self::Virtual(clock) => {
                clock.advance_to(clock.get_ns().saturating_add(CLOCK_READ_NS));
                clock.get_ns()
            }
        }
    }
}

impl VirtualClock {
    pub fn get_ns(&self) -> u64 {
        self.0.get()
    }

    /// Advances the clock to `ns`. Does nothing if that time is in the past.
    pub fn advance_to(&self, ns: u64) {
        self.0.set(self.get_ns().max(ns));
    }
}
