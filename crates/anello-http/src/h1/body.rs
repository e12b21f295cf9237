//! Bodies of answers: the bytes that frame them.

use std::fmt;

use super::chunked::{write_chunk_end, write_chunk_start, write_last_chunk};
use super::fields::FieldBlock;

/// How the body of an answer is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// None is sent, whatever there is: the answer to `HEAD`, and the statuses 204, 205 and 304.
    None,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection closes.
    UntilClose,
    /// What follows the head is another protocol's: after 101, and after a `CONNECT` that succeeds.
    Tunnel,
}

/// Encodes the body of one answer, piece by piece, and sees to it that it is as long as its head says.
///
/// Small pieces are copied behind the head ([`write`](Self::write)). What is sent from elsewhere, such as a file, is
/// announced ([`begin_chunk`](Self::begin_chunk), [`end_chunk`](Self::end_chunk)).
///
/// When it fails, or is dropped before it is finished, the connection must be closed: its peer would take what follows for
/// the rest of the body.
#[derive(Debug)]
#[must_use = "a body must be finished, or the connection closed"]
pub struct BodyEncoder {
    delivery: ResponseFraming,
    /// What is still to come, of a body whose length is known.
    left: u64,
    keeps_alive: bool,
}

impl BodyEncoder {
    #[inline]
    pub(super) fn new(delivery: ResponseFraming, keeps_alive: bool) -> Self {
        let left = if let ResponseFraming::Length(bytes) = delivery { bytes } else { 0 };
        Self { delivery, left, keeps_alive }
    }

    /// How the body is delimited.
    #[must_use]
    pub fn delivery(&self) -> ResponseFraming {
        self.delivery
    }

    /// Whether the body is sent at all. If not, it need not be produced.
    #[must_use]
    #[inline]
    pub fn sends_body(&self) -> bool {
        self.delivery != ResponseFraming::None
    }

    /// Whether another answer may follow this one.
    #[must_use]
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Appends a piece of the body, framed. Of a body that is not sent, nothing.
    ///
    /// # Errors
    /// When the body becomes longer than its head says; nothing is appended then.
    #[inline]
    pub fn write(&mut self, out: &mut Vec<u8>, data: &[u8]) -> Result<(), BodyError> {
        if self.begin_chunk(out, data.len())? {
            out.extend_from_slice(data);
            self.end_chunk(out);
        }
        Ok(())
    }

    /// Appends what stands before a piece of so many bytes. Whether the piece is to be sent; then
    /// [`end_chunk`](Self::end_chunk) goes behind it.
    ///
    /// # Errors
    /// When the body becomes longer than its head says; nothing is appended then.
    #[inline]
    pub fn begin_chunk(&mut self, out: &mut Vec<u8>, piece_bytes: usize) -> Result<bool, BodyError> {
        if piece_bytes == 0 {
            // An empty chunk would end the body.
            return Ok(false);
        }
        match self.delivery {
            ResponseFraming::None => return Ok(false),
            ResponseFraming::Length(_) => {
                self.left = self.left.checked_sub(piece_bytes as u64).ok_or(BodyError::TooLong)?;
            }
            ResponseFraming::Chunked => write_chunk_start(out, piece_bytes),
            ResponseFraming::UntilClose | ResponseFraming::Tunnel => {}
        }
        Ok(true)
    }

    /// Appends what stands behind a piece.
    #[inline]
    pub fn end_chunk(&mut self, out: &mut Vec<u8>) {
        if self.delivery == ResponseFraming::Chunked {
            write_chunk_end(out);
        }
    }

    /// Appends the end of the body.
    ///
    /// # Errors
    /// When the body is shorter than its head says: the connection must be closed.
    #[inline]
    pub fn finish(self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.finish_with_trailers(out, &FieldBlock::default())
    }

    /// As [`finish`](Self::finish), with trailers, which only a body in chunks has a place for.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn finish_with_trailers(self, out: &mut Vec<u8>, trailers: &FieldBlock) -> Result<(), BodyError> {
        if self.left > 0 {
            return Err(BodyError::TooShort { bytes_left: self.left });
        }
        if self.delivery == ResponseFraming::Chunked {
            write_last_chunk(out, trailers);
        }
        Ok(())
    }
}

/// A body that is not as long as its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// There is more of it.
    TooLong,
    /// It ended so many bytes too early.
    TooShort {
        /// What is missing, in bytes.
        bytes_left: u64,
    },
}

impl fmt::Display for BodyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => {
                write!(formatter, "the body is longer than its Content-Length: close the connection")
            }
            Self::TooShort { bytes_left } => write!(
                formatter,
                "the body ended {bytes_left} bytes before its Content-Length: close the connection"
            ),
        }
    }
}

impl std::error::Error for BodyError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent of a body of these pieces.
    fn send(delivery: ResponseFraming, pieces: &[&[u8]]) -> (String, Result<(), BodyError>) {
        let (mut out, mut body) = (Vec::new(), BodyEncoder::new(delivery, true));
        for piece in pieces {
            if let Err(error) = body.write(&mut out, piece) {
                return (String::from_utf8(out).unwrap(), Err(error));
            }
        }
        let end = body.finish(&mut out);
        (String::from_utf8(out).unwrap(), end)
    }

    #[test]
    fn pieces_are_framed_as_the_head_says() {
        let pieces: [&[u8]; 3] = [b"ab", b"", b"c"];
        for (delivery, sent) in [
            (ResponseFraming::None, ""),
            (ResponseFraming::Length(3), "abc"),
            (ResponseFraming::Chunked, "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
            (ResponseFraming::UntilClose, "abc"),
        ] {
            assert_eq!(send(delivery, &pieces), (sent.to_owned(), Ok(())), "{delivery:?}");
        }
    }

    #[test]
    fn a_body_of_another_length_is_an_error() {
        let short = Err(BodyError::TooShort { bytes_left: 2 });
        assert_eq!(send(ResponseFraming::Length(3), &[b"a"]), ("a".to_owned(), short));
        assert_eq!(
            send(ResponseFraming::Length(3), &[b"ab", b"cd"]),
            ("ab".to_owned(), Err(BodyError::TooLong))
        );
    }

    #[test]
    fn announced_pieces_have_their_frame_around_them() {
        let (mut out, mut body) = (Vec::new(), BodyEncoder::new(ResponseFraming::Chunked, true));
        assert_eq!(body.begin_chunk(&mut out, 26), Ok(true));
        out.extend_from_slice(b"(sent by other means)");
        body.end_chunk(&mut out);
        body.finish(&mut out).unwrap();
        assert_eq!(out, b"1a\r\n(sent by other means)\r\n0\r\n\r\n");
        assert_eq!(BodyEncoder::new(ResponseFraming::None, true).begin_chunk(&mut out, 26), Ok(false));
    }
}
