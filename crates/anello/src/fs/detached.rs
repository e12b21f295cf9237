//! Reads and writes at an offset for event loops, which start them and wait for them without a runtime.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::file::File;
use super::transfer::check_offset;
use crate::driver::{FileOperation, Memory, Transfer};
use crate::executor::JoinHandle;

/// A read or write at an offset, apart from its memory.
#[derive(Debug)]
pub(crate) struct Detached {
    pub file: File,
    pub is_write: bool,
    pub offset: u64,
}

impl Detached {
    /// Performs the operation if that is possible without waiting for the disk.
    pub fn try_now(&self, memory: &mut Memory) -> io::Result<Option<usize>> {
        check_offset(self.offset)?;
        match (memory.length, self.is_write) {
            (0, _) => Ok(Some(0)),
            (_, true) => self.file.write_now(&[IoSlice::new(memory.as_slice())], self.offset),
            (_, false) => self.file.read_now(&mut [IoSliceMut::new(memory.as_mut_slice())], self.offset),
        }
    }

    /// Returns the operation of a ring, or `None` if the file pool takes less time.
    pub fn ring_transfer(&self, length: usize) -> Option<Transfer> {
        self.file.ring_transfer(self.is_write, length)
    }

    pub fn ring_operation(&self, transfer: Transfer, memory: Memory) -> FileOperation {
        FileOperation::new(transfer, Arc::clone(&self.file.inner.file), memory, self.offset)
    }

    /// Starts the operation on the file pool.
    pub fn spawn(&self, memory: Memory) -> JoinHandle<(io::Result<usize>, Memory)> {
        if self.is_write {
            self.file.spawn_write(memory, self.offset)
        } else {
            self.file.spawn_read(move || memory, self.offset)
        }
    }

    /// Performs the operation on the calling thread.
    pub fn run(&self, memory: &mut Memory) -> io::Result<usize> {
        match self.is_write {
            true => self.file.inner.file.write_at(memory.as_slice(), self.offset),
            false => self.file.inner.file.read_at(memory.as_mut_slice(), self.offset),
        }
    }
}
