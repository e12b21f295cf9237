//! An HTTP/1.1 server on the anello runtime, and a server of static files on it.
//!
//! - [`Server`] serves a handler, an async function from [`Request`] to [`Response`].
//! - [`h1`]: the protocol: bytes in, requests out; responses in, bytes out. No I/O, no clock.
//! - [`files`]: what a server of files decides: paths, conditions, ranges, encodings, media types, listings.
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
