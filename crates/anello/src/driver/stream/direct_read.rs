//! Direct receives: system calls on sockets that the kernel has reported as readable. These receives use buffers that
//! are still in the CPU cache, and adapt the buffer size to the received messages.

use std::io;
use std::rc::Rc;

use super::send_side::SendSide;
use crate::driver::counters::DriverMetrics;
use crate::driver::errors::impossible::report_impossible;
use crate::driver::memory::buffer::{CLASS_BYTES, Chunk, Pools};
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::sockets::{Family, Sockets};

/// State of a socket's receive direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectRead {
    /// Set if a receive may return data. Stays set at EOF.
    pub readable: bool,
    /// Set if a short read never again means that the socket is drained: after a reported hangup (no further event will
    /// arrive), and after reported urgent data (a read stops before it).
    pub short_read_is_inconclusive: bool,
    /// Set if the event that set `readable` may stand for several messages in a Unix socket. A read stops after
    /// descriptors and before urgent data, so a short read then does not mean that the socket is drained.
    pub may_hold_messages: bool,
    pub state: ReadState,
    /// Size class of the next receive.
    class: u8,
    /// Number of consecutive receives that would have fitted into the next smaller size class.
    oversized_reads: u8,
}

/// What the next receive returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// The result of a system call or an operation.
    Open,
    /// EOF, which an earlier receive has returned.
    Eof,
    /// Bytes or an error that the reactor has stored for the stream. `readable` is then set.
    Stored,
}

/// Number of consecutive reads into an oversized buffer after which the class is reduced.
const SHRINK_AFTER_READS: u8 = 16;

impl DirectRead {
    /// The first receive does not wait for readiness, because the first request has usually arrived already.
    pub fn speculative(family: Family) -> Self {
        Self {
            readable: true,
            short_read_is_inconclusive: false,
            may_hold_messages: family == Family::Unix,
            state: ReadState::Open,
            class: 0,
            oversized_reads: 0,
        }
    }

    /// Receives once. Returns an empty chunk at EOF, and `None` if no data is available yet.
    #[inline]
    pub fn receive<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        sends: &SendSide,
        pools: &Rc<Pools>,
    ) -> io::Result<Option<Chunk>> {
        let mut chunk = pools.lease(usize::from(self.class));
        let received = self.receive_into(sockets, socket, sends, chunk.spare())?;
        let Some(count) = received else { return Ok(None) };
        chunk.mark_filled(count);
        self.adapt(count);
        Ok(Some(chunk))
    }

    /// Receives into the caller's memory. Returns `None` if no data is available yet. Clears `readable` if a short read
    /// shows that the socket is drained, so that no second call is needed.
    #[inline]
    pub fn receive_into<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        sends: &SendSide,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let (length, result) = (buffer.len(), sockets.receive(socket, buffer));
        if matches!(result, Ok(0)) {
            sends.check_eof(sockets, socket)?;
        }
        self.record(result, length)
    }

    /// Receives bytes and descriptors like [`receive_into`](Self::receive_into).
    pub fn receive_with_fds<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        sends: &SendSide,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
        metrics: &mut DriverMetrics,
    ) -> io::Result<Option<usize>> {
        if !self.readable {
            return Ok(None);
        }
        let result = sockets.receive_with_fds(socket, buffer, descriptors);
        if matches!(result, Ok(0)) {
            sends.check_eof(sockets, socket)?;
        }
        let received = self.record(result, buffer.len())?;
        metrics.receives += u64::from(received.is_some());
        Ok(received)
    }

    /// Records the result of a receive into a buffer of this length.
    #[inline]
    fn record(&mut self, result: io::Result<usize>, length: usize) -> io::Result<Option<usize>> {
        match result {
            Ok(0) => {
                self.state = ReadState::Eof;
                Ok(Some(0))
            }
            Ok(count) if count > length => {
                // The length of the chunk would exceed its buffer.
                report_impossible(
                    "invariant 1: a receive call has received more bytes than its buffer holds",
                );
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            Ok(count) => {
                // Invariant 9: nothing but a short read or `EAGAIN` clears `readable`.
                self.readable = count == length || self.may_hold_messages || self.short_read_is_inconclusive;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that a socket at EOF, or with stored bytes, stays readable: the reactor then does not wait for an event.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        assert!(
            self.readable || self.state == ReadState::Open,
            "invariant 9: a stream that is {:?} is not readable",
            self.state
        );
        assert!(usize::from(self.class) < CLASS_BYTES.len(), "invariant 5: a size class does not exist");
    }

    /// Adapts the class to the size of a read.
    #[inline]
    fn adapt(&mut self, count: usize) {
        let class = usize::from(self.class);
        if count == CLASS_BYTES[class] {
            self.class = (self.class + 1).min(CLASS_BYTES.len() as u8 - 1);
            self.oversized_reads = 0;
        } else if class > 0 {
            self.oversized_reads = if count < CLASS_BYTES[class - 1] { self.oversized_reads + 1 } else { 0 };
            if self.oversized_reads >= SHRINK_AFTER_READS {
                self.class -= 1;
                self.oversized_reads = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::driver::sockets::OsSockets;

    #[test]
    fn class_follows_read_sizes() {
        let mut reads = DirectRead::speculative(Family::Internet);
        for (count, class) in CLASS_BYTES.into_iter().zip([1, 2, 3, 3]) {
            reads.adapt(count);
            assert_eq!(reads.class, class);
        }
        (0..3 * SHRINK_AFTER_READS).for_each(|_| reads.adapt(100));
        assert_eq!(reads.class, 0);
        for _ in 0..1000 {
            reads.adapt(CLASS_BYTES[0]);
            assert_eq!(reads.class, 1, "the class does not oscillate if every message fills a buffer");
        }
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "invariant 1"))]
    fn receive_of_more_bytes_than_the_buffer_holds_is_an_error() {
        assert!(DirectRead::speculative(Family::Internet).record(Ok(4), 3).is_err());
    }

    #[test]
    fn short_read_drains_a_socket_without_message_boundaries() {
        for (family, is_drained) in [(Family::Internet, true), (Family::Unix, false)] {
            let mut reads = DirectRead::speculative(family);
            assert_eq!(reads.record(Ok(3), 3).unwrap(), Some(3));
            assert!(reads.readable, "{family:?}");
            assert_eq!(reads.record(Ok(2), 3).unwrap(), Some(2));
            assert_eq!(reads.readable, !is_drained, "{family:?}");
        }
    }

    #[test]
    fn descriptors_are_received_with_bytes_while_the_socket_is_readable() {
        let mut sockets = OsSockets::new(true);
        let (near, far) = sockets.pair_unix().unwrap();
        sockets.send_with_fds(&far, b"abc", &[far.as_fd(), far.as_fd()]).unwrap();
        let (mut reads, mut metrics) = (DirectRead::speculative(Family::Unix), DriverMetrics::default());
        let (mut buffer, mut descriptors) = ([0; 8], ReceivedFds::default());
        let mut receive = |reads: &mut DirectRead| {
            let sends = SendSide::default();
            reads.receive_with_fds(&mut sockets, &near, &sends, &mut buffer, &mut descriptors, &mut metrics)
        };
        let unreadable = &mut DirectRead { readable: false, ..reads };
        assert_eq!(receive(unreadable).unwrap(), None);
        assert_eq!(receive(&mut reads).unwrap(), Some(3));
        assert_eq!(receive(&mut reads).unwrap(), None);
        assert!(!reads.readable);
        assert_eq!((&buffer[..4], descriptors.fds.len(), metrics.receives), (&b"abc\0"[..], 2, 1));
    }
}
