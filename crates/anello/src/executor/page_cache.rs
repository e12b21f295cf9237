//! Checks whether parts of files are in the page cache and can be read or sent without waiting for the disk.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

/// System call number of `cachestat(2)` (Linux 6.5), the same on every supported architecture.
const CACHESTAT: libc::c_long = 451;

/// Distance between the bytes that are probed. The last byte of the range is also probed.
const PROBE_STEP_BYTES: u64 = 64 * 1024;

/// `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`, in pages.
#[derive(Default)]
#[repr(C)]
struct Statistics {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns `true` if this part of a file is in memory, as far as this can be determined without blocking. The part must
/// lie within the file.
///
/// `cachestat(2)` (Linux 6.5) reports whether every page is in the cache. During readahead, a page is in the cache
/// before its data has been read, and sending the page requires waiting for the disk. Therefore, a few bytes are also
/// read with `RWF_NOWAIT` (Linux 4.14), which only returns data that has been read. If one of the two calls is
/// unavailable, or is not permitted for a file owned by another user, the other one determines the result. If neither
/// can be used, the result is `false`.
pub(crate) fn is_in_memory(file: impl AsFd, offset: u64, length: u64) -> bool {
    let file = file.as_fd();
    if length == 0 {
        return true;
    }
    let Some(last) = offset.checked_add(length - 1) else { return false };
    match is_cached(file, offset, last) {
        Some(false) => false,
        Some(true) => is_readable_nowait(file, offset, last).unwrap_or(true),
        None => is_readable_nowait(file, offset, last).unwrap_or(false),
    }
}

/// Returns whether all pages of bytes `offset` to `last` are cached, or `None` if the kernel does not report this.
fn is_cached(file: BorrowedFd<'_>, offset: u64, last: u64) -> Option<bool> {
    static CACHESTAT_MISSING: AtomicBool = AtomicBool::new(false);
    if CACHESTAT_MISSING.load(Ordering::Relaxed) {
        return None;
    }
    let range = Range { offset, length: last - offset + 1 };
    let mut statistics = Statistics::default();
    // SAFETY: both structures have the size that the kernel expects. It reads `range` and writes `statistics` only
    // during the call.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut statistics, 0 as libc::c_uint)
    };
    if result != 0 {
        if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            CACHESTAT_MISSING.store(true, Ordering::Relaxed);
        }
        return None;
    }
    let page_bytes = rustix::param::page_size() as u64;
    Some(statistics.cached > last / page_bytes - offset / page_bytes)
}

/// Returns whether all test bytes can be read without blocking, or `None` if the file does not support such reads.
fn is_readable_nowait(file: BorrowedFd<'_>, offset: u64, last: u64) -> Option<bool> {
    // Test the last byte first: readahead completes in order, and if the file ends before that byte, no further test is
    // needed.
    for position in std::iter::once(last).chain((offset..last).step_by(PROBE_STEP_BYTES as usize)) {
        if read_nowait(file, position, &mut [0])? == 0 {
            return Some(false);
        }
    }
    Some(true)
}

/// Reads up to `bytes.len()` bytes. Returns 0 if the read would block or `offset` is at or past the end of the file,
/// and `None` if the file does not support non-blocking reads.
fn read_nowait(file: BorrowedFd<'_>, offset: u64, bytes: &mut [u8]) -> Option<usize> {
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN) => Some(0),
        result => result.ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use rustix::fs::Advice;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support the system calls of this test")]
    fn written_range_is_in_memory() {
        let mut file = tempfile::tempfile().expect("create file");
        file.write_all(&[7; 300_000]).expect("write file");
        if is_cached(file.as_fd(), 0, 0).is_none() && read_nowait(file.as_fd(), 0, &mut [0]).is_none() {
            return eprintln!("skipped: neither the kernel nor the file system supports the check");
        }
        let within = [(0, 300_000), (0, 0), (299_999, 1), (4095, 2), (65_536, 100_000)];
        let beyond_eof = [(0, 310_000), (0, u64::MAX), (299_999, 8192), (300_000, 4096), (1 << 40, 1)];
        for (ranges, expected) in [(within, true), (beyond_eof, false)] {
            for (offset, length) in ranges {
                let case = format!("{length} bytes at offset {offset}");
                assert_eq!(is_in_memory(&file, offset, length), expected, "{case}");
                let last = offset + length.saturating_sub(1);
                assert_ne!(is_readable_nowait(file.as_fd(), offset, last), Some(!expected), "{case}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support the system calls of this test")]
    fn range_being_read_from_disk_is_not_in_memory() {
        const FILE_BYTES: u64 = 64 << 20;
        let file = tempfile::tempfile().expect("create file");
        let mut block = vec![7; PROBE_STEP_BYTES as usize];
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            file.write_all_at(&block, offset).expect("write file");
        }
        if read_nowait(file.as_fd(), 0, &mut block).is_none() {
            return eprintln!("skipped: this file system does not support non-blocking reads");
        }
        file.sync_all().expect("write file");
        for advice in [Advice::DontNeed, Advice::WillNeed] {
            rustix::fs::fadvise(&file, 0, None, advice).expect("advise kernel");
        }
        // However far readahead has progressed, a range reported as being in memory must be readable without blocking.
        let mut retries = 0;
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            while !is_in_memory(&file, offset, PROBE_STEP_BYTES) {
                retries += 1;
                if retries % 1000 == 0 {
                    // The kernel limits readahead, so read this block explicitly.
                    file.read_exact_at(&mut block, offset).expect("read block");
                }
                std::thread::yield_now();
            }
            assert_eq!(
                read_nowait(file.as_fd(), offset, &mut block),
                Some(block.len()),
                "at offset {offset}"
            );
        }
        eprintln!("retried {retries} times because the bytes were not in memory yet");
    }
}
