//! Bodies in chunks (RFC 9112, section 7.1): taken apart, and put together.
//!
//! ```text
//!  ┌► Size ─CR─► SizeFeed ─LF─► Data ──► DataReturn ─CR─► DataFeed ─LF─┐
//!  │    └─;─► Extension ─CR─┘  └─ size 0 ─► Trailers ──► the end       │
//!  └───────────────────────────────────────────────────────────────────┘
//! ```

use super::fields::{FieldBlock, Trailers};
use super::limits::Limits;
use super::rejection::Rejection;
use super::scanner::FieldScanner;
use super::syntax::is_value_byte;

/// Most digits of a chunk's size, leading zeros among them: as many as 64 bits need.
const SIZE_DIGITS: u32 = 16;

/// Takes one body in chunks apart. [`Decoder`](super::Decoder) has one; it stands alone for tests and fuzzing.
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
    at: ScanState,
    /// Digits of this chunk's size so far.
    digits: u32,
    /// The size so far; then what is still to come of the chunk.
    left: u64,
    /// Bytes of all chunks so far.
    body_bytes: u64,
    /// Bytes of all extensions so far.
    extension_bytes: usize,
    /// The trailer section so far.
    trailers: Vec<u8>,
    scanner: FieldScanner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    Size,
    /// Blanks behind a size, which an extension must follow.
    Blank,
    Extension,
    SizeFeed,
    Data,
    DataReturn,
    DataFeed,
    Trailers,
    Ended,
}

/// A piece of a body in chunks.
#[derive(Debug)]
pub enum ChunkedEvent<'a> {
    /// Bytes of the body, where they lie in the input; never none.
    Data(&'a [u8]),
    /// The end, with the trailers, if there are any.
    End(Option<Trailers>),
}

impl PartialEq for ChunkedEvent<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Data(one), Self::Data(other)) => one == other,
            (Self::End(None), Self::End(None)) => true,
            (Self::End(Some(one)), Self::End(Some(other))) => one.fields().eq(other.fields()),
            _ => false,
        }
    }
}

impl ChunkedDecoder {
    /// A decoder at the start of a body.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: limits.clamped(),
            at: ScanState::Size,
            digits: 0,
            left: 0,
            body_bytes: 0,
            extension_bytes: 0,
            trailers: Vec::new(),
            scanner: FieldScanner::default(),
        }
    }

    /// The next piece, taken off the front of `input`. None when more bytes are needed, and behind the end.
    ///
    /// # Errors
    /// What is no body in chunks (400), is too long (413), or has too many trailers (431). What is decoded after that means
    /// nothing.
    pub fn decode<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<ChunkedEvent<'a>>, Rejection> {
        loop {
            match self.at {
                ScanState::Data => return Ok(self.data(input).map(ChunkedEvent::Data)),
                ScanState::Trailers => return Ok(self.trailers(input)?.map(ChunkedEvent::End)),
                ScanState::Ended => return Ok(None),
                _ => {}
            }
            let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            self.at = self.step(byte)?;
        }
    }

    /// Bytes that are kept until more have come: those of trailers.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.trailers.len()
    }

    fn data<'a>(&mut self, input: &mut &'a [u8]) -> Option<&'a [u8]> {
        let data = take(input, self.left)?;
        self.left -= data.len() as u64;
        if self.left == 0 {
            self.at = ScanState::DataReturn;
        }
        Some(data)
    }

    /// What comes behind one byte of what stands around the data.
    fn step(&mut self, byte: u8) -> Result<ScanState, Rejection> {
        match (self.at, byte) {
            (ScanState::Size, b'\r') if self.digits > 0 => Ok(ScanState::SizeFeed),
            (ScanState::Size | ScanState::Blank, b';') if self.digits > 0 => {
                self.extension(ScanState::Extension)
            }
            (ScanState::Size | ScanState::Blank, b' ' | b'\t') if self.digits > 0 => {
                self.extension(ScanState::Blank)
            }
            (ScanState::Size, _) => self.digit(byte),
            (ScanState::Extension, b'\r') => Ok(ScanState::SizeFeed),
            (ScanState::Extension, _) if is_value_byte(byte) => self.extension(ScanState::Extension),
            (ScanState::SizeFeed, b'\n') => self.size(),
            (ScanState::DataReturn, b'\r') => Ok(ScanState::DataFeed),
            (ScanState::DataFeed, b'\n') => Ok(ScanState::Size),
            (at, _) => Err(rejection(at)),
        }
    }

    fn digit(&mut self, byte: u8) -> Result<ScanState, Rejection> {
        let Some(digit) = char::from(byte).to_digit(16) else { return Err(rejection(ScanState::Size)) };
        if self.digits == SIZE_DIGITS {
            return Err(Rejection::bad("a chunk whose size has more digits than any"));
        }
        self.digits += 1;
        self.left = self.left << 4 | u64::from(digit);
        Ok(ScanState::Size)
    }

    fn extension(&mut self, at: ScanState) -> Result<ScanState, Rejection> {
        self.extension_bytes += 1;
        if self.extension_bytes > self.limits.max_chunk_extension_bytes {
            return Err(Rejection::bad("more chunk extensions than this server takes"));
        }
        Ok(at)
    }

    /// The line of a size is over.
    fn size(&mut self) -> Result<ScanState, Rejection> {
        self.digits = 0;
        if self.left == 0 {
            return Ok(ScanState::Trailers);
        }
        let body_bytes =
            self.body_bytes.checked_add(self.left).filter(|&bytes| bytes <= self.limits.max_body_bytes);
        let Some(body_bytes) = body_bytes else {
            return Err(Rejection::new(413, "the body is longer than this server takes"));
        };
        self.body_bytes = body_bytes;
        Ok(ScanState::Data)
    }

    /// Goes on with the trailer section; what is in it, if it is over.
    fn trailers(&mut self, input: &mut &[u8]) -> Result<Option<Option<Trailers>>, Rejection> {
        let room = self.limits.max_trailer_bytes - self.trailers.len();
        let text = &input[..input.len().min(room)];
        let end = self.scanner.scan(text, self.limits.max_trailer_fields)?;
        if end.is_none() && input.len() > room {
            return Err(Rejection::new(431, "the trailers are longer than this server takes"));
        }
        let (latest, rest) = input.split_at(end.unwrap_or(text.len()));
        *input = rest;
        self.trailers.extend_from_slice(latest);
        if end.is_none() {
            return Ok(None);
        }
        self.at = ScanState::Ended;
        let trailers = Trailers::read(&std::mem::take(&mut self.trailers));
        Ok(Some(Some(trailers).filter(|trailers| !trailers.is_empty())))
    }
}

#[cold]
fn rejection(at: ScanState) -> Rejection {
    Rejection::bad(match at {
        ScanState::Size => "a chunk without a size in hexadecimal digits",
        ScanState::Blank => "a blank behind the size of a chunk",
        ScanState::Extension => "a control byte in a chunk extension: lines end in CR LF",
        ScanState::SizeFeed => "the line of a chunk's size does not end in CR LF",
        ScanState::DataReturn | ScanState::DataFeed => {
            "a chunk is not followed by CR LF: it is longer than its size says"
        }
        ScanState::Data | ScanState::Trailers | ScanState::Ended => "a body in chunks that is none",
    })
}

/// Takes at most `limit` bytes off the front; none if there are none.
#[inline]
pub(super) fn take<'a>(input: &mut &'a [u8], limit: u64) -> Option<&'a [u8]> {
    let count = usize::try_from(limit).unwrap_or(usize::MAX).min(input.len());
    let (taken, rest) = input.split_at(count);
    *input = rest;
    (!taken.is_empty()).then_some(taken)
}

/// Appends what stands before a chunk of so many bytes. None must have none: that would be the last.
pub fn write_chunk_start(out: &mut Vec<u8>, data_bytes: usize) {
    debug_assert!(data_bytes > 0, "an empty chunk ends the body");
    let mut line = *b"0000000000000000\r\n";
    let mut start = line.len() - 2;
    let mut left = data_bytes;
    while left > 0 {
        start -= 1;
        line[start] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    out.extend_from_slice(&line[start..]);
}

/// Appends what stands behind a chunk.
pub fn write_chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Appends the last chunk and the trailers: the end of the body.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &FieldBlock) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body and its trailers, fed in pieces of so many bytes, with what is left of the last; or the status of the
    /// refusal, which is 0 when there is only more to come.
    fn decode(text: &[u8], piece: usize, limits: Limits) -> Result<(Vec<u8>, Vec<String>, usize), u16> {
        let (mut decoder, mut body) = (ChunkedDecoder::new(limits), Vec::new());
        for mut input in text.chunks(piece) {
            while let Some(piece) = decoder.decode(&mut input).map_err(|rejection| rejection.status)? {
                match piece {
                    ChunkedEvent::Data(data) => body.extend_from_slice(data),
                    ChunkedEvent::End(trailers) => {
                        let text = |(name, value): (&str, &[u8])| format!("{name}={}", value.escape_ascii());
                        let trailers = trailers.iter().flat_map(Trailers::fields).map(text).collect();
                        return Ok((body, trailers, input.len()));
                    }
                }
            }
        }
        Err(0)
    }

    fn all_pieces(text: &str, limits: Limits) -> Result<(String, Vec<String>), u16> {
        let whole = decode(text.as_bytes(), text.len(), limits);
        for piece in 1..text.len() {
            let cut = decode(text.as_bytes(), piece, limits);
            let same = |one: (Vec<u8>, Vec<String>, usize)| (one.0, one.1);
            assert_eq!(cut.map(same), whole.clone().map(same), "{text:?} in pieces of {piece}");
        }
        whole.map(|(body, trailers, _)| (String::from_utf8(body).unwrap(), trailers))
    }

    #[test]
    fn bodies_are_put_together() {
        let limits = Limits::default();
        for (text, body, trailers) in [
            ("0\r\n\r\n", "", &[][..]),
            ("3\r\nabc\r\n0\r\n\r\n", "abc", &[]),
            ("3 ;x\r\nabc\r\n00a\t; y=\"z;\u{e4}\"\r\n0123456789\r\n000;last\r\n\r\n", "abc0123456789", &[]),
            ("A\r\n0123456789\r\n0\r\nA: b\r\nHost: x\r\nC:\r\n\r\n", "0123456789", &["A=b", "C="]),
            ("0\r\nHost: x\r\n\r\n", "", &[]),
            ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", &[]),
        ] {
            let trailers = trailers.iter().map(ToString::to_string).collect();
            assert_eq!(all_pieces(text, limits), Ok((body.to_owned(), trailers)), "{text:?}");
        }
        assert_eq!(decode(b"1\r\na\r\n0\r\n\r\nrest", 100, limits), Ok((b"a".to_vec(), vec![], 4)));
    }

    #[test]
    fn what_is_not_exactly_a_chunk_is_refused() {
        for text in [
            "\r\n",
            ";a\r\n",
            " 1\r\n",
            "g\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            "1\n",
            "1 \r\n",
            "1\r\r",
            "1;a\n",
            "1;\0",
            "1;a\r;",
            "1\r\nab",
            "1\r\na\n",
            "1\r\na\rb",
            "1 2\r\n",
            "00000000000000001\r\n",
            "fffffffffffffffff\r\n",
            "0\r\n\n",
            "0\r\nA\r\n",
            "0\r\nA : b\r\n",
            "0\r\n b\r\n",
            "0\r\nA: b\r\n c\r\n",
            "0\r\nA: b\n",
            "0\r\n:\r\n",
            "1\r\na\r\n\r\n",
        ] {
            assert_eq!(all_pieces(text, Limits::default()), Err(400), "{text:?}");
        }
        assert_eq!(all_pieces("ffffffffffffffff\r\n", Limits::default()), Err(413));
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let text = "1;ab\r\na\r\n2 ;\r\nbc\r\n0;\r\nA: b\r\nC: d\r\n\r\n";
        let exact = Limits {
            max_body_bytes: 3,
            max_chunk_extension_bytes: 6,
            max_trailer_bytes: 14,
            max_trailer_fields: 2,
            ..Limits::default()
        };
        assert!(all_pieces(text, exact).is_ok());
        assert_eq!(all_pieces(text, Limits { max_body_bytes: 2, ..exact }), Err(413));
        assert_eq!(all_pieces(text, Limits { max_chunk_extension_bytes: 5, ..exact }), Err(400));
        assert_eq!(all_pieces(text, Limits { max_trailer_bytes: 13, ..exact }), Err(431));
        assert_eq!(all_pieces(text, Limits { max_trailer_fields: 1, ..exact }), Err(431));
        // A sum beyond 64 bits.
        let all = Limits { max_body_bytes: u64::MAX, ..Limits::default() };
        assert_eq!(all_pieces("1\r\na\r\nffffffffffffffff\r\n", all), Err(413));
    }

    #[test]
    fn what_is_written_is_read() {
        let mut trailers = FieldBlock::default();
        trailers.push(super::super::FieldName::constant("Sum"), b"1").unwrap();
        let mut out = Vec::new();
        for bytes in [1, 15, 16, 255, 256, 70_000] {
            write_chunk_start(&mut out, bytes);
            out.resize(out.len() + bytes, b'x');
            write_chunk_end(&mut out);
        }
        write_last_chunk(&mut out, &trailers);
        let decoded = decode(&out, 1000, Limits::default()).unwrap();
        assert_eq!((decoded.0.len(), decoded.1), (70_543, vec!["Sum=1".to_owned()]));
        let mut out = Vec::new();
        write_chunk_start(&mut out, usize::MAX);
        assert_eq!(out, b"ffffffffffffffff\r\n");
    }
}
