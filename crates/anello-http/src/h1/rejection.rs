//! Rejections of requests, and the responses that report them.

use std::fmt;

use super::response::{BodyLength, ResponseHead, is_final, reason_phrase};
use super::{HttpDate, Method, RequestContext};

/// The reason why a request is rejected. The response has this status, and the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Status of the response. The decoder uses 400, 413, 414, 417, 431, 501 and 505.
    pub status: u16,
    /// The problem with the request and, where it helps, the remedy.
    pub reason: &'static str,
}

impl Rejection {
    /// Creates a rejection. The server uses its own, such as 408 after a timeout or 503 at the connection limit.
    #[must_use]
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// Creates a rejection of a malformed request (400).
    pub(super) const fn bad(reason: &'static str) -> Self {
        Self::new(400, reason)
    }

    /// Appends the complete response: `Connection: close`, and the reason as plain text. For [`Method::Head`]
    /// ([`Decoder::rejected_method`](super::Decoder::rejected_method)) the text is omitted. `date` is the current time.
    ///
    /// Nothing may be sent after this response. A status that is not valid for a response (200 to 999) becomes 500.
    pub fn write(&self, out: &mut Vec<u8>, method: Method, date: Option<&HttpDate>) {
        let status = if is_final(self.status) { self.status } else { 500 };
        let text = format!("{status} {}: {}\n", reason_phrase(status), self.reason);
        let mut head = ResponseHead::begin_valid(out, RequestContext::rejected(method), status);
        if let Some(date) = date {
            head.date(date);
        }
        head.valid_field("Content-Type", b"text/plain; charset=utf-8");
        let body = head.finish(BodyLength::Known(text.len() as u64));
        if body.sends_body() {
            out.extend_from_slice(text.as_bytes());
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.status, reason_phrase(self.status), self.reason)
    }
}

impl std::error::Error for Rejection {}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(rejection: Rejection, date: Option<&HttpDate>) -> String {
        let mut out = b"before".to_vec();
        rejection.write(&mut out, Method::Get, date);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn response_to_head_has_no_content() {
        let mut out = Vec::new();
        Rejection::new(400, "bad").write(&mut out, Method::Head, None);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\nContent-Length: 21\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn encodes_complete_response_with_close() {
        let date = HttpDate::from_unix(784_111_777);
        assert_eq!(
            encode(Rejection::new(431, "too much"), Some(&date)),
            "beforeHTTP/1.1 431 Request Header Fields Too Large\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: 46\r\n\r\n\
             431 Request Header Fields Too Large: too much\n"
        );
        assert!(
            encode(Rejection::new(100, "odd"), None)
                .starts_with("beforeHTTP/1.1 500 Internal Server Error\r\n")
        );
    }
}
