//! Sends of several owned buffers.

use std::task::{Poll, Waker};

use super::Proactor;
use super::stream::Sending;
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::SendMode;
use crate::driver::memory::buffer::CLASS_BYTES;
use crate::driver::memory::io_slice_cursor::IoSliceCursor;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Family, MAX_IO_SLICES, Sockets, gone};
use crate::driver::stream::send_queue::{SendBuf, io_slices};
use crate::driver::wake::queue::PollIo;

impl<K: CompletionKernel> Proactor<K> {
    /// Accepts buffers for sending. Short ones are copied into one buffer, which is sent in the next turn; others are
    /// passed to the kernel immediately, and the queue gets only what it does not take.
    pub fn poll_send_vectored(&mut self, key: Key, outgoing: &mut Vec<SendBuf>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check()?;
        stream.sends.check_open()?;
        if stream.sends.queue.queued_bytes() >= self.limits.max_send_queue_bytes {
            stream.sends.waker.wait(waker);
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Pending;
        }
        if stream.sending != Sending::Idle {
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Ready(stream.sends.queue.queue_unsent(outgoing, 0, &self.pools));
        }
        let zero_copy = outgoing.iter().any(|buffer| buffer.len() >= self.zero_copy_bytes)
            && self.capabilities.zero_copy
            && stream.family == Family::Internet
            && self.kernel.zero_copy_pays(&stream.socket);
        if zero_copy || !stream.is_connected() {
            stream.sends.queue.queue_unsent(outgoing, 0, &self.pools)?;
            return Poll::Ready(self.start_sending(key));
        }
        if outgoing.len() <= 1 {
            return self.poll_send(key, &mut outgoing.pop(), waker);
        }
        let slices = io_slices(outgoing);
        let mut cursor = IoSliceCursor::new(&slices);
        let length = cursor.remaining_bytes();
        if length <= CLASS_BYTES[0] && length < self.limits.direct_send_threshold_bytes {
            let mut gathered = Some(SendBuf::Chunk(cursor.gather(&self.pools)));
            return self.poll_send(key, &mut gathered, waker);
        }
        let first = &slices[..slices.len().min(MAX_IO_SLICES)];
        let first_bytes = first.iter().map(|slice| slice.len()).sum();
        let sent = self.kernel.sockets_mut().send_slices(&stream.socket, first);
        let count = stream.sends.sent(sent, first_bytes)?;
        self.metrics.count_send(count == first_bytes);
        if count == length {
            return Poll::Ready(Ok(()));
        }
        stream.sends.queue.queue_unsent(outgoing, count, &self.pools)?;
        if count == first_bytes {
            return Poll::Ready(self.start_sending(key));
        }
        stream.sends.queue.shrink_front();
        self.submit_send(key, SendMode::Async);
        Poll::Ready(Ok(()))
    }
}
