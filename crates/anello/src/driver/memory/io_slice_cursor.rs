//! A cursor over the slices of a vectored write.

use std::io::IoSlice;
use std::rc::Rc;

use super::buffer::{Chunk, Pools};

#[derive(Debug)]
pub(crate) struct IoSliceCursor<'a> {
    slices: &'a [IoSlice<'a>],
    /// Number of bytes consumed from the first slice.
    skipped_bytes: usize,
    remaining_bytes: usize,
}

impl<'a> IoSliceCursor<'a> {
    #[inline]
    pub fn new(slices: &'a [IoSlice<'a>]) -> Self {
        let remaining_bytes = slices.iter().map(|slice| slice.len()).fold(0, usize::saturating_add);
        Self { slices, skipped_bytes: 0, remaining_bytes }
    }

    #[inline]
    pub fn remaining_bytes(&self) -> usize {
        self.remaining_bytes
    }

    /// Limits the cursor to the first `count` remaining bytes.
    pub fn limit(&mut self, count: usize) {
        self.remaining_bytes = self.remaining_bytes.min(count);
    }

    /// Skips the first `count` bytes, which the kernel has taken. There must be at least as many.
    pub fn advance(&mut self, count: usize) {
        debug_assert!(
            count <= self.remaining_bytes,
            "invariant 3: {count} bytes of a write of {} bytes were sent",
            self.remaining_bytes
        );
        let mut skipped = 0;
        while let Some(part) = self.next(count - skipped) {
            skipped += part.len();
        }
    }

    /// Copies as many bytes as fit into the chunk's spare capacity. Returns the number of bytes copied.
    #[inline]
    pub fn copy_into(&mut self, chunk: &mut Chunk) -> usize {
        // In nearly all calls, there is a single slice, and it fits.
        if let [slice] = self.slices
            && let Some(target) = chunk.spare().get_mut(..self.remaining_bytes)
        {
            target.copy_from_slice(&slice[self.skipped_bytes..][..self.remaining_bytes]);
            self.slices = &[];
            let copied = std::mem::take(&mut self.remaining_bytes);
            chunk.mark_filled(copied);
            return copied;
        }
        self.copy_several_into(chunk)
    }

    fn copy_several_into(&mut self, chunk: &mut Chunk) -> usize {
        let (mut room, mut copied) = (chunk.spare(), 0);
        while let Some(part) = self.next(room.len()) {
            let (target, rest) = room.split_at_mut(part.len());
            target.copy_from_slice(part);
            copied += part.len();
            room = rest;
        }
        chunk.mark_filled(copied);
        copied
    }

    /// Returns the next contiguous part, which can be empty, or `None` if no bytes remain or `max_bytes` is 0.
    #[inline]
    fn next(&mut self, max_bytes: usize) -> Option<&'a [u8]> {
        let max_bytes = self.remaining_bytes.min(max_bytes);
        let (first, rest) = self.slices.split_first().filter(|_| max_bytes > 0)?;
        let first_remaining = &first[self.skipped_bytes..];
        let part = &first_remaining[..first_remaining.len().min(max_bytes)];
        self.remaining_bytes -= part.len();
        self.skipped_bytes += part.len();
        if part.len() == first_remaining.len() {
            (self.slices, self.skipped_bytes) = (rest, 0);
        }
        Some(part)
    }

    /// Copies all remaining bytes into a vector of exactly their size.
    pub fn gather_vec(&mut self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.remaining_bytes);
        while let Some(part) = self.next(usize::MAX) {
            copy.extend_from_slice(part);
        }
        copy
    }

    /// Copies as many bytes as fit into a new chunk of the smallest sufficient class, or else of the largest class.
    pub fn gather(&mut self, pools: &Rc<Pools>) -> Chunk {
        let mut chunk = pools.lease(Pools::class_for(self.remaining_bytes));
        self.copy_into(&mut chunk);
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::memory::buffer::CLASS_BYTES;

    fn slices<'a>(parts: &[&'a [u8]]) -> Vec<IoSlice<'a>> {
        parts.iter().map(|part| IoSlice::new(part)).collect()
    }

    #[test]
    fn remaining_bytes_are_copied_in_order() {
        let data = b"one, two and three";
        let slices = slices(&[b"", b"one, ", b"", b"two and", b" ", b"three", b""]);
        let pools = Pools::new(None);
        for from in 0..=data.len() {
            for to in from..=data.len() + 1 {
                let mut cursor = IoSliceCursor::new(&slices);
                cursor.advance(from);
                cursor.limit(to - from);
                let expected = &data[from..to.min(data.len())];
                assert_eq!(cursor.remaining_bytes(), expected.len());
                assert_eq!(&cursor.gather(&pools)[..], expected);
                assert_eq!(cursor.remaining_bytes(), 0);
            }
        }
    }

    #[test]
    fn bytes_beyond_chunk_capacity_remain() {
        let long = vec![7; 2 * CLASS_BYTES[3] + 5];
        let (slices, pools) = (slices(&[b"abc", &long]), Pools::new(None));
        let mut cursor = IoSliceCursor::new(&slices);
        let lengths: Vec<_> =
            std::iter::from_fn(|| (cursor.remaining_bytes() > 0).then(|| cursor.gather(&pools).len()))
                .collect();
        assert_eq!(lengths, [CLASS_BYTES[3], CLASS_BYTES[3], 8]);
    }
}
