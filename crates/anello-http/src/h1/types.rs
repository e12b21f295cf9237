//! Types that requests and responses share.

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, or a higher minor version.
    #[default]
    Http11,
}

/// The form of a request's target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// A path that starts with `/`, with an optional query.
    #[default]
    Origin,
    /// A complete `http` or `https` URL, as sent to proxies. Servers must also accept it.
    Absolute,
    /// A host and a port, for `CONNECT`.
    Authority,
    /// `*`, for `OPTIONS`: the server as a whole.
    Asterisk,
}

/// The properties of a request that determine the framing of its response.
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
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}
