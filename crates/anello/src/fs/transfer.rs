//! Helpers shared by reads and writes at the cursor and at an offset.

use std::io::{self, IoSlice, IoSliceMut};
use std::task::{Context, Poll};

use rustix::io::{Errno, ReadWriteFlags};

use super::file::File;
use super::owned_buf::zeroed;
use crate::driver::Memory;
use crate::executor::{Shared, with_current};

/// Maximum number of bytes that one operation copies to or from memory of the caller, as in tokio.
pub(super) const MAX_COPIED_BYTES: usize = 2 << 20;

/// Offset that stands for the cursor in `preadv2` and `pwritev2`.
pub(super) const AT_CURSOR: u64 = u64::MAX;

/// Waits until the running task has budget left.
pub(super) fn poll_budget(context: &Context<'_>) -> Poll<()> {
    match with_current(|shared| !shared.is_running() || shared.has_budget_or_yield(context)) {
        Some(false) => Poll::Pending,
        Some(true) | None => Poll::Ready(()),
    }
}

/// Charges the running task's budget for an operation on this many bytes.
pub(super) fn spend_budget(bytes: usize) {
    with_current(|shared| shared.spend_budget(bytes));
}

/// Returns an error if the kernel does not support the offset. The offset -1 would select the cursor.
pub(super) fn check_offset(offset: u64) -> io::Result<()> {
    if i64::try_from(offset).is_ok() { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// Returns whether the runtime is a simulated host. What is in the page cache must not make a difference there, because
/// it does not depend on the seed.
pub(super) fn has_simulated_disk() -> bool {
    with_current(Shared::has_simulated_disk) == Some(true)
}

pub(super) fn total_bytes(slices: &[impl std::ops::Deref<Target = [u8]>]) -> usize {
    slices.iter().fold(0, |total, slice| total.saturating_add(slice.len()))
}

/// Copies bytes into the slices, and returns the number of bytes copied.
pub(super) fn scatter(mut bytes: &[u8], slices: &mut [IoSliceMut<'_>]) -> usize {
    let available = bytes.len();
    for slice in slices {
        let (now, rest) = bytes.split_at(slice.len().min(bytes.len()));
        slice[..now.len()].copy_from_slice(now);
        bytes = rest;
    }
    available - bytes.len()
}

/// Copies up to `MAX_COPIED_BYTES` from the slices.
pub(super) fn gather(slices: &[IoSlice<'_>], is_aligned: bool) -> Memory {
    let mut memory = zeroed(total_bytes(slices).min(MAX_COPIED_BYTES), is_aligned);
    let mut free = memory.as_mut_slice();
    for slice in slices {
        let (now, rest) = free.split_at_mut(slice.len().min(free.len()));
        now.copy_from_slice(&slice[..now.len()]);
        free = rest;
    }
    memory
}

impl File {
    /// Reads without waiting for the disk (`preadv2(2)` with `RWF_NOWAIT`). Returns `None` if that is not possible: the
    /// data is not in the page cache, the file system does not support it, or the file bypasses the page cache.
    pub(super) fn read_now(&self, slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<Option<usize>> {
        if self.inner.is_direct() || has_simulated_disk() {
            // Without the page cache, the flag does not prevent the call from waiting for the disk.
            return Ok(None);
        }
        loop {
            match rustix::io::preadv2(&*self.inner.file, slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
                result => return Ok(Some(result?)),
            }
        }
    }

    /// Writes without waiting (`pwritev2(2)` with `RWF_NOWAIT`). Returns `None` if that is not possible.
    pub(super) fn write_now(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<Option<usize>> {
        if !self.inner.may_write_now() || has_simulated_disk() {
            return Ok(None);
        }
        loop {
            match rustix::io::pwritev2(&*self.inner.file, slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.inner.disable_writes_now();
                    return Ok(None);
                }
                Err(Errno::AGAIN) => return Ok(None),
                result => return Ok(Some(result?)),
            }
        }
    }
}
