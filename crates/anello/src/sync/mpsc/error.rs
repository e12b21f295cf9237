//! Errors of senders and receivers.

use std::fmt;

pub use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};

/// Error of [`Sender::send_timeout`](super::Sender::send_timeout), with the value.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello::sync::mpsc::{self, error::SendTimeoutError};
///
/// let (sender, receiver) = mpsc::channel(1);
/// sender.send(1).await?;
/// let limit = std::time::Duration::from_millis(1);
/// assert_eq!(sender.send_timeout(2, limit).await, Err(SendTimeoutError::Timeout(2)));
/// drop(receiver);
/// assert_eq!(sender.send_timeout(3, limit).await, Err(SendTimeoutError::Closed(3)));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// The queue was full for the whole time.
    Timeout(T),
    /// The receiver has been closed or dropped.
    Closed(T),
}

impl<T> SendTimeoutError<T> {
    /// Returns the value that was not sent.
    ///
    /// ```
    /// use anello::sync::mpsc::error::SendTimeoutError;
    ///
    /// assert_eq!(SendTimeoutError::Timeout("ciao").into_inner(), "ciao");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            Self::Timeout(value) | Self::Closed(value) => value,
        }
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(_) => formatter.write_str("Timeout(..)"),
            Self::Closed(_) => formatter.write_str("Closed(..)"),
        }
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Timeout(_) => "timed out waiting for a free slot in the channel",
            Self::Closed(_) => "channel closed",
        })
    }
}

impl<T> std::error::Error for SendTimeoutError<T> {}
