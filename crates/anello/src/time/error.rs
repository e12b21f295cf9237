//! Errors of this module.

use std::fmt;

/// Error returned by [`timeout`](super::timeout) and [`timeout_at`](super::timeout_at) when the time limit has elapsed.
///
/// ```
/// # anello::example! {
/// use anello::time::{error::Elapsed, timeout};
///
/// let limit = std::time::Duration::from_millis(1);
/// let result: Result<(), Elapsed> = timeout(limit, std::future::pending()).await;
/// let error = std::io::Error::from(result.unwrap_err());
/// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(pub(super) ());

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}
