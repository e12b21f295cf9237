//! Releasing, aborting and detaching streams.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::task::{Poll, Waker, ready};

use super::Proactor;
use super::stream::{Connect, HangupPoll, Received, Receiving, Sending, Stream};
use crate::driver::errors::catch_panic::log;
use crate::driver::kernel::token::Kind;
use crate::driver::kernel::{CompletionKernel, Socket};
use crate::driver::memory::buffer::Chunk;
use crate::driver::memory::key::Key;
use crate::driver::sockets::options::SocketOption;
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

    /// Releases the key and drops unsent bytes.
    pub fn abort(&mut self, key: Key) {
        self.reset_at_close(key);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sends.error = NonZero::new(libc::ECONNABORTED);
            match stream.sending {
                Sending::Idle | Sending::Polling | Sending::PollInDoubt => stream.sends.queue.clear(),
                // The next turn confirms the send and, if it was short, drops the remaining bytes.
                Sending::Inline(_) => {}
                Sending::Async => self.cancel(Kind::Send, key),
                Sending::ZeroCopy(send_key)
                    if self.zero_copy_sends.get(send_key).is_some_and(|send| send.short_result.is_some()) =>
                {
                    self.detach_buffer(key, send_key);
                    if let Some(stream) = self.streams.get_mut(key) {
                        stream.sends.queue.clear();
                    }
                }
                Sending::ZeroCopy(send_key) => self.cancel(Kind::SendZeroCopy, send_key),
            }
        }
        self.release(key);
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

    /// Configures the socket of an aborted stream so that closing it resets the connection and the kernel drops unsent
    /// data. Otherwise, if the peer does not read, the kernel would keep the data and use the memory of zero-copy sends
    /// indefinitely.
    fn reset_at_close(&mut self, key: Key) {
        if self.zero_copy_sends.len() > 0
            && self.zero_copy_sends.values().any(|send| send.stream == key)
            && let Some(stream) = self.streams.get(key)
            && let Err(error) = self.kernel.sockets().set_option(&stream.socket, SocketOption::Linger, 0)
        {
            log(|| tracing::debug!(%error, "cannot reset aborted connection; closing it normally"));
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
            self.remove_stream(key);
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
