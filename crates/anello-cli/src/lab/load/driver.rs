//! Driver of the load generator's runtime.

use clap::ValueEnum;

/// Driver of the load generator's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadDriver {
    /// io_uring if available, else epoll.
    Auto,
    /// Available on all machines, which makes results from different machines comparable.
    Epoll,
    /// Fewer system calls in the load generator; fails if io_uring is unavailable.
    Uring,
}

impl LoadDriver {
    /// Returns the driver for a name returned by `LabLoad::driver_name`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "epoll" => Some(Self::Epoll),
            "io_uring" | "uring" => Some(Self::Uring),
            _ => None,
        }
    }
}
