//! Encoding of response bodies.

use super::chunked::{write_chunk_end, write_chunk_start, write_last_chunk};
use super::fields::FieldBlock;

/// How a response body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body is sent, because the method is `HEAD` or the status is 204, 205 or 304.
    None,
    /// By its length in bytes.
    Length(u64),
    /// By the chunked transfer coding.
    Chunked,
    /// By closing the connection.
    UntilClose,
    /// The bytes after the head belong to another protocol, because the status is 101 or a `CONNECT` succeeded.
    Tunnel,
}

/// Encodes the body of one response, chunk by chunk, and checks its length against the head. Small chunks are copied
/// after the head ([`write`](Self::write)). Data that is sent from elsewhere, such as a file, is enclosed in
/// [`begin_chunk`](Self::begin_chunk) and [`end_chunk`](Self::end_chunk).
///
/// If encoding fails, or the encoder is dropped before it is finished, the connection must be closed. Otherwise the
/// peer would interpret the following bytes as the rest of the body.
#[derive(Debug)]
#[must_use = "a body must be finished, or its connection must be closed"]
pub struct BodyEncoder {
    framing: ResponseFraming,
    /// Bytes not yet written, for a body of known length; otherwise 0.
    left: u64,
    keeps_alive: bool,
}

impl BodyEncoder {
    #[inline]
    pub(super) fn new(framing: ResponseFraming, keeps_alive: bool) -> Self {
        let left = if let ResponseFraming::Length(bytes) = framing { bytes } else { 0 };
        Self { framing, left, keeps_alive }
    }

    /// Returns how the body is delimited.
    pub fn framing(&self) -> ResponseFraming {
        self.framing
    }

    /// Returns `true` if the body is sent. Otherwise, the body need not be produced.
    #[inline]
    pub fn sends_body(&self) -> bool {
        self.framing != ResponseFraming::None
    }

    /// Returns `true` if another response can follow on this connection.
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Appends a chunk of the body with its framing. Appends nothing if the body is not sent.
    ///
    /// # Errors
    /// Returns [`BodyError::TooLong`], without appending anything, if the body exceeds the length stated in the head.
    #[inline]
    pub fn write(&mut self, out: &mut Vec<u8>, data: &[u8]) -> Result<(), BodyError> {
        if self.begin_chunk(out, data.len())? {
            out.extend_from_slice(data);
            self.end_chunk(out);
        }
        Ok(())
    }

    /// Appends the framing that precedes a chunk of `chunk_bytes` bytes. Returns `true` if the caller must send the
    /// chunk and then call [`end_chunk`](Self::end_chunk).
    ///
    /// # Errors
    /// Returns [`BodyError::TooLong`], without appending anything, if the body exceeds the length stated in the head.
    #[inline]
    pub fn begin_chunk(&mut self, out: &mut Vec<u8>, chunk_bytes: usize) -> Result<bool, BodyError> {
        if chunk_bytes == 0 {
            // An empty chunk would end the body.
            return Ok(false);
        }
        match self.framing {
            ResponseFraming::None => return Ok(false),
            ResponseFraming::Length(_) => {
                self.left = self.left.checked_sub(chunk_bytes as u64).ok_or(BodyError::TooLong)?;
            }
            ResponseFraming::Chunked => write_chunk_start(out, chunk_bytes),
            ResponseFraming::UntilClose | ResponseFraming::Tunnel => {}
        }
        Ok(true)
    }

    /// Appends the framing that follows a chunk.
    #[inline]
    pub fn end_chunk(&mut self, out: &mut Vec<u8>) {
        if self.framing == ResponseFraming::Chunked {
            write_chunk_end(out);
        }
    }

    /// Appends the end of the body.
    ///
    /// # Errors
    /// Returns [`BodyError::TooShort`] if the body is shorter than the head states. The connection must be closed.
    #[inline]
    pub fn finish(self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.finish_with_trailers(out, &FieldBlock::default())
    }

    /// Appends the end of the body like [`finish`](Self::finish), with trailers if the body is chunked.
    #[inline]
    pub fn finish_with_trailers(self, out: &mut Vec<u8>, trailers: &FieldBlock) -> Result<(), BodyError> {
        if self.left > 0 {
            return Err(BodyError::TooShort { bytes_left: self.left });
        }
        if self.framing == ResponseFraming::Chunked {
            write_last_chunk(out, trailers);
        }
        Ok(())
    }
}

/// A mismatch between a body and the length stated in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the head states.
    #[error("body longer than its Content-Length (close the connection)")]
    TooLong,
    /// The body is shorter than the head states.
    #[error("body {bytes_left} bytes shorter than its Content-Length (close the connection)")]
    TooShort {
        /// Number of missing bytes.
        bytes_left: u64,
    },
}
