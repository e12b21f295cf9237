//! Waits of a driver: clocks, spinning before a wait, and batching of events.

pub(super) mod batch_wait;
pub(super) mod clock;
pub(super) mod spin;
