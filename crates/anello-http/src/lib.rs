//! An HTTP/1.1 server on the anello runtime, and a server of static files on it.
//!
//! - [`h1`]: the protocol: bytes in, requests out; responses in, bytes out. No I/O, no clock.
//! - [`files`]: what a server of files decides: paths, conditions, ranges, encodings, media types, listings.
//! - [`observe`]: access log, metrics and health.

#![forbid(unsafe_code)]

pub mod files;
pub mod h1;
pub mod observe;
