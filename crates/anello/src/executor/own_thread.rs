//! Threads that belong to a process.

use std::mem;
use std::thread;

use crate::driver::OwnerProcess;

/// A thread of the process that has started it.
#[derive(Debug)]
pub(super) struct OwnThread<T> {
    thread: thread::JoinHandle<T>,
    process: OwnerProcess,
}

impl<T> OwnThread<T> {
    pub fn new(thread: thread::JoinHandle<T>) -> Self {
        Self { thread, process: OwnerProcess::current() }
    }

    /// Waits for the thread, and returns its result. Returns `None` in a forked child process, which has no such thread:
    /// the C library considers it ended, but it may have no result.
    pub fn join(self) -> Option<thread::Result<T>> {
        if !self.process.is_current() {
            mem::forget(self.thread);
            return None;
        }
        Some(self.thread.join())
    }
}
