//! Rejections of requests.

use super::status::reason_phrase;

/// The reason why a request is rejected. The response has this status, and the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {}: {reason}", reason_phrase(*status))]
pub struct Rejection {
    /// Status of the response. The decoder uses 400, 413, 414, 417, 431, 501 and 505.
    pub status: u16,
    /// What is wrong with the request and, where helpful, how to fix it.
    pub reason: &'static str,
}

impl Rejection {
    /// Creates a rejection. The server creates some itself, such as 408 after a timeout or 503 at the connection limit.
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// Creates a rejection for a malformed request (400).
    pub(super) const fn bad(reason: &'static str) -> Self {
        Self::new(400, reason)
    }
}
