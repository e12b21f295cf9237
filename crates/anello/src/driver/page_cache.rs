//! Whether a part of a file is in memory: then it can be read and sent without waiting for a disk.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

/// The number of `cachestat(2)` (Linux 6.5), the same on every architecture.
const CACHESTAT: libc::c_long = 451;

/// A byte of each such piece and the last one are tried.
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

/// Whether these bytes of a file, which it has, are in memory, as far as can be told without waiting.
///
/// `cachestat(2)` (Linux 6.5) tells of every page whether the cache has it, but not whether its bytes have come: pages that
/// the kernel reads ahead are there before them, and whoever sends one waits for the disk. So a few bytes are read with
/// `RWF_NOWAIT` (Linux 4.14), too, which only finds what has come. Where one of the two is not to be had, or is refused for
/// a file of somebody else, the other one decides; where neither is, the answer is no.
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

/// Whether the cache has every page of these bytes; `None` if the kernel does not tell.
fn is_cached(file: BorrowedFd<'_>, offset: u64, last: u64) -> Option<bool> {
    /// The kernel said that it does not have the call: it is not asked again.
    static CACHESTAT_MISSING: AtomicBool = AtomicBool::new(false);
    if CACHESTAT_MISSING.load(Ordering::Relaxed) {
        return None;
    }
    match cached_pages(file, offset, last - offset + 1) {
        Ok(cached) => {
            let page_bytes = rustix::param::page_size() as u64;
            Some(cached > last / page_bytes - offset / page_bytes)
        }
        Err(error) => {
            if Errno::from_io_error(&error) == Some(Errno::NOSYS) {
                CACHESTAT_MISSING.store(true, Ordering::Relaxed);
            }
            None
        }
    }
}

/// Whether all bytes that are tried can be read without waiting; `None` if that cannot be tried with this file.
fn is_readable_nowait(file: BorrowedFd<'_>, offset: u64, last: u64) -> Option<bool> {
    // The last one first: what is read ahead comes in order, and where the file has ended before it, that is all.
    for position in std::iter::once(last).chain((offset..last).step_by(PROBE_STEP_BYTES as usize)) {
        let mut byte = [0];
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT) {
            Ok(1..) => {}
            // Nothing is where the file has ended, too.
            Ok(0) | Err(Errno::AGAIN) => return Some(false),
            Err(_) => return None,
        }
    }
    Some(true)
}

fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = Range { offset, length };
    let mut statistics = Statistics::default();
    // SAFETY: the kernel reads `range` and writes `statistics`, both of the sizes that it expects, during the call only.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut statistics, 0 as libc::c_uint)
    };
    if result == 0 { Ok(statistics.cached) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use rustix::fs::Advice;

    use super::*;

    /// As much as these bytes, read without waiting; `None` if that cannot be done with this file.
    fn read_nowait(file: &File, offset: u64, bytes: &mut [u8]) -> Option<usize> {
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Some(count),
            Err(Errno::AGAIN) => Some(0),
            Err(_) => None,
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such files")]
    fn what_was_just_written_is_in_memory() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 300_000]).expect("written");
        if cached_pages(file.as_fd(), 0, 1).is_err() && read_nowait(&file, 0, &mut [0]).is_none() {
            return eprintln!("skipped: neither kernel nor file system can tell");
        }
        for (offset, length) in [(0, 300_000), (0, 0), (299_999, 1), (4095, 2), (65_536, 100_000)] {
            assert!(is_in_memory(&file, offset, length), "{length} from {offset}");
            let last = (offset + length).saturating_sub(1);
            assert_ne!(is_readable_nowait(file.as_fd(), offset, last), Some(false), "{length} from {offset}");
        }
        // Pages past its end.
        for (offset, length) in [(0, 310_000), (0, u64::MAX), (299_999, 8192), (300_000, 4096), (1 << 40, 1)]
        {
            assert!(!is_in_memory(&file, offset, length), "{length} from {offset}");
            let last = offset + (length - 1);
            assert_ne!(is_readable_nowait(file.as_fd(), offset, last), Some(true), "{length} from {offset}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such files")]
    fn what_is_on_its_way_from_the_disk_is_not_in_memory() {
        const FILE_BYTES: u64 = 64 << 20;
        let file = tempfile::tempfile().expect("a file");
        let mut block = vec![7; PROBE_STEP_BYTES as usize];
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            file.write_all_at(&block, offset).expect("written");
        }
        if read_nowait(&file, 0, &mut block).is_none() {
            return eprintln!("skipped: nothing of this file system can be read without waiting");
        }
        file.sync_all().expect("written");
        for advice in [Advice::DontNeed, Advice::WillNeed] {
            rustix::fs::fadvise(&file, 0, None, advice).expect("advice");
        }
        // However far the disk has come: what is said to be there can be read at once.
        let mut retries = 0;
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            while !is_in_memory(&file, offset, PROBE_STEP_BYTES) {
                retries += 1;
                if retries % 1000 == 0 {
                    // The kernel does not read ahead more than it likes.
                    file.read_exact_at(&mut block, offset).expect("read");
                }
                std::thread::yield_now();
            }
            assert_eq!(read_nowait(&file, offset, &mut block), Some(block.len()), "from {offset}");
        }
        eprintln!("retried {retries} times for bytes that were not in memory yet");
    }
}
