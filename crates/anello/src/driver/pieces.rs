//! Bytes to be sent that lie in several places.

use std::io::IoSlice;
use std::rc::Rc;

use super::buffer::{Chunk, Pools};

/// What is left of several slices, from the front.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    slices: &'a [IoSlice<'a>],
    /// Bytes of the first slice that are done with.
    skipped_bytes: usize,
    left_bytes: usize,
}

impl<'a> Pieces<'a> {
    #[inline]
    pub fn new(slices: &'a [IoSlice<'a>]) -> Self {
        let left_bytes = slices.iter().map(|slice| slice.len()).fold(0, usize::saturating_add);
        Self { slices, skipped_bytes: 0, left_bytes }
    }

    #[inline]
    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Leaves the first `count` bytes of what is left, at most.
    pub fn limit(&mut self, count: usize) {
        self.left_bytes = self.left_bytes.min(count);
    }

    /// Is done with the first `count` bytes, at most.
    pub fn skip(&mut self, count: usize) {
        let mut skipped = 0;
        while let Some(piece) = self.next(count - skipped) {
            skipped += piece.len();
        }
    }

    /// Copies as much as there is room for. How much.
    #[inline]
    pub fn copy_into(&mut self, chunk: &mut Chunk) -> usize {
        // Nearly always: one slice, for which there is room.
        if let [slice] = self.slices
            && let Some(target) = chunk.spare().get_mut(..self.left_bytes)
        {
            target.copy_from_slice(&slice[self.skipped_bytes..][..self.left_bytes]);
            self.slices = &[];
            let copied = std::mem::take(&mut self.left_bytes);
            chunk.filled(copied);
            return copied;
        }
        self.copy_several_into(chunk)
    }

    fn copy_several_into(&mut self, chunk: &mut Chunk) -> usize {
        let (mut room, mut copied) = (chunk.spare(), 0);
        while let Some(piece) = self.next(room.len()) {
            let (target, rest) = room.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            copied += piece.len();
            room = rest;
        }
        chunk.filled(copied);
        copied
    }

    /// The next piece in one place, of at most so many bytes; it may be empty. `None` when nothing is left or may be taken.
    #[inline]
    fn next(&mut self, most_bytes: usize) -> Option<&'a [u8]> {
        let most_bytes = self.left_bytes.min(most_bytes);
        let (first, rest) = self.slices.split_first().filter(|_| most_bytes > 0)?;
        let left_of_first = &first[self.skipped_bytes..];
        let piece = &left_of_first[..left_of_first.len().min(most_bytes)];
        self.left_bytes -= piece.len();
        self.skipped_bytes += piece.len();
        if piece.len() == left_of_first.len() {
            (self.slices, self.skipped_bytes) = (rest, 0);
        }
        Some(piece)
    }

    /// Copies all into memory of just that size.
    pub fn gather_vec(&mut self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.left_bytes);
        while let Some(piece) = self.next(usize::MAX) {
            copy.extend_from_slice(piece);
        }
        copy
    }

    /// Copies as much as fits into a chunk of the smallest class that has room for all, or of the largest.
    pub fn gather(&mut self, pools: &Rc<Pools>) -> Chunk {
        let mut chunk = pools.lease(Pools::class_for(self.left_bytes));
        self.copy_into(&mut chunk);
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::CLASS_BYTES;
    use super::*;

    fn slices<'a>(parts: &[&'a [u8]]) -> Vec<IoSlice<'a>> {
        parts.iter().map(|part| IoSlice::new(part)).collect()
    }

    #[test]
    fn what_is_left_is_copied_in_order_wherever_it_is_cut() {
        let whole = b"one, two and three";
        let slices = slices(&[b"", b"one, ", b"", b"two and", b" ", b"three", b""]);
        let pools = Pools::new(None);
        for from in 0..=whole.len() {
            for to in from..=whole.len() + 1 {
                let mut pieces = Pieces::new(&slices);
                pieces.skip(from);
                pieces.limit(to - from);
                let expected = &whole[from..to.min(whole.len())];
                assert_eq!(pieces.left_bytes(), expected.len());
                assert_eq!(&pieces.gather(&pools)[..], expected);
                assert_eq!(pieces.left_bytes(), 0);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left() {
        let long = vec![7; 2 * CLASS_BYTES[2] + 5];
        let (slices, pools) = (slices(&[b"abc", &long]), Pools::new(None));
        let mut pieces = Pieces::new(&slices);
        let lengths: Vec<_> =
            std::iter::from_fn(|| (pieces.left_bytes() > 0).then(|| pieces.gather(&pools).len())).collect();
        assert_eq!(lengths, [CLASS_BYTES[2], CLASS_BYTES[2], 8]);
        pieces.skip(1);
        assert_eq!(pieces.left_bytes(), 0, "nothing is left to skip");
    }
}
