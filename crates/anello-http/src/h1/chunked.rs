//! Decoding and encoding of the chunked transfer coding (RFC 9112, section 7.1).
//!
//! ```text
//!  ┌► Size ─CR─► SizeLf ─LF─► Data ──► DataCr ─CR─► DataLf ─LF─┐
//!  │    └─;─► Extension ─CR─┘  └─ size 0 ─► Trailers ─► Ended  │
//!  └───────────────────────────────────────────────────────────┘
//! ```

use super::fields::{FieldBlock, Trailers};
use super::rejection::Rejection;
use super::scanner::FieldScanner;
use super::syntax::is_value_byte;
use super::types::Limits;

/// Maximum number of digits in a chunk size, including leading zeros, so that the size fits into 64 bits.
const MAX_SIZE_DIGITS: u32 = 16;

/// Decodes one chunked body. [`Decoder`](super::Decoder) uses it; it is public for tests and fuzzing.
///
/// ```
/// use anello_http::h1::{ChunkedDecoder, Limits, ChunkedEvent};
///
/// let mut decoder = ChunkedDecoder::new(Limits::default());
/// let mut input = &b"4;a=b\r\nciao\r\n0\r\nSum: 1\r\n\r\nrest"[..];
/// assert_eq!(decoder.decode(&mut input)?, Some(ChunkedEvent::Data(b"ciao")));
/// let Some(ChunkedEvent::End(Some(trailers))) = decoder.decode(&mut input)? else { panic!() };
/// assert_eq!(trailers.field("sum"), Some(&b"1"[..]));
/// assert_eq!(input, b"rest");
/// # Ok::<(), anello_http::h1::Rejection>(())
/// ```
#[derive(Debug)]
pub struct ChunkedDecoder {
    limits: Limits,
    state: State,
    digits: u32,
    /// The chunk size as read so far; after the size line, the number of bytes of the chunk that have yet to arrive.
    left: u64,
    body_bytes: u64,
    extension_bytes: usize,
    trailers: Vec<u8>,
    scanner: FieldScanner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    /// Whitespace after a size. Only an extension can follow it.
    Whitespace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Ended,
}

/// A decoded part of a chunked body.
///
/// ```
/// use anello_http::h1::{ChunkedDecoder, ChunkedEvent, Limits};
///
/// let mut decoder = ChunkedDecoder::new(Limits::default());
/// let mut input = &b"4\r\nciao\r\n0\r\n\r\n"[..];
/// assert_eq!(decoder.decode(&mut input)?, Some(ChunkedEvent::Data(b"ciao")));
/// assert_eq!(decoder.decode(&mut input)?, Some(ChunkedEvent::End(None)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, PartialEq)]
pub enum ChunkedEvent<'a> {
    /// Body bytes, borrowed from the input; never empty.
    Data(&'a [u8]),
    /// The end of the body, with the trailers, if there are any.
    End(Option<Trailers>),
}

impl ChunkedDecoder {
    /// Creates a decoder for the start of a body.
    ///
    /// ```
    /// use anello_http::h1::{ChunkedDecoder, Limits};
    ///
    /// let mut decoder = ChunkedDecoder::new(Limits { max_body_bytes: 3, ..Limits::default() });
    /// assert_eq!(decoder.decode(&mut &b"4\r\nciao\r\n"[..]).unwrap_err().status, 413);
    /// ```
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: limits.clamped(),
            state: State::Size,
            digits: 0,
            left: 0,
            body_bytes: 0,
            extension_bytes: 0,
            trailers: Vec::new(),
            scanner: FieldScanner::default(),
        }
    }

    /// Decodes the next part and removes its bytes from the front of `input`. Returns `None` if more bytes are needed,
    /// and after the end of the body.
    ///
    /// ```
    /// use anello_http::h1::{ChunkedDecoder, ChunkedEvent, Limits};
    ///
    /// let mut decoder = ChunkedDecoder::new(Limits::default());
    /// // A chunk that arrives in two parts is returned in two parts.
    /// assert_eq!(decoder.decode(&mut &b"4\r\nci"[..])?, Some(ChunkedEvent::Data(b"ci")));
    /// assert_eq!(decoder.decode(&mut &b"ao"[..])?, Some(ChunkedEvent::Data(b"ao")));
    /// assert_eq!(decoder.decode(&mut &b"\r\n"[..])?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Rejects a malformed body (400), a body that is too long (413), and a trailer section with too many fields or
    /// bytes (431). The result of further calls is unspecified.
    pub fn decode<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<ChunkedEvent<'a>>, Rejection> {
        loop {
            match self.state {
                State::Data => return Ok(self.data(input).map(ChunkedEvent::Data)),
                State::Trailers => return Ok(self.trailers(input)?.map(ChunkedEvent::End)),
                State::Ended => return Ok(None),
                _ => {}
            }
            let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            self.state = self.step(byte)?;
        }
    }

    /// Returns the number of buffered bytes of an incomplete trailer section.
    ///
    /// ```
    /// use anello_http::h1::{ChunkedDecoder, Limits};
    ///
    /// let mut decoder = ChunkedDecoder::new(Limits::default());
    /// assert_eq!(decoder.decode(&mut &b"0\r\nSum: 1"[..])?, None);
    /// assert_eq!(decoder.buffered_bytes(), b"Sum: 1".len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffered_bytes(&self) -> usize {
        self.trailers.len()
    }

    fn data<'a>(&mut self, input: &mut &'a [u8]) -> Option<&'a [u8]> {
        let data = take(input, self.left)?;
        self.left -= data.len() as u64;
        if self.left == 0 {
            self.state = State::DataCr;
        }
        Some(data)
    }

    fn step(&mut self, byte: u8) -> Result<State, Rejection> {
        match (self.state, byte) {
            (State::Size, b'\r') if self.digits > 0 => Ok(State::SizeLf),
            (State::Size | State::Whitespace, b';') if self.digits > 0 => self.extension(State::Extension),
            (State::Size | State::Whitespace, b' ' | b'\t') if self.digits > 0 => {
                self.extension(State::Whitespace)
            }
            (State::Size, _) => self.digit(byte),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, _) if is_value_byte(byte) => self.extension(State::Extension),
            (State::SizeLf, b'\n') => self.size(),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size),
            (state, _) => Err(rejection(state)),
        }
    }

    fn digit(&mut self, byte: u8) -> Result<State, Rejection> {
        let Some(digit) = char::from(byte).to_digit(16) else { return Err(rejection(State::Size)) };
        if self.digits == MAX_SIZE_DIGITS {
            return Err(Rejection::bad("chunk size has too many digits"));
        }
        self.digits += 1;
        self.left = self.left << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn extension(&mut self, state: State) -> Result<State, Rejection> {
        self.extension_bytes += 1;
        if self.extension_bytes > self.limits.max_chunk_extension_bytes {
            return Err(Rejection::bad("chunk extensions too long"));
        }
        Ok(state)
    }

    /// Handles the end of a chunk-size line.
    fn size(&mut self) -> Result<State, Rejection> {
        self.digits = 0;
        if self.left == 0 {
            return Ok(State::Trailers);
        }
        match self.body_bytes.checked_add(self.left) {
            Some(bytes) if bytes <= self.limits.max_body_bytes => self.body_bytes = bytes,
            _ => return Err(Rejection::new(413, "body too long")),
        }
        Ok(State::Data)
    }

    /// Returns the trailers when the section is complete.
    fn trailers(&mut self, input: &mut &[u8]) -> Result<Option<Option<Trailers>>, Rejection> {
        let remaining = self.limits.max_trailer_bytes - self.trailers.len();
        let text = &input[..input.len().min(remaining)];
        let end = self.scanner.scan(text, self.limits.max_trailer_fields)?;
        if end.is_none() && input.len() > remaining {
            return Err(Rejection::new(431, "trailers too long"));
        }
        let (latest, rest) = input.split_at(end.unwrap_or(text.len()));
        *input = rest;
        self.trailers.extend_from_slice(latest);
        if end.is_none() {
            return Ok(None);
        }
        self.state = State::Ended;
        let trailers = Trailers::read(&std::mem::take(&mut self.trailers));
        Ok(Some(Some(trailers).filter(|trailers| !trailers.is_empty())))
    }
}

#[cold]
fn rejection(state: State) -> Rejection {
    Rejection::bad(match state {
        State::Size => "chunk size is not a hexadecimal number",
        State::Whitespace => "whitespace after a chunk size",
        State::Extension => "control byte in a chunk extension (lines must end in CR LF)",
        State::SizeLf => "chunk size line does not end in CR LF",
        State::DataCr | State::DataLf => "chunk data is not followed by CR LF",
        State::Data | State::Trailers | State::Ended => "malformed chunked body",
    })
}

/// Removes at most `limit` bytes from the front of `input`. Returns `None` if there are none.
#[inline]
pub(super) fn take<'a>(input: &mut &'a [u8], limit: u64) -> Option<&'a [u8]> {
    let count = usize::try_from(limit).unwrap_or(usize::MAX).min(input.len());
    let (front, rest) = input.split_at(count);
    *input = rest;
    (!front.is_empty()).then_some(front)
}

/// Appends the size line of a chunk of `data_bytes` bytes, which must not be 0: an empty chunk ends the body.
///
/// ```
/// use anello_http::h1::write_chunk_start;
///
/// let mut out = Vec::new();
/// write_chunk_start(&mut out, 255);
/// assert_eq!(out, b"ff\r\n");
/// ```
pub fn write_chunk_start(out: &mut Vec<u8>, data_bytes: usize) {
    debug_assert!(data_bytes > 0, "an empty chunk would end the body");
    let mut line = *b"0000000000000000\r\n";
    let mut start = line.len() - 2;
    let mut rest = data_bytes;
    while rest > 0 {
        start -= 1;
        line[start] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
    }
    out.extend_from_slice(&line[start..]);
}

/// Appends the line ending that follows the chunk data.
///
/// ```
/// use anello_http::h1::{write_chunk_end, write_chunk_start};
///
/// let mut out = Vec::new();
/// write_chunk_start(&mut out, 4);
/// out.extend_from_slice(b"ciao");
/// write_chunk_end(&mut out);
/// assert_eq!(out, b"4\r\nciao\r\n");
/// ```
pub fn write_chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Appends the last chunk and the trailers, which end the body.
///
/// ```
/// use anello_http::h1::{FieldBlock, FieldName, write_last_chunk};
///
/// let mut trailers = FieldBlock::default();
/// trailers.push(FieldName::new("Checksum")?, b"17")?;
/// let mut out = Vec::new();
/// write_last_chunk(&mut out, &trailers);
/// assert_eq!(out, b"0\r\nChecksum: 17\r\n\r\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &FieldBlock) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers.as_bytes());
    out.extend_from_slice(b"\r\n");
}
