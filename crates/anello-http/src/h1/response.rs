//! Response heads, and responses that are encoded once and sent many times.

use std::rc::Rc;

use bytes::Bytes;

use super::body::{BodyEncoder, ResponseFraming};
use super::date::HttpDate;
use super::fields::{FieldBlock, FieldName, InvalidField, write_field, write_valid};
use super::rejection::{Rejection, is_final, reason_phrase};
use super::syntax;
use super::types::{Method, RequestContext, Version};

/// Start of the examples: the properties of a request, and an empty output buffer.
macro_rules! context {
    () => {
        "use anello_http::h1::*;\n\n\
         let context = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };\n\
         let mut out = Vec::new();"
    };
}

/// The interim response to `Expect: 100-continue`.
///
/// ```
/// use anello_http::h1::CONTINUE;
///
/// // Before the body of a request for which `Head::expects_continue` returns `true` is read.
/// let mut out = Vec::new();
/// out.extend_from_slice(CONTINUE);
/// assert!(out.starts_with(b"HTTP/1.1 100 "));
/// ```
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const TYPICAL_HEAD_BYTES: usize = 256;

/// What is known about the length of a response body when the head is sent.
///
/// ```
#[doc = context!()]
/// let head = ResponseHead::begin(&mut out, context, 200)?;
/// let body = head.finish(BodyLength::Unknown);
/// assert_eq!(body.framing(), ResponseFraming::Chunked);
/// # body.finish(&mut out)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// The length in bytes. For `HEAD`, the length that the response to `GET` would have.
    Known(u64),
    /// The length is not known in advance. The body is chunked; for HTTP/1.0 clients it is delimited by closing the
    /// connection.
    Unknown,
}

/// Appends the head of one response to a `Vec`. Existing bytes are kept, so that the responses to pipelined requests
/// can be sent together.
///
/// The encoder adds `Content-Length`, `Transfer-Encoding` and `Connection`, which are determined by the request, the
/// status and the body. If the head is dropped before it is finished, the appended bytes are removed.
///
/// ```
/// use anello_http::h1::{BodyLength, Decoder, Event, FieldName, Limits, ResponseHead};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"[..];
/// let Some(Event::Head(request)) = decoder.decode(&mut input)? else { panic!() };
///
/// let mut out = Vec::new();
/// let mut head = ResponseHead::begin(&mut out, request.context(), 200)?;
/// head.field(FieldName::CONTENT_TYPE, b"text/plain")?;
/// let mut body = head.finish(BodyLength::Known(5));
/// body.write(&mut out, b"ciao\n")?;
/// body.finish(&mut out)?;
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nciao\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ResponseHead<'a> {
    out: &'a mut Vec<u8>,
    context: RequestContext,
    status: u16,
    has_upgrade: bool,
    /// Start of the response in `out`, or `None` once the head is finished.
    unfinished: Option<usize>,
}

impl<'a> ResponseHead<'a> {
    /// Appends the status line of the response to a request.
    ///
    /// ```
    #[doc = context!()]
    /// assert_eq!(ResponseHead::begin(&mut out, context, 99).unwrap_err(), InvalidStatus(99));
    /// let body = ResponseHead::begin(&mut out, context, 404)?.finish(BodyLength::Known(0));
    /// body.finish(&mut out)?;
    /// assert_eq!(out, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidStatus`] unless the status is 101 or in the range 200 to 999.
    #[inline]
    pub fn begin(out: &'a mut Vec<u8>, context: RequestContext, status: u16) -> Result<Self, InvalidStatus> {
        if !is_final(status) && status != 101 {
            return Err(InvalidStatus(status));
        }
        Ok(Self::begin_valid(out, context, status))
    }

    #[inline]
    fn begin_valid(out: &'a mut Vec<u8>, context: RequestContext, status: u16) -> Self {
        let start = out.len();
        out.reserve(TYPICAL_HEAD_BYTES);
        if status == 200 {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            write_status_line(out, status);
        }
        Self { out, context, status, has_upgrade: false, unfinished: Some(start) }
    }

    /// Appends a field.
    ///
    /// ```
    #[doc = context!()]
    /// let mut head = ResponseHead::begin(&mut out, context, 200)?;
    /// head.field(FieldName::CONTENT_TYPE, b"text/css")?;
    /// assert!(head.field(FieldName::LOCATION, b"/a\r\nSet-Cookie: b").is_err());
    /// head.finish(BodyLength::Known(0)).finish(&mut out)?;
    /// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nContent-Length: 0\r\n\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidField::Value`], without appending anything, if the value contains a control byte such as CR, LF
    /// or NUL, which could inject another field.
    #[inline]
    pub fn field(&mut self, name: FieldName<'_>, value: &[u8]) -> Result<&mut Self, InvalidField> {
        write_field(self.out, name, value)?;
        Ok(self)
    }

    #[inline]
    fn valid_field(&mut self, name: &str, value: &[u8]) -> &mut Self {
        write_valid(self.out, name, value);
        self
    }

    /// Appends fields that were encoded in advance.
    ///
    /// ```
    #[doc = context!()]
    /// let mut fields = FieldBlock::default();
    /// fields.push(FieldName::CONTENT_TYPE, b"text/css")?;
    /// let mut head = ResponseHead::begin(&mut out, context, 200)?;
    /// head.block(&fields);
    /// head.finish(BodyLength::Known(0)).finish(&mut out)?;
    /// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nContent-Length: 0\r\n\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn block(&mut self, block: &FieldBlock) -> &mut Self {
        self.out.extend_from_slice(block.as_bytes());
        self
    }

    /// Appends the `Date` field.
    ///
    /// ```
    #[doc = context!()]
    /// let mut head = ResponseHead::begin(&mut out, context, 200)?;
    /// head.date(&HttpDate::from_unix(0));
    /// head.finish(BodyLength::Known(0)).finish(&mut out)?;
    /// assert!(out.starts_with(b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn date(&mut self, date: &HttpDate) -> &mut Self {
        let mut line = *b"Date: .............................\r\n";
        line[6..35].copy_from_slice(date.as_bytes());
        self.out.extend_from_slice(&line);
        self
    }

    /// Appends `Upgrade` and lists it in `Connection`. In a 101 response, the field names the new protocol; in a 426
    /// response, the required one.
    ///
    /// ```
    #[doc = context!()]
    /// let mut head = ResponseHead::begin(&mut out, context, 101)?;
    /// head.upgrade("echo")?;
    /// let body = head.finish(BodyLength::Unknown);
    /// assert_eq!(body.framing(), ResponseFraming::Tunnel);
    /// assert!(out.ends_with(b"Upgrade: echo\r\nConnection: upgrade\r\n\r\n"));
    /// # body.finish(&mut out)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidField::Value`], without appending anything, if the protocol contains a control byte.
    pub fn upgrade(&mut self, protocol: &str) -> Result<&mut Self, InvalidField> {
        if !syntax::is_value(protocol.as_bytes()) {
            return Err(InvalidField::Value);
        }
        self.has_upgrade = true;
        Ok(self.valid_field("Upgrade", protocol.as_bytes()))
    }

    /// Closes the connection after this response.
    ///
    /// ```
    #[doc = context!()]
    /// let mut head = ResponseHead::begin(&mut out, context, 200)?;
    /// head.close();
    /// let body = head.finish(BodyLength::Known(0));
    /// assert!(!body.keeps_alive());
    /// assert!(out.ends_with(b"Connection: close\r\nContent-Length: 0\r\n\r\n"));
    /// # body.finish(&mut out)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&mut self) -> &mut Self {
        self.context.keeps_alive = false;
        self
    }

    /// Appends the fields that depend on the length of the body, and the end of the head. Returns the body encoder. Its
    /// [`keeps_alive`](BodyEncoder::keeps_alive) returns `true` if another response can follow.
    ///
    /// ```
    #[doc = context!()]
    /// let head = ResponseHead::begin(&mut out, context, 200)?;
    /// let mut body = head.finish(BodyLength::Known(4));
    /// body.write(&mut out, b"ciao")?;
    /// body.finish(&mut out)?;
    /// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nciao");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn finish(mut self, body: BodyLength) -> BodyEncoder {
        self.unfinished = None;
        let framing = self.framing(body);
        let closes = matches!(framing, ResponseFraming::UntilClose | ResponseFraming::Tunnel);
        let keeps_alive = self.context.keeps_alive && !closes;
        let omits_connection_field =
            keeps_alive && self.context.version == Version::Http11 && !self.has_upgrade;
        if !omits_connection_field {
            self.write_connection(keeps_alive, framing);
        }
        match (framing, self.length_without_body(body)) {
            (ResponseFraming::Length(bytes), _) | (ResponseFraming::None, Some(bytes)) => {
                write_content_length(self.out, bytes);
            }
            (ResponseFraming::Chunked, _) => {
                self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n")
            }
            _ => self.out.extend_from_slice(b"\r\n"),
        }
        BodyEncoder::new(framing, keeps_alive)
    }

    #[inline]
    fn framing(&self, body: BodyLength) -> ResponseFraming {
        // RFC 9112, section 6.3.
        match (self.status, self.context.method, body) {
            (101, ..) | (200..=299, Method::Connect, _) => ResponseFraming::Tunnel,
            (204 | 205 | 304, ..) | (_, Method::Head, _) => ResponseFraming::None,
            (.., BodyLength::Known(bytes)) => ResponseFraming::Length(bytes),
            (.., BodyLength::Unknown) if self.context.version == Version::Http11 => ResponseFraming::Chunked,
            (.., BodyLength::Unknown) => ResponseFraming::UntilClose,
        }
    }

    /// Returns the `Content-Length` of a response that has no body, if it has that field.
    #[inline]
    fn length_without_body(&self, body: BodyLength) -> Option<u64> {
        match (self.status, body) {
            // A 304 may state the length of the 200 response, but no client needs it.
            (204 | 304, _) => None,
            // Clients do not infer from the status 205 that there is no content.
            (205, _) => Some(0),
            (_, BodyLength::Known(bytes)) => Some(bytes),
            (_, BodyLength::Unknown) => None,
        }
    }

    #[cold]
    fn write_connection(&mut self, keeps_alive: bool, framing: ResponseFraming) {
        let value = match (framing, keeps_alive, self.context.version, self.has_upgrade) {
            // A tunnel no longer uses HTTP.
            (ResponseFraming::Tunnel, .., true) | (_, true, Version::Http11 | Version::Http2, true) => {
                "upgrade"
            }
            (ResponseFraming::Tunnel, .., false) | (_, true, Version::Http11 | Version::Http2, false) => {
                return;
            }
            (_, false, _, true) => "close, upgrade",
            (_, false, _, false) => "close",
            (_, true, Version::Http10, true) => "keep-alive, upgrade",
            (_, true, Version::Http10, false) => "keep-alive",
        };
        self.valid_field("Connection", value.as_bytes());
    }
}

impl Rejection {
    /// Appends the complete response, with `Connection: close` and the reason as plain text. For [`Method::Head`]
    /// ([`Decoder::rejected_method`](super::Decoder::rejected_method)) the text is omitted. `date` is the current time.
    ///
    /// Nothing may be sent after this response. A status outside the range 200 to 999 becomes 500.
    ///
    /// ```
    /// use anello_http::h1::{Method, Rejection};
    ///
    /// let mut out = Vec::new();
    /// Rejection::new(408, "the request took too long").write(&mut out, Method::Get, None);
    /// assert!(out.starts_with(b"HTTP/1.1 408 Request Timeout\r\n"));
    /// assert!(out.ends_with(b"\r\n\r\n408 Request Timeout: the request took too long\n"));
    /// ```
    pub fn write(&self, out: &mut Vec<u8>, method: Method, date: Option<&HttpDate>) {
        let status = if is_final(self.status) { self.status } else { 500 };
        let text = format!("{status} {}: {}\n", reason_phrase(status), self.reason);
        let context = RequestContext { version: Version::Http11, method, keeps_alive: false };
        let mut head = ResponseHead::begin_valid(out, context, status);
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

impl Drop for ResponseHead<'_> {
    fn drop(&mut self) {
        if let Some(start) = self.unfinished {
            self.out.truncate(start);
        }
    }
}

/// The part of a `200 OK` response after the status line and the `Date` field, encoded once for many responses: the
/// fields, the length of the body, and the body. On a connection that is kept alive, writing it takes three copy
/// operations.
///
/// ```
/// use anello_http::h1::{FieldBlock, FieldName, EncodedResponse};
/// use anello_http::{Request, Response};
/// use std::rc::Rc;
///
/// let mut fields = FieldBlock::default();
/// fields.push(FieldName::CONTENT_TYPE, b"text/plain")?;
/// let response = Rc::new(EncodedResponse::new(fields, b"ciao\n"));
/// let handler = async move |_: Request| Response::encoded(Rc::clone(&response));
/// # let _ = handler;
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Debug)]
pub struct EncodedResponse {
    fields: Rc<FieldBlock>,
    /// The field lines, the `Content-Length` line, the empty line, and the body.
    encoded: Bytes,
    head_bytes: usize,
}

impl EncodedResponse {
    /// Encodes a response with these fields and this body.
    ///
    /// ```
    /// use anello_http::h1::{EncodedResponse, FieldBlock};
    ///
    /// let response = EncodedResponse::new(FieldBlock::default(), b"ciao\n");
    /// assert_eq!(response.body_bytes(), 5);
    /// ```
    pub fn new(fields: FieldBlock, body: &[u8]) -> Self {
        let mut encoded = Vec::with_capacity(fields.as_bytes().len() + 48 + body.len());
        encoded.extend_from_slice(fields.as_bytes());
        write_content_length(&mut encoded, body.len() as u64);
        let head_bytes = encoded.len();
        encoded.extend_from_slice(body);
        Self { fields: Rc::new(fields), encoded: encoded.into(), head_bytes }
    }

    /// Returns the fields.
    ///
    /// ```
    /// use anello_http::h1::{EncodedResponse, FieldBlock, FieldName};
    ///
    /// let mut fields = FieldBlock::default();
    /// fields.push(FieldName::CONTENT_TYPE, b"text/plain")?;
    /// let response = EncodedResponse::new(fields, b"ciao\n");
    /// assert_eq!(response.fields().as_bytes(), b"Content-Type: text/plain\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fields(&self) -> &Rc<FieldBlock> {
        &self.fields
    }

    /// Returns the body without copying it.
    ///
    /// ```
    /// use anello_http::h1::{EncodedResponse, FieldBlock};
    ///
    /// let response = EncodedResponse::new(FieldBlock::default(), b"ciao\n");
    /// assert_eq!(response.body(), &b"ciao\n"[..]);
    /// ```
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.head_bytes..)
    }

    /// Returns the length of the body in bytes.
    ///
    /// ```
    /// use anello_http::h1::{EncodedResponse, FieldBlock};
    ///
    /// let response = EncodedResponse::new(FieldBlock::default(), b"ciao\n");
    /// assert_eq!(response.body_bytes(), response.body().len());
    /// ```
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.encoded.len() - self.head_bytes
    }

    /// Appends the complete response if it needs no `Connection` field. Returns the number of body bytes appended
    /// (0 for `HEAD`).
    ///
    /// Otherwise, returns `None` without appending anything; the response then needs a separate head.
    ///
    /// ```
    #[doc = context!()]
    /// let response = EncodedResponse::new(FieldBlock::default(), b"ciao\n");
    /// assert_eq!(response.write(&mut out, context, &HttpDate::from_unix(0)), Some(5));
    /// assert!(out.ends_with(b"\r\nContent-Length: 5\r\n\r\nciao\n"));
    /// // The response to the last request of a connection needs a `Connection` field.
    /// let last = RequestContext { keeps_alive: false, ..context };
    /// assert_eq!(response.write(&mut out, last, &HttpDate::from_unix(0)), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, context: RequestContext, date: &HttpDate) -> Option<usize> {
        if !context.keeps_alive || context.version != Version::Http11 || context.method == Method::Connect {
            return None;
        }
        let bytes = if context.method == Method::Head { self.head_bytes } else { self.encoded.len() };
        let mut start = *b"HTTP/1.1 200 OK\r\nDate: .............................\r\n";
        start[23..52].copy_from_slice(date.as_bytes());
        out.reserve(start.len() + bytes);
        out.extend_from_slice(&start);
        out.extend_from_slice(&self.encoded[..bytes]);
        Some(bytes - self.head_bytes)
    }
}

/// The status must have three digits.
fn write_status_line(out: &mut Vec<u8>, status: u16) {
    let mut line = *b"HTTP/1.1 000 ";
    for (digit, weight) in line[9..12].iter_mut().zip([100, 10, 1]) {
        *digit = b'0' + (status / weight % 10) as u8;
    }
    out.extend_from_slice(&line);
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `Content-Length` and the end of the head.
#[inline]
fn write_content_length(out: &mut Vec<u8>, bytes: u64) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(bytes).as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
}

/// The error for an invalid response status.
///
/// ```
/// use anello_http::h1::InvalidStatus;
///
/// assert_eq!(InvalidStatus(99).to_string(), "invalid response status 99 (expected 101 or 200 to 999)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid response status {0} (expected 101 or 200 to 999)")]
pub struct InvalidStatus(pub u16);
