//! Calls of the driver for reads and writes of files.

use std::task::{Poll, Waker};

use crate::driver::Driver;
use crate::driver::backend::Backend;
use crate::driver::file::operation::{FileOperation, Memory, lost_file_operation};
use crate::driver::memory::key::Key;
use crate::driver::wake::queue::PollIo;

impl Driver {
    /// Returns `true` if [`start_file`](Self::start_file) is supported.
    pub fn supports_files(&self) -> bool {
        matches!(*self.backend, Backend::Uring(_)) && !self.closed
    }

    /// Registers memory with the ring, so that reads and writes of files take less CPU time. Does nothing if that is
    /// not possible.
    pub fn register_memory(&mut self, memory: &mut Memory) {
        if let Backend::Uring(machine) = &mut *self.backend
            && !self.closed
        {
            machine.kernel.register_memory(memory);
        }
    }

    /// Queues a read or write of a file on the ring. Returns the operation if the driver does not support it or has
    /// been shut down.
    pub fn start_file(&mut self, operation: FileOperation) -> Result<Key, FileOperation> {
        match &mut *self.backend {
            Backend::Uring(machine) if !self.closed => machine.start_file(operation),
            _ => Err(operation),
        }
    }

    pub fn poll_file(&mut self, key: Key, waker: &Waker) -> PollIo<(i32, Memory)> {
        match &mut *self.backend {
            Backend::Uring(machine) => machine.poll_file(key, waker),
            _ => Poll::Ready(Err(lost_file_operation())),
        }
    }

    pub fn release_file(&mut self, key: Key) {
        if self.is_foreign() {
            return;
        }
        if let Backend::Uring(machine) = &mut *self.backend {
            machine.release_file(key);
        }
    }
}
