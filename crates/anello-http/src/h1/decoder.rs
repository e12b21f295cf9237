//! Takes the requests of one connection apart.
//!
//! ```text
//!        ┌──► Head ──┬──► Length(n) ──┬──► End ──┬──► Closed   after the last request
//!        │           ├──► Chunked ────┤          │
//!        │           └────────────────┘          │
//!        └───────────────────────────────────────┘
//! ```
//!
//! A head that is whole in the input is parsed where it lies. Of one that is not, the bytes are kept and gone through once
//! as they come ([`Scanner`]); the whole is then parsed in the same way. Bodies are handed out where they lie.

use super::chunked::{ChunkedDecoder, ChunkedEvent, take};
use super::fields::Trailers;
use super::framing::RequestFraming;
use super::head::{Head, Method};
use super::limits::Limits;
use super::parse::{METHOD_BYTES, parse};
use super::rejection::Rejection;
use super::scanner::Scanner;

/// Most memory that a head may keep when it is recycled: one long head must not hold its memory for as long as the
/// connection lives.
const MAX_RETAINED_BYTES: usize = 4 * 1024;

/// Takes the requests of one connection apart; see [`decode`](Self::decode).
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
    /// Requests that may still come.
    requests_left: u64,
    /// The head that the input has cut, so far.
    partial: Vec<u8>,
    scanner: Scanner,
    /// A head to be filled: the last one.
    spare: Option<Head>,
}

#[derive(Debug)]
enum State {
    /// Between requests, or within a head.
    Head,
    /// So much of a body is still to come, which is something.
    Length(u64),
    /// Its own memory: few requests need it, and connections are many.
    Chunked(Box<ChunkedDecoder>),
    /// Only the end of the request is left to be told.
    End,
    /// No more requests are taken.
    Closed,
    Refused(Rejection),
}

/// A part of a request. Every request is one `Head`, any number of `Data`, and one `End`.
#[derive(Debug)]
pub enum Event<'a> {
    /// The request begins.
    Head(Head),
    /// Bytes of its body, where they lie in the input; never none.
    Data(&'a [u8]),
    /// It is over. With the trailers, if there are any.
    End(Option<Trailers>),
}

impl Decoder {
    /// A decoder for a new connection.
    #[must_use]
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

    /// The next part; takes its bytes off the front of `input`.
    ///
    /// None when more bytes are needed: all of the input has been taken then, and it is to be called again with what comes
    /// next. Only behind the last request, after [`begin_upgrade`](Self::begin_upgrade), and after a refusal are bytes left. Parts are to
    /// be asked for until there is none: the end of a request needs no bytes of its own.
    ///
    /// # Errors
    /// What is no request, or no request that is served. It is the same refusal wherever the bytes were cut, and from then
    /// on the answer to every call; the connection is to be closed.
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
            State::Refused(rejection) => Err(*rejection),
        }
    }

    /// Takes a head back, so that the next one needs no memory. It may come from another decoder.
    pub fn recycle(&mut self, head: Head) {
        if head.0.fields.capacity_bytes() <= MAX_RETAINED_BYTES {
            self.spare = Some(head);
        }
    }

    /// Whether no request is half here: a connection may be closed without cutting one off, and its peer owes nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        match &self.state {
            State::Head => self.partial.is_empty() && self.scanner.is_before_request(),
            State::End | State::Closed => true,
            State::Length(_) | State::Chunked(_) | State::Refused(_) => false,
        }
    }

    /// Whether no more requests are taken: the last one is over, or [`begin_upgrade`](Self::begin_upgrade) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether the body of a request is being received.
    #[must_use]
    pub fn is_in_body(&self) -> bool {
        matches!(self.state, State::Length(_) | State::Chunked(_))
    }

    /// What is still to come of the body of the request at hand, in bytes; none when it comes in chunks, which do not tell.
    #[must_use]
    pub fn body_bytes_left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Chunked(_) => None,
            _ => Some(0),
        }
    }

    /// Bytes that were taken and are kept until more have come; the limits of head and trailers bound them.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        match &self.state {
            State::Chunked(chunked) => chunked.buffered_bytes(),
            State::Refused(_) => 0,
            _ => self.partial.len(),
        }
    }

    /// The first line of the head that was refused or is not whole yet, without its end: as received, whatever is wrong
    /// with it. None before it has come whole, and when it is longer than is allowed.
    #[must_use]
    pub fn first_line(&self) -> Option<&[u8]> {
        let end = line_end(&self.partial)?;
        let line = &self.partial[..end];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Returns the method of the head that was refused or is not whole yet: [`Method::Get`] if the method has not come
    /// whole. The response to `HEAD` has no content, whatever is wrong with the request (RFC 9110, section 9.3.2).
    #[must_use]
    pub fn rejected_method(&self) -> Method {
        let end = self.partial.iter().position(|&byte| byte == b' ');
        end.map_or(Method::Get, |end| Method::of(&self.partial[..end]))
    }

    /// Says that the peer has ended its side.
    ///
    /// # Errors
    /// When a request is half here. There may be nobody left to be answered.
    pub fn finish_eof(&mut self) -> Result<(), Rejection> {
        match &self.state {
            State::Refused(rejection) => Err(*rejection),
            _ if self.is_idle() => Ok(()),
            State::Head => {
                Err(self.reject_head(Rejection::bad("the connection ended in the middle of a head"), &[]))
            }
            _ => Err(self.reject(Rejection::bad("the connection ended in the middle of a body"))),
        }
    }

    /// Takes no more requests: what follows is of another protocol, for which an `Upgrade` or a `CONNECT` was accepted.
    /// Returns what was taken of it: nothing, unless parts were asked for behind the end of that request.
    pub fn begin_upgrade(&mut self) -> Vec<u8> {
        self.state = State::Closed;
        let mut taken = std::mem::take(&mut self.scanner).empty_lines();
        taken.append(&mut self.partial);
        taken
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
                    self.scanner.reset_empty_lines();
                    *input = &input[bytes..];
                    return Ok(Some(self.begin(head)));
                }
                Ok(None) => self.spare = Some(head),
                Err(rejection) => return Err(self.reject_head(rejection, input)),
            }
        }
        self.decode_partial_head(input)
    }

    /// Goes on with a head that is cut, or in which something is wrong.
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
            // The scanner is as strict as the parser.
            Ok(None) => Err(self.reject_head(Rejection::bad("a head that is none"), &[])),
            Err(rejection) => Err(self.reject_head(rejection, &[])),
        }
    }

    /// A head is whole.
    #[inline]
    fn begin(&mut self, mut head: Head) -> Event<'static> {
        let parts = &mut *head.0;
        parts.keeps_alive = parts.may_keep_alive && self.requests_left > 1;
        self.requests_left = if parts.keeps_alive { self.requests_left - 1 } else { 0 };
        self.state = match parts.framing {
            RequestFraming::None | RequestFraming::Length(0) => State::End,
            RequestFraming::Length(bytes) => State::Length(bytes),
            RequestFraming::Chunked => State::Chunked(Box::new(ChunkedDecoder::new(self.limits))),
        };
        Event::Head(head)
    }

    /// A request is over.
    #[inline]
    fn end(&mut self, trailers: Option<Trailers>) -> Event<'static> {
        self.state = if self.requests_left == 0 { State::Closed } else { State::Head };
        Event::End(trailers)
    }

    #[cold]
    fn reject(&mut self, rejection: Rejection) -> Rejection {
        self.state = State::Refused(rejection);
        self.partial = Vec::new();
        rejection
    }

    /// Refuses a head of which this has come last, and keeps its first line, or the method if the line is not whole or too
    /// long.
    #[cold]
    fn reject_head(&mut self, rejection: Rejection, latest: &[u8]) -> Rejection {
        let mut line = std::mem::take(&mut self.partial);
        match line_end(&line) {
            Some(end) => line.truncate(end + 1),
            None => {
                let room = (METHOD_BYTES + b" ".len()).saturating_sub(line.len()).min(latest.len());
                line.extend_from_slice(&latest[..line_end(latest).map_or(room, |end| end + 1)]);
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

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

    fn head(decoder: &mut Decoder, input: &mut &[u8]) -> Head {
        match decoder.decode(input) {
            Ok(Some(Event::Head(head))) => head,
            other => panic!("{other:?}"),
        }
    }

    fn ends(decoder: &mut Decoder, input: &mut &[u8]) -> bool {
        matches!(decoder.decode(input), Ok(Some(Event::End(None))))
    }

    #[test]
    fn idle_is_between_requests_and_nowhere_else() {
        let mut decoder = Decoder::new(Limits::default());
        assert!(decoder.is_idle() && decoder.finish_eof().is_ok());
        let text = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab\r\n";
        for (index, byte) in text.iter().enumerate() {
            let mut input = std::slice::from_ref(byte);
            while decoder.decode(&mut input).unwrap().is_some() {}
            // The end of the body, and of an empty line behind it.
            let is_end = index + 3 == text.len() || index + 1 == text.len();
            assert_eq!(decoder.is_idle(), is_end, "byte {index}");
            assert_eq!(decoder.is_in_body(), index + 5 == text.len() || index + 4 == text.len());
            let is_in_head = index + 5 < text.len();
            assert_eq!(decoder.buffered_bytes(), if is_in_head { index + 1 } else { 0 });
        }
        assert!(decoder.finish_eof().is_ok());
        decoder.decode(&mut &b"G"[..]).unwrap();
        assert_eq!(decoder.finish_eof().unwrap_err().status, 400);
        assert!(decoder.decode(&mut &GET[1..]).is_err());
    }

    #[test]
    fn the_line_of_a_refused_head_is_known_wherever_it_is_cut() {
        let limits = Limits { max_request_line_bytes: 20, max_fields: 2, ..Limits::default() };
        let known = |text: &str, cut: usize| {
            let mut decoder = Decoder::new(limits);
            for mut piece in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                while matches!(decoder.decode(&mut piece), Ok(Some(_))) {}
            }
            assert!(decoder.finish_eof().is_err() && decoder.buffered_bytes() == 0);
            decoder.first_line().map(|line| String::from_utf8_lossy(line).into_owned())
        };
        for (text, line) in [
            ("\r\nGET /host HTTP/1.1\r\nA: b\r\n\r\n", Some("GET /host HTTP/1.1")),
            ("GET /many HTTP/1.1\r\nA: b\r\nA: b\r\nA: b\r\n\r\n", Some("GET /many HTTP/1.1")),
            ("GET /field HTTP/1.1\r\nA b\r\n\r\n", Some("GET /field HTTP/1.1")),
            ("GET /ends HTTP/1.1\r\nHost: h\r\n", Some("GET /ends HTTP/1.1")),
            ("no request\r\n\r\n", Some("no request")),
            ("GET /longer/than/that HTTP/1.1\r\nHost: h\r\n\r\n", None),
            ("GET /cut HT", None),
        ] {
            for cut in 0..text.len() {
                // The line itself is wrong: nothing is read on behind the byte that shows that.
                let is_told = !(text.starts_with("no request\r") && cut == "no request\r".len());
                assert_eq!(known(text, cut).as_deref(), line.filter(|_| is_told), "{text:?} at {cut}");
            }
        }
    }

    #[test]
    fn the_end_in_a_body_is_said() {
        for body in ["Content-Length: 2\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n2\r\na"] {
            let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{body}");
            let (mut decoder, mut input) = (Decoder::new(Limits::default()), text.as_bytes());
            while decoder.decode(&mut input).unwrap().is_some() {}
            assert!(decoder.finish_eof().unwrap_err().reason.contains("body"));
        }
    }

    #[test]
    fn bytes_behind_the_last_request_are_left_alone() {
        for last in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"] {
            let text = format!("{last}not http");
            let (mut decoder, mut input) = (Decoder::new(Limits::default()), text.as_bytes());
            assert!(!head(&mut decoder, &mut input).keeps_alive());
            assert!(!decoder.is_closed() && ends(&mut decoder, &mut input) && decoder.is_closed());
            assert!(decoder.decode(&mut input).unwrap().is_none());
            assert_eq!(input, b"not http");
            assert!(decoder.is_idle() && decoder.finish_eof().is_ok());
        }
    }

    #[test]
    fn the_last_request_of_the_limit_does_not_keep_alive() {
        let mut decoder = Decoder::new(Limits { max_requests_per_connection: 2, ..Limits::default() });
        let text = GET.repeat(3);
        let mut input = &text[..];
        assert!(head(&mut decoder, &mut input).keeps_alive() && ends(&mut decoder, &mut input));
        assert!(!head(&mut decoder, &mut input).keeps_alive() && ends(&mut decoder, &mut input));
        assert!(decoder.decode(&mut input).unwrap().is_none() && input == GET);
        // None at all would be no server.
        let mut decoder = Decoder::new(Limits { max_requests_per_connection: 0, ..Limits::default() });
        assert!(!head(&mut decoder, &mut &GET[..]).keeps_alive());
    }

    #[test]
    fn what_follows_an_upgrade_is_handed_over() {
        let text = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n\x01\x02";
        let (mut decoder, mut input) = (Decoder::new(Limits::default()), &text[..]);
        assert_eq!(head(&mut decoder, &mut input).upgrade(), Some("chat"));
        assert!(ends(&mut decoder, &mut input));
        assert_eq!(decoder.begin_upgrade(), b"");
        assert!(decoder.decode(&mut input).unwrap().is_none() && input == b"\x01\x02");

        let mut decoder = Decoder::new(Limits::default());
        let mut input = &text[..text.len() - 2];
        head(&mut decoder, &mut input);
        assert!(ends(&mut decoder, &mut input));
        assert!(decoder.decode(&mut &b"\r\n\r\nPRI"[..]).unwrap().is_none());
        assert_eq!(decoder.begin_upgrade(), b"\r\n\r\nPRI");
        assert_eq!(decoder.begin_upgrade(), b"");
    }

    #[test]
    fn a_refusal_is_for_good() {
        let mut decoder = Decoder::new(Limits::default());
        let rejection = decoder.decode(&mut &b"GET / HTTP/3.0\r\n"[..]).unwrap_err();
        assert_eq!(rejection.status, 505);
        assert_eq!(decoder.decode(&mut &GET[..]).unwrap_err(), rejection);
        assert_eq!(decoder.finish_eof(), Err(rejection));
        assert!(!decoder.is_idle());
    }

    #[test]
    fn a_head_of_another_decoder_is_judged_by_the_limits_of_this_one() {
        let text = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        for (text, limits) in [
            (&text[..], Limits { max_body_bytes: 4, ..Limits::default() }),
            (GET, Limits { max_fields: 0, ..Limits::default() }),
            (GET, Limits { max_head_bytes: GET.len() - 1, ..Limits::default() }),
        ] {
            let (mut one, mut other) = (Decoder::new(Limits::default()), Decoder::new(limits));
            other.recycle(head(&mut one, &mut &text[..]));
            assert!(other.decode(&mut &text[..]).is_err(), "{limits:?}");
        }
    }

    #[test]
    fn a_long_head_does_not_keep_its_memory() {
        let mut decoder = Decoder::new(Limits::default());
        let long = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "x".repeat(MAX_RETAINED_BYTES));
        for text in [long.as_bytes(), GET] {
            let (first, mut rest) = text.split_at(10);
            assert!(decoder.decode(&mut &first[..]).unwrap().is_none());
            let whole = head(&mut decoder, &mut rest);
            assert!(ends(&mut decoder, &mut rest));
            decoder.recycle(whole);
            assert_eq!(decoder.spare.is_some(), text == GET);
            assert!(decoder.partial.capacity() <= MAX_RETAINED_BYTES);
        }
    }
}
