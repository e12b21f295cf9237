//! Status codes, and rejections of requests.

use http::StatusCode;

pub(super) fn is_final(status: u16) -> bool {
    (200..=999).contains(&status)
}

/// Returns the reason phrase of a status, or an empty string if it is not registered.
///
/// ```
/// use anello_http::h1::reason_phrase;
///
/// assert_eq!(reason_phrase(404), "Not Found");
/// assert_eq!(reason_phrase(799), "");
/// ```
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        // The `http` crate uses older names.
        203 => "Non-Authoritative Information",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        _ => {
            StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default()
        }
    }
}

/// The reason why a request is rejected. The response has the given status, and the connection is closed.
///
/// ```
/// use anello_http::h1::{Decoder, Limits, Rejection};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let rejection: Rejection = decoder.decode(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).unwrap_err();
/// assert_eq!(rejection.to_string(), "400 Bad Request: missing Host field");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {}: {reason}", reason_phrase(*status))]
pub struct Rejection {
    /// Status of the response. The decoder uses 400, 413, 414, 417, 431, 501 and 505.
    pub status: u16,
    /// What is wrong with the request and, where helpful, how to fix it.
    pub reason: &'static str,
}

impl Rejection {
    /// Creates a rejection. The server also creates some, such as 408 after a timeout or 503 at the connection limit.
    ///
    /// ```
    /// use anello_http::h1::Rejection;
    ///
    /// let rejection = Rejection::new(503, "too many connections");
    /// assert_eq!(rejection.to_string(), "503 Service Unavailable: too many connections");
    /// ```
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }

    pub(super) const fn bad(reason: &'static str) -> Self {
        Self::new(400, reason)
    }
}
