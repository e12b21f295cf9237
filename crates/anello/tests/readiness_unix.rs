//! Runs the readiness test suite on Unix sockets.

mod common;

#[path = "common/unix.rs"]
mod family;
#[path = "common/readiness.rs"]
mod suite;
