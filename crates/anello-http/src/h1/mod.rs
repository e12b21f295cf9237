//! The protocol of HTTP/1.1 (RFC 9110, RFC 9112), without I/O and without a clock.
//!
//! ```text
//!  bytes of the peer ──► Decoder ──► Event: Head, Data, Data, …, End      or a Refusal, once and for all
//!                          │  parse    a head that came whole and is right, many bytes at a time
//!                          │  scanner  a head cut by the edge of the input: byte by byte, each byte once
//!                          │  framing  what the fields say of the body and of the connection
//!                          └  chunked  sizes, extensions, trailers
//!
//!  bytes to the peer ◄── ResponseHead ──► BodyEncoder                      many answers into one Vec
//! ```
//!
//! What holds:
//! - Where the network cuts the bytes makes no difference: to what is decoded, and to what is refused.
//! - What two programs could read differently is refused, never repaired: a line ends in CR LF, a field has a name and
//!   its colon, a body has one length. That is how requests are kept from being smuggled past a proxy.
//! - Whatever is kept, or looked at more than once, has a limit in [`Limits`].
//! - A connection in its steady state allocates nothing: a [`Head`] that is done with goes back to its [`Decoder`].

mod body;
mod chunked;
mod date;
mod decoder;
mod encoded;
mod fields;
mod framing;
mod head;
mod limits;
mod parse;
mod rejection;
mod response;
mod scanner;
mod syntax;
mod target;
mod words;

pub use body::{BodyEncoder, BodyError, ResponseFraming};
pub use chunked::{ChunkedDecoder, ChunkedEvent, write_chunk_end, write_chunk_start, write_last_chunk};
pub use date::HttpDate;
pub use decoder::{Decoder, Event};
pub use encoded::EncodedResponse;
pub use fields::{FieldBlock, FieldName, InvalidField, Trailers};
pub use framing::RequestFraming;
pub use head::{Head, Method, RequestContext, TargetForm, Version};
pub use limits::Limits;
pub use rejection::Rejection;
pub(crate) use syntax::{is_value, trim};

pub use response::{BodyLength, CONTINUE, InvalidStatus, ResponseHead, reason_phrase};
