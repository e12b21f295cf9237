//! The receive buffers of a ring, and their order in it, which bundles need.
//!
//! A completion of a bundle names its first buffer and the bytes of all. The others are those that stood behind it in
//! the buffer ring, so the order in which buffers were given back is kept:
//!
//! ```text
//!   order      | 7 | 0 | 3 | 5 | ...      position of buffer 0: 1
//!                    ^^^^^^^^^            a bundle of three from buffer 0: 0, 3, 5
//! ```
//!
//! Invariant: an entry of `order` is overwritten when the ring has gone round once. Of a bundle that is not before its
//! completion was read: the kernel takes its buffers and posts it while this thread is in the kernel, and what others
//! gave back comes into the ring only by [`publish`], after all completions were read. Worker threads and the polling
//! thread keep a buffer for any time, which is why
//! [`UringOptions::validate`](crate::UringOptions::validate) refuses bundles beside them.
//!
//! [`publish`]: Buffers::publish

use std::io;

use io_uring::Submitter;

use crate::uring::pool::Pool;

pub(super) struct Buffers {
    pool: Pool,
    /// Given back since the last [`publish`](Buffers::publish).
    returned: Vec<u16>,
    /// The number of the buffer at each place of the ring.
    order: Box<[u16]>,
    /// The place in the ring at which each buffer was last put.
    position: Box<[u16]>,
    tail: u16,
}

impl Buffers {
    pub(super) fn new(submitter: &Submitter<'_>, count: u16, buffer_bytes: u32) -> io::Result<Buffers> {
        let pool = Pool::new(submitter, count, buffer_bytes)?;
        let places = vec![0; usize::from(pool.count())].into_boxed_slice();
        let mut buffers =
            Buffers { pool, returned: Vec::new(), order: places.clone(), position: places, tail: 0 };
        buffers.note(0);
        Ok(buffers)
    }

    /// Puts more buffers into the ring. `false`: there are no more.
    pub(super) fn grow(&mut self) -> bool {
        let before = self.pool.used();
        self.pool.grow();
        self.note(before);
        self.pool.used() > before
    }

    /// Notes the places of the buffers that came into the ring by themselves, from `first` on.
    fn note(&mut self, first: u16) {
        for number in first..self.pool.used() {
            self.place(number);
        }
    }

    fn place(&mut self, number: u16) {
        let place = self.tail & (self.pool.count() - 1);
        self.order[usize::from(place)] = number;
        self.position[usize::from(number)] = place;
        self.tail = self.tail.wrapping_add(1);
    }

    /// The buffers that hold `bytes` from the start of buffer `first`, in order.
    pub(super) fn take(&mut self, first: u16, bytes: u32, mut each: impl FnMut(u16)) {
        let (mask, full) = (self.pool.count() - 1, self.pool.buffer_bytes());
        // Only a bundle has more than the first, and may look at the order (see the module's invariant).
        let (mut number, mut place) = (first, self.position[usize::from(first)]);
        let mut left = bytes;
        while left > 0 {
            self.pool.take(number, left.min(full));
            each(number);
            left = left.saturating_sub(full);
            place = place.wrapping_add(1) & mask;
            number = self.order[usize::from(place)];
        }
    }

    /// Where a taken buffer's bytes are: valid until it is given back.
    pub(super) fn part(&self, number: u16) -> (*const u8, u32) {
        self.pool.part(number)
    }

    /// Gives a buffer back; the kernel sees it after the next [`publish`](Buffers::publish).
    pub(super) fn give_back(&mut self, number: u16) {
        self.returned.push(number);
    }

    /// Shows the kernel all buffers that were given back.
    pub(super) fn publish(&mut self) {
        let mut returned = std::mem::take(&mut self.returned);
        for number in returned.drain(..) {
            self.pool.recycle(number);
            self.place(number);
        }
        self.returned = returned;
        self.pool.publish();
    }
}
