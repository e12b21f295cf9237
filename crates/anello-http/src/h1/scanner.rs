//! Goes through a head step by step: for heads that the edge of the input has cut, and to say what is wrong with one.
//!
//! ```text
//!  Method ─SP─► Target ─SP─► Version ──► LineEnd ─LF─► FieldScanner: Start ─► Name ─:─► Value ─CR─► Feed ─► Start …
//!                                                                     └─CR─► EndFeed ─LF─► the head is whole
//! ```
//!
//! A step sees one byte and what was before it, never what follows: so the first byte that is wrong is refused in the same
//! way wherever the input was cut, and a head that comes in a thousand pieces costs no more than a whole one.

use super::limits::Limits;
use super::parse::METHOD_BYTES;
use super::rejection::Rejection;
use super::syntax::{is_target_byte, is_token_byte, is_value_byte};
use super::words::{below, equal, first_hit, not_letter_or_dash};

/// Most empty lines before a request: some clients send one behind a body (RFC 9112, section 2.2).
const MAX_EMPTY_LINES: u32 = 4;

const BARE_CR: Rejection = Rejection::bad("a carriage return without its line feed");
const BARE_LF: Rejection = Rejection::bad("a line feed without its carriage return: lines end in CR LF");

/// Scans one head; see the module's head.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    at: ScanState,
    /// Bytes of the head so far.
    bytes: usize,
    /// Bytes of the method or the version so far, or whether there are any of the target.
    part_bytes: usize,
    /// The first digit of the version.
    major: u8,
    fields: FieldScanner,
    empty_lines: u32,
    /// The carriage return of an empty line has come.
    in_empty_line: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Method,
    Target,
    Version,
    LineEnd,
    LineFeed,
    Fields,
}

impl Scanner {
    /// Whether what comes next is the first byte of a request, unless it is a line end.
    #[inline]
    pub fn is_before_request(&self) -> bool {
        !self.in_empty_line && self.bytes == 0
    }

    /// Takes the empty lines that stand before a request.
    pub fn skip_empty_lines(&mut self, input: &mut &[u8]) -> Result<(), Rejection> {
        while let [first, rest @ ..] = *input {
            match (self.in_empty_line, first) {
                (true, b'\n') => self.in_empty_line = false,
                (true, _) => return Err(BARE_CR),
                (false, b'\n') => return Err(BARE_LF),
                (false, b'\r') if self.empty_lines == MAX_EMPTY_LINES => {
                    return Err(Rejection::bad("empty lines instead of a request"));
                }
                (false, b'\r') => {
                    self.empty_lines += 1;
                    self.in_empty_line = true;
                }
                _ => break,
            }
            *input = rest;
        }
        Ok(())
    }

    /// A head has been parsed without being scanned: the empty lines before it do not count for the next.
    #[inline]
    pub fn reset_empty_lines(&mut self) {
        self.empty_lines = 0;
    }

    /// The empty lines that were taken and have not led to a request yet.
    pub fn empty_lines(&self) -> Vec<u8> {
        let mut lines = b"\r\n".repeat(self.empty_lines as usize);
        if self.in_empty_line {
            lines.pop();
        }
        lines
    }

    /// Goes on with the head; how many bytes of the input belong to it, if it is whole.
    pub fn scan(&mut self, input: &[u8], limits: &Limits) -> Result<Option<usize>, Rejection> {
        let room = limits.max_head_bytes.saturating_sub(self.bytes);
        let mut rest = &input[..input.len().min(room)];
        while self.at != ScanState::Fields
            && let [byte, behind @ ..] = rest
        {
            self.line_step(*byte, limits)?;
            rest = behind;
        }
        if let Some(bytes) = self.fields.scan(rest, limits.max_fields)? {
            let bytes = input.len().min(room) - rest.len() + bytes;
            *self = Self::default();
            return Ok(Some(bytes));
        }
        self.bytes += rest.len();
        if input.len() > room {
            return Err(Rejection::new(431, "the head is longer than this server takes"));
        }
        Ok(None)
    }

    /// One byte of the request line.
    #[inline]
    fn line_step(&mut self, byte: u8, limits: &Limits) -> Result<(), Rejection> {
        let at = match (self.at, byte) {
            (ScanState::Method, b' ') if self.part_bytes > 0 => ScanState::Target,
            (ScanState::Method, _) if is_token_byte(byte) && self.part_bytes < METHOD_BYTES => {
                ScanState::Method
            }
            (ScanState::Target, b' ') if self.part_bytes > 0 => ScanState::Version,
            (ScanState::Target, _) if is_target_byte(byte) => ScanState::Target,
            (ScanState::Version, _) if self.is_version_byte(byte) => {
                if self.part_bytes == 7 {
                    ScanState::LineEnd
                } else {
                    ScanState::Version
                }
            }
            (ScanState::LineEnd, b'\r') => ScanState::LineFeed,
            (ScanState::LineFeed, b'\n') => ScanState::Fields,
            _ => return Err(self.line_rejection(byte)),
        };
        self.part_bytes = if at == self.at { self.part_bytes + 1 } else { 0 };
        self.at = at;
        self.bytes += 1;
        // The line is measured without its end.
        if self.bytes > limits.max_request_line_bytes
            && !matches!(at, ScanState::LineFeed | ScanState::Fields)
        {
            return Err(Rejection::new(414, "the request line is longer than this server takes"));
        }
        Ok(())
    }

    fn is_version_byte(&mut self, byte: u8) -> bool {
        match self.part_bytes {
            5 => {
                self.major = byte;
                byte.is_ascii_digit()
            }
            7 => self.major == b'1' && byte.is_ascii_digit(),
            range => b"HTTP/1.".get(range) == Some(&byte),
        }
    }

    #[cold]
    fn line_rejection(&self, byte: u8) -> Rejection {
        match (self.at, byte) {
            (ScanState::Method, _) if is_token_byte(byte) => {
                Rejection::new(501, "a method that is longer than any that there is")
            }
            // The type of a TLS record that begins a handshake.
            (ScanState::Method, 0x16) if self.bytes == 0 => {
                Rejection::bad("this is no TLS port: use http:// rather than https://")
            }
            (ScanState::Method, b' ') => Rejection::bad("a blank where the request line begins"),
            (ScanState::Method, b'\r' | b'\n') => Rejection::bad("a line that is no request line"),
            (ScanState::Method, _) => Rejection::bad("the method has a byte that no method has"),
            (ScanState::Target, b' ') => Rejection::bad("two blanks behind the method, where one belongs"),
            (ScanState::Target, b'\r' | b'\n') => Rejection::bad("the request line names no version"),
            (ScanState::Target, _) => Rejection::bad(
                "the target has a byte that none may have (a control, a tab, # or no ASCII): percent-encode it",
            ),
            (ScanState::Version, b'0'..=b'9') if self.part_bytes == 7 => {
                Rejection::new(505, self.other_version())
            }
            (ScanState::Version, _) => {
                Rejection::bad("the request line does not end in the version, such as HTTP/1.1")
            }
            (ScanState::LineEnd, b'\n') => BARE_LF,
            (ScanState::LineEnd, _) => Rejection::bad("something behind the version in the request line"),
            (ScanState::LineFeed | ScanState::Fields, _) => BARE_CR,
        }
    }

    fn other_version(&self) -> &'static str {
        match self.major {
            b'2' => "HTTP/2 is not spoken here: use HTTP/1.1",
            _ => "a version other than HTTP/1",
        }
    }
}

/// Scans the lines of fields: those of a head, and trailers.
#[derive(Debug, Default)]
pub(super) struct FieldScanner {
    at: FieldAt,
    fields: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldAt {
    #[default]
    Start,
    Name,
    Value,
    Feed,
    EndFeed,
}

impl FieldScanner {
    /// Goes on with the section; how many bytes of the text belong to it, if it ends. `limit` is the most fields that it
    /// may have.
    pub fn scan(&mut self, text: &[u8], limit: usize) -> Result<Option<usize>, Rejection> {
        let mut rest = text;
        loop {
            // What a step would pass over, many at a time.
            let passed = match self.at {
                FieldAt::Name => first_hit(rest, not_letter_or_dash),
                FieldAt::Value => first_hit(rest, |word| below(word, b' ') | equal(word, 0x7f)),
                _ => Some(0),
            };
            let Some([byte, behind @ ..]) = rest.get(passed.unwrap_or(rest.len())..) else { return Ok(None) };
            rest = behind;
            if self.step(*byte, limit)? {
                return Ok(Some(text.len() - rest.len()));
            }
        }
    }

    /// One byte; whether it ends the section.
    #[inline]
    fn step(&mut self, byte: u8, limit: usize) -> Result<bool, Rejection> {
        self.at = match (self.at, byte) {
            (FieldAt::Value, _) if is_value_byte(byte) => FieldAt::Value,
            (FieldAt::Name, _) if is_token_byte(byte) => FieldAt::Name,
            (FieldAt::Name, b':') => FieldAt::Value,
            (FieldAt::Value, b'\r') => FieldAt::Feed,
            (FieldAt::Feed, b'\n') => FieldAt::Start,
            (FieldAt::Start, b'\r') => FieldAt::EndFeed,
            (FieldAt::EndFeed, b'\n') => return Ok(true),
            (FieldAt::Start, _) if is_token_byte(byte) && self.fields < limit => {
                self.fields += 1;
                FieldAt::Name
            }
            _ => return Err(self.rejection(byte)),
        };
        Ok(false)
    }

    #[cold]
    fn rejection(&self, byte: u8) -> Rejection {
        match (self.at, byte) {
            (FieldAt::Start, _) if is_token_byte(byte) => {
                Rejection::new(431, "more fields than this server takes")
            }
            (FieldAt::Start, b' ' | b'\t') if self.fields > 0 => {
                Rejection::bad("a field folded over two lines: write it in one")
            }
            (FieldAt::Start, b' ' | b'\t') => Rejection::bad("a blank before the name of the first field"),
            (FieldAt::Start, b':') => Rejection::bad("a field without a name"),
            (FieldAt::Start | FieldAt::Value, b'\n') => BARE_LF,
            (FieldAt::Feed | FieldAt::EndFeed, _) => BARE_CR,
            (FieldAt::Name, b' ' | b'\t') => {
                Rejection::bad("a blank between the name of a field and its colon")
            }
            (FieldAt::Name, b'\r' | b'\n') => Rejection::bad("a line without a colon among the fields"),
            (FieldAt::Start | FieldAt::Name, _) => {
                Rejection::bad("the name of a field has a byte that no name has")
            }
            (FieldAt::Value, _) => Rejection::bad("the value of a field has a control byte"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the head ends, or what is refused at which byte.
    fn scan(text: &[u8], limits: &Limits) -> Result<Option<usize>, (usize, Rejection)> {
        let mut scanner = Scanner::default();
        for index in 0..text.len() {
            match scanner.scan(&text[index..=index], limits) {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(Some(index + 1)),
                Err(rejection) => return Err((index, rejection)),
            }
        }
        Ok(None)
    }

    #[test]
    fn the_first_wrong_byte_is_refused_and_no_later_one() {
        for (text, index, status) in [
            (&b" GET"[..], 0, 400),
            (b"\x16\x03\x01", 0, 400),
            (b"G(T", 1, 400),
            (b"GET  /", 4, 400),
            (b"GET /\r\n", 5, 400),
            (b"GET /\xc3", 5, 400),
            (b"GET /#", 5, 400),
            (b"GET /\0", 5, 400),
            (b"GET / http", 6, 400),
            (b"GET / HTTP/11", 12, 400),
            (b"GET / HTTP/1.x", 13, 400),
            (b"GET / HTTP/0.9", 13, 505),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 13, 505),
            (b"GET / HTTP/1.1 ", 14, 400),
            (b"GET / HTTP/1.1\n", 14, 400),
            (b"GET / HTTP/1.1\r\r", 15, 400),
            (b"GET / HTTP/1.1\r\n a", 16, 400),
            (b"GET / HTTP/1.1\r\n:", 16, 400),
            (b"GET / HTTP/1.1\r\n\n", 16, 400),
            (b"GET / HTTP/1.1\r\n\rG", 17, 400),
            (b"GET / HTTP/1.1\r\nA :", 17, 400),
            (b"GET / HTTP/1.1\r\nA\r\n", 17, 400),
            (b"GET / HTTP/1.1\r\nA\xe4", 17, 400),
            (b"GET / HTTP/1.1\r\nA:\n", 18, 400),
            (b"GET / HTTP/1.1\r\nA:\0", 18, 400),
            (b"GET / HTTP/1.1\r\nA:b\rc", 20, 400),
            (b"GET / HTTP/1.1\r\nA:b\r\n c", 21, 400),
        ] {
            let found =
                scan(text, &Limits::default()).map_err(|(index, rejection)| (index, rejection.status));
            assert_eq!(found, Err((index, status)), "{:?}", text.escape_ascii().to_string());
        }
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let text = b"PUT /abc HTTP/1.1\r\nA: b\r\nC: d\r\n\r\n";
        let exact = Limits {
            max_request_line_bytes: 17,
            max_head_bytes: text.len(),
            max_fields: 2,
            ..Limits::default()
        };
        assert_eq!(scan(text, &exact), Ok(Some(text.len())));
        let status = |limits: Limits| scan(text, &limits).unwrap_err().1.status;
        assert_eq!(status(Limits { max_request_line_bytes: 16, ..exact }), 414);
        assert_eq!(status(Limits { max_head_bytes: text.len() - 1, ..exact }), 431);
        assert_eq!(status(Limits { max_fields: 1, ..exact }), 431);
        let method = |bytes| scan("M".repeat(bytes).as_bytes(), &exact).is_ok();
        assert!(method(17) && !method(18));
        let long = "M".repeat(METHOD_BYTES + 1);
        assert_eq!(scan(&long.as_bytes()[1..], &Limits::default()), Ok(None));
        assert_eq!(scan(long.as_bytes(), &Limits::default()).unwrap_err().1.status, 501);
    }

    #[test]
    fn a_few_empty_lines_are_skipped() {
        let skip = |text: &str| {
            let (mut scanner, mut left) = (Scanner::default(), text.as_bytes());
            scanner.skip_empty_lines(&mut left).map(|()| (left.len(), scanner.is_before_request()))
        };
        assert_eq!(skip("\r\n\r\n\r\n\r\nGET"), Ok((3, true)));
        assert_eq!(skip("\r\n\r"), Ok((0, false)));
        for text in ["\r\n\r\n\r\n\r\n\r\n", "\n", "\rG", "\r\r"] {
            assert_eq!(skip(text).unwrap_err().status, 400, "{text:?}");
        }
    }
}
