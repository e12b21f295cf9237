//! Releasing, aborting and detaching streams.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use super::state::{Proactor, cancel_token};
use super::stream::{Connect, Received, Receiving, Sending};
use crate::driver::buffer::Chunk;
use crate::driver::catch_panic::log;
use crate::driver::completion_kernel::CompletionKernel;
use crate::driver::op::Op;
use crate::driver::sockets::{Sockets, StreamOption, gone};
use crate::driver::token::{Key, Kind, Token};
use crate::driver::wake::{PollIo, WakerSlot};

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
            self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Connect, key) });
        }
        self.stop_receiving(key);
        self.cancel_hangup_poll(key);
        self.cancel_writable_poll(key);
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
                // Confirmed in the next turn, which drops the remaining bytes if the send was short.
                Sending::Inline(_) => {}
                Sending::Async => {
                    self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Send, key) });
                }
                Sending::ZeroCopy(send_key)
                    if self.zero_copy_sends.get(send_key).is_some_and(|send| send.short_result.is_some()) =>
                {
                    self.detach_buffer(key, send_key);
                }
                Sending::ZeroCopy(send_key) => {
                    let target = Token::new(Kind::SendZeroCopy, send_key);
                    self.kernel.push(cancel_token(), Op::Cancel { target });
                }
            }
        }
        self.release(key);
    }

    /// Configures the socket of an aborted stream so that closing it resets the connection and the kernel drops unsent
    /// data. Otherwise, if the peer does not read, the kernel would keep the data and use the memory of zero-copy sends
    /// indefinitely.
    fn reset_at_close(&mut self, key: Key) {
        if self.zero_copy_sends.len() == 0 {
            return;
        }
        let (send_keys, reset) = (self.zero_copy_sends.keys(), StreamOption::Linger(Some(Duration::ZERO)));
        let holds_memory =
            |send_key: &Key| self.zero_copy_sends.get(*send_key).is_some_and(|send| send.stream == key);
        if send_keys.iter().any(holds_memory)
            && let Some(stream) = self.streams.get(key)
            && let Err(error) = self.kernel.sockets().set_option(&stream.socket, reset)
        {
            log(|| tracing::debug!(%error, "cannot reset aborted connection; closing it normally"));
        }
    }

    /// Waits until all accepted bytes have been sent and no operation is in flight. Then removes the socket from the
    /// driver and returns it with the received chunks that were not taken.
    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> PollIo<(OwnedFd, Vec<Chunk>)> {
        ready!(self.poll_flush(key, waker))?;
        self.stop_receiving(key);
        self.cancel_hangup_poll(key);
        self.cancel_writable_poll(key);
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let is_receiving = stream.receiving != Receiving::Idle || stream.hangup_poll.is_in_flight();
        if is_receiving || stream.sending != Sending::Idle {
            stream.receive_waker.wait(waker);
            stream.sends.waker.wait(waker);
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Pending;
        }
        let Some(mut stream) = self.streams.remove(key) else { return Poll::Ready(Err(gone())) };
        self.kernel.detached(key);
        let chunks = std::iter::from_fn(|| stream.received.pop()).collect();
        Poll::Ready(self.kernel.sockets_mut().export(stream.socket).map(|descriptor| (descriptor, chunks)))
    }

    /// Closes a released stream once the kernel uses neither its socket nor its memory.
    pub(super) fn finish(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let quiescent = stream.receiving == Receiving::Idle
            && !stream.hangup_poll.is_in_flight()
            && stream.sending == Sending::Idle
            && stream.connect != Connect::InFlight
            && (stream.sends.queue.is_empty() || stream.sends.error.is_some());
        if stream.released && quiescent {
            self.streams.remove(key);
            self.kernel.detached(key);
        }
    }
}
