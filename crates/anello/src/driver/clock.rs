//! The clocks of drivers. They can be read while the driver is borrowed: the destructor of a waker may do so.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// What it costs to read the virtual clock, in nanoseconds: a program that only looks at the time sees it pass.
const CLOCK_READ_NS: u64 = 50;

/// The clock of a driver.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The monotonic clock of Linux, from this moment on.
    Monotonic(Instant),
    /// The clock of a simulated network.
    Virtual(VirtualClock),
}

/// A clock that moves when it is told to. Clones share the time.
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

    /// Moves the clock forward, never back.
    pub fn advance_to(&self, ns: u64) {
        self.0.set(self.get_ns().max(ns));
    }
}
