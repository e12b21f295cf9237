//! Cancellation of a wait: the caller is no longer woken for one direction of a socket or source.

use crate::driver::Driver;
use crate::driver::backend::dispatch;
use crate::driver::memory::key::Key;
use crate::driver::source::interest::Side;

impl Driver {
    /// Removes the waker of one direction. The operation itself continues: received bytes and accepted connections stay
    /// queued, and readiness is still recorded. Returns `false` if no caller was waiting.
    pub fn stop_waiting(&mut self, key: Key, side: Side) -> bool {
        dispatch!(&mut *self.backend, machine => {
            machine.waker_slot(key, side).is_some_and(|slot| {
                let was_waiting = slot.is_waiting();
                slot.stop_waiting();
                was_waiting
            })
        })
    }

    /// Returns `true` if the driver holds the socket or source that the side belongs to.
    pub fn has_side(&mut self, key: Key, side: Side) -> bool {
        dispatch!(&mut *self.backend, machine => machine.waker_slot(key, side).is_some())
    }
}
