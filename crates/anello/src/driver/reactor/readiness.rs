//! Peeking at received bytes, waiting until a stream is ready without receiving or sending, and bytes and errors that are
//! stored until a receive returns them.

use std::collections::VecDeque;
use std::io;
use std::task::{Poll, Waker};

use super::Reactor;
use super::stored::Stored;
use crate::driver::kernel::ReadinessKernel;
use crate::driver::memory::buffer::{Chunk, copy_prefix, store_chunk};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Sockets, gone};
use crate::driver::stream::direct_read::ReadState;
use crate::driver::stream::send_side::WriteSide;
use crate::driver::wake::queue::PollIo;

impl<K: ReadinessKernel> Reactor<K> {
    /// Copies received bytes to `buffer`, which must not be empty, without removing them. Returns 0 at EOF.
    pub fn poll_peek(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let mut count = 0;
        match stream.reads.state {
            ReadState::Open => {}
            ReadState::Eof => return Poll::Ready(Ok(0)),
            ReadState::Stored => {
                let Some(stored) = self.stored.get(&key) else { return Poll::Ready(Err(gone())) };
                for chunk in &stored.chunks {
                    count += copy_prefix(chunk, &mut buffer[count..]);
                }
                match stored.error {
                    Some(errno) if count == 0 => {
                        return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
                    }
                    None if count < buffer.len() => {}
                    _ => return Poll::Ready(Ok(count)),
                }
            }
        }
        if stream.reads.readable {
            match self.kernel.sockets_mut().peek(&stream.socket, &mut buffer[count..]) {
                Ok(0) if count == 0 => {
                    let checked = stream.sends.check_eof(self.kernel.sockets(), &stream.socket);
                    return Poll::Ready(checked.map(|()| 0));
                }
                Ok(peeked) => return Poll::Ready(Ok(count + peeked)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.reads.readable = stream.reads.state == ReadState::Stored;
                }
                Err(error) => {
                    let error = self.fail_receive(key, error);
                    return Poll::Ready(if count == 0 { Err(error) } else { Ok(count) });
                }
            }
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        stream.receive_waker.wait(waker);
        Poll::Pending
    }

    /// Stores the error of a receive for those that follow. The kernel reports it once, and then EOF, which would make the
    /// data appear complete.
    #[cold]
    pub(super) fn fail_receive(&mut self, key: Key, error: io::Error) -> io::Error {
        if let Some(stream) = self.streams.get_mut(key) {
            (stream.reads.state, stream.reads.readable) = (ReadState::Stored, true);
            self.stored.entry(key).or_default().error = Some(error.raw_os_error().unwrap_or(libc::EIO));
        }
        error
    }

    /// Returns `Ready` if a receive would return bytes, EOF or an error.
    pub fn poll_read_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        if self.streams.get(key).is_none() {
            return Poll::Ready(Err(gone()));
        }
        // A receive would return the error.
        self.poll_peek(key, &mut [0], waker).map(|_| Ok(()))
    }

    /// Returns `Ready` if a write would accept bytes or return an error.
    pub fn poll_write_ready(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let has_room = stream.sends.queue.queued_bytes() < self.max_send_queue_bytes;
        if has_room || stream.sends.error.is_some() || stream.sends.write_side != WriteSide::Open {
            return Poll::Ready(Ok(()));
        }
        stream.sends.waker.wait(waker);
        Poll::Pending
    }

    /// Stores bytes that receives return before those in the socket. The stream must be new.
    pub fn store_received(&mut self, key: Key, bytes: &[u8]) {
        let chunks: VecDeque<_> = self.pools.copy(bytes).collect();
        if !chunks.is_empty()
            && let Some(stream) = self.streams.get_mut(key)
        {
            (stream.reads.state, stream.reads.readable) = (ReadState::Stored, true);
            self.stored.insert(key, Stored { chunks, error: None });
        }
    }

    /// Receives from a stream that is not `Open`.
    #[cold]
    pub(super) fn receive_stored(&mut self, key: Key, received: &mut Option<Chunk>) -> io::Result<()> {
        // Nothing is stored at EOF.
        let Some(stored) = self.stored.get_mut(&key) else { return Ok(()) };
        let result = match stored.chunks.pop_front() {
            Some(chunk) => {
                store_chunk(received, chunk);
                Ok(())
            }
            None => stored.error.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno))),
        };
        if stored.chunks.is_empty() && stored.error.is_none() {
            self.take_stored(key);
        }
        result
    }

    /// Reads from a stream that is not `Open`.
    #[cold]
    pub(super) fn read_stored(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<usize> {
        let mut received = None;
        self.receive_stored(key, &mut received)?;
        let Some(mut chunk) = received else { return Ok(0) };
        let count = copy_prefix(&chunk, buffer);
        chunk.advance(count);
        if !chunk.is_empty()
            && let Some(stream) = self.streams.get_mut(key)
        {
            stream.reads.state = ReadState::Stored;
            self.stored.entry(key).or_default().chunks.push_front(chunk);
        }
        Ok(count)
    }

    /// Removes what is stored for a stream.
    pub(super) fn take_stored(&mut self, key: Key) -> Option<Stored> {
        let stored = self.stored.remove(&key)?;
        if let Some(stream) = self.streams.get_mut(key) {
            stream.reads.state = ReadState::Open;
        }
        Some(stored)
    }
}
