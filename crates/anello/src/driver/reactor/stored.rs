//! Bytes and errors that are stored until a receive returns them.

use std::collections::VecDeque;

use crate::driver::memory::buffer::Chunk;

/// What the receives of one stream return before they make a system call: first the chunks, then the error.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub chunks: VecDeque<Chunk>,
    /// Error number.
    pub error: Option<i32>,
}
