//! Sends of several owned buffers.

use std::task::{Poll, Waker};

use super::Reactor;
use crate::driver::kernel::ReadinessKernel;
use crate::driver::memory::io_slice_cursor::IoSliceCursor;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{MAX_IO_SLICES, Sockets, gone};
use crate::driver::stream::send_queue::{SendBuf, io_slices};
use crate::driver::wake::queue::PollIo;

impl<K: ReadinessKernel> Reactor<K> {
    /// Accepts buffers for sending. Short ones are copied into one buffer. The kernel gets as many as it takes
    /// immediately, and the queue gets the others.
    pub fn poll_send_vectored(&mut self, key: Key, outgoing: &mut Vec<SendBuf>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check()?;
        stream.sends.check_open()?;
        if stream.sends.queue.queued_bytes() >= self.max_send_queue_bytes {
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        if !stream.writable || !stream.sends.queue.is_empty() {
            return Poll::Ready(stream.sends.queue.queue_unsent(outgoing, 0, &self.pools));
        }
        if outgoing.len() <= 1 {
            return self.poll_send(key, &mut outgoing.pop(), waker);
        }
        let slices = io_slices(outgoing);
        let mut cursor = IoSliceCursor::new(&slices);
        let length = cursor.remaining_bytes();
        if length <= self.deferred_bytes {
            let mut gathered = Some(SendBuf::Chunk(cursor.gather(&self.pools)));
            return self.poll_send(key, &mut gathered, waker);
        }
        let first = &slices[..slices.len().min(MAX_IO_SLICES)];
        let first_bytes = first.iter().map(|slice| slice.len()).sum();
        let sent = self.kernel.sockets_mut().send_slices(&stream.socket, first);
        let count = stream.sends.sent(sent, first_bytes)?;
        stream.writable = count == first_bytes;
        self.metrics.count_send(stream.writable);
        if count == length {
            return Poll::Ready(Ok(()));
        }
        stream.sends.queue.queue_unsent(outgoing, count, &self.pools)?;
        if stream.writable {
            stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)?;
        } else {
            stream.sends.queue.shrink_front();
        }
        Poll::Ready(Ok(()))
    }
}
