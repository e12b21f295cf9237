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

pub(super) struct OrderedPool {
    pool: Pool,
    /// Given back since the last [`publish`](OrderedPool::publish).
    recycled: Vec<u16>,
    /// The number of the buffer at each place of the ring.
    order: Box<[u16]>,
    /// The place in the ring at which each buffer was last put.
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

    /// Puts more buffers into the ring. `false`: there are no more.
    pub(super) fn grow(&mut self) -> bool {
        let count_before = self.pool.active_buffers();
        self.pool.grow();
        self.record_positions(count_before);
        self.pool.active_buffers() > count_before
    }

    /// Notes the places of the buffers that came into the ring by themselves, from `first` on.
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

    /// The buffers that hold `bytes` from the start of buffer `first`, in order.
    pub(super) fn take_received(&mut self, first: u16, bytes: u32, mut on_buffer: impl FnMut(u16)) {
        let (mask, full) = (self.pool.count() - 1, self.pool.buffer_bytes());
        // Only a bundle has more than the first, and may look at the order (see the module's invariant).
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

    /// Where a taken buffer's bytes are: valid until it is given back.
    pub(super) fn raw_chunk(&self, buffer_id: u16) -> (*const u8, u32) {
        self.pool.raw_chunk(buffer_id)
    }

    /// Gives a buffer back; the kernel sees it after the next [`publish`](OrderedPool::publish).
    pub(super) fn recycle(&mut self, buffer_id: u16) {
        self.recycled.push(buffer_id);
    }

    /// Shows the kernel all buffers that were given back.
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
