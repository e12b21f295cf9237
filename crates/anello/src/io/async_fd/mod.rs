//! Readiness of a descriptor on which the application does its own I/O.

mod error;
mod fd;
mod guard;
mod wait;

pub use self::error::{AsyncFdTryNewError, TryIoError};
pub use self::fd::AsyncFd;
pub use self::guard::{AsyncFdReadyGuard, AsyncFdReadyMutGuard};
