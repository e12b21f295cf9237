//! Asynchronous file reads, which never block the worker on disk I/O.
//!
//! Data in the page cache is read directly. Other data is read on a blocking-pool thread ([`spawn_blocking`]), while
//! the worker continues to run its other tasks. Streams can send data from a file without copying it through user
//! space; see [`TcpStream::send_file`](crate::net::TcpStream::send_file).

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags};

use crate::executor::page_cache;
pub use crate::executor::spawn_file_operation as spawn_blocking;

/// Maximum number of bytes that one blocking operation reads ahead.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// An open file. Clones share one file descriptor, which is closed when the last clone is dropped.
#[derive(Clone)]
pub struct File {
    inner: Arc<FileInner>,
}

struct FileInner {
    file: std::fs::File,
    residency: Mutex<ResidencyCache>,
}

impl File {
    /// Opens a file for reading (`openat(2)`, on a blocking-pool thread). Cancel-safe: an abandoned file is closed.
    ///
    /// # Errors
    /// Returns the error of [`std::fs::File::open`].
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        spawn_blocking(move || std::fs::File::open(path)).await?.map(Self::from)
    }

    /// Reads from `offset` into `buffer`, and returns the number of bytes read.
    ///
    /// Returns 0 at the end of the file or if `buffer` is empty. Reads fewer bytes than requested at the end of the
    /// file, or if the rest is not in the page cache. Data in the page cache is read directly (`preadv2(2)` with
    /// `RWF_NOWAIT`, Linux 4.14). Other data is read on a blocking-pool thread (`pread(2)`). Cancel-safe.
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EISDIR` for a directory or `EIO` if the disk fails.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            match rustix::io::preadv2(self.as_std(), &mut parts, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                // The data is not in the page cache, or the file system does not support `RWF_NOWAIT`.
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => break,
                result => return Ok(result?),
            }
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

    /// Reads a range of the file into the page cache, on a blocking-pool thread, and waits for completion. The range
    /// may extend beyond the end of the file.
    ///
    /// Does nothing if the range is in the page cache, or was found there less than 100 ms ago. To check, the runtime
    /// calls `cachestat(2)` (Linux 6.5) and reads a few bytes with `RWF_NOWAIT` (Linux 4.14). Cancel-safe.
    ///
    /// # Errors
    /// Returns the error from `pread(2)` or `fstat(2)`.
    pub async fn read_ahead(&self, offset: u64, length: u64) -> io::Result<()> {
        let (mut next, requested_end) = (offset, offset.saturating_add(length));
        if self.is_in_memory(offset, requested_end, requested_end) {
            return Ok(());
        }
        // The file may be shorter than the requested range.
        let end = requested_end.min(self.as_std().metadata()?.len());
        if next >= end || (end < requested_end && self.is_in_memory(offset, end, requested_end)) {
            return Ok(());
        }
        while next < end {
            let (inner, chunk_bytes) = (Arc::clone(&self.inner), (end - next).min(READ_AHEAD_BYTES));
            let read = spawn_blocking(move || {
                let mut bytes = vec![0; chunk_bytes as usize];
                inner.file.read_at(&mut bytes, next)
            });
            match read.await?? {
                0 => break,
                count => next += count as u64,
            }
        }
        Ok(())
    }

    /// Returns whether the bytes from `offset` to `end` are in the page cache. Positive results are cached for the
    /// range up to `requested_end`, so that repeated requests beyond the end of the file need no `fstat(2)`.
    fn is_in_memory(&self, offset: u64, end: u64, requested_end: u64) -> bool {
        let now = Instant::now();
        let residency = || self.inner.residency.lock().unwrap_or_else(PoisonError::into_inner);
        if residency().has(offset, requested_end, now) {
            return true;
        }
        let is_resident = page_cache::is_in_memory(self, offset, end - offset);
        if is_resident {
            residency().add(offset, requested_end, now);
        }
        is_resident
    }

    /// Returns the underlying file, which all clones share.
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

/// Time for which the result of a residency check is valid.
///
/// Checking on every HTTP response would add 4 % to the instruction count for sending a 300 KiB file (on epoll,
/// results/large-files-instructions-6.12.txt). The kernel is unlikely to evict files that are sent this often.
const RESIDENCY_TTL: Duration = Duration::from_millis(100);

/// The range of a file that was last found in the page cache.
#[derive(Debug, Default)]
struct ResidencyCache {
    start: u64,
    end: u64,
    /// Time of the oldest check within the range.
    since: Option<Instant>,
}

impl ResidencyCache {
    fn has(&self, start: u64, end: u64, now: Instant) -> bool {
        self.is_valid(now) && self.start <= start && end <= self.end
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < RESIDENCY_TTL)
    }

    /// Records a range found in the page cache. Merges it with the previous range if they overlap or are adjacent.
    fn add(&mut self, start: u64, end: u64, now: Instant) {
        if start == end {
            return;
        }
        if self.is_valid(now) && start <= self.end && self.start <= end {
            (self.start, self.end) = (self.start.min(start), self.end.max(end));
        } else {
            *self = Self { start, end, since: Some(now) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Runtime;

    #[test]
    fn cached_range_expires_and_merges_with_adjacent_ranges() {
        let start = Instant::now();
        let later = start + RESIDENCY_TTL / 2;
        let mut residency = ResidencyCache::default();
        assert!(!residency.has(0, 0, start));
        residency.add(100, 200, start);
        assert!(residency.has(100, 200, later) && residency.has(150, 160, later));
        assert!(!residency.has(99, 150, later) && !residency.has(150, 201, later));
        residency.add(200, 300, later);
        residency.add(900, 900, later);
        assert!(residency.has(100, 300, later));
        // A merged range keeps the age of its oldest part.
        assert!(!residency.has(200, 300, start + RESIDENCY_TTL));
        residency.add(500, 600, later);
        assert!(residency.has(500, 600, later) && !residency.has(100, 300, later));
    }

    #[test]
    fn read_ahead_beyond_eof_caches_requested_range() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 100_000]).expect("written");
        if !page_cache::is_in_memory(&file, 0, 100_000) {
            return eprintln!("skipped: kernel or file system does not report page-cache residency");
        }
        for length in [100_001, 200_000, u64::MAX] {
            let file = File::from(file.try_clone().expect("a descriptor"));
            let before = Instant::now();
            Runtime::new().expect("a runtime").block_on(file.read_ahead(0, length)).expect("read");
            let residency = file.inner.residency.lock().expect("the lock is not poisoned");
            assert!(residency.has(0, length, before), "{length}: {residency:?}");
        }
    }
}
