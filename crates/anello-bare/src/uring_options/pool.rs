//! Receive buffers of a ring, with their order in it, which bundles need.
//!
//! The completion of a bundle contains the ID of its first buffer and the total number of bytes. The other buffers
//! are those that followed it in the buffer ring, so the order in which buffers were recycled is recorded:
//!
//! ```text
//!   order      | 7 | 0 | 3 | 5 | ...      position of buffer 0: 1
//!                    ^^^^^^^^^            a bundle of three from buffer 0: 0, 3, 5
//! ```
//!
//! Invariant: an entry of `order` is overwritten only after its buffer's completion has been handled. The kernel
//! takes the buffers of a bundle and posts its completion while this thread is in the kernel. Recycled buffers enter
//! the ring only in [`publish`], after all completions have been handled. Worker threads and the polling thread can
//! hold a buffer for any time, so [`UringOptions::validate`](crate::UringOptions::validate) rejects bundles together
//! with them.
//!
//! [`publish`]: OrderedPool::publish

use std::io;

use io_uring::Submitter;

use crate::uring::pool::Pool;

pub(super) struct OrderedPool {
    pool: Pool,
    /// Buffers recycled since the last [`publish`](OrderedPool::publish).
    recycled: Vec<u16>,
    /// Buffer ID at each position of the ring.
    order: Box<[u16]>,
    /// Last position of each buffer in the ring.
    position: Box<[u16]>,
    tail: u16,
}

impl OrderedPool {
    pub(super) fn new(submitter: &Submitter<'_>, count: u16, buffer_bytes: u32) -> io::Result<OrderedPool> {
        let pool = Pool::new(submitter, count, buffer_bytes)?;
        let positions = vec![0; usize::from(pool.count())].into_boxed_slice();
        let mut buffers = OrderedPool {
            pool,
            recycled: Vec::new(),
            order: positions.clone(),
            position: positions,
            tail: 0,
        };
        buffers.record_positions(0);
        Ok(buffers)
    }

    /// Adds more buffers to the ring. Returns `false` if there are no more.
    pub(super) fn grow(&mut self) -> bool {
        let count_before = self.pool.active_buffers();
        self.pool.grow();
        self.record_positions(count_before);
        self.pool.active_buffers() > count_before
    }

    /// Records the positions of the buffers that the pool added itself, from ID `first` on.
    fn record_positions(&mut self, first: u16) {
        for buffer_id in first..self.pool.active_buffers() {
            self.record_position(buffer_id);
        }
    }

    fn record_position(&mut self, buffer_id: u16) {
        let position = self.tail & (self.pool.count() - 1);
        self.order[usize::from(position)] = buffer_id;
        self.position[usize::from(buffer_id)] = position;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Passes the buffers that hold `bytes` bytes, starting with buffer `first`, to `on_buffer` in order.
    pub(super) fn take_received(&mut self, first: u16, bytes: u32, mut on_buffer: impl FnMut(u16)) {
        let (mask, full) = (self.pool.count() - 1, self.pool.buffer_bytes());
        // Only a bundle uses further buffers and reads the recorded order (see the module's invariant).
        let (mut buffer_id, mut position) = (first, self.position[usize::from(first)]);
        let mut left = bytes;
        while left > 0 {
            self.pool.mark_received(buffer_id, left.min(full));
            on_buffer(buffer_id);
            left = left.saturating_sub(full);
            position = position.wrapping_add(1) & mask;
            buffer_id = self.order[usize::from(position)];
        }
    }

    /// Returns the address and length of a buffer's data. They are valid until the buffer is recycled.
    pub(super) fn raw_chunk(&self, buffer_id: u16) -> (*const u8, u32) {
        self.pool.raw_chunk(buffer_id)
    }

    /// Recycles a buffer. The kernel sees it after the next [`publish`](OrderedPool::publish).
    pub(super) fn recycle(&mut self, buffer_id: u16) {
        self.recycled.push(buffer_id);
    }

    /// Makes all recycled buffers visible to the kernel.
    pub(super) fn publish(&mut self) {
        let mut recycled = std::mem::take(&mut self.recycled);
        for buffer_id in recycled.drain(..) {
            self.pool.recycle(buffer_id);
            self.record_position(buffer_id);
        }
        self.recycled = recycled;
        self.pool.publish();
    }
}
