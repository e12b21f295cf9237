//! The suite of streams on TCP.

mod common;

#[path = "common/tcp.rs"]
mod family;
#[path = "common/streams.rs"]
mod suite;
