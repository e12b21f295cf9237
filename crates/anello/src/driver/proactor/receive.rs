//! Receiving: chunks from the buffer ring, or direct reads when the ring reports that a socket is readable.

use std::io;
use std::num::NonZero;
use std::task::{Poll, Waker, ready};

use super::Proactor;
use super::receive_window::ReceiveWindow;
use super::stream::{HangupPoll, Receiving};
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::{Completion, Op, SINGLE_WAKE_UP, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::buffer::{BufferRing, Chunk, store_chunk};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Family, Sockets, gone};
use crate::driver::stream::direct_read::ReadState;
use crate::driver::wake::queue::{PollIo, WakeQueue};

/// A direct stream returns to the ring after this number of consecutive reads that would have fitted into a ring
/// buffer.
const SMALL_READS_TO_RING: u8 = 64;

impl<K: CompletionKernel> Proactor<K> {
    /// Receives the next bytes of a stream into `received`, which must be `None`. It remains `None` at EOF.
    #[inline(always)]
    pub fn poll_receive(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        if let Some(stream) = self.streams.get_mut(key) {
            if let Some(chunk) = stream.received.pop() {
                store_chunk(received, chunk);
                return Poll::Ready(Ok(()));
            }
            if stream.receiving == Receiving::Ring {
                stream.receive_waker.wait(waker);
                return Poll::Pending;
            }
        }
        self.poll_receive_slow(key, received, waker)
    }

    #[inline(never)]
    fn poll_receive_slow(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.released) else {
            return Poll::Ready(Err(gone()));
        };
        if stream.reads.state == ReadState::Eof {
            return Poll::Ready(Ok(()));
        }
        if let Some(errno) = stream.receive_error {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno.get())));
        }
        let ring_armed = !matches!(stream.receiving, Receiving::Idle | Receiving::Polling);
        if stream.direct && !ring_armed && stream.reads.readable {
            debug_assert!(
                stream.received.is_empty(),
                "invariant 4: a direct read is made while a received chunk is queued"
            );
            let sockets = self.kernel.sockets_mut();
            let read = stream.reads.receive(sockets, &stream.socket, &stream.sends, &self.pools);
            let chunk = read.map_err(|error| stream.fail_receive(error))?;
            if stream.reads.state == ReadState::Eof {
                return Poll::Ready(Ok(()));
            }
            if let Some(chunk) = chunk {
                self.metrics.receives += 1;
                // A read stops before urgent data. Every wake-up from the ring reports urgent data, even if there is
                // none, so only another call can determine whether bytes remain. On a Unix socket, further messages
                // cause further events; see `on_readable`.
                if !stream.reads.readable && stream.family == Family::Internet {
                    stream.reads.readable = self.kernel.sockets().has_bytes(&stream.socket);
                }
                self.after_direct_receive(key, chunk.len());
                store_chunk(received, chunk);
                return Poll::Ready(Ok(()));
            }
        }
        stream.receive_waker.wait(waker);
        if stream.receiving == Receiving::Idle {
            self.start_receiving(key);
        }
        Poll::Pending
    }

    /// Copies received bytes into the caller's memory. Returns 0 at EOF.
    pub fn poll_read(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        self.poll_copy(key, buffer.len(), |bytes| buffer[..bytes.len()].copy_from_slice(bytes), waker)
    }

    /// Calls `copy` once with at most `max_bytes` received bytes and returns their count. At EOF, returns 0 without
    /// calling `copy`.
    pub fn poll_copy(
        &mut self,
        key: Key,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        waker: &Waker,
    ) -> PollIo<usize> {
        let mut received: Option<Chunk> = None;
        ready!(self.poll_receive(key, &mut received, waker))?;
        let Some(mut chunk) = received else { return Poll::Ready(Ok(0)) };
        let count = chunk.len().min(max_bytes);
        copy(&chunk[..count]);
        if count < chunk.len()
            && let Some(stream) = self.streams.get_mut(key)
        {
            chunk.advance(count);
            stream.received.unpop(chunk);
        }
        Poll::Ready(Ok(count))
    }

    pub(super) fn start_receiving(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        debug_assert_eq!(stream.receiving, Receiving::Idle, "invariant 8: a second receive is armed");
        debug_assert!(
            !stream.released && stream.receive_error.is_none() && stream.reads.state == ReadState::Open,
            "invariant 4: a receive is armed after a release, an error or EOF"
        );
        let socket = &stream.socket;
        if stream.direct {
            stream.receiving = Receiving::Polling;
            self.kernel.push(Token::new(Kind::Readable, key), Op::Readable { socket });
            return;
        }
        stream.receiving = Receiving::Ring;
        let multishot = stream.one_shot_receives == 0;
        stream.one_shot_receives -= u8::from(!multishot);
        self.kernel.push(Token::new(Kind::Receive, key), Op::Receive { socket, multishot });
        // A one-shot receive misses no reset.
        if multishot && self.capabilities.misses_resets && stream.hangup_poll == HangupPoll::Idle {
            stream.hangup_poll = HangupPoll::Armed;
            self.kernel.push(Token::new(Kind::Hangup, key), Op::Hangup { socket });
        }
    }

    /// Handles a hangup, which the armed receive may have missed; the next receive reports it. A receive never misses a
    /// half-close by the peer, so the receive is cancelled only if the connection is broken.
    #[cold]
    #[inline(never)]
    pub(super) fn on_hangup(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if !stream.hangup_poll.is_in_flight() {
            let message = "invariant 8: completion of a hangup poll that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        stream.hangup_poll = if completion.result < 0 { HangupPoll::Idle } else { HangupPoll::Fired };
        // A task may be waiting in `poll_detach`.
        stream.receive_waker.wake(wakes);
        let broken = i32::from(libc::POLLHUP | libc::POLLERR);
        if completion.result > 0 && completion.result & broken != 0 && stream.receiving == Receiving::Ring {
            self.stop_receiving(key);
        }
        self.finish(key);
    }

    pub(super) fn stop_receiving(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let kind = match stream.receiving {
            Receiving::Ring => Kind::Receive,
            Receiving::Polling => Kind::Readable,
            Receiving::Idle | Receiving::Cancelling(_) | Receiving::InDoubt(_) => return,
        };
        stream.receiving = Receiving::Cancelling(kind);
        self.cancel(kind, key);
    }

    /// Switches a direct stream back to the ring when its messages have become small.
    fn after_direct_receive(&mut self, key: Key, length: usize) {
        let fits_ring = length <= self.limits.receive_buffer_bytes;
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.consecutive_small_reads =
            if fits_ring { stream.consecutive_small_reads.saturating_add(1) } else { 0 };
        if stream.consecutive_small_reads < SMALL_READS_TO_RING {
            return;
        }
        stream.consecutive_small_reads = 0;
        if self.capabilities.ring_receive && stream.family == Family::Internet {
            stream.direct = false;
            self.stop_receiving(key);
        }
    }

    #[inline(always)]
    pub(super) fn on_receive(&mut self, completion: Completion, wakes: &mut WakeQueue) {
        // Fast path for nearly every message.
        if let Some(id) = completion.plain_multishot_buffer()
            && let Some(stream) = self.streams.get_mut(completion.token.key())
            && stream.receiving == Receiving::Ring
            && let Some(chunk) = self.pools.filled(id, completion.result as usize)
        {
            debug_assert!(
                stream.receive_error.is_none() && stream.reads.state == ReadState::Open && !stream.released,
                "invariant 4: bytes are received after a release, an error or EOF"
            );
            let queued_chunks = stream.received.push(chunk);
            stream.receive_waker.wake(wakes);
            self.metrics.receives += 1;
            if queued_chunks >= self.limits.max_received_chunks {
                self.stop_receiving(completion.token.key());
            }
            return;
        }
        self.on_other_receive(completion, wakes);
    }

    /// Handles all other receive completions: the last one of an operation, EOF, an error, or a read after which the
    /// stream becomes direct.
    #[inline(never)]
    fn on_other_receive(&mut self, completion: Completion, wakes: &mut WakeQueue) {
        let key = completion.token.key();
        // Errors have no length.
        let length = usize::try_from(completion.result).unwrap_or(0);
        // Create the chunk first, so that its buffer is returned on every path.
        let chunk = completion.buffer().and_then(|id| self.pools.filled(id, length));
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if !stream.receiving.is_in_flight(Kind::Receive) {
            let message = "invariant 8: completion of a receive that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        stream.receive_waker.wake(wakes);
        if !completion.has_more() {
            stream.receiving = Receiving::Idle;
        }
        let switch_to_direct = completion.is_socket_nonempty() && length >= self.limits.receive_buffer_bytes;
        stream.direct |= switch_to_direct;
        match (completion.result, chunk) {
            (1.., Some(chunk)) => {
                self.metrics.receives += 1;
                // After an error, bytes are missing, so later bytes would not be contiguous with the received data.
                if !stream.released && stream.receive_error.is_none() {
                    let queued_chunks = stream.received.push(chunk);
                    if switch_to_direct || queued_chunks >= self.limits.max_received_chunks {
                        self.stop_receiving(key);
                    }
                }
            }
            // Bytes without a valid buffer indicate a kernel error. Data is missing, so the stream fails.
            (1.., None) => {
                stream.receive_error = NonZero::new(libc::EIO);
                self.stop_receiving(key);
            }
            (0, _) => {
                // After an error, EOF would make the data appear complete.
                if stream.receive_error.is_none() {
                    match stream.sends.check_eof(self.kernel.sockets(), &stream.socket) {
                        Ok(()) => stream.reads.state = ReadState::Eof,
                        Err(error) => stream.receive_error = error.raw_os_error().and_then(NonZero::new),
                    }
                }
                self.stop_receiving(key);
            }
            (error, _) => {
                self.on_receive_error(key, -error);
                self.stop_receiving(key);
            }
        }
        self.finish(key);
    }

    fn on_receive_error(&mut self, key: Key, errno: i32) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        match errno {
            // The woken task polls again, which rearms the receive.
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
            libc::ENOBUFS => {
                self.metrics.buffer_exhaustions += 1;
                // A turn can process many of these completions. For the first one, the ring grows; for the others, the
                // receive is only retried.
                self.ring_grown = self.ring_grown
                    || self.pools.ring.as_ref().is_some_and(BufferRing::reclaim)
                    || self.grow_ring();
                if !self.ring_grown
                    && let Some(stream) = self.streams.get_mut(key)
                {
                    // The ring has reached its limit. For some time, this stream receives into other memory.
                    stream.direct = true;
                    stream.reads.readable = true;
                }
            }
            _ => stream.receive_error = NonZero::new(errno),
        }
    }

    /// Makes the receive ring larger. Returns `false` if it has reached its limit.
    #[cold]
    fn grow_ring(&mut self) -> bool {
        let Some(ring) = &self.pools.ring else { return false };
        let has_grown = ring.grow();
        if has_grown && self.receive_window.is_none() {
            let now_ns = self.kernel.sockets().now_ns();
            self.receive_window = Some(ReceiveWindow::new(now_ns, ring.usage()));
        }
        has_grown
    }

    /// Shrinks the receive ring if the window has ended and few buffers were in use. Otherwise, shortens the wait to the
    /// end of the window.
    #[cold]
    #[inline(never)]
    pub(super) fn shrink_ring_before_wait(&mut self, wait: Wait) -> Wait {
        let (Some(window), Some(ring)) = (&mut self.receive_window, &self.pools.ring) else { return wait };
        ring.reclaim();
        window.record(ring.usage());
        let now_ns = self.kernel.sockets().now_ns();
        if window.has_ended(now_ns) {
            let is_supported = ring.shrink(window.peak.saturating_mul(2), || self.kernel.receive_ring_head());
            if !is_supported || !ring.has_grown() {
                self.receive_window = None;
                return wait;
            }
            *window = window.next(now_ns);
        }
        window.limit(wait, now_ns)
    }

    #[inline(never)]
    pub(super) fn on_readable(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if !stream.receiving.is_in_flight(Kind::Readable) {
            let message = "invariant 8: completion of a poll that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        if !completion.has_more() {
            stream.receiving = Receiving::Idle;
        }
        if completion.result >= 0 {
            let mask = completion.result;
            // A Unix socket wakes the poll once per message. If a receive follows each wake-up, all messages are
            // received, even if each receive stops after one. If several wake-ups were combined, by the kernel or here,
            // one receive may not be enough.
            let is_one_message = mask & SINGLE_WAKE_UP != 0 && !stream.reads.readable;
            stream.reads.may_hold_messages = stream.family == Family::Unix && !is_one_message;
            stream.reads.readable = true;
            let hangup_mask = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;
            stream.reads.short_read_is_inconclusive |= mask & i32::from(hangup_mask) != 0;
        } else if completion.result != -libc::ECANCELED {
            stream.receive_error = NonZero::new(-completion.result);
        }
        stream.receive_waker.wake(wakes);
        if stream.released {
            self.finish(key);
        }
    }
}
