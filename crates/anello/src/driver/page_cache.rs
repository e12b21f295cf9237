//! Whether a part of a file is in memory: then it can be read and sent without waiting for a disk.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

/// The number of `cachestat(2)` (Linux 6.5), the same on every architecture.
const CACHESTAT: libc::c_long = 451;

/// Where the kernel cannot be asked about a range, a byte of each such piece and the last one are tried.
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
/// `cachestat(2)` (Linux 6.5) tells of every page. Where the kernel does not have it, or refuses it for a file of somebody
/// else, a few bytes are read with `RWF_NOWAIT` (Linux 4.14); where that is not to be had either the answer is no.
pub(crate) fn is_in_memory(file: impl AsFd, offset: u64, length: u64) -> bool {
    /// The kernel said that it does not have the call: it is not asked again.
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    let file = file.as_fd();
    if length == 0 {
        return true;
    }
    let Some(last) = offset.checked_add(length - 1) else { return false };
    if !IS_MISSING.load(Ordering::Relaxed) {
        match cached_pages(file, offset, length) {
            Ok(cached) => {
                let page_bytes = rustix::param::page_size() as u64;
                let pages = last / page_bytes - offset / page_bytes + 1;
                return cached >= pages;
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOSYS) => {
                IS_MISSING.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
    is_found_by_probes(file, offset, last)
}

fn is_found_by_probes(file: BorrowedFd<'_>, offset: u64, last: u64) -> bool {
    // The last one first: where the file has ended before it, that is all.
    let mut probes = std::iter::once(last).chain((offset..last).step_by(PROBE_STEP_BYTES as usize));
    probes.all(|at| {
        let mut byte = [0];
        let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        // Nothing is where the file has ended, too.
        matches!(read, Ok(1..))
    })
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
    use std::io::Write;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such files")]
    fn what_was_just_written_is_in_memory() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 300_000]).expect("written");
        let mut byte = [0];
        let probed = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
        if let (Err(_), Err(error)) = (cached_pages(file.as_fd(), 0, 1), probed) {
            return eprintln!("skipped: neither kernel nor file system can tell: {error}");
        }
        for (offset, length) in [(0, 300_000), (0, 0), (299_999, 1), (4095, 2), (65_536, 100_000)] {
            assert!(is_in_memory(&file, offset, length), "{length} from {offset}");
            let last = (offset + length).saturating_sub(1);
            assert!(
                probed.is_err() || is_found_by_probes(file.as_fd(), offset, last),
                "{length} from {offset}"
            );
        }
        // Pages past its end.
        for (offset, length) in [(0, 310_000), (0, u64::MAX), (299_999, 8192), (300_000, 4096), (1 << 40, 1)]
        {
            assert!(!is_in_memory(&file, offset, length), "{length} from {offset}");
            assert!(
                !is_found_by_probes(file.as_fd(), offset, offset + (length - 1)),
                "{length} from {offset}"
            );
        }
    }
}
