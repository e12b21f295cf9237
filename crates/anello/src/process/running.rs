//! A process that has not been reaped, and the source that reports its exit.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};

use crate::driver::{Direction, Interest};
use crate::executor::{JoinHandle, Shared, spawn_blocking};
use crate::readiness::Registration;

/// Process that has not been reaped.
pub(super) struct Process {
    exit: ExitSource,
    pub child: Child,
    pub shared: Rc<Shared>,
}

/// Source that reports the exit of a process.
enum ExitSource {
    /// Process descriptor, which is readable once the process has exited.
    Descriptor(Registration),
    /// Thread that waits for the process, used if there are no process descriptors.
    Thread(JoinHandle<()>),
}

impl Process {
    /// Starts to watch a process. Returns the process with the error if that fails.
    pub fn new(shared: Rc<Shared>, child: Child) -> Result<Self, (io::Error, Child)> {
        match ExitSource::of(&child) {
            Ok(exit) => Ok(Self { exit, child, shared }),
            Err(error) => Err((error, child)),
        }
    }

    /// Waits for the process and reaps it.
    pub fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        let child = &mut self.child;
        match &mut self.exit {
            ExitSource::Descriptor(registration) => registration.poll_io(context, Direction::Read, || {
                child.try_wait()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
            }),
            ExitSource::Thread(thread) => {
                ready!(Pin::new(thread).poll(context))?;
                Poll::Ready(child.wait())
            }
        }
    }

    /// Reaps the process if it has exited, or if other code has reaped it.
    pub fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl ExitSource {
    fn of(child: &Child) -> io::Result<Self> {
        let pid = Pid::from_child(child);
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => {
                Registration::new(Rc::new(descriptor), Interest::READABLE).map(Self::Descriptor)
            }
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error.into()),
            // Not supported by the kernel, not permitted by a sandbox, or the process ignores SIGCHLD.
            Err(_) => Ok(Self::Thread(spawn_blocking(move || {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while let Err(Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), options) {}
            }))),
        }
    }
}
