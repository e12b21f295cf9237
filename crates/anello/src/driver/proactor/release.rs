//! Releasing, aborting and detaching streams.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Poll, Waker, ready};

use super::Proactor;
use super::stream::{Connect, HangupPoll, Received, Receiving, Sending, Stream};
use crate::driver::kernel::token::Kind;
use crate::driver::kernel::{CompletionKernel, Socket};
use crate::driver::memory::buffer::Chunk;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Sockets, gone};
use crate::driver::source::interest::Side;
use crate::driver::wake::queue::{PollIo, WakerSlot};

impl<K: CompletionKernel> Proactor<K> {
    /// Releases the key. Accepted bytes are still sent. Returns `true` if any remain unsent.
    pub fn release(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.get_mut(key) else { return false };
        stream.released = true;
        stream.receive_waker = WakerSlot::default();
        stream.sends.waker = WakerSlot::default();
        stream.received = Received::default();
        self.confirm_without_sleeping |= stream.is_unconfirmed();
        if stream.connect == Connect::InFlight {
            self.cancel(Kind::Connect, key);
        }
        self.cancel_polls(key);
        self.finish(key);
        self.streams.get(key).is_some_and(|stream| !stream.sends.queue.is_empty())
    }

    /// Releases the key, drops unsent bytes and resets the connection. Without the reset, if the peer does not read, the
    /// kernel would also keep its data and use the memory of zero-copy sends indefinitely.
    pub fn abort(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sends.abort();
            if let Sending::ZeroCopy(send_key) = stream.sending
                && self.short_result(send_key).is_some()
            {
                self.detach_buffer(key, send_key);
            }
        }
        match self.streams.get_mut(key) {
            Some(stream)
                if matches!(stream.sending, Sending::Idle | Sending::Polling | Sending::PollInDoubt) =>
            {
                stream.sends.queue.clear();
            }
            // The next turn confirms an inline send. If a send was short, its completion drops the remaining bytes.
            _ => self.send_again(key),
        }
        self.release(key);
    }

    /// Cancels the send in flight, unless it completes in the next turn. The following turns send the bytes that it has
    /// not sent.
    pub fn send_again(&mut self, key: Key) {
        match self.streams.get(key).map(|stream| stream.sending) {
            Some(Sending::Async) => self.cancel(Kind::Send, key),
            Some(Sending::ZeroCopy(send_key)) => self.cancel(Kind::SendZeroCopy, send_key),
            _ => {}
        }
    }

    /// Cancels the operations of the slots with this index that a cancellation has not found. The kernel does not find an
    /// operation that moves from one of its queues to another: one whose socket has become ready while it was about to
    /// wait, or that is about to move to a kernel thread. Usually, though, it has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel_again(&mut self, index: u32) {
        if let Some((key, stream)) = self.streams.occupant(index) {
            let receive = match stream.receiving {
                Receiving::Cancelling(kind) => Some(kind),
                _ => None,
            };
            let hangup = (stream.hangup_poll == HangupPoll::Cancelling).then_some(Kind::Hangup);
            let send = match stream.sending {
                Sending::Async if stream.sends.error.is_some() => Some(Kind::Send),
                // Also if a task still waits for it: that task polls again.
                Sending::Polling if stream.sends.queue.is_empty() => Some(Kind::Writable),
                _ => None,
            };
            let is_connecting = stream.released && stream.connect == Connect::InFlight;
            let connect = is_connecting.then_some(Kind::Connect);
            for kind in [receive, hangup, send, connect].into_iter().flatten() {
                self.cancel(kind, key);
            }
        }
        if let Some((send_key, send)) = self.zero_copy_sends.occupant(index)
            && send.short_result.is_none()
            && let Some(stream) = self.streams.get(send.stream)
            && stream.sending == Sending::ZeroCopy(send_key)
            && stream.sends.error.is_some()
        {
            self.cancel(Kind::SendZeroCopy, send_key);
        }
        if let Some((key, listener)) = self.listeners.occupant(index)
            && listener.cancelling
        {
            self.cancel(Kind::Accept, key);
        }
        self.cancel_polls_again(index);
    }

    /// Returns the number of bytes that the kernel is not known to have taken.
    pub fn unsent_bytes(&self, key: Key) -> usize {
        let Some(stream) = self.streams.get(key) else { return 0 };
        let in_flight_bytes = match stream.sending {
            Sending::ZeroCopy(send_key) => self.short_result(send_key).unwrap_or(0),
            _ => 0,
        };
        stream.sends.queue.queued_bytes() - usize::try_from(in_flight_bytes).unwrap_or(0)
    }

    /// Returns the result of a zero-copy send that has sent fewer bytes than it was given, while the kernel uses its
    /// memory.
    fn short_result(&self, send_key: Key) -> Option<i32> {
        self.zero_copy_sends.get(send_key)?.short_result
    }

    /// Returns the waker slot of one side of an object that has not been released.
    pub fn waker_slot(&mut self, key: Key, side: Side) -> Option<&mut WakerSlot> {
        let stream = self.streams.get_mut(key).filter(|stream| !stream.released);
        match side {
            Side::Receive => stream.map(|stream| &mut stream.receive_waker),
            Side::Send => stream.map(|stream| &mut stream.sends.waker),
            Side::Accept => {
                let listener = self.listeners.get_mut(key).filter(|listener| !listener.released);
                listener.map(|listener| &mut listener.waker)
            }
            Side::Source(direction) => {
                let source = self.sources.get_mut(key).filter(|source| !source.released);
                source.map(|source| source.readiness.waker_slot(direction))
            }
        }
    }

    /// Cancels the receive and the polls of a stream that no task uses any longer to receive data or send a file.
    fn cancel_polls(&mut self, key: Key) {
        self.stop_receiving(key);
        let Some(stream) = self.streams.get_mut(key) else { return };
        let is_polling_writable = stream.sending == Sending::Polling && stream.sends.queue.is_empty();
        if stream.hangup_poll == HangupPoll::Armed {
            stream.hangup_poll = HangupPoll::Cancelling;
            self.cancel(Kind::Hangup, key);
        }
        if is_polling_writable {
            self.cancel(Kind::Writable, key);
        }
    }

    /// Waits until all accepted bytes have been sent and no operation is in flight. Then removes the socket from the
    /// driver and returns it with the received chunks that were not taken. After an error, the stream stays in the
    /// driver, so that received bytes are not lost.
    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> PollIo<(OwnedFd, Vec<Chunk>)> {
        ready!(self.poll_flush(key, waker))?;
        self.cancel_polls(key);
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let is_receiving = stream.receiving != Receiving::Idle || stream.hangup_poll.is_in_flight();
        if is_receiving || stream.sending != Sending::Idle {
            stream.receive_waker.wait(waker);
            stream.sends.waker.wait(waker);
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Pending;
        }
        if let Some(errno) = stream.receive_error {
            // The kernel reports an error once. The new owner of the socket would read EOF instead.
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno.get())));
        }
        let Some(mut stream) = self.remove_stream(key) else { return Poll::Ready(Err(gone())) };
        let chunks = std::iter::from_fn(|| stream.received.pop()).collect();
        let descriptor = self.kernel.sockets_mut().export(stream.socket)?.into_descriptor()?;
        Poll::Ready(Ok((descriptor, chunks)))
    }

    /// Closes a released stream once the kernel uses neither its socket nor its memory.
    pub(super) fn finish(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let has_unsent = !stream.sends.queue.is_empty() && stream.sends.error.is_none();
        if stream.released && stream.is_idle() && !has_unsent {
            let sockets = self.kernel.sockets();
            stream.sends.reset_at_close_if_failed(sockets, &stream.socket, stream.family);
            if let Some(stream) = self.remove_stream(key) {
                self.kernel.sockets().close(stream.socket);
            }
        }
    }

    fn remove_stream(&mut self, key: Key) -> Option<Stream<Socket<K>>> {
        let stream = self.streams.remove(key)?;
        debug_assert!(
            stream.is_idle(),
            "invariant 2: a stream is removed while an operation is in flight: {stream:?}"
        );
        self.kernel.detached(key);
        Some(stream)
    }
}
