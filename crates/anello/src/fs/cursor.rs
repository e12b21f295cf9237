//! State of reads, writes and seeks at the cursor of a file.
//!
//! The kernel keeps the cursor itself, so that all duplicates of the descriptor share it. At most one operation at the
//! cursor runs on the file pool at a time. Its result is stored here, and not in the future that started it, so that
//! dropping the future loses no bytes.

use std::io::{self, SeekFrom};
use std::task::Waker;

#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Set while an operation runs on the file pool.
    pub is_busy: bool,
    /// Tasks that wait for the running operation. The operation calls them.
    pub wakers: Vec<Waker>,
    /// Result of a read whose bytes have not been returned, or not all of them. No bytes mean EOF.
    pub read: Option<io::Result<ReadBytes>>,
    /// Error of a write that had already been reported as accepted. The next write or flush returns it.
    pub write_error: Option<io::Error>,
    /// Result of a seek relative to the end of the file, which runs on the file pool.
    pub seek: Option<(SeekFrom, io::Result<u64>)>,
    /// Seek requested through `AsyncSeek::start_seek`.
    #[cfg_attr(not(feature = "compat-tokio"), allow(dead_code, reason = "used by tokio's trait"))]
    pub requested_seek: Option<SeekFrom>,
}

/// Bytes that were read from the file and have not been returned.
#[derive(Debug)]
pub(super) struct ReadBytes {
    pub bytes: Vec<u8>,
    /// Start of the bytes that have not been returned.
    pub returned: usize,
    /// End of the bytes that were read.
    pub end: usize,
}

impl ReadBytes {
    pub fn remaining(&self) -> &[u8] {
        &self.bytes[self.returned..self.end]
    }
}

impl Cursor {
    /// Returns the number of bytes by which the kernel's cursor is ahead of the position that the caller sees.
    pub fn unreturned_bytes(&self) -> usize {
        self.read.as_ref().and_then(|read| read.as_ref().ok()).map_or(0, |read| read.remaining().len())
    }
}
