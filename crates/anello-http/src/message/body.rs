//! Response bodies.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use anello::fs::File;
use bytes::Bytes;
use futures_core::Stream;

use crate::h1::{EncodedResponse, FieldBlock};

/// Bodies up to this length are copied into the output buffer, after their heads.
pub(crate) const COPIED_BODY_BYTES: usize = 16 * 1024;

/// The body of a response.
#[derive(Default)]
pub struct Body(pub(crate) BodyKind);

#[derive(Default)]
pub(crate) enum BodyKind {
    #[default]
    Empty,
    Bytes(Bytes),
    Encoded(Rc<EncodedResponse>),
    Parts {
        parts: Vec<BodyPart>,
        length: u64,
    },
    Stream {
        chunks: ChunkStream,
        end: StreamEnd,
    },
}

/// Describes how a stream ends.
pub(crate) enum StreamEnd {
    Unknown,
    After(u64),
    /// Boxed, so that responses stay small.
    With(Box<MakeTrailers>),
}

pub(crate) type MakeTrailers = Box<dyn FnOnce() -> FieldBlock>;

/// A part of a body: bytes in memory, or a range of a file.
#[derive(Clone, Debug)]
pub enum BodyPart {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file, sent without a copy through user space where the connection supports it.
    File {
        /// The open file.
        file: File,
        /// Offset of the range in the file, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        length: u64,
    },
}

pub(crate) type ChunkStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>;

impl Body {
    /// Creates an empty body.
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// Creates a body from a range of a file ([`BodyPart::File`]). If the file ends before the range does, the
    /// connection is closed before the body is complete, so that the client detects the truncation.
    pub fn file(file: File, offset: u64, length: u64) -> Self {
        Self::parts(vec![BodyPart::File { file, offset, length }])
    }

    /// Creates a body from several parts, which are sent in order.
    pub fn parts(parts: Vec<BodyPart>) -> Self {
        let part_bytes = |part: &BodyPart| match part {
            BodyPart::Bytes(bytes) => bytes.len() as u64,
            BodyPart::File { length, .. } => *length,
        };
        let length = parts.iter().map(part_bytes).fold(0, u64::saturating_add);
        Self(BodyKind::Parts { parts, length })
    }

    /// Creates a body of unknown length from a stream of chunks. The body uses the chunked transfer coding; for
    /// HTTP/1.0 clients, it is delimited by closing the connection. The stream is first polled after the handler has
    /// returned. It is polled for each further chunk once the previous chunk has been accepted for sending.
    ///
    /// If the stream yields an error, the connection is closed before the body is complete. If the body is delimited by
    /// closing the connection, the connection is reset instead. In both cases the client detects the truncation.
    ///
    /// The stream can read the [request body](crate::RequestBody), which stays readable while the stream holds it.
    pub fn stream(chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::Unknown })
    }

    /// Creates a body like [`stream`](Self::stream), followed by trailer fields, for example a checksum. `trailers` is
    /// called after all chunks have been sent.
    ///
    /// Trailers are sent only with the chunked transfer coding, so HTTP/1.0 clients do not receive them. Announce them
    /// in the `Trailer` header field.
    pub fn stream_with_trailers(
        chunks: impl Stream<Item = io::Result<Bytes>> + 'static,
        trailers: impl FnOnce() -> FieldBlock + 'static,
    ) -> Self {
        let trailers: MakeTrailers = Box::new(trailers);
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::With(Box::new(trailers)) })
    }

    /// Creates a body like [`stream`](Self::stream), with a known length in bytes. If the stream yields more or fewer
    /// bytes, the connection is closed.
    pub fn stream_with_length(length: u64, chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::After(length) })
    }

    /// Returns the length in bytes, or `None` if it is unknown.
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            BodyKind::Empty => Some(0),
            BodyKind::Bytes(bytes) => Some(bytes.len() as u64),
            BodyKind::Encoded(response) => Some(response.body_bytes() as u64),
            BodyKind::Parts { length, .. } => Some(*length),
            BodyKind::Stream { end: StreamEnd::After(length), .. } => Some(*length),
            BodyKind::Stream { .. } => None,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Body").field("length", &self.length()).finish_non_exhaustive()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(BodyKind::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}
