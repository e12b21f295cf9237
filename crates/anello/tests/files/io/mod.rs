//! Copying, in-memory streams and buffered reading.

mod buffered;
mod copy;
mod memory;
