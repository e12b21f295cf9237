//! Files: read without keeping the worker waiting for a disk.
//!
//! What the kernel has in memory is read at once; what it has not is read by a thread for file operations
//! ([`spawn_blocking`]), while the worker serves its other connections. Streams send from a file
//! without a copy through the program: [`TcpStream::send_file`](crate::net::TcpStream::send_file).

mod residency;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use residency::ResidencyCache;
use rustix::io::{Errno, ReadWriteFlags};

use crate::driver::page_cache;
pub use crate::executor::spawn_file_operation as spawn_blocking;

/// Most bytes that are read ahead in one piece of blocking work.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// An open file. Clones are the same one, which is closed with the last of them.
#[derive(Clone)]
pub struct File {
    inner: Arc<FileInner>,
}

struct FileInner {
    file: std::fs::File,
    residency: Mutex<ResidencyCache>,
}

impl File {
    /// Opens a file to read (`openat(2)`, on a thread for file operations).
    ///
    /// Cancel-safe: a file that is opened after the future was dropped is closed again.
    ///
    /// # Errors
    /// As [`std::fs::File::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        spawn_blocking(move || std::fs::File::open(path)).await?.map(Self::from)
    }

    /// Reads into `buffer` from that place on, and returns how many bytes; 0 at the end of the file or when `buffer` is
    /// empty, fewer than asked for when the rest is not in memory or the file ends.
    ///
    /// What is in memory is read at once (`preadv2(2)` with `RWF_NOWAIT`, Linux 4.14), else by a thread for file
    /// operations (`pread(2)`). Cancel-safe.
    ///
    /// # Errors
    /// When the file cannot be read: it is a folder, or the disk fails.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.read_now(buffer, offset) {
            Ok(count) => return Ok(count),
            // Not in memory, or a file system that cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let (inner, length) = (Arc::clone(&self.inner), buffer.len());
        let read = spawn_blocking(move || {
            let mut bytes = vec![0; length];
            let count = inner.file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            Ok::<_, io::Error>(bytes)
        });
        let bytes = read.await??;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            match rustix::io::preadv2(self.as_std(), &mut parts, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Waits until a thread for file operations has read these bytes into the kernel's memory, as far as the file has
    /// them. Does nothing when they are there already, or were less than 100 ms ago, as far as the kernel tells
    /// (`cachestat(2)`, Linux 6.5, and a few bytes by `RWF_NOWAIT`, Linux 4.14). Cancel-safe.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn read_ahead(&self, offset: u64, length: u64) -> io::Result<()> {
        let (mut next, asked_end) = (offset, offset.saturating_add(length));
        if self.is_in_memory(offset, asked_end, asked_end) {
            return Ok(());
        }
        // Or it is shorter.
        let end = asked_end.min(self.as_std().metadata()?.len());
        if next >= end || (end < asked_end && self.is_in_memory(offset, end, asked_end)) {
            return Ok(());
        }
        while next < end {
            let (inner, piece) = (Arc::clone(&self.inner), (end - next).min(READ_AHEAD_BYTES));
            let read = spawn_blocking(move || {
                let mut bytes = vec![0; piece as usize];
                inner.file.read_at(&mut bytes, next)
            });
            match read.await?? {
                0 => break,
                count => next += count as u64,
            }
        }
        Ok(())
    }

    /// Whether the bytes up to `end` are in memory, or those up to `asked_end` were a moment ago, as far as the file has
    /// them; it is not said to be shorter each time that somebody asks for more than it has.
    fn is_in_memory(&self, offset: u64, end: u64, asked_end: u64) -> bool {
        let now = Instant::now();
        let residency = || self.inner.residency.lock().unwrap_or_else(PoisonError::into_inner);
        if residency().has(offset, asked_end, now) {
            return true;
        }
        let is_there = page_cache::is_in_memory(self, offset, end - offset);
        if is_there {
            residency().add(offset, asked_end, now);
        }
        is_there
    }

    /// The file of the standard library, which clones share.
    pub fn as_std(&self) -> &std::fs::File {
        &self.inner.file
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self { inner: Arc::new(FileInner { file, residency: Mutex::default() }) }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.file.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Runtime;

    #[test]
    fn a_file_that_ends_before_what_was_asked_for_is_found_but_once() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 100_000]).expect("written");
        if !page_cache::is_in_memory(&file, 0, 100_000) {
            return eprintln!("skipped: neither kernel nor file system can tell");
        }
        for length in [100_001, 200_000, u64::MAX] {
            let file = File::from(file.try_clone().expect("a descriptor"));
            let before = Instant::now();
            Runtime::new().expect("a runtime").block_on(file.read_ahead(0, length)).expect("read");
            let residency = file.inner.residency.lock().expect("nobody panicked");
            assert!(residency.has(0, length, before), "{length}: {residency:?}");
        }
    }
}
