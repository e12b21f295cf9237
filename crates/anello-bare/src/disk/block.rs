//! Memory for one request, aligned for direct I/O.

/// Alignment of a block's memory in bytes: sufficient for direct I/O on any disk that Linux supports today.
const ALIGNMENT: usize = 4096;

/// Memory that never moves: moving the block moves only the pointer.
pub(super) struct Block {
    /// Never grows or shrinks.
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
