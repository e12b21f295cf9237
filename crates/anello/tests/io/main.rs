//! Copying, in-memory streams and buffered reading.

#[path = "../common/mod.rs"]
mod common;

mod buffered;
mod copy;
mod memory;
