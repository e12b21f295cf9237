//! Reading parts of files into the page cache.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::file::File;
use super::transfer::has_simulated_disk;
use crate::executor::{disk, page_cache, spawn_file_operation};

/// Maximum number of bytes that one blocking operation reads ahead.
const READ_AHEAD_BYTES: u64 = 1 << 20;

impl File {
    /// Reads a range of the file into the page cache, on a blocking-pool thread, and waits for completion. The range
    /// may extend beyond the end of the file.
    ///
    /// Does nothing if the range is in the page cache, or was found there less than 100 ms ago. To check, the runtime
    /// calls `cachestat(2)` (Linux 6.5) and reads a few bytes with `RWF_NOWAIT` (Linux 4.14). Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_all_at(&[7; 100_000], 0).await?;
    /// file.read_ahead(0, 100_000).await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error from `pread(2)` or `fstat(2)`.
    pub async fn read_ahead(&self, offset: u64, length: u64) -> io::Result<()> {
        if has_simulated_disk() {
            // Only the delay matters there.
            let disk = disk();
            return spawn_file_operation(|| disk.read(|| Ok(()))).await?;
        }
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
            let (file, chunk_bytes) = (Arc::clone(&self.inner.file), (end - next).min(READ_AHEAD_BYTES));
            let read = spawn_file_operation(move || {
                let mut bytes = vec![0; chunk_bytes as usize];
                file.read_at(&mut bytes, next)
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
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Runtime;

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
