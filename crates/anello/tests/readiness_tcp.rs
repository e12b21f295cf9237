//! Runs the readiness test suite on TCP.

mod common;

#[path = "common/tcp.rs"]
mod family;
#[path = "common/readiness.rs"]
mod suite;
