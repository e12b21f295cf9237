//! Peeking at received bytes, and waiting until a stream is ready without receiving or sending.

use std::io;
use std::task::{Poll, Waker};

use super::Proactor;
use super::stream::Receiving;
use crate::driver::kernel::CompletionKernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Sockets, gone};
use crate::driver::stream::direct_read::ReadState;
use crate::driver::stream::send_side::WriteSide;
use crate::driver::wake::queue::PollIo;

impl<K: CompletionKernel> Proactor<K> {
    /// Copies received bytes to `buffer`, which must not be empty, without removing them. Returns 0 at EOF.
    pub fn poll_peek(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.released) else {
            return Poll::Ready(Err(gone()));
        };
        let count = stream.received.copy_to(buffer);
        if count == 0 {
            if stream.reads.state == ReadState::Eof {
                return Poll::Ready(Ok(0));
            }
            if let Some(errno) = stream.receive_error {
                return Poll::Ready(Err(io::Error::from_raw_os_error(errno.get())));
            }
        }
        // The bytes in the socket follow the queued chunks, unless a receive is in flight.
        let is_socket_next = matches!(stream.receiving, Receiving::Idle | Receiving::Polling)
            && stream.reads.state != ReadState::Eof
            && stream.receive_error.is_none();
        if count < buffer.len() && is_socket_next && (stream.reads.readable || !stream.direct) {
            match self.kernel.sockets_mut().peek(&stream.socket, &mut buffer[count..]) {
                Ok(0) if count == 0 => {
                    let checked = stream.sends.check_eof(self.kernel.sockets(), &stream.socket);
                    return Poll::Ready(checked.map(|()| 0));
                }
                Ok(peeked) => return Poll::Ready(Ok(count + peeked)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.reads.readable &= !stream.direct;
                }
                Err(error) => {
                    let error = stream.fail_receive(error);
                    return Poll::Ready(if count == 0 { Err(error) } else { Ok(count) });
                }
            }
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        self.wait_for_receive(key, waker);
        Poll::Pending
    }

    /// Returns `Ready` if a receive would return bytes, EOF or an error.
    pub fn poll_read_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.released) else {
            return Poll::Ready(Err(gone()));
        };
        if !stream.received.is_empty()
            || stream.reads.state == ReadState::Eof
            || stream.receive_error.is_some()
        {
            return Poll::Ready(Ok(()));
        }
        if stream.direct {
            // A receive would return the error.
            return self.poll_peek(key, &mut [0], waker).map(|_| Ok(()));
        }
        self.wait_for_receive(key, waker);
        Poll::Pending
    }

    pub(super) fn wait_for_receive(&mut self, key: Key, waker: &Waker) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.receive_waker.wait(waker);
        if stream.receiving == Receiving::Idle {
            self.start_receiving(key);
        }
    }

    /// Returns `Ready` if a write would accept bytes or return an error.
    pub fn poll_write_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let has_room = stream.sends.queue.queued_bytes() < self.limits.max_send_queue_bytes;
        if has_room || stream.sends.error.is_some() || stream.sends.write_side != WriteSide::Open {
            return Poll::Ready(Ok(()));
        }
        stream.sends.waker.wait(waker);
        self.confirm_without_sleeping |= stream.is_unconfirmed();
        Poll::Pending
    }

    /// Adds bytes that receives return before those in the socket. The stream must be new.
    pub fn store_received(&mut self, key: Key, bytes: &[u8]) {
        if let Some(stream) = self.streams.get_mut(key) {
            self.pools.copy(bytes).for_each(|chunk| {
                stream.received.push(chunk);
            });
        }
    }
}
