//! Incremental decoder for the heads and bodies of HTTP/1.1 responses. A body has a given length, is chunked, or ends
//! at EOF (RFC 9112, section 6).
//!
//! ```text
//!  Head ──► Length(n) ──────────────────┐
//!   ▲  ├──► ChunkSize ◄─► ChunkData ──► Trailer ──► end
//!   │  ├──► UntilClose (ends at EOF)                │
//!   │  └──► no body ────────────────────────────────┤
//!   └───────────────────────────────────────────────┘
//! ```
//!
//! The input may be split at any byte, and the returned parts borrow from it. Interim responses (1xx except 101) are
//! skipped. Under load, a server repeatedly sends the same head, except for the date. A head that differs from the last
//! one only in the date is not parsed again ([`HeadCache`]).

use std::ops::Range;

/// Maximum length of a head, a chunk-size line or a trailer section, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Number of header fields in a head up to which parsing does not allocate memory.
const FIELDS_ON_STACK: usize = 128;

const INVALID_CHUNK_SIZE: &str = "invalid chunk size";

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    state: State,
    /// The start of an incomplete head or line.
    partial: Vec<u8>,
    /// Number of bytes received in the current chunk-size line or trailer section.
    line_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    /// The line ending after chunk data.
    ChunkEnd,
    Trailer,
    UntilClose,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Head(Head),
    Body(&'a [u8]),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub status: u16,
    /// The server closes the connection after this response.
    pub closes_connection: bool,
    /// State after this head: `Length`, `ChunkSize` or `UntilClose`.
    next: State,
}

impl Head {
    /// Returns `true` if the final response follows this head.
    fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Returns the body length if the head specifies it.
    pub fn body_bytes(&self) -> Option<u64> {
        if let State::Length(bytes) = self.next { Some(bytes) } else { None }
    }
}

/// Cache of the last head. It never holds an interim head, because a cached head is used as the head of a final
/// response.
#[derive(Debug, Default)]
pub(crate) struct HeadCache {
    bytes: Vec<u8>,
    /// Range of the value of the `Date` field, which is not compared.
    date: Range<usize>,
    head: Option<Head>,
    /// Set if the requests have the method HEAD: their responses have no body, whatever their heads announce.
    has_no_bodies: bool,
}

impl HeadCache {
    /// Creates the cache for the responses to requests with this method.
    pub fn new(method: &str) -> Self {
        Self { has_no_bodies: method == "HEAD", ..Self::default() }
    }

    /// Returns the cached head and its length if `input` starts with it.
    #[inline]
    pub fn find(&self, input: &[u8]) -> Option<(Head, usize)> {
        let input = input.get(..self.bytes.len())?;
        let (prefix, suffix) = (..self.date.start, self.date.end..);
        let same = input[prefix] == self.bytes[prefix] && input[suffix.clone()] == self.bytes[suffix];
        // A line feed within the date would change the meaning of the head.
        let line_ends = |ends: bool, &byte: &u8| ends | (byte == b'\n');
        let same = same && !input[self.date.clone()].iter().fold(false, line_ends);
        self.head.filter(|_| same).map(|head| (head, input.len()))
    }
}

impl Decoder {
    /// Returns `true` if no byte of the next response has been received.
    pub fn is_between_responses(&self) -> bool {
        self.state == State::Head && self.partial.is_empty()
    }

    /// Decodes the next part and removes its bytes from the front of `input`. Returns `None` if more bytes are needed,
    /// or an error that describes why the bytes are not a valid response.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        cache: &mut HeadCache,
    ) -> Result<Option<Part<'a>>, String> {
        loop {
            match &mut self.state {
                State::Head => match self.head(input, cache)? {
                    None => return Ok(None),
                    Some(head) if head.is_interim() => {}
                    Some(head) => {
                        self.line_bytes = 0;
                        self.state = head.next;
                        return Ok(Some(Part::Head(head)));
                    }
                },
                State::Length(0) => {
                    self.state = State::Head;
                    return Ok(Some(Part::End));
                }
                State::ChunkData(0) => self.state = State::ChunkEnd,
                State::Length(remaining) | State::ChunkData(remaining) => {
                    let data = take(input, *remaining);
                    *remaining -= data.map_or(0, |data| data.len() as u64);
                    return Ok(data.map(Part::Body));
                }
                State::UntilClose => return Ok(take(input, u64::MAX).map(Part::Body)),
                State::ChunkSize | State::ChunkEnd | State::Trailer => match self.framing_line(input)? {
                    None => return Ok(None),
                    Some(next) => {
                        self.state = next;
                        if next == State::Head {
                            return Ok(Some(Part::End));
                        }
                    }
                },
            }
        }
    }

    /// Handles EOF. Returns `true` if EOF completes the response.
    pub fn finish_at_eof(&mut self) -> bool {
        let is_complete = self.state == State::UntilClose;
        if is_complete {
            self.state = State::Head;
        }
        is_complete
    }

    /// Decodes a line of the chunk framing or the trailer section. Returns the next state, which is [`State::Head`]
    /// after the last line of the response, or `None` if the line is not complete yet.
    fn framing_line(&mut self, input: &mut &[u8]) -> Result<Option<State>, String> {
        let end = input.iter().position(|&byte| byte == b'\n').map_or(input.len(), |index| index + 1);
        let (part, rest) = input.split_at(end);
        *input = rest;
        self.partial.extend_from_slice(part);
        self.line_bytes += part.len();
        if self.line_bytes > MAX_HEAD_BYTES {
            return Err(format!("chunk-size line or trailer section exceeds {MAX_HEAD_BYTES} bytes"));
        }
        let line = self.partial.as_slice();
        let is_complete = line.ends_with(b"\n");
        let next = match self.state {
            // A long line contains an extension. It is parsed only once, when it is complete.
            State::ChunkSize if !is_complete && line.len() > 32 => return Ok(None),
            State::ChunkSize => match httparse::parse_chunk_size(line) {
                // httparse parses a line without digits as size 0.
                _ if !line.first().is_none_or(u8::is_ascii_hexdigit) => {
                    return Err(INVALID_CHUNK_SIZE.to_owned());
                }
                Ok(httparse::Status::Partial) if !is_complete => return Ok(None),
                Ok(httparse::Status::Complete((_, 0))) => State::Trailer,
                Ok(httparse::Status::Complete((_, size))) => State::ChunkData(size),
                _ => return Err(INVALID_CHUNK_SIZE.to_owned()),
            },
            State::ChunkEnd if !b"\r\n".starts_with(line) => {
                return Err("chunk data is longer than the chunk size".to_owned());
            }
            _ if !is_complete => return Ok(None),
            State::ChunkEnd => State::ChunkSize,
            _ if line == b"\r\n" => State::Head,
            _ => State::Trailer,
        };
        if self.state == State::ChunkSize {
            self.line_bytes = 0;
        }
        self.partial.clear();
        Ok(Some(next))
    }

    /// Decodes a head that starts in this `input` or an earlier one. Returns `None` if it is not complete yet.
    fn head(&mut self, input: &mut &[u8], cache: &mut HeadCache) -> Result<Option<Head>, String> {
        if self.partial.is_empty() {
            // httparse skips empty lines, which would hide excess bytes after a complete body.
            if let Some(b'\r' | b'\n') = input.first() {
                return Err("empty line before the status line".to_owned());
            }
            let found = match cache.find(input) {
                None => parse(&input[..input.len().min(MAX_HEAD_BYTES)], cache)?,
                cached => cached,
            };
            if let Some((head, bytes)) = found {
                *input = &input[bytes..];
                return Ok(Some(head));
            }
        }
        let buffered_bytes = self.partial.len();
        let capacity = MAX_HEAD_BYTES - buffered_bytes;
        let latest = &input[..input.len().min(capacity)];
        self.partial.extend_from_slice(latest);
        // Only a line feed can complete a head, so a head that arrives slowly is not parsed again for every byte.
        let parsed = if latest.contains(&b'\n') { parse(&self.partial, cache)? } else { None };
        match parsed {
            Some((head, bytes)) => {
                // The head was incomplete without the latest bytes, so its end is within them.
                *input = &input[bytes.saturating_sub(buffered_bytes)..];
                self.partial.clear();
                Ok(Some(head))
            }
            None if input.len() >= capacity => Err(format!("head exceeds {MAX_HEAD_BYTES} bytes")),
            None => {
                *input = &[];
                Ok(None)
            }
        }
    }
}

/// Removes up to `max_bytes` bytes from the front of `input`. Returns `None` if `input` is empty.
fn take<'a>(input: &mut &'a [u8], max_bytes: u64) -> Option<&'a [u8]> {
    let count = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(input.len());
    let (data, rest) = input.split_at(count);
    *input = rest;
    (!data.is_empty()).then_some(data)
}

/// Parses a head and caches it unless it is interim. Returns the head and its length, or `None` if it is incomplete.
fn parse(input: &[u8], cache: &mut HeadCache) -> Result<Option<(Head, usize)>, String> {
    let (mut fields, mut many_fields) = ([httparse::EMPTY_HEADER; FIELDS_ON_STACK], Vec::new());
    let mut response = httparse::Response::new(&mut fields);
    let mut parsed = response.parse(input);
    if parsed == Err(httparse::Error::TooManyHeaders) {
        let lines = input.iter().filter(|&&byte| byte == b'\n').count();
        many_fields.resize(lines, httparse::EMPTY_HEADER);
        response = httparse::Response::new(&mut many_fields);
        parsed = response.parse(input);
    }
    let httparse::Status::Complete(bytes) = parsed.map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let status = response.code.unwrap_or(0);
    let mut closes_connection = response.version == Some(0);
    let (mut length, mut is_chunked, mut has_encoding, mut date) = (None, false, false, 0..0);
    for header in response.headers.iter() {
        let is_named = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is_named("content-length") {
            let bytes = decimal(header.value).ok_or("Content-Length is not a number")?;
            if length.is_some_and(|other| other != bytes) {
                return Err("conflicting Content-Length values".to_owned());
            }
            length = Some(bytes);
        } else if is_named("transfer-encoding") {
            has_encoding = true;
            // The last coding determines the framing. The other codings are irrelevant here.
            is_chunked =
                tokens(header.value).last().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
        } else if is_named("connection") {
            for token in tokens(header.value) {
                closes_connection |= token.eq_ignore_ascii_case(b"close");
                closes_connection &= !token.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is_named("date") {
            // The value is a subslice of `input`.
            let start = (header.value.as_ptr() as usize).wrapping_sub(input.as_ptr() as usize);
            date = if start <= bytes { start..(start + header.value.len()).min(bytes) } else { 0..0 };
        }
    }
    let next = match (status, length) {
        (100..=199 | 204 | 304, _) => State::Length(0),
        _ if cache.has_no_bodies => State::Length(0),
        _ if is_chunked => State::ChunkSize,
        (_, Some(bytes)) if !has_encoding => State::Length(bytes),
        _ => State::UntilClose,
    };
    closes_connection |= next == State::UntilClose;
    let head = Head { status, closes_connection, next };
    if !head.is_interim() {
        (cache.bytes, cache.date, cache.head) = (input[..bytes].to_vec(), date, Some(head));
    }
    Ok(Some((head, bytes)))
}

/// Splits a comma-separated list into its elements.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

fn decimal(value: &[u8]) -> Option<u64> {
    // Some proxies merge two equal fields into one list.
    let mut numbers = tokens(value).map(|token| {
        let digits = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(token).ok().filter(|_| digits)?.parse::<u64>().ok()
    });
    let first = numbers.next()??;
    numbers.all(|number| number == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `bytes` in chunks of `chunk_len` bytes. Returns all statuses and bodies, and whether the stream may end
    /// there.
    fn responses(bytes: &[u8], chunk_len: usize) -> Result<(Vec<(u16, String)>, bool), String> {
        let (mut decoder, mut cache) = (Decoder::default(), HeadCache::default());
        let (mut responses, mut current) = (Vec::new(), None);
        for mut input in bytes.chunks(chunk_len) {
            while let Some(part) = decoder.next(&mut input, &mut cache)? {
                match part {
                    Part::Head(head) => current = Some((head.status, String::new())),
                    Part::Body(data) => {
                        current.as_mut().unwrap().1.push_str(std::str::from_utf8(data).unwrap());
                    }
                    Part::End => responses.extend(current.take()),
                }
            }
            assert!(input.is_empty(), "all input is consumed");
        }
        let is_complete = decoder.is_between_responses() || decoder.finish_at_eof();
        responses.extend(current.take());
        Ok((responses, is_complete))
    }

    #[test]
    fn all_body_framings_are_decoded_in_chunks_of_any_size() {
        let bytes = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\n\r\nhello\
             HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:38 GMT\r\nContent-Length: 5\r\n\r\nworld\
             HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
             HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n\
             HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n\
             HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n\r\n\
             3;a=\"b\"\r\nabc\r\n000b \r\ndefghijklmn\r\n0\r\nTrailer: x\r\n\r\n\
             HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
             HTTP/1.1 200 OK\r\n\r\nuntil EOF";
        let statuses = [200, 200, 404, 304, 200, 200, 200];
        let bodies = ["hello", "world", "", "", "abcdefghijklmn", "", "until EOF"].map(str::to_owned);
        let expected: Vec<_> = statuses.into_iter().zip(bodies).collect();
        for chunk_len in 1..=bytes.len() {
            let decoded = responses(bytes.as_bytes(), chunk_len);
            assert_eq!(decoded, Ok((expected.clone(), true)), "chunks of {chunk_len}");
        }
    }

    #[test]
    fn head_with_many_fields_is_decoded() {
        for count in [FIELDS_ON_STACK, FIELDS_ON_STACK + 1, 5000] {
            let fields: String = (0..count - 1).map(|number| format!("X{number}:\r\n")).collect();
            let bytes = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
            for chunk_len in [1000, bytes.len()] {
                let decoded = responses(bytes.as_bytes(), chunk_len);
                assert_eq!(decoded, Ok((vec![(200, "ok".to_owned())], true)), "{count} fields");
            }
        }
    }

    #[test]
    fn response_to_head_request_has_no_body() {
        for framing in ["Content-Length: 5", "Transfer-Encoding: chunked", "Server: x"] {
            let (mut decoder, mut cache) = (Decoder::default(), HeadCache::new("HEAD"));
            let text = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
            for _ in 0..2 {
                let mut input = text.as_bytes();
                let Ok(Some(Part::Head(head))) = decoder.next(&mut input, &mut cache) else {
                    panic!("no head")
                };
                assert_eq!((head.body_bytes(), head.closes_connection), (Some(0), false), "{framing}");
                assert_eq!(decoder.next(&mut input, &mut cache), Ok(Some(Part::End)));
                assert!(decoder.is_between_responses() && input.is_empty());
            }
        }
    }

    #[test]
    fn interim_head_is_not_cached() {
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n";
        let mut cache = HeadCache::default();
        assert_eq!(Decoder::default().next(&mut &interim[..], &mut cache), Ok(None));
        assert_eq!(cache.find(interim), None, "another connection does not find the interim head");
    }

    #[test]
    fn eof_within_response_is_detected() {
        for cut in [
            "HTTP/1.1 2",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        ] {
            assert!(!responses(cut.as_bytes(), 7).unwrap().1, "{cut}");
            assert!(!responses(cut.as_bytes(), cut.len()).unwrap().1, "{cut}");
        }
    }

    #[test]
    fn invalid_responses_are_rejected() {
        let head = "HTTP/1.1 200 OK\r\n";
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
        for invalid in [
            "hello".to_owned(),
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            format!("\r\n{head}Content-Length: 0\r\n\r\n"),
            format!("{head}Content-Length: 1\r\n\r\nx\r\n"),
            format!("{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
            format!("{head}Content-Length: -5\r\n\r\n"),
            format!("{head}Content-Length: 5, 6\r\n\r\n"),
            format!("{chunked}x\r\n"),
            format!("{chunked}\r\n"),
            format!("{chunked}3\r\nabcd\r\n"),
            format!("{chunked}11111111111111111\r\n"),
            format!("{head}X: {}\r\n\r\n", "x".repeat(MAX_HEAD_BYTES)),
            format!("{chunked}1;{}\r\n", "x".repeat(MAX_HEAD_BYTES)),
        ] {
            for chunk_len in [1, 1000, invalid.len() - 1, invalid.len()] {
                assert!(responses(invalid.as_bytes(), chunk_len).is_err(), "{:.80}", invalid);
            }
        }
    }

    #[test]
    fn head_with_different_date_is_found_in_cache() {
        let text = |date: &str, rest: &str| {
            format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 5{rest}\r\n\r\n")
        };
        let mut cache = HeadCache::default();
        assert_eq!(cache.find(b""), None);
        let first = text("Sun, 06 Nov 1994 08:49:37 GMT", "");
        let (head, bytes) = parse(first.as_bytes(), &mut cache).unwrap().unwrap();
        let expected = Head { status: 200, closes_connection: false, next: State::Length(5) };
        assert_eq!((head, bytes), (expected, first.len()));
        let later = text("Sun, 06 Nov 1994 08:49:38 GMT", "") + "hello";
        assert_eq!(cache.find(later.as_bytes()), Some((head, bytes)));
        for other in [
            text("Sun, 06 Nov 1994 08:49:38 GMT", "5"),
            text("Sun, 06 Nov 1994 08:49:38 G", ""),
            text("Sun, 06 Nov\r\nX: 08:49:37 GMT", ""),
            text("Sun, 06 Nov 1994 08:49:37 GMT", "").replace("200", "201"),
        ] {
            assert_eq!(cache.find(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn connection_close_is_detected() {
        for (version, header, closes) in [
            ("1.1", "", false),
            ("1.0", "", true),
            ("1.1", "Connection: Close\r\n", true),
            ("1.1", "Connection: upgrade, close\r\n", true),
            ("1.0", "Connection: keep-alive\r\n", false),
        ] {
            let text = format!("HTTP/{version} 200 OK\r\nContent-Length: 0\r\n{header}\r\n");
            let head = parse(text.as_bytes(), &mut HeadCache::default()).unwrap().unwrap().0;
            assert_eq!(head.closes_connection, closes, "{text}");
        }
    }
}
