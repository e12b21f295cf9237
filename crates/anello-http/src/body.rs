//! What a response carries.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use anello::fs::File;
use bytes::Bytes;
use futures_core::Stream;

use crate::h1::{EncodedResponse, FieldBlock};

/// The body of a response.
pub struct Body(pub(crate) BodyKind);

pub(crate) enum BodyKind {
    Empty,
    Bytes(Bytes),
    /// The body of an answer that was encoded as a whole.
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

/// What is known of the end of a stream.
pub(crate) enum StreamEnd {
    Unknown,
    After(u64),
    /// In a box of their own, so that answers are small.
    With(Box<MakeTrailers>),
}

/// What makes the trailers of an answer, once its body is over.
pub(crate) type MakeTrailers = Box<dyn FnOnce() -> FieldBlock>;

/// A part of a body: bytes, or bytes of a file.
#[derive(Clone, Debug)]
pub enum BodyPart {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes of a file, sent without a copy through the program where the connection allows it.
    File {
        /// The file.
        file: File,
        /// Where they begin in it.
        offset: u64,
        /// How many they are.
        length: u64,
    },
}

impl BodyPart {
    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }
}

/// The pieces of a streamed body.
pub(crate) type ChunkStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>;

impl Body {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// A part of a file, sent without a copy through the program where the connection allows it.
    ///
    /// When the file turns out to be shorter, the connection is closed, so that the client sees that something is missing.
    #[must_use]
    pub fn file(file: File, offset: u64, length: u64) -> Self {
        Self::parts(vec![BodyPart::File { file, offset, length }])
    }

    /// Several parts, one after the other.
    #[must_use]
    pub fn parts(parts: Vec<BodyPart>) -> Self {
        let length = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.length()));
        Self(BodyKind::Parts { parts, length })
    }

    /// Pieces as they come, of a length that is not known: sent in chunks, and to clients of HTTP/1.0 until the connection
    /// closes. The next piece is asked for when the one before has been accepted for sending. An error ends the connection
    /// without the end of the body, or resets it where its end would be that of the body, so that the client sees that
    /// something is missing.
    ///
    /// The pieces are asked for when the handler has returned. They may come from the body of its request
    /// ([`RequestBody`](crate::RequestBody)), which goes on as long as the stream holds it.
    pub fn stream(chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::Unknown })
    }

    /// As [`stream`](Self::stream), with fields behind the body, such as its checksum: `trailers` is called when all pieces
    /// have been sent. They go to clients that are sent chunks; those of HTTP/1.0 get none. Announce them by the field
    /// `Trailer`.
    pub fn stream_with_trailers(
        chunks: impl Stream<Item = io::Result<Bytes>> + 'static,
        trailers: impl FnOnce() -> FieldBlock + 'static,
    ) -> Self {
        let trailers: MakeTrailers = Box::new(trailers);
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::With(Box::new(trailers)) })
    }

    /// As [`stream`](Self::stream), of a known length in bytes. A stream that turns out to be of another ends the
    /// connection.
    pub fn stream_with_length(length: u64, chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::After(length) })
    }

    /// Whether its pieces are made while they are sent.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.0, BodyKind::Stream { .. })
    }

    /// The length in bytes, if it is known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            BodyKind::Empty => Some(0),
            BodyKind::Bytes(bytes) => Some(bytes.len() as u64),
            BodyKind::Encoded(answer) => Some(answer.body_bytes() as u64),
            BodyKind::Parts { length, .. } => Some(*length),
            BodyKind::Stream { end: StreamEnd::After(length), .. } => Some(*length),
            BodyKind::Stream { .. } => None,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            BodyKind::Empty => "empty",
            BodyKind::Bytes(_) => "bytes",
            BodyKind::Encoded(_) => "framed",
            BodyKind::Parts { .. } => "parts",
            BodyKind::Stream { .. } => "stream",
        };
        formatter.debug_struct("Body").field("kind", &kind).field("length", &self.length()).finish()
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
