//! `io_uring_enter(2)`, and classification of its errors and of failed completions.

use std::io;
use std::time::Duration;

use io_uring::{EnterFlags, SubmissionQueue, Submitter};
use rustix::io::Errno;

/// Pause when the kernel can neither accept submissions nor return completions.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Submits `entries` entries and waits for `wait_for` completions.
#[inline]
pub(super) fn enter(
    submitter: &Submitter<'_>,
    entries: usize,
    wait_for: u32,
    flags: EnterFlags,
) -> io::Result<()> {
    // SAFETY: the flags require no argument, and none is passed.
    unsafe { submitter.enter::<()>(entries as u32, wait_for, flags.bits(), None) }.map(drop)
}

/// Maximum number of consecutive calls to [`enter`] that run task work. A limit is needed because work can arrive as
/// fast as it is run.
const MAX_ENTERS: u32 = 64;

/// Tracks whether the turn can receive more data before it echoes. Since Linux 6.13, one call to [`enter`] runs about
/// 20 items of task work. With hundreds of busy connections, receiving all available data first saves a quarter of the
/// CPU time.
#[derive(Default)]
pub(super) struct Turn {
    enters: u32,
    /// A connection must stop receiving, or the buffers have run out.
    pub(super) is_full: bool,
}

impl Turn {
    /// Runs more task work and returns `true` if some is pending and the turn can receive more data. Otherwise, resets
    /// the state for the next turn and returns `false`.
    #[inline]
    pub(super) fn run_task_work(
        &mut self,
        submitter: &Submitter<'_>,
        submissions: &SubmissionQueue<'_>,
    ) -> bool {
        self.enters += 1;
        let has_work = submissions.taskrun() && !self.is_full && self.enters < MAX_ENTERS;
        // If this call fails, the next one fails as well and reports the error.
        let has_run = has_work && enter(submitter, 0, 0, EnterFlags::GETEVENTS).is_ok();
        if !has_run {
            *self = Self::default();
        }
        has_run
    }
}

/// Converts the result of [`enter`]. Returns `true` if the kernel lacks memory or completion queue space.
#[inline]
pub(super) fn is_busy(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::TIME) => Ok(false),
            Some(Errno::AGAIN | Errno::BUSY) => Ok(true),
            _ => Err(error),
        },
    }
}

/// Flushes the kernel's completion overflow list into the completion queue.
#[cold]
pub(super) fn flush_overflow(submitter: &Submitter<'_>) -> io::Result<()> {
    match enter(submitter, 0, 0, EnterFlags::GETEVENTS) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INTR) => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn errno(result: i32) -> Errno {
    Errno::from_raw_os_error(result.wrapping_neg())
}
