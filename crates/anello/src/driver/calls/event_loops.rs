//! The queued work of a driver, and a descriptor with which another event loop waits for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::driver::Driver;
use crate::driver::backend::{Backend, dispatch_by_model};
use crate::driver::sockets::detached::no_descriptors;

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

    /// Returns `true` if polls of tasks make the system calls that receive. Otherwise, turns of the driver do.
    pub fn receives_in_polls(&self) -> bool {
        dispatch_by_model!(&*self.backend, completion _ => false, readiness _ => true)
    }

    /// Returns `true` if the next turn will submit operations.
    pub fn has_unsubmitted(&self) -> bool {
        dispatch_by_model!(
            &*self.backend,
            completion machine => machine.has_unsubmitted(),
            readiness machine => machine.needs_turn()
        )
    }
}
