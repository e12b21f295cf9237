//! HTTP/1.1 server and static file server for the anello runtime.
//!
//! - [`Server`] serves a handler, an async function from [`Request`] to [`Response`].
//! - [`h1`]: the protocol without I/O and without a clock. Decodes requests and encodes responses.
//! - [`files`]: static file serving: paths, conditional requests, ranges, content encodings, media types, listings.
//! - [`observe`]: access log, metrics and health.

#![forbid(unsafe_code)]

mod body;
pub mod files;
pub mod h1;
pub mod observe;
mod request;
mod response;
pub mod server;

pub use body::{Body, BodyPart};
pub use request::{Request, RequestBody, RequestBodyError};
pub use response::Response;
pub use server::{Server, ServerBuilder, ServerOptions};
