//! Calls that only event loops make: waits for the driver by another loop, and cancellation of waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::driver::Driver;
use crate::driver::backend::{Backend, dispatch, dispatch_by_model};
use crate::driver::memory::key::Key;
use crate::driver::sockets::detached::no_descriptors;
use crate::driver::source::interest::Side;

impl Driver {
    /// Returns a descriptor that polls readable while the kernel has completions or events for the next turn.
    pub fn pollable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &*self.backend {
            Backend::Uring(machine) => machine.kernel.pollable_fd(),
            Backend::Epoll(machine) => Ok(machine.kernel.as_fd()),
            Backend::SimCompletion(_) | Backend::SimReadiness(_) => Err(no_descriptors()),
        }
    }

    /// Returns `true` if a turn must follow although no event of the kernel announces it, for example because
    /// operations wait to be submitted.
    pub fn has_queued_work(&self) -> bool {
        dispatch_by_model!(
            &*self.backend,
            completion machine => machine.has_queued_work(),
            readiness machine => machine.needs_turn()
        )
    }

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
