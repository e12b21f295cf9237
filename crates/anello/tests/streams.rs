//! Runs the stream test suite on TCP.

mod common;

#[path = "common/tcp.rs"]
mod family;
#[path = "common/half_close.rs"]
mod half_close;
#[path = "common/streams.rs"]
mod suite;
