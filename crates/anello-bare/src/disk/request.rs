//! Interface of the disk engines: memory, requests, completions, and the queue of requests in flight.

use std::io;

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
    /// Index of the block among those with which the engine was set up.
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
pub(super) struct KernelBlocks(pub(super) Vec<Option<Block>>);

impl KernelBlocks {
    pub(super) fn new(slots: usize) -> KernelBlocks {
        KernelBlocks((0..slots).map(|_| None).collect())
    }

    /// Removes and returns the block of a completed request. `result` is the number of transferred bytes or a negated
    /// error number.
    pub(super) fn complete(&mut self, slot: usize, result: i64) -> Option<Completion> {
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32));
        let block = self.0.get_mut(slot)?.take()?;
        Some(Completion { slot, block, result })
    }
}

/// Alignment of a block's memory in bytes: sufficient for direct I/O on any disk that Linux supports today.
const ALIGNMENT: usize = 4096;

/// Memory of one request. It never moves, grows or shrinks: moving the block moves only the pointer.
pub(super) struct Block {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Block {
    pub(super) fn new(bytes: usize) -> Block {
        let memory = vec![0; bytes + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Block { memory, start, bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.bytes]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_block_is_aligned_with_requested_length() {
        for bytes in [512, 4096, 100_000] {
            let mut block = Block::new(bytes);
            assert!(block.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert_eq!((block.bytes().len(), block.bytes_mut().len(), block.len()), (bytes, bytes, bytes));
        }
    }
}
