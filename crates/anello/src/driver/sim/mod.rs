//! The simulated kernels: in-memory sockets, a virtual clock, seeded faults. No descriptor, no thread, no real time.
//!
//! ```text
//!   Proactor ── Op ───> SimCompletion ─┐                       Random: every decision, in order
//!            <─ Completion ────────────┤                         │
//!                                      ├──> SimNetwork ──> Network: endpoints, listeners, timers, clock
//!   Reactor ─── wait ──> SimReadiness ─┘
//!            <─ Edge ──────────────────┘
//! ```
//!
//! [`network`] holds what TCP does: bounded buffers, half-close, resets, backlogs. [`sockets`] makes system calls of
//! it, with faults. [`completion`] runs the operations of [`operation`] as io_uring does, [`readiness`] reports edges as
//! epoll does.
//!
//! Rules that hold under every fault:
//! - The bytes of a stream arrive once and in order, or the connection ends; the completions of one operation keep
//!   their order.
//! - What an operation names (a socket, memory) may be used by the kernel until its terminal completion, and is: bytes
//!   are read from where the driver left them when the operation runs, not when it was submitted.
//! - Bytes held back by a fault are announced again, as bytes are that arrive a little later.
//! - A wait that nothing can ever end is an error instead of a hang.
//! - The same seed, options and program give the same run.

mod completion;
mod faults;
mod network;
mod operation;
mod random;
mod readiness;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;

pub(super) use completion::SimCompletion;
pub use faults::SimFaults;
pub(super) use readiness::SimReadiness;

/// What a system call costs, in nanoseconds: time passes even when nothing waits.
const TURN_NS: u64 = 1_000;

/// The error of a wait without a deadline in which nothing can happen any more.
fn deadlock_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::Deadlock,
        "nothing is in flight that could ever end this wait: some task waits for a wake-up that was lost or never armed",
    )
}

/// Which of the two kinds of kernel is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimModel {
    /// Completes operations, like io_uring.
    #[default]
    Completion,
    /// Reports readiness, like epoll.
    Readiness,
}

/// A simulated kernel.
///
/// Programs on it are deterministic: a test that fails prints its seed, and the seed replays the failure. Its sockets are
/// TCP (there are no Unix sockets) and reach each other within one runtime only, and time passes only while the runtime
/// turns: a sleep takes no time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimOptions {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Which kind of kernel.
    pub model: SimModel,
    /// What goes wrong.
    pub faults: SimFaults,
    /// Bytes that a connection holds in each direction between sender and receiver.
    pub socket_buffer_bytes: usize,
}

impl SimOptions {
    /// A kernel that completes operations, without faults.
    pub fn new(seed: u64) -> Self {
        Self { seed, model: SimModel::default(), faults: SimFaults::none(), socket_buffer_bytes: 16 * 1024 }
    }

    /// Chooses the kind of kernel.
    #[must_use]
    pub fn model(mut self, model: SimModel) -> Self {
        self.model = model;
        self
    }

    /// Chooses what goes wrong.
    #[must_use]
    pub fn faults(mut self, faults: SimFaults) -> Self {
        self.faults = faults;
        self
    }

    /// Chooses how many bytes a connection holds in each direction; at least one.
    #[must_use]
    pub fn socket_buffer_bytes(mut self, bytes: usize) -> Self {
        self.socket_buffer_bytes = bytes.max(1);
        self
    }
}

impl Default for SimOptions {
    fn default() -> Self {
        Self::new(0)
    }
}
