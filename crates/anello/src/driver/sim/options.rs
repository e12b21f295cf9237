//! Options for a simulated kernel.

use super::faults::SimFaults;

/// The kind of kernel that is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimModel {
    /// A completion-based kernel, like io_uring.
    #[default]
    Completion,
    /// A readiness-based kernel, like epoll.
    Readiness,
}

/// Options for a simulated kernel.
///
/// Applications that run on it are deterministic. A failed test that prints its seed can be replayed with that seed.
///
/// Only TCP sockets are simulated (no Unix sockets), and they can only connect to sockets on the same runtime. Virtual
/// time passes only while the runtime runs, and a sleep takes no real time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimOptions {
    /// Seed for the random numbers.
    pub seed: u64,
    /// Kind of kernel to simulate.
    pub model: SimModel,
    /// Rates of the injected faults.
    pub faults: SimFaults,
    /// Capacity, in bytes, of a connection in each direction.
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
