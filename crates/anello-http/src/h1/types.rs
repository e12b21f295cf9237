//! Types that requests and responses share, and limits for requests.

/// The method of a request.
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits, Method};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"PURGE / HTTP/1.1\r\nHost: a\r\n\r\n"[..];
/// let Some(Event::Head(head)) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!((head.method(), head.method_text()), (Method::Other, "PURGE"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// `GET`.
    #[default]
    Get,
    /// `HEAD`: like `GET`, but the response has no body.
    Head,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `DELETE`.
    Delete,
    /// `OPTIONS`.
    Options,
    /// `PATCH`.
    Patch,
    /// `TRACE`.
    Trace,
    /// `CONNECT`: requests a tunnel.
    Connect,
    /// Any other method; see [`Head::method_text`](crate::h1::Head::method_text).
    Other,
}

impl Method {
    /// Returns the method with this name, which is case-sensitive.
    #[inline]
    pub(crate) fn of(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// The HTTP version under which a request is processed. Requests with another major version are rejected.
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits, Version};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let Some(Event::Head(head)) = decoder.decode(&mut &b"GET / HTTP/1.0\r\n\r\n"[..])? else { panic!() };
/// assert_eq!(head.version(), Version::Http10);
/// assert!(!head.keeps_alive());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, or a higher minor version.
    #[default]
    Http11,
    /// HTTP/2. The head has the same form as that of an HTTP/1.1 request.
    Http2,
}

/// The form of a request's target (RFC 9112, section 3.2).
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits, TargetForm};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"[..];
/// let Some(Event::Head(head)) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!(head.target_form(), TargetForm::Asterisk);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// A path that starts with `/`, with an optional query.
    #[default]
    Origin,
    /// A complete `http` or `https` URL, as sent to proxies. Servers must also accept it.
    Absolute,
    /// A host and a port, for `CONNECT`.
    Authority,
    /// `*`, for `OPTIONS` requests that apply to the server as a whole.
    Asterisk,
}

/// The properties of a request that determine the framing of its response.
///
/// ```
/// use anello_http::h1::{BodyLength, Method, RequestContext, ResponseHead, Version};
///
/// let context = RequestContext { version: Version::Http10, method: Method::Get, keeps_alive: true };
/// let mut out = Vec::new();
/// let body = ResponseHead::begin(&mut out, context, 200)?.finish(BodyLength::Known(0));
/// body.finish(&mut out)?;
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// The version of the request.
    pub version: Version,
    /// The method of the request.
    pub method: Method,
    /// `true` if the connection can be kept alive after the response.
    pub keeps_alive: bool,
}

/// How a request body is delimited.
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits, RequestFraming};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"[..];
/// let Some(Event::Head(head)) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!(head.framing(), RequestFraming::Length(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFraming {
    /// There is no body.
    #[default]
    None,
    /// By its length in bytes.
    Length(u64),
    /// By the chunked transfer coding, with optional trailers.
    Chunked,
}

impl RequestFraming {
    /// Returns `true` if a body follows the head.
    ///
    /// ```
    /// use anello_http::h1::RequestFraming;
    ///
    /// assert!(RequestFraming::Chunked.has_body());
    /// assert!(!RequestFraming::Length(0).has_body());
    /// ```
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// Maximum length of a method. No registered method is longer.
pub(super) const MAX_METHOD_BYTES: usize = 32;

/// Limits for the requests of one connection.
///
/// ```
/// use anello_http::h1::Limits;
///
/// let limits = Limits { max_body_bytes: 1024, ..Limits::default() };
/// assert_eq!(limits.max_fields, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the request line, excluding its line ending (default: 8 KiB). Longer lines are rejected with
    /// 414.
    pub max_request_line_bytes: usize,
    /// Maximum length of the head: the request line and the fields, including line endings (default: 32 KiB, at most 1
    /// GiB). Longer heads are rejected with 431.
    pub max_head_bytes: usize,
    /// Maximum number of fields in a head (default: 100). Heads with more fields are rejected with 431.
    pub max_fields: usize,
    /// Maximum length of the body, excluding chunk framing (default: 16 MiB). Longer bodies are rejected with 413,
    /// either right after the head, if it states the length, or at the chunk that exceeds the limit. In the second case,
    /// a handler that reads the body gets the status in
    /// [`RequestBodyError::Rejected`](crate::RequestBodyError::Rejected).
    pub max_body_bytes: u64,
    /// Maximum total length of the chunk extensions in a body (default: 4 KiB). Bodies with longer extensions are
    /// rejected with 400.
    pub max_chunk_extension_bytes: usize,
    /// Maximum length of the trailer section, including line endings (default: 8 KiB, at most 1 GiB). Longer sections
    /// are rejected with 431.
    pub max_trailer_bytes: usize,
    /// Maximum number of fields in a trailer section (default: 32). Sections with more fields are rejected with 431.
    pub max_trailer_fields: usize,
    /// Maximum number of requests per connection, at least 1 (default: 1,000,000). The server closes the connection
    /// after the last one.
    pub max_requests_per_connection: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_request_line_bytes: 8 * 1024,
            max_head_bytes: 32 * 1024,
            max_fields: 100,
            max_body_bytes: 16 * 1024 * 1024,
            max_chunk_extension_bytes: 4 * 1024,
            max_trailer_bytes: 8 * 1024,
            max_trailer_fields: 32,
            max_requests_per_connection: 1_000_000,
        }
    }
}

impl Limits {
    /// Caps the lengths, so that offsets in a head fit into 32 bits, and permits at least one request.
    pub(super) fn clamped(self) -> Self {
        const MAX: usize = 1 << 30;
        Self {
            max_head_bytes: self.max_head_bytes.min(MAX),
            max_trailer_bytes: self.max_trailer_bytes.min(MAX),
            max_requests_per_connection: self.max_requests_per_connection.max(1),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamped_lengths_fit_into_32_bits() {
        let limits =
            Limits { max_head_bytes: usize::MAX, max_trailer_bytes: usize::MAX, ..Limits::default() };
        let limits = limits.clamped();
        assert!(
            u32::try_from(limits.max_head_bytes).is_ok() && u32::try_from(limits.max_trailer_bytes).is_ok()
        );
    }

    #[test]
    fn at_least_one_request_is_permitted() {
        for (limit, clamped) in [(0, 1), (1, 1), (7, 7)] {
            let limits = Limits { max_requests_per_connection: limit, ..Limits::default() };
            assert_eq!(limits.clamped().max_requests_per_connection, clamped);
        }
    }
}
