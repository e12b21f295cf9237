//! Memory for one request, aligned so that direct I/O takes it.

/// Alignment of a block's memory: enough for direct I/O on any disk that Linux knows today.
const ALIGNMENT: usize = 4096;

/// A piece of memory that never moves: moving the block moves only what points to it.
#[derive(Debug)]
pub(super) struct Block {
    /// Never grows or shrinks.
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Block {
    pub(super) fn new(bytes: usize) -> Block {
        let memory = vec![0; bytes + ALIGNMENT];
        let address = memory.as_ptr().addr();
        Block { start: address.next_multiple_of(ALIGNMENT) - address, memory, bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_as_long_as_asked_for() {
        for bytes in [512, 4096, 100_000] {
            let mut block = Block::new(bytes);
            assert!(block.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert_eq!((block.bytes().len(), block.bytes_mut().len(), block.len()), (bytes, bytes, bytes));
        }
    }
}
