//! Decoder for the requests of one connection.
//!
//! ```text
//!        ┌──► Head ──┬──► Length(n) ──┬──► End ──┬──► Closed   after the last request
//!        │           ├──► Chunked ────┤          │
//!        │           └────────────────┘          │
//!        └───────────────────────────────────────┘
//! ```
//!
//! A head that is complete in the input is parsed in place. An incomplete one is buffered; the [`Scanner`] checks each
//! of its bytes once, and the complete head is then parsed in the same way. Body data is borrowed from the input.

use super::chunked::{ChunkedDecoder, ChunkedEvent, take};
use super::fields::Trailers;
use super::head::Head;
use super::parse::parse;
use super::rejection::Rejection;
use super::scanner::Scanner;
use super::types::{Limits, MAX_METHOD_BYTES, Method, RequestFraming};

/// Maximum memory of a recycled head, so that one long head does not tie up memory for the lifetime of the connection.
const MAX_RETAINED_BYTES: usize = 4 * 1024;

/// Decodes the requests of one connection; see [`decode`](Self::decode).
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"PUT /greeting HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\n\r\nciao"[..];
/// let Some(Event::Head(head)) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!((head.method_text(), head.path()), ("PUT", "/greeting"));
/// let Some(Event::Data(data)) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!(data, b"ciao");
/// assert!(matches!(decoder.decode(&mut input)?, Some(Event::End(None))));
/// decoder.recycle(head);
/// assert!(decoder.decode(&mut input)?.is_none() && decoder.is_idle());
/// # Ok::<(), anello_http::h1::Rejection>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    state: State,
    requests_left: u64,
    partial: Vec<u8>,
    scanner: Scanner,
    spare: Option<Head>,
}

#[derive(Debug)]
enum State {
    /// Between requests, or in a head.
    Head,
    /// In a body; this many bytes, never 0, have yet to arrive.
    Length(u64),
    /// Boxed: few requests are chunked, and there are many connections.
    Chunked(Box<ChunkedDecoder>),
    /// The end of the request has not been returned yet.
    End,
    /// No further requests are accepted.
    Closed,
    Rejected(Rejection),
}

/// A part of a request. Each request consists of one `Head`, any number of `Data`, and one `End`.
///
/// ```
/// use anello_http::h1::{Decoder, Event, Limits};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut input = &b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nciao"[..];
/// let mut body = Vec::new();
/// while let Some(event) = decoder.decode(&mut input)? {
///     match event {
///         Event::Head(head) => assert_eq!(head.method_text(), "PUT"),
///         Event::Data(data) => body.extend_from_slice(data),
///         Event::End(trailers) => assert_eq!(trailers, None),
///     }
/// }
/// assert_eq!(body, b"ciao");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Event<'a> {
    /// The head of the request.
    Head(Head),
    /// Body bytes, borrowed from the input; never empty.
    Data(&'a [u8]),
    /// The end of the request, with the trailers, if there are any.
    End(Option<Trailers>),
}

impl Decoder {
    /// Creates a decoder for a new connection.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits { max_head_bytes: 32, ..Limits::default() });
    /// let mut input = &b"GET / HTTP/1.1\r\nHost: a.very.long.host.example.com\r\n\r\n"[..];
    /// assert_eq!(decoder.decode(&mut input).unwrap_err().status, 431);
    /// ```
    pub fn new(limits: Limits) -> Self {
        let limits = limits.clamped();
        Self {
            limits,
            state: State::Head,
            requests_left: limits.max_requests_per_connection,
            partial: Vec::new(),
            scanner: Scanner::default(),
            spare: None,
        }
    }

    /// Decodes the next part and removes its bytes from the front of `input`.
    ///
    /// Returns `None` if more bytes are needed. The whole input has then been consumed, except after the last request,
    /// after [`begin_upgrade`](Self::begin_upgrade) and after a rejection. Call this method until it returns `None`,
    /// because it needs no further input to return the end of a request.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Event, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// // The head arrives in two parts.
    /// assert!(decoder.decode(&mut &b"GET / HTTP/1.1\r\nHo"[..])?.is_none());
    /// let Some(Event::Head(head)) = decoder.decode(&mut &b"st: a\r\n\r\n"[..])? else { panic!() };
    /// assert_eq!(head.host(), Some("a"));
    /// assert!(matches!(decoder.decode(&mut &b""[..])?, Some(Event::End(None))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Rejects malformed requests and requests that the server does not support. The rejection does not depend on how
    /// the input is split, and every further call returns it again. The connection must be closed.
    #[inline]
    pub fn decode<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Rejection> {
        match &mut self.state {
            State::Head => self.head(input),
            State::Length(left) => {
                let data = take(input, *left);
                *left -= data.map_or(0, |data| data.len() as u64);
                if *left == 0 {
                    self.state = State::End;
                }
                Ok(data.map(Event::Data))
            }
            State::Chunked(chunked) => match chunked.decode(input) {
                Ok(Some(ChunkedEvent::Data(data))) => Ok(Some(Event::Data(data))),
                Ok(Some(ChunkedEvent::End(trailers))) => Ok(Some(self.end(trailers))),
                Ok(None) => Ok(None),
                Err(rejection) => Err(self.reject(rejection)),
            },
            State::End => Ok(Some(self.end(None))),
            State::Closed => Ok(None),
            State::Rejected(rejection) => Err(*rejection),
        }
    }

    /// Takes back a head for reuse, so that the next request needs no allocation. The head may come from another
    /// decoder.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Event, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n"[..];
    /// for path in ["/a", "/b"] {
    ///     let Some(Event::Head(head)) = decoder.decode(&mut input)? else { panic!() };
    ///     assert_eq!(head.path(), path);
    ///     decoder.recycle(head);
    ///     assert!(matches!(decoder.decode(&mut input)?, Some(Event::End(None))));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recycle(&mut self, head: Head) {
        if head.0.fields.capacity_bytes() <= MAX_RETAINED_BYTES {
            self.spare = Some(head);
        }
    }

    /// Returns `true` if no request has been partially received, so that closing the connection aborts no request.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// assert!(decoder.is_idle());
    /// assert!(decoder.decode(&mut &b"GET /"[..])?.is_none());
    /// assert!(!decoder.is_idle());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_idle(&self) -> bool {
        match &self.state {
            State::Head => self.partial.is_empty() && self.scanner.is_before_request(),
            State::End | State::Closed => true,
            State::Length(_) | State::Chunked(_) | State::Rejected(_) => false,
        }
    }

    /// Returns the number of further requests that the connection may send.
    pub(crate) fn requests_left(&self) -> u64 {
        self.requests_left
    }

    /// Returns `true` if no further requests are accepted: the last one has ended, or
    /// [`begin_upgrade`](Self::begin_upgrade) was called.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Event, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits { max_requests_per_connection: 1, ..Limits::default() });
    /// let mut input = &b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"[..];
    /// assert!(matches!(decoder.decode(&mut input)?, Some(Event::Head(_))));
    /// assert!(matches!(decoder.decode(&mut input)?, Some(Event::End(_))));
    /// assert!(decoder.is_closed());
    /// assert_eq!(input, b"GET", "the second request is not read");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Returns `true` while the body of a request is being received.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nciao"[..];
    /// decoder.decode(&mut input)?;
    /// assert!(decoder.is_in_body());
    /// decoder.decode(&mut input)?;
    /// assert!(!decoder.is_in_body());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_body(&self) -> bool {
        matches!(self.state, State::Length(_) | State::Chunked(_))
    }

    /// Returns the number of bytes still missing from the current request body, or `None` if the body is chunked.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nci"[..];
    /// decoder.decode(&mut input)?;
    /// decoder.decode(&mut input)?;
    /// assert_eq!(decoder.body_bytes_left(), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn body_bytes_left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Chunked(_) => None,
            _ => Some(0),
        }
    }

    /// Returns the number of bytes that are buffered until more bytes arrive. The limits for heads and trailers apply
    /// to this number.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// assert!(decoder.decode(&mut &b"GET / HTTP/1.1\r\n"[..])?.is_none());
    /// assert_eq!(decoder.buffered_bytes(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffered_bytes(&self) -> usize {
        match &self.state {
            State::Chunked(chunked) => chunked.buffered_bytes(),
            State::Rejected(_) => 0,
            _ => self.partial.len(),
        }
    }

    /// Returns the first line of a rejected or incomplete head as received, excluding its line ending. Returns `None`
    /// if the line is incomplete or longer than its limit.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"GET /a HTTP/1.1\r\nHost a\r\n\r\n"[..];
    /// assert!(decoder.decode(&mut input).is_err());
    /// assert_eq!(decoder.first_line(), Some(&b"GET /a HTTP/1.1"[..]));
    /// ```
    pub fn first_line(&self) -> Option<&[u8]> {
        let line = &self.partial[..line_end(&self.partial)?];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Returns the method of a rejected or incomplete head, or [`Method::Get`] if the method is incomplete. The
    /// response to `HEAD` has no content, even if the request is rejected (RFC 9110, section 9.3.2).
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits, Method};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"HEAD /a HTTP/1.1\r\nHost a\r\n\r\n"[..];
    /// assert!(decoder.decode(&mut input).is_err());
    /// assert_eq!(decoder.rejected_method(), Method::Head);
    /// ```
    pub fn rejected_method(&self) -> Method {
        let end = self.partial.iter().position(|&byte| byte == b' ');
        end.map_or(Method::Get, |end| Method::of(&self.partial[..end]))
    }

    /// Informs the decoder of EOF from the peer.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// assert!(decoder.finish_eof().is_ok());
    /// assert!(decoder.decode(&mut &b"GET /"[..])?.is_none());
    /// assert_eq!(decoder.finish_eof().unwrap_err().status, 400);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Rejects a partially received request. The client may no longer be able to receive the response.
    pub fn finish_eof(&mut self) -> Result<(), Rejection> {
        match &self.state {
            State::Rejected(rejection) => Err(*rejection),
            _ if self.is_idle() => Ok(()),
            State::Head => {
                Err(self.reject_head(Rejection::bad("connection closed in the middle of a head"), &[]))
            }
            _ => Err(self.reject(Rejection::bad("connection closed in the middle of a body"))),
        }
    }

    /// Stops decoding requests, because the bytes that follow an accepted `Upgrade` or `CONNECT` belong to another
    /// protocol. Returns the bytes, if any, that `decode` has consumed after the end of that request.
    ///
    /// ```
    /// use anello_http::h1::{Decoder, Event, Limits};
    ///
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut input = &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nciao"[..];
    /// assert!(matches!(decoder.decode(&mut input)?, Some(Event::Head(_))));
    /// assert!(matches!(decoder.decode(&mut input)?, Some(Event::End(_))));
    /// assert!(decoder.begin_upgrade().is_empty());
    /// assert_eq!(input, b"ciao", "belongs to the other protocol");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_upgrade(&mut self) -> Vec<u8> {
        self.state = State::Closed;
        let mut consumed = std::mem::take(&mut self.scanner).empty_lines();
        consumed.append(&mut self.partial);
        consumed
    }

    #[inline]
    fn head<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Rejection> {
        if self.partial.is_empty() {
            let is_plain = |first: &u8| !matches!(first, b'\r' | b'\n');
            if !(self.scanner.is_before_request() && input.first().is_some_and(is_plain)) {
                self.scanner.skip_empty_lines(input).map_err(|rejection| self.reject(rejection))?;
                if input.is_empty() {
                    return Ok(None);
                }
            }
            let mut head = self.spare.take().unwrap_or_default();
            match parse(input, &self.limits, &mut head.0) {
                Ok(Some(bytes)) => {
                    self.scanner.empty_lines = 0;
                    *input = &input[bytes..];
                    return Ok(Some(self.begin(head)));
                }
                Ok(None) => self.spare = Some(head),
                Err(rejection) => return Err(self.reject_head(rejection, input)),
            }
        }
        self.decode_partial_head(input)
    }

    #[cold]
    fn decode_partial_head<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Rejection> {
        let scanned = self.scanner.scan(input, &self.limits);
        let scanned = scanned.map_err(|rejection| self.reject_head(rejection, input))?;
        let (latest, rest) = input.split_at(scanned.unwrap_or(input.len()));
        *input = rest;
        self.partial.extend_from_slice(latest);
        if scanned.is_none() {
            return Ok(None);
        }
        let mut head = self.spare.take().unwrap_or_default();
        match parse(&self.partial, &self.limits, &mut head.0) {
            Ok(Some(_)) => {
                self.partial.clear();
                self.partial.shrink_to(MAX_RETAINED_BYTES);
                Ok(Some(self.begin(head)))
            }
            // Not expected, because the scanner is as strict as the parser and has accepted the head.
            Ok(None) => Err(self.reject_head(Rejection::bad("malformed head"), &[])),
            Err(rejection) => Err(self.reject_head(rejection, &[])),
        }
    }

    #[inline]
    fn begin(&mut self, mut head: Head) -> Event<'static> {
        let parts = &mut *head.0;
        parts.keeps_alive = parts.decision.keeps_alive && self.requests_left > 1;
        self.requests_left = if parts.keeps_alive { self.requests_left - 1 } else { 0 };
        self.state = match parts.decision.framing {
            RequestFraming::None | RequestFraming::Length(0) => State::End,
            RequestFraming::Length(bytes) => State::Length(bytes),
            RequestFraming::Chunked => State::Chunked(Box::new(ChunkedDecoder::new(self.limits))),
        };
        Event::Head(head)
    }

    /// Omits the event [`End`](Event::End) of a request without a body.
    #[inline]
    pub(crate) fn skip_end(&mut self) {
        if let State::End = self.state {
            self.end(None);
        }
    }

    #[inline]
    fn end(&mut self, trailers: Option<Trailers>) -> Event<'static> {
        self.state = if self.requests_left == 0 { State::Closed } else { State::Head };
        Event::End(trailers)
    }

    #[cold]
    fn reject(&mut self, rejection: Rejection) -> Rejection {
        self.state = State::Rejected(rejection);
        self.partial = Vec::new();
        rejection
    }

    /// Rejects a head. `latest` is the input that has not been buffered yet. Keeps the request line, or only the method
    /// if the line is incomplete or too long.
    #[cold]
    fn reject_head(&mut self, rejection: Rejection, latest: &[u8]) -> Rejection {
        let mut line = std::mem::take(&mut self.partial);
        match line_end(&line) {
            Some(end) => line.truncate(end + 1),
            None => {
                let method_bytes = (MAX_METHOD_BYTES + 1).saturating_sub(line.len()).min(latest.len());
                line.extend_from_slice(&latest[..line_end(latest).map_or(method_bytes, |end| end + 1)]);
            }
        }
        if line_end(&line).is_none() || line.len() > self.limits.max_request_line_bytes + b"\r\n".len() {
            line.truncate(line.iter().position(|&byte| byte == b' ').map_or(0, |end| end + 1));
        }
        self.reject(rejection);
        self.partial = line;
        rejection
    }
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_head_releases_its_memory() {
        let mut decoder = Decoder::new(Limits::default());
        for (value, is_short) in [("x".repeat(MAX_RETAINED_BYTES), false), ("x".to_owned(), true)] {
            let text = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {value}\r\n\r\n");
            let (first, mut rest) = text.as_bytes().split_at(10);
            assert!(decoder.decode(&mut &first[..]).unwrap().is_none());
            let Ok(Some(Event::Head(head))) = decoder.decode(&mut rest) else { panic!("no head") };
            assert!(matches!(decoder.decode(&mut rest), Ok(Some(Event::End(None)))));
            decoder.recycle(head);
            assert_eq!(decoder.spare.is_some(), is_short);
            assert!(decoder.partial.capacity() <= MAX_RETAINED_BYTES);
        }
    }
}
