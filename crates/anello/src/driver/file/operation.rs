//! Reads and writes of files on the ring, and the memory that they use.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::registration::Registration;
use crate::driver::wake::queue::WakerSlot;

/// Maximum number of bytes per read or write on Linux, in whole pages.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// The bytes from `start` to `start + length` of an allocation, which is never reallocated. Dropping it runs no
/// application code.
pub struct Memory {
    pub(crate) allocation: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) length: usize,
    /// Set if exactly these bytes are registered with a ring.
    pub(in crate::driver) registration: Option<Registration>,
}

impl Memory {
    pub(crate) fn new(allocation: Vec<u8>, start: usize, length: usize) -> Self {
        Self { allocation, start, length, registration: None }
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.registration.is_some()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.allocation[self.start..][..self.length]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.allocation[self.start..][..self.length]
    }
}

/// Does not print the bytes, to which the kernel may be writing.
impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Memory").field("length", &self.length).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    Read,
    DirectWrite,
    /// Write to the page cache, which a kernel thread performs: unlike the other operations, it locks the inode.
    BufferedWrite,
}

/// A read or write of a file that the ring performs. Owns the file and the memory until the terminal completion.
#[derive(Debug)]
pub(crate) struct FileOperation {
    transfer: Transfer,
    file: Arc<File>,
    memory: Memory,
    offset: u64,
    pub(in crate::driver) result: Option<i32>,
    /// Set if the completion may have been dropped. The kernel may still use the memory, so it is never returned.
    pub(in crate::driver) in_doubt: bool,
    /// Set if no future waits for the result.
    pub(in crate::driver) released: bool,
    pub(in crate::driver) waker: WakerSlot,
}

/// Error of an operation whose result is unknown.
#[cold]
pub(in crate::driver) fn lost_file_operation() -> io::Error {
    io::Error::other("result of file operation lost: runtime shut down, or kernel out of memory")
}

impl FileOperation {
    pub fn new(transfer: Transfer, file: Arc<File>, memory: Memory, offset: u64) -> Self {
        let waker = WakerSlot::default();
        Self { transfer, file, memory, offset, result: None, in_doubt: false, released: false, waker }
    }

    pub fn into_memory(self) -> Memory {
        self.memory
    }

    pub(in crate::driver) fn transfer(&self) -> Transfer {
        self.transfer
    }

    pub(in crate::driver) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(in crate::driver) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(in crate::driver) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the address and length of the memory. For a read, the kernel writes to it.
    pub(in crate::driver) fn address(&mut self) -> (*mut u8, u32) {
        let bytes = self.memory.as_mut_slice();
        (bytes.as_mut_ptr(), bytes.len().min(MAX_TRANSFER_BYTES) as u32)
    }
}
