//! What a server tells about itself: access log, metrics, health.
//!
//! Nothing here knows sockets: lines go to a file or standard output, metrics and health are rendered to bytes, which the
//! server sends. Workers never wait for any of it.
//!
//! - [`access_log`]: one line a request, written by a thread of its own.

pub mod access_log;
