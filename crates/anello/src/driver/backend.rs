//! The state machine of a driver, on one of the kernels.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::task::Waker;

use crate::driver::epoll::Epoll;
use crate::driver::errors::owner_process::OwnerProcess;
use crate::driver::memory::buffer::Chunk;
use crate::driver::memory::key::Key;
use crate::driver::proactor::Proactor;
use crate::driver::reactor::Reactor;
#[cfg(feature = "sim")]
use crate::driver::sim::{SimCompletion, SimReadiness};
use crate::driver::stream::send_queue::SendBuf;
use crate::driver::uring::Uring;
use crate::driver::wake::queue::PollIo;

#[cfg(feature = "sim")]
type SimCompletionMachine = Box<Proactor<SimCompletion>>;
#[cfg(feature = "sim")]
type SimReadinessMachine = Box<Reactor<SimReadiness>>;
#[cfg(not(feature = "sim"))]
type SimCompletionMachine = std::convert::Infallible;
#[cfg(not(feature = "sim"))]
type SimReadinessMachine = std::convert::Infallible;

#[derive(Debug)]
pub(super) enum Backend {
    Uring(Box<Proactor<Uring>>),
    Epoll(Box<Reactor<Epoll>>),
    SimCompletion(SimCompletionMachine),
    SimReadiness(SimReadinessMachine),
}

/// The state machine of a driver, and the process that may use it.
///
/// # Panics
/// Panics if it is used in a forked child process.
#[derive(Debug)]
pub(super) struct OwnedBackend {
    /// Dropped only if the kernel no longer uses its memory; see the `Drop` implementation of the driver.
    backend: ManuallyDrop<Backend>,
    pub owner: OwnerProcess,
}

impl OwnedBackend {
    pub fn new(backend: Backend) -> Self {
        Self { backend: ManuallyDrop::new(backend), owner: OwnerProcess::current() }
    }

    /// Drops the state machine.
    ///
    /// # Safety
    /// The kernel no longer uses its memory, and nothing accesses it after this.
    pub unsafe fn drop(&mut self) {
        // SAFETY: guaranteed by the caller.
        unsafe { ManuallyDrop::drop(&mut self.backend) }
    }
}

impl Deref for OwnedBackend {
    type Target = Backend;

    #[inline(always)]
    fn deref(&self) -> &Backend {
        self.owner.check();
        &self.backend
    }
}

impl DerefMut for OwnedBackend {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Backend {
        self.owner.check();
        &mut self.backend
    }
}

/// Makes a call on the active state machine that depends on the model of its kernel.
macro_rules! dispatch_by_model {
    ($driver:expr, completion $proactor:pat => $on_completion:expr, readiness $reactor:pat => $on_readiness:expr) => {
        match $driver {
            $crate::driver::backend::Backend::Uring($proactor) => $on_completion,
            $crate::driver::backend::Backend::Epoll($reactor) => $on_readiness,
            #[cfg(feature = "sim")]
            $crate::driver::backend::Backend::SimCompletion($proactor) => $on_completion,
            #[cfg(feature = "sim")]
            $crate::driver::backend::Backend::SimReadiness($reactor) => $on_readiness,
            #[cfg(not(feature = "sim"))]
            $crate::driver::backend::Backend::SimCompletion(never)
            | $crate::driver::backend::Backend::SimReadiness(never) => match *never {},
        }
    };
}
pub(super) use dispatch_by_model;

/// Makes the same call on the active state machine.
macro_rules! dispatch {
    ($driver:expr, $machine:ident => $call:expr) => {
        $crate::driver::backend::dispatch_by_model!($driver, completion $machine => $call, readiness $machine => $call)
    };
}
pub(super) use dispatch;

/// Separate cold functions for the simulated kernels, so that only the io_uring and epoll paths are inlined into
/// callers.
impl Backend {
    #[cold]
    #[inline(never)]
    pub fn poll_receive(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        dispatch!(self, machine => machine.poll_receive(key, received, waker))
    }

    #[cold]
    #[inline(never)]
    pub fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        dispatch!(self, machine => machine.poll_send(key, outgoing, waker))
    }
}
