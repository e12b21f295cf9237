//! `io_uring_enter(2)`, and what its failures and those of completions mean.

use std::io;
use std::time::Duration;

use io_uring::{EnterFlags, SubmissionQueue, Submitter};
use rustix::io::Errno;

/// How long to leave a kernel alone that can neither take submissions nor give completions.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Hands over `entries` submissions and waits for `wait_for` completions.
#[inline]
pub(crate) fn enter(
    submitter: &Submitter<'_>,
    entries: usize,
    wait_for: u32,
    flags: EnterFlags,
) -> io::Result<()> {
    // SAFETY: no argument is passed, so the flags need none.
    unsafe { submitter.enter::<()>(entries as u32, wait_for, flags.bits(), None) }.map(drop)
}

/// How often deferred work is asked for in a row: more may come as fast as it is done.
const MAX_ENTERS: u32 = 64;

/// Decides whether more is received before anything is answered.
///
/// Since Linux 6.13 an enter does some twenty pieces of deferred work. With hundreds of busy connections it is worth a
/// quarter of the CPU to receive all that has come before any of it is answered.
#[derive(Default)]
pub(crate) struct Turn {
    enters: u32,
    is_full: bool,
}

impl Turn {
    /// One connection has sent enough, or the buffers have run out.
    #[inline]
    pub(crate) fn stop_receiving(&mut self) {
        self.is_full = true;
    }

    /// Asks for deferred work again if some is left and the turn has room for it. `false`: it is time to answer, and the
    /// next turn begins.
    #[inline]
    pub(crate) fn run_task_work(
        &mut self,
        submitter: &Submitter<'_>,
        submissions: &SubmissionQueue<'_>,
    ) -> bool {
        self.enters += 1;
        let has_work = submissions.taskrun() && !self.is_full && self.enters < MAX_ENTERS;
        // What fails here fails again at the next enter, which says so.
        let has_run = has_work && enter(submitter, 0, 0, EnterFlags::GETEVENTS).is_ok();
        if !has_run {
            *self = Self::default();
        }
        has_run
    }
}

/// What came of an [`enter`]. `true`: the kernel is short of memory or of room for completions.
#[inline]
pub(crate) fn is_busy(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::TIME) => Ok(false),
            Some(Errno::AGAIN | Errno::BUSY) => Ok(true),
            _ => Err(error),
        },
    }
}

/// Fetches the completions that the kernel had no room for.
#[cold]
pub(crate) fn flush_overflow(submitter: &Submitter<'_>) -> io::Result<()> {
    match enter(submitter, 0, 0, EnterFlags::GETEVENTS) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INTR) => Err(error),
        _ => Ok(()),
    }
}

/// The errno of a completion that failed.
pub(crate) fn errno(result: i32) -> Errno {
    Errno::from_raw_os_error(result.wrapping_neg())
}
