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
///
/// ```
/// use anello_http::{Body, Response};
///
/// let response = Response::new(200).with_body(Body::from("ciao"));
/// assert_eq!(response.body().length(), Some(4));
/// ```
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
    With(Box<StreamTrailers>),
}

/// The trailers of a stream.
pub(crate) struct StreamTrailers {
    /// The length of the body, if it is known. HTTP/1.1 then sends no trailers.
    pub length: Option<u64>,
    pub make: MakeTrailers,
}

pub(crate) type MakeTrailers = Box<dyn FnOnce() -> FieldBlock>;

/// A part of a body: bytes in memory, or a range of a file.
///
/// ```
/// # anello::example! {
/// use anello_http::{Body, BodyPart};
///
/// # let path = tempfile::NamedTempFile::new()?;
/// # std::fs::write(&path, "length 4: ciao")?;
/// let file = anello::fs::File::open(&path).await?;
/// let parts = vec![BodyPart::Bytes("<pre>".into()), BodyPart::File { file, offset: 10, length: 4 }];
/// assert_eq!(Body::parts(parts).length(), Some(9));
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    ///
    /// ```
    /// use anello_http::Body;
    ///
    /// assert_eq!(Body::empty().length(), Some(0));
    /// ```
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// Creates a body from a range of a file ([`BodyPart::File`]). If the file ends before the range does, the
    /// connection is closed before the body is complete, so that the client detects the truncation.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Body, Response};
    ///
    /// # let path = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(&path, "ciao")?;
    /// let file = anello::fs::File::open(&path).await?;
    /// let length = file.metadata().await?.len();
    /// let response = Response::new(200).with_body(Body::file(file, 0, length));
    /// assert_eq!(response.body().length(), Some(4));
    /// # }
    /// ```
    pub fn file(file: File, offset: u64, length: u64) -> Self {
        Self::parts(vec![BodyPart::File { file, offset, length }])
    }

    /// Creates a body from several parts, which are sent in order.
    ///
    /// ```
    /// use anello_http::{Body, BodyPart};
    ///
    /// let parts = ["ciao ", "mondo"].map(|text| BodyPart::Bytes(text.into()));
    /// assert_eq!(Body::parts(parts.into()).length(), Some(10));
    /// ```
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
    /// returned. It is polled for each further chunk once the previous chunk has been accepted for sending. Chunks that
    /// are available without waiting are sent together, up to 128 KiB at a time.
    ///
    /// If the stream yields an error, the connection is closed before the body is complete. If the body is delimited by
    /// closing the connection, the connection is reset instead. In both cases the client detects the truncation.
    ///
    /// The stream can read the [request body](crate::RequestBody), which stays readable while the stream holds it.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Body, Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |_: Request| {
    ///     let chunks = ["ciao ", "mondo"].map(|text| Ok(text.into()));
    ///     Response::new(200).with_body(Body::stream(futures_util::stream::iter(chunks)))
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
    /// assert!(response.ends_with("\r\n\r\n5\r\nciao \r\n5\r\nmondo\r\n0\r\n\r\n"));
    /// # }
    /// ```
    pub fn stream(chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::Unknown })
    }

    /// Creates a body like [`stream`](Self::stream), followed by trailer fields, for example a checksum. `trailers` is
    /// called after all chunks have been sent.
    ///
    /// Trailers are sent over HTTP/2 and with the chunked transfer coding, so HTTP/1.0 clients do not receive them.
    /// Announce them in the `Trailer` header field.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::h1::{FieldBlock, FieldName};
    /// use anello_http::{Body, Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |_: Request| {
    ///     let chunks = futures_util::stream::iter([Ok("ciao".into())]);
    ///     Response::new(200).with_body(Body::stream_with_trailers(chunks, || {
    ///         let mut trailers = FieldBlock::default();
    ///         trailers.push(FieldName::constant("Checksum"), b"17").expect("the value is valid");
    ///         trailers
    ///     }))
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
    /// assert!(response.ends_with("4\r\nciao\r\n0\r\nChecksum: 17\r\n\r\n"));
    /// # }
    /// ```
    pub fn stream_with_trailers(
        chunks: impl Stream<Item = io::Result<Bytes>> + 'static,
        trailers: impl FnOnce() -> FieldBlock + 'static,
    ) -> Self {
        Self::stream_with_length_and_trailers(None, chunks, trailers)
    }

    pub(crate) fn stream_with_length_and_trailers(
        length: Option<u64>,
        chunks: impl Stream<Item = io::Result<Bytes>> + 'static,
        trailers: impl FnOnce() -> FieldBlock + 'static,
    ) -> Self {
        let trailers = StreamTrailers { length, make: Box::new(trailers) };
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::With(Box::new(trailers)) })
    }

    /// Creates a body like [`stream`](Self::stream), with a known length in bytes. If the stream yields more or fewer
    /// bytes, the connection is closed. The message ends with the last byte: a stream that is then pending is dropped.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Body, Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |_: Request| {
    ///     let chunks = ["ciao ", "mondo"].map(|text| Ok(text.into()));
    ///     Response::new(200).with_body(Body::stream_with_length(10, futures_util::stream::iter(chunks)))
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("GET / HTTP/1.0\r\n\r\n").await?;
    /// assert!(response.ends_with("\r\nContent-Length: 10\r\n\r\nciao mondo"));
    /// # }
    /// ```
    pub fn stream_with_length(length: u64, chunks: impl Stream<Item = io::Result<Bytes>> + 'static) -> Self {
        Self(BodyKind::Stream { chunks: Box::pin(chunks), end: StreamEnd::After(length) })
    }

    /// Creates a body of which only the length is sent, in a response to `HEAD`.
    pub(crate) fn unsent(length: u64) -> Self {
        Self(BodyKind::Parts { parts: Vec::new(), length })
    }

    /// Returns the length in bytes, or `None` if it is unknown.
    ///
    /// ```
    /// use anello_http::Body;
    ///
    /// assert_eq!(Body::from("ciao").length(), Some(4));
    /// assert_eq!(Body::stream(futures_util::stream::empty()).length(), None);
    /// ```
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            BodyKind::Empty => Some(0),
            BodyKind::Bytes(bytes) => Some(bytes.len() as u64),
            BodyKind::Encoded(response) => Some(response.body_bytes() as u64),
            BodyKind::Parts { length, .. } => Some(*length),
            BodyKind::Stream { end, .. } => end.length(),
        }
    }
}

impl StreamEnd {
    /// Returns the length of the stream, if it is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::After(length) => Some(*length),
            Self::With(trailers) => trailers.length,
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
