//! Bytewise scanner for heads. It handles heads that are split across inputs, and finds the reason for a rejection.
//!
//! ```text
//!  Method ─SP─► Target ─SP─► Version ──► LineCr ─CR─► LineLf ─LF─► FieldScanner
//!
//!  FieldScanner: Start ─► Name ─:─► Value ─CR─► Lf ─LF─► Start …
//!                  └─CR─► EndLf ─LF─► the head is complete
//! ```
//!
//! A step depends on one byte and the bytes before it, never on later bytes. The first invalid byte is therefore
//! rejected in the same way wherever the input is split, and a head that arrives in a thousand parts costs no more than
//! a complete one.

use super::rejection::Rejection;
use super::syntax::{is_target_byte, is_token_byte, is_value_byte};
use super::types::{Limits, MAX_METHOD_BYTES};
use super::words::{below, equal, first_hit, not_letter_or_dash};

/// Maximum number of empty lines before a request. Some clients send one after a body (RFC 9112, section 2.2).
const MAX_EMPTY_LINES: u32 = 4;
const BARE_CR: &str = "carriage return without a line feed";
const BARE_LF: &str = "line feed without a carriage return (lines must end in CR LF)";

#[derive(Debug, Default)]
pub(super) struct Scanner {
    state: State,
    bytes: usize,
    /// Number of bytes scanned in the current part of the request line.
    part_bytes: usize,
    major: u8,
    fields: FieldScanner,
    pub empty_lines: u32,
    /// `true` if the carriage return of an empty line has been received.
    in_empty_line: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Method,
    Target,
    Version,
    LineCr,
    LineLf,
    Fields,
}

impl Scanner {
    /// Returns `true` if the next byte starts a request or an empty line.
    #[inline]
    pub fn is_before_request(&self) -> bool {
        !self.in_empty_line && self.bytes == 0
    }

    pub fn skip_empty_lines(&mut self, input: &mut &[u8]) -> Result<(), Rejection> {
        while let [first, rest @ ..] = *input {
            match (self.in_empty_line, first) {
                (true, b'\n') => self.in_empty_line = false,
                (true, _) => return Err(Rejection::bad(BARE_CR)),
                (false, b'\n') => return Err(Rejection::bad(BARE_LF)),
                (false, b'\r') if self.empty_lines == MAX_EMPTY_LINES => {
                    return Err(Rejection::bad("too many empty lines before a request"));
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

    /// Returns the empty lines consumed since the last request.
    pub fn empty_lines(&self) -> Vec<u8> {
        let mut lines = b"\r\n".repeat(self.empty_lines as usize);
        if self.in_empty_line {
            lines.pop();
        }
        lines
    }

    /// Scans more of the head. If the head is complete, returns the number of input bytes that belong to it.
    pub fn scan(&mut self, input: &[u8], limits: &Limits) -> Result<Option<usize>, Rejection> {
        let remaining = limits.max_head_bytes.saturating_sub(self.bytes);
        let mut rest = &input[..input.len().min(remaining)];
        while self.state != State::Fields
            && let [byte, tail @ ..] = rest
        {
            self.line_step(*byte, limits)?;
            rest = tail;
        }
        if let Some(bytes) = self.fields.scan(rest, limits.max_fields)? {
            let bytes = input.len().min(remaining) - rest.len() + bytes;
            *self = Self::default();
            return Ok(Some(bytes));
        }
        self.bytes += rest.len();
        if input.len() > remaining { Err(Rejection::new(431, "head too long")) } else { Ok(None) }
    }

    #[inline]
    fn line_step(&mut self, byte: u8, limits: &Limits) -> Result<(), Rejection> {
        let state = match (self.state, byte) {
            (State::Method, b' ') if self.part_bytes > 0 => State::Target,
            (State::Method, _) if is_token_byte(byte) && self.part_bytes < MAX_METHOD_BYTES => State::Method,
            (State::Target, b' ') if self.part_bytes > 0 => State::Version,
            (State::Target, _) if is_target_byte(byte) => State::Target,
            (State::Version, _) if self.is_version_byte(byte) => match self.part_bytes {
                7 => State::LineCr,
                _ => State::Version,
            },
            (State::LineCr, b'\r') => State::LineLf,
            (State::LineLf, b'\n') => State::Fields,
            _ => return Err(self.line_rejection(byte)),
        };
        self.part_bytes = if state == self.state { self.part_bytes + 1 } else { 0 };
        self.state = state;
        self.bytes += 1;
        // The limit does not include the line ending.
        if self.bytes > limits.max_request_line_bytes && !matches!(state, State::LineLf | State::Fields) {
            return Err(Rejection::new(414, "request line too long"));
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
            index => b"HTTP/1.".get(index) == Some(&byte),
        }
    }

    #[cold]
    fn line_rejection(&self, byte: u8) -> Rejection {
        Rejection::bad(match (self.state, byte) {
            (State::Method, _) if is_token_byte(byte) => {
                return Rejection::new(501, "method name too long");
            }
            // The type of a TLS handshake record.
            (State::Method, 0x16) if self.bytes == 0 => "TLS handshake on a plain HTTP port (use http://)",
            (State::Method, b' ') => "space at the start of the request line",
            (State::Method, b'\r' | b'\n') => "malformed request line",
            (State::Method, _) => "invalid byte in the method",
            (State::Target, b' ') => "more than one space after the method",
            (State::Target, b'\r' | b'\n') => "no version in the request line",
            (State::Target, _) => {
                "invalid byte in the target: control byte (including tab), # or non-ASCII byte (percent-encode it)"
            }
            (State::Version, b'0'..=b'9') if self.part_bytes == 7 && self.major == b'2' => {
                return Rejection::new(505, "HTTP/2 is not supported (use HTTP/1.1)");
            }
            (State::Version, b'0'..=b'9') if self.part_bytes == 7 => {
                return Rejection::new(505, "unsupported HTTP version (use HTTP/1.1)");
            }
            (State::Version, _) => "invalid version in the request line (expected HTTP/1.1)",
            (State::LineCr, b'\n') => BARE_LF,
            (State::LineCr, _) => "unexpected bytes after the version in the request line",
            (State::LineLf | State::Fields, _) => BARE_CR,
        })
    }
}

/// Scans field lines in heads and in trailer sections.
#[derive(Debug, Default)]
pub(super) struct FieldScanner {
    state: FieldState,
    fields: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldState {
    #[default]
    Start,
    Name,
    Value,
    Lf,
    EndLf,
}

impl FieldScanner {
    /// Scans more of the section. If the section is complete, returns the number of bytes in `text` that belong to it.
    pub fn scan(&mut self, text: &[u8], max_fields: usize) -> Result<Option<usize>, Rejection> {
        let mut rest = text;
        loop {
            // Skip the bytes that do not change the state, many at a time.
            let skipped = match self.state {
                FieldState::Name => first_hit(rest, not_letter_or_dash),
                FieldState::Value => first_hit(rest, |word| below(word, b' ') | equal(word, 0x7f)),
                _ => Some(0),
            };
            let Some([byte, tail @ ..]) = rest.get(skipped.unwrap_or(rest.len())..) else { return Ok(None) };
            rest = tail;
            if self.step(*byte, max_fields)? {
                return Ok(Some(text.len() - rest.len()));
            }
        }
    }

    /// Scans one byte. Returns `true` if the byte ends the section.
    #[inline]
    fn step(&mut self, byte: u8, max_fields: usize) -> Result<bool, Rejection> {
        self.state = match (self.state, byte) {
            (FieldState::Value, _) if is_value_byte(byte) => FieldState::Value,
            (FieldState::Name, _) if is_token_byte(byte) => FieldState::Name,
            (FieldState::Name, b':') => FieldState::Value,
            (FieldState::Value, b'\r') => FieldState::Lf,
            (FieldState::Lf, b'\n') => FieldState::Start,
            (FieldState::Start, b'\r') => FieldState::EndLf,
            (FieldState::EndLf, b'\n') => return Ok(true),
            (FieldState::Start, _) if is_token_byte(byte) && self.fields < max_fields => {
                self.fields += 1;
                FieldState::Name
            }
            _ => return Err(self.rejection(byte)),
        };
        Ok(false)
    }

    #[cold]
    fn rejection(&self, byte: u8) -> Rejection {
        Rejection::bad(match (self.state, byte) {
            (FieldState::Start, _) if is_token_byte(byte) => return Rejection::new(431, "too many fields"),
            (FieldState::Start, b' ' | b'\t') if self.fields > 0 => "folded field (send it on one line)",
            (FieldState::Start, b' ' | b'\t') => "whitespace before the first field name",
            (FieldState::Start, b':') => "field without a name",
            (FieldState::Start | FieldState::Value, b'\n') => BARE_LF,
            (FieldState::Lf | FieldState::EndLf, _) => BARE_CR,
            (FieldState::Name, b' ' | b'\t') => "whitespace between a field name and its colon",
            (FieldState::Name, b'\r' | b'\n') => "field without a colon",
            (FieldState::Start | FieldState::Name, _) => "invalid byte in a field name",
            (FieldState::Value, _) => "control byte in a field value",
        })
    }
}
