//! Encoding of response bodies.

use super::chunked::{write_chunk_end, write_chunk_start, write_last_chunk};
use super::fields::FieldBlock;

/// Start of the examples: the body encoder of a response whose body has the given length.
macro_rules! setup {
    ($length:literal) => {
        concat!(
            "use anello_http::h1::*;\n\n",
            "let context = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };\n",
            "let mut out = Vec::new();\n",
            "let mut body = ResponseHead::begin(&mut out, context, 200)?.finish(",
            $length,
            ");"
        )
    };
}

/// How a response body is delimited.
///
/// ```
/// use anello_http::h1::{BodyLength, Method, RequestContext, ResponseFraming, ResponseHead, Version};
///
/// let framing = |method, length| {
///     let context = RequestContext { version: Version::Http11, method, keeps_alive: true };
///     let mut out = Vec::new();
///     ResponseHead::begin(&mut out, context, 200).map(|head| head.finish(length).framing())
/// };
/// assert_eq!(framing(Method::Get, BodyLength::Known(5))?, ResponseFraming::Length(5));
/// assert_eq!(framing(Method::Get, BodyLength::Unknown)?, ResponseFraming::Chunked);
/// assert_eq!(framing(Method::Head, BodyLength::Known(5))?, ResponseFraming::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
#[doc = setup!("BodyLength::Unknown")]
/// body.write(&mut out, b"ciao")?;
/// body.finish(&mut out)?;
/// assert!(out.ends_with(b"\r\n\r\n4\r\nciao\r\n0\r\n\r\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    ///
    /// ```
    #[doc = setup!("BodyLength::Known(4)")]
    /// assert_eq!(body.framing(), ResponseFraming::Length(4));
    /// # body.write(&mut out, b"ciao")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn framing(&self) -> ResponseFraming {
        self.framing
    }

    /// Returns `true` if the body is sent. Otherwise, the body need not be produced.
    ///
    /// ```
    #[doc = setup!("BodyLength::Known(4)")]
    /// assert!(body.sends_body());
    /// # body.write(&mut out, b"ciao")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn sends_body(&self) -> bool {
        self.framing != ResponseFraming::None
    }

    /// Returns `true` if the head states a length and all of these bytes have been written.
    #[inline]
    pub(crate) fn has_written_length(&self) -> bool {
        matches!(self.framing, ResponseFraming::Length(_)) && self.left == 0
    }

    /// Returns `true` if another response can follow on this connection.
    ///
    /// ```
    #[doc = setup!("BodyLength::Known(4)")]
    /// assert!(body.keeps_alive());
    /// # body.write(&mut out, b"ciao")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Appends a chunk of the body with its framing. Appends nothing if the body is not sent.
    ///
    /// ```
    #[doc = setup!("BodyLength::Known(4)")]
    /// body.write(&mut out, b"ciao")?;
    /// assert!(out.ends_with(b"\r\n\r\nciao"));
    /// assert_eq!(body.write(&mut out, b"more"), Err(BodyError::TooLong));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = setup!("BodyLength::Unknown")]
    /// if body.begin_chunk(&mut out, 4)? {
    ///     // The server can send the head and the chunk without copying the chunk.
    ///     assert!(out.ends_with(b"\r\n\r\n4\r\n"));
    ///     # out.extend_from_slice(b"ciao");
    ///     body.end_chunk(&mut out);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    #[doc = setup!("BodyLength::Unknown")]
    /// assert!(body.begin_chunk(&mut out, 4)?);
    /// out.extend_from_slice(b"ciao");
    /// body.end_chunk(&mut out);
    /// assert!(out.ends_with(b"4\r\nciao\r\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn end_chunk(&mut self, out: &mut Vec<u8>) {
        if self.framing == ResponseFraming::Chunked {
            write_chunk_end(out);
        }
    }

    /// Appends the end of the body.
    ///
    /// ```
    #[doc = setup!("BodyLength::Known(4)")]
    /// body.write(&mut out, b"cia")?;
    /// assert_eq!(body.finish(&mut out), Err(BodyError::TooShort { bytes_left: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`BodyError::TooShort`] if the body is shorter than the head states. The connection must be closed.
    #[inline]
    pub fn finish(self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.finish_with_trailers(out, &FieldBlock::default())
    }

    /// Appends the end of the body like [`finish`](Self::finish), with trailers if the body is chunked.
    ///
    /// ```
    #[doc = setup!("BodyLength::Unknown")]
    /// body.write(&mut out, b"ciao")?;
    /// let mut trailers = FieldBlock::default();
    /// trailers.push(FieldName::new("Checksum")?, b"17")?;
    /// body.finish_with_trailers(&mut out, &trailers)?;
    /// assert!(out.ends_with(b"4\r\nciao\r\n0\r\nChecksum: 17\r\n\r\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
///
/// ```
#[doc = setup!("BodyLength::Known(4)")]
/// let error: BodyError = body.write(&mut out, b"too long").unwrap_err();
/// assert_eq!(error.to_string(), "body longer than its Content-Length (close the connection)");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
