//! Interface of the disk engines: requests, completions, and the queue of requests in flight.

use std::io;

use super::block::Block;

/// Requests in flight of a running engine. The engine owns the block of every started request until
/// [`wait`](Self::wait) returns it. If the engine is dropped with requests in flight, it frees their memory only if
/// the kernel cannot access it any more.
pub(super) trait RequestQueue {
    /// Starts a request in a free slot. It can complete at any time before [`wait`](RequestQueue::wait) returns it.
    fn start(&mut self, request: Request) -> io::Result<()>;

    /// Submits started requests and waits until at least one has completed; at least one must be in flight. An error
    /// makes the engine unusable; the failure of a single request is reported in its result.
    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()>;
}

/// Read or write of one block.
#[derive(Debug)]
pub(super) struct Request {
    /// Index of the block: less than the number of blocks that the engine was set up for.
    pub(super) slot: usize,
    pub(super) writes: bool,
    pub(super) offset: u64,
    pub(super) block: Block,
}

/// Completed request, with the number of transferred bytes.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) slot: usize,
    pub(super) block: Block,
    pub(super) result: io::Result<usize>,
}
