//! Readiness of descriptors that the runtime does not own: [`AsyncFd`].

mod async_fd;

pub use async_fd::{AsyncFd, AsyncFdReadyGuard, AsyncFdReadyMutGuard, AsyncFdTryNewError, TryIoError};

pub use crate::driver::{Interest, Ready};
