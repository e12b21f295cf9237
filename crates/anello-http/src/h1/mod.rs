//! HTTP/1.1 (RFC 9110, RFC 9112) without I/O or a clock.
//!
//! ```text
//!  bytes received ──► Decoder ──► Event: Head, Data, Data, …, End      or a Rejection, which is final
//!                       │  parse    a head that is complete in the input: many bytes at a time
//!                       │  scanner  a head split across inputs: byte by byte, each byte once
//!                       │  framing  the effect of the fields on body and connection
//!                       └  chunked  sizes, extensions, trailers
//!
//!  bytes to send  ◄── ResponseHead ──► BodyEncoder                     many responses into one Vec
//! ```
//!
//! # Invariants
//!
//! - How the network splits the bytes affects neither the decoded requests nor the rejections.
//! - Input that two implementations could interpret differently is rejected, never repaired: a line must end in CR LF,
//!   a field must have a name and a colon, and a body must have one length. This prevents request smuggling through a
//!   proxy.
//! - Everything that is buffered or scanned repeatedly has a limit in [`Limits`].
//! - A connection allocates nothing in its steady state: a [`Head`] that is no longer needed is returned to its
//!   [`Decoder`].

mod body;
mod chunked;
mod date;
mod decoder;
mod fields;
mod framing;
mod head;
#[cfg(feature = "http2")]
mod http2_head;
mod parse;
mod rejection;
mod response;
mod scanner;
mod syntax;
mod target;
mod types;
pub(crate) mod words;

pub use body::{BodyEncoder, BodyError, ResponseFraming};
pub use chunked::{ChunkedDecoder, ChunkedEvent, write_chunk_end, write_chunk_start, write_last_chunk};
pub use date::HttpDate;
pub use decoder::{Decoder, Event};
pub(crate) use fields::is_forbidden_trailer;
pub use fields::{FieldBlock, FieldName, InvalidField, Trailers};
pub use head::Head;
#[cfg(feature = "http2")]
pub(crate) use http2_head::Http2Heads;
pub use rejection::{Rejection, reason_phrase};
pub use response::{BodyLength, CONTINUE, EncodedResponse, InvalidStatus, ResponseHead};
pub(crate) use syntax::{elements, is_value, trim};
pub use types::{Limits, Method, RequestContext, RequestFraming, TargetForm, Version};
