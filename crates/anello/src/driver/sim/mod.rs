//! Simulated kernels: in-memory sockets, a virtual clock and seeded faults. They use no file descriptors, threads or
//! real time.
//!
//! ```text
//!   Proactor ── Op ───> SimCompletion ─┐                       Random: all decisions, in order
//!            <─ Completion ────────────┤                         │
//!                                      ├──> SimNetwork ──> Network: endpoints, listeners, timers, clock
//!   Reactor ─── wait ──> SimReadiness ─┘
//!            <─ Edge ──────────────────┘
//! ```
//!
//! [`network`] models TCP: bounded buffers, half-close, resets, accept queues. [`sockets`] provides system calls on top
//! of it, and injects faults. [`completion`] runs the operations of [`operation`] like io_uring, and [`readiness`]
//! reports edges like epoll.
//!
//! # Invariants
//!
//! These hold under every fault:
//! - The bytes of a stream arrive exactly once and in order, or the connection fails. The completions of one operation
//!   keep their order.
//! - The kernel uses the socket and memory of an operation until its terminal completion: it reads the driver's memory
//!   when the operation runs, not when it is submitted.
//! - Bytes withheld by a fault are reported again later, like bytes that have just arrived.
//! - A wait that no event can end returns an error instead of hanging.
//! - The same seed, options and application give the same run.

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

/// Duration of a system call in nanoseconds. Virtual time thus passes even if no task waits.
const TURN_NS: u64 = 1_000;

/// Returns the error of a wait without a deadline that no event can end.
fn deadlock_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::Deadlock,
        "deadlock: waiting without a deadline and no operation in flight (a wake-up was lost or never armed)",
    )
}

/// The kind of kernel that is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimModel {
    /// A completion-based kernel, like io_uring.
    #[default]
    Completion,
    /// A readiness-based kernel, like epoll.
    Readiness,
}

/// Options of a simulated kernel.
///
/// Applications on it are deterministic. A test that prints its seed on failure can be replayed with that seed.
///
/// Only TCP sockets are simulated (no Unix sockets), and they can only connect to sockets of the same runtime. Virtual
/// time passes only while the runtime runs, so that a sleep takes no real time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimOptions {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Kind of kernel.
    pub model: SimModel,
    /// Rates of the injected faults.
    pub faults: SimFaults,
    /// Capacity of a connection in each direction between sender and receiver, in bytes.
    pub socket_buffer_bytes: usize,
}

impl SimOptions {
    /// Returns options for a completion-based kernel without faults.
    pub fn new(seed: u64) -> Self {
        Self { seed, model: SimModel::default(), faults: SimFaults::none(), socket_buffer_bytes: 16 * 1024 }
    }

    /// Sets the kind of kernel.
    #[must_use]
    pub fn model(mut self, model: SimModel) -> Self {
        self.model = model;
        self
    }

    /// Sets the rates of the injected faults.
    #[must_use]
    pub fn faults(mut self, faults: SimFaults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets the capacity of a connection in each direction, in bytes. The minimum is 1.
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
