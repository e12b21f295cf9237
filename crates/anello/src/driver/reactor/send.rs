//! Sending.

use std::io::{self, IoSlice};
use std::task::{Poll, Waker, ready};

use super::{Reactor, Stream};
use crate::driver::counters::DriverMetrics;
use crate::driver::kernel::ReadinessKernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{FileRange, Sockets, gone};
use crate::driver::stream::send_queue::{Queued, SendBuf};
use crate::driver::stream::send_side::WriteSide;
use crate::driver::wake::queue::{PollIo, WakeQueue};

impl<K: ReadinessKernel> Reactor<K> {
    #[inline(never)]
    pub fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check()?;
        if stream.sends.queue.queued_bytes() >= self.max_send_queue_bytes {
            stream.sends.check_open()?;
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        let can_send_now = stream.writable && stream.sends.queue.is_empty();
        if self.deferring_sends
            && can_send_now
            && stream.sends.write_side == WriteSide::Open
            && stream.sends.queue.start(outgoing, self.deferred_bytes).is_some()
        {
            self.deferred_streams.push(key);
            return Poll::Ready(Ok(()));
        }
        let Some(queued) = outgoing.take().map(Queued) else { return Poll::Ready(Ok(())) };
        if !can_send_now {
            stream.sends.check_open()?;
            stream.sends.queue.queue(queued, &self.pools);
            return Poll::Ready(Ok(()));
        }
        // Usually, the whole buffer is sent in place and is never queued.
        let data = queued.as_slice();
        let sent = self.kernel.sockets_mut().send(&stream.socket, data);
        match stream.sends.sent(sent, data.len())? {
            count if count == data.len() => self.metrics.sends += 1,
            count => stream.queue_remainder(queued, count, &mut self.metrics)?,
        }
        Poll::Ready(Ok(()))
    }

    pub fn poll_write_more(&mut self, key: Key, data: &[u8], waker: &Waker) -> PollIo<usize> {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.writable
            && stream.sends.queue.is_empty()
            && stream.sends.error.is_none()
        {
            let sent = self.kernel.sockets_mut().send_more(&stream.socket, data);
            let count = stream.sends.sent(sent, data.len())?;
            stream.writable = count == data.len();
            if count > 0 || data.is_empty() {
                self.metrics.count_send(stream.writable);
                return Poll::Ready(Ok(count));
            }
        }
        self.poll_write(key, &[IoSlice::new(data)], waker)
    }

    /// Accepts bytes from the slices: first as many as the kernel takes immediately, then as many as fit into the send
    /// queue.
    pub fn poll_write(&mut self, key: Key, slices: &[IoSlice<'_>], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let Some(mut cursor) = stream.sends.start_write(slices)? else { return Poll::Ready(Ok(0)) };
        let length = cursor.remaining_bytes();
        let mut written = 0;
        if stream.writable && stream.sends.queue.is_empty() {
            // Slices that are copied into one buffer can be deferred, and are sent by send(2) instead of sendmsg(2).
            let should_gather = self.deferring_sends || slices.len() > 1;
            if should_gather && length <= self.deferred_bytes.min(self.max_send_queue_bytes) {
                let mut gathered = Some(SendBuf::Chunk(cursor.gather(&self.pools)));
                return self.poll_send(key, &mut gathered, waker).map_ok(|()| length);
            }
            let sent = self.kernel.sockets_mut().send_slices(&stream.socket, slices);
            written = stream.sends.sent(sent, length)?;
            stream.writable = written == length;
            self.metrics.count_send(stream.writable);
            if stream.writable {
                return Poll::Ready(Ok(written));
            }
        } else {
            stream.sends.check_open()?;
        }
        cursor.advance(written);
        // `poll_send` accepts a whole buffer, so the queue can exceed its limit.
        cursor.limit(self.max_send_queue_bytes.saturating_sub(stream.sends.queue.queued_bytes()));
        let accepted = cursor.remaining_bytes();
        if written + accepted == 0 {
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        stream.sends.queue.append_copy(&mut cursor, &self.pools);
        Poll::Ready(Ok(written + accepted))
    }

    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        // Send deferred messages first.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)?;
        stream.sends.poll_flush(waker)
    }

    pub fn shutdown_write(&mut self, key: Key) -> io::Result<()> {
        let stream = self.streams.get_mut(key).ok_or_else(gone)?;
        // Send deferred messages first.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)?;
        stream.sends.shut_down(self.kernel.sockets(), &stream.socket)
    }

    pub fn poll_send_file(&mut self, key: Key, range: FileRange<'_>, waker: &Waker) -> PollIo<usize> {
        ready!(self.poll_flush(key, waker))?;
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.writable {
            let (sockets, family) = (self.kernel.sockets_mut(), stream.family);
            let sent = stream.sends.send_file(sockets, &stream.socket, family, range, &mut self.metrics)?;
            if let Some(count) = sent {
                return Poll::Ready(Ok(count));
            }
            stream.writable = false;
        }
        stream.sends.waker.wait(waker);
        Poll::Pending
    }

    pub fn poll_submitted(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        match self.streams.get(key) {
            Some(stream) if stream.writable && stream.sends.error.is_none() => Poll::Ready(Ok(())),
            _ => self.poll_flush(key, waker),
        }
    }

    pub(super) fn flush_deferred(&mut self, wakes: &mut WakeQueue) {
        let mut deferred_streams = std::mem::take(&mut self.deferred_streams);
        for key in deferred_streams.drain(..) {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let Some(data) = stream.sends.queue.pending().filter(|_| stream.writable) else {
                if stream.sends.queue.is_empty() {
                    // A shutdown or a flush has sent the message. The task that waits can be another one.
                    stream.sends.waker.wake(wakes);
                }
                continue;
            };
            let length = data.len();
            let result = self.kernel.sockets_mut().send(&stream.socket, data);
            let is_whole = matches!(result, Ok(count) if count == length);
            if is_whole && !stream.sends.queue.has_queued_behind_front() {
                // Fast path for nearly all messages.
                self.metrics.sends += 1;
                stream.sends.queue.mark_all_sent();
                debug_assert!(
                    !stream.released && stream.sends.write_side != WriteSide::ShutdownQueued,
                    "invariant 18: a message is deferred after a release or a shutdown, which send everything first"
                );
                stream.sends.waker.wake(wakes);
            } else {
                let result = stream.record_send(result, length, &mut self.metrics);
                self.after_sending(key, result, wakes);
            }
        }
        self.deferred_streams = deferred_streams;
    }

    /// Continues to send the queue after a send, and wakes the task that is waiting for room.
    pub(super) fn after_sending(&mut self, key: Key, result: io::Result<()>, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        // If a send fails, the queue is cleared, so the waiting task is woken and reads the error.
        result.and_then(|()| stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)).ok();
        stream.sends.wake_if_room(self.max_send_queue_bytes, wakes);
        stream.sends.shut_down_if_queued(self.kernel.sockets(), &stream.socket);
        if stream.released && stream.sends.queue.is_empty() {
            self.close(key);
        }
    }
}

impl<S> Stream<S> {
    /// Sends bytes from the queue while the socket is writable.
    #[inline]
    pub(super) fn send_pending<K: Sockets<Socket = S>>(
        &mut self,
        kernel: &mut K,
        metrics: &mut DriverMetrics,
    ) -> io::Result<()> {
        while self.writable
            && let Some(pending) = self.sends.queue.pending()
        {
            let length = pending.len();
            let result = kernel.send(&self.socket, pending);
            self.record_send(result, length, metrics)?;
        }
        Ok(())
    }

    /// Records the result of sending the next `length` bytes from the queue.
    fn record_send(
        &mut self,
        result: io::Result<usize>,
        length: usize,
        metrics: &mut DriverMetrics,
    ) -> io::Result<()> {
        let count = self.sends.sent(result, length)?;
        self.sends.queue.mark_sent(count)?;
        metrics.count_send(count == length);
        if count < length {
            // A short send means that the socket buffer is full.
            self.writable = false;
            self.sends.queue.shrink_front();
        }
        Ok(())
    }

    /// Queues the bytes of a buffer that the first send left unsent, because the socket buffer is full.
    #[cold]
    fn queue_remainder(
        &mut self,
        outgoing: Queued,
        sent_bytes: usize,
        metrics: &mut DriverMetrics,
    ) -> io::Result<()> {
        debug_assert!(self.sends.queue.is_empty(), "invariant 3: bytes were sent before queued ones");
        metrics.short_sends += 1;
        self.writable = false;
        self.sends.queue.push(outgoing);
        self.sends.queue.mark_sent(sent_bytes)?;
        self.sends.queue.shrink_front();
        Ok(())
    }
}
