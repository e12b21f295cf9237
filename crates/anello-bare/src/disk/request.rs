//! Interface of the disk engines: requests, completions, and the queue of requests in flight.

use std::io;

use super::block::Block;

/// The in-flight requests of a running engine. The engine owns the block of every started request until
/// [`wait`](Self::wait) returns it. If the engine is dropped with requests in flight, it frees their memory only if the
/// kernel can no longer access it.
pub(super) trait RequestQueue {
    /// Starts a request in a free slot. It can complete at any time before [`wait`](RequestQueue::wait) returns it.
    fn start(&mut self, request: Request) -> io::Result<()>;

    /// Submits started requests and waits until at least one has completed; at least one must be in flight. An error
    /// makes the engine unusable; the failure of a single request is reported in its result.
    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()>;
}

/// Read or write of one block.
pub(super) struct Request {
    /// Index of the block: less than the number of blocks that the engine was set up for.
    pub(super) slot: usize,
    pub(super) writes: bool,
    pub(super) offset: u64,
    pub(super) block: Block,
}

/// Completed request, with the number of transferred bytes.
pub(super) struct Completion {
    pub(super) slot: usize,
    pub(super) block: Block,
    pub(super) result: io::Result<usize>,
}

/// Blocks that the kernel can access, by slot.
pub(super) struct KernelBlocks(Vec<Option<Block>>);

impl KernelBlocks {
    pub(super) fn new(slots: usize) -> KernelBlocks {
        KernelBlocks((0..slots).map(|_| None).collect())
    }

    pub(super) fn insert(&mut self, slot: usize, block: Block) {
        self.0[slot] = Some(block);
    }

    /// Removes and returns the block of a completed request. `result` is the number of transferred bytes or a negated
    /// error number.
    pub(super) fn complete(&mut self, slot: usize, result: i64) -> Option<Completion> {
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32));
        let block = self.0.get_mut(slot)?.take()?;
        Some(Completion { slot, block, result })
    }

    /// Leaks the blocks, because requests may still be in flight.
    pub(super) fn leak(&mut self) {
        self.0.drain(..).flatten().for_each(std::mem::forget);
    }
}
