//! The send direction of a stream, shared by both state machines.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::task::{Poll, Waker};

use super::send_queue::{SendQueue, too_many_sent};
use crate::driver::counters::DriverMetrics;
use crate::driver::errors::impossible::report_impossible;
use crate::driver::errors::log::log_event;
use crate::driver::memory::io_slice_cursor::IoSliceCursor;
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{Family, FileRange, Sockets, is_file_error};
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteSide {
    #[default]
    Open,
    /// No more bytes are accepted. The write direction is shut down once the kernel has taken all accepted bytes.
    ShutdownQueued,
    ShutDown,
}

/// The fields that every send accesses are stored together.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SendSide {
    pub write_side: WriteSide,
    /// Set if a send that waits until all bytes are sent (`MSG_WAITALL`) has ended early. The kernel then usually does not
    /// report the error: the result is the number of bytes, the next send fails with `EPIPE`, and receives return 0.
    /// Meaningless once all bytes have been sent. Not set for Unix sockets, whose sends never take the error.
    pub may_have_lost_error: bool,
    /// The error number of a failed send. Nothing is sent afterwards.
    pub error: Option<NonZero<i32>>,
    pub queue: SendQueue,
    /// The task that is waiting for room in the queue, or for the whole queue to be sent.
    pub waker: WakerSlot,
}

impl SendSide {
    /// Returns the error of an earlier send, if any.
    #[inline]
    pub fn check(&self) -> io::Result<()> {
        self.error.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno.get())))
    }

    /// Checks that EOF is the end of what the peer has sent. The kernel reports that a connection is broken only once; if
    /// a send has received this error, receives return 0, as at EOF. `EPIPE` means that the peer had ended its direction
    /// before, unless an earlier error may have been lost.
    #[cold]
    pub fn check_eof<S: Sockets>(&self, sockets: &S, socket: &S::Socket) -> io::Result<()> {
        match self.error {
            Some(errno) if errno.get() != libc::EPIPE => self.check(),
            None if self.queue.is_empty() => Ok(()),
            _ if self.may_have_lost_error && sockets.is_hung_up(socket) => {
                Err(io::Error::from_raw_os_error(libc::ECONNRESET))
            }
            _ => Ok(()),
        }
    }

    /// Returns `EPIPE`, as the kernel does, if the write direction has been shut down.
    #[inline]
    pub fn check_open(&self) -> io::Result<()> {
        let is_open = self.write_side == WriteSide::Open;
        if is_open { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPIPE)) }
    }

    /// Returns a cursor over the bytes of a write, or `None` if there are none.
    #[inline]
    pub fn start_write<'a>(&self, slices: &'a [IoSlice<'a>]) -> io::Result<Option<IoSliceCursor<'a>>> {
        self.check()?;
        Ok(Some(IoSliceCursor::new(slices)).filter(|cursor| cursor.remaining_bytes() > 0))
    }

    /// Records the error of a failed send call and clears the queue. No send may be in flight. A send after the shutdown
    /// does not fail the stream: all accepted bytes have been sent.
    #[cold]
    pub fn fail(&mut self, error: io::Error) -> io::Error {
        if self.write_side == WriteSide::ShutDown && error.raw_os_error() == Some(libc::EPIPE) {
            return error;
        }
        // Errors of this crate have no number; see `too_many_sent`.
        let errno = error.raw_os_error().map_or(libc::EIO, |errno| self.error_of_connection(errno));
        self.error = NonZero::new(errno);
        self.queue.clear();
        if errno == libc::ECONNRESET { io::Error::from_raw_os_error(errno) } else { error }
    }

    /// Records the error number of a send that has completed with it, unless an earlier one has been recorded.
    pub fn record_error(&mut self, errno: i32) {
        self.error = self.error.or(NonZero::new(self.error_of_connection(errno)));
    }

    /// Returns the error number that a failed send would have if an earlier send had not lost it. The other drivers
    /// return it, because they do not lose it.
    fn error_of_connection(&self, errno: i32) -> i32 {
        if self.may_have_lost_error && errno == libc::EPIPE { libc::ECONNRESET } else { errno }
    }

    /// Discards the unsent bytes. Those of a send in flight are discarded once it has ended.
    #[cold]
    pub fn abort(&mut self) {
        self.error = self.error.or(NonZero::new(libc::ECONNABORTED));
    }

    /// Invariant 21: configures the socket of a stream that has failed, and may therefore have discarded accepted bytes,
    /// so that closing it resets the connection: after an EOF, the peer would take the data for complete. A Unix socket
    /// cannot be reset.
    #[inline]
    pub fn reset_at_close_if_failed<S: Sockets>(&self, sockets: &S, socket: &S::Socket, family: Family) {
        if self.error.is_some() && family == Family::Internet {
            reset_at_close(sockets, socket);
        }
    }

    /// Returns the number of bytes that a send call has sent, which is 0 if the socket buffer is full. Any error other
    /// than `WouldBlock` fails the stream, and so does a call that has sent more than the `length` bytes that it was
    /// given.
    #[inline]
    pub fn sent(&mut self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        match result {
            Ok(count) if count > length => {
                report_impossible("invariant 3: a send call has sent more bytes than it was given");
                Err(self.fail(too_many_sent(count, length)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(self.fail(error)),
            sent => sent,
        }
    }

    /// Sends bytes and descriptors; the queue must be empty. Returns `None` if the socket buffer is full. An error fails
    /// the stream only if the connection is broken, and not if it is caused by the descriptors.
    pub fn send_with_fds<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
        metrics: &mut DriverMetrics,
    ) -> io::Result<Option<usize>> {
        debug_assert!(self.queue.is_empty(), "invariant 3: descriptors are sent before queued bytes");
        match sockets.send_with_fds(socket, data, descriptors) {
            Ok(count) => {
                metrics.count_send(count == data.len());
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {
                Err(self.fail(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Wakes the waiting task if at least half of the queue is free.
    pub fn wake_if_room(&mut self, max_queue_bytes: usize, wakes: &mut WakeQueue) {
        if self.queue.queued_bytes() < max_queue_bytes.div_ceil(2) {
            self.waker.wake(wakes);
        }
    }

    pub fn poll_flush(&mut self, waker: &Waker) -> PollIo<()> {
        self.check()?;
        if self.queue.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.waker.wait(waker);
        Poll::Pending
    }

    /// Sends bytes from a file; the queue must be empty. Returns `None` if the socket buffer is full.
    pub fn send_file<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        family: Family,
        range: FileRange<'_>,
        metrics: &mut DriverMetrics,
    ) -> io::Result<Option<usize>> {
        debug_assert!(self.queue.is_empty(), "invariant 3: bytes of a file are sent before queued bytes");
        match sockets.send_file(socket, family, range) {
            Ok(count) => {
                metrics.file_bytes += count as u64;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if is_file_error(&error) => Err(error),
            Err(error) => Err(self.fail(error)),
        }
    }

    pub fn shut_down<S: Sockets>(&mut self, sockets: &S, socket: &S::Socket) -> io::Result<()> {
        self.check()?;
        if self.write_side != WriteSide::Open {
            return Ok(());
        }
        if self.queue.is_empty() {
            // Invariant 18 is checked after each turn; see `check`.
            sockets.shutdown(socket, Shutdown::Write)?;
            self.write_side = WriteSide::ShutDown;
        } else {
            self.write_side = WriteSide::ShutdownQueued;
        }
        Ok(())
    }

    /// Performs a queued shutdown of the write direction if the kernel has taken all accepted bytes.
    #[inline]
    pub fn shut_down_if_queued<S: Sockets>(&mut self, sockets: &S, socket: &S::Socket) {
        if self.write_side == WriteSide::ShutdownQueued {
            self.apply_queued_shutdown(sockets, socket);
        }
    }

    /// Checks the queue, and that the write direction is shut down exactly once it is empty.
    #[cfg(debug_assertions)]
    pub fn check_invariants(&self) {
        self.queue.check();
        assert!(
            self.write_side != WriteSide::ShutDown || self.queue.is_empty(),
            "invariant 18: the write direction is shut down before all accepted bytes were sent"
        );
        assert!(
            self.write_side != WriteSide::ShutdownQueued || !self.queue.is_empty() || self.error.is_some(),
            "invariant 18: all accepted bytes were sent, but the shutdown is still queued"
        );
    }

    #[cold]
    #[inline(never)]
    fn apply_queued_shutdown<S: Sockets>(&mut self, sockets: &S, socket: &S::Socket) {
        if self.queue.is_empty() && self.error.is_none() {
            self.write_side = WriteSide::ShutDown;
            if let Err(error) = sockets.shutdown(socket, Shutdown::Write) {
                log_event!(DEBUG, %error, "queued shutdown failed: connection reset by peer");
            }
        }
    }
}

#[cold]
#[inline(never)]
fn reset_at_close<S: Sockets>(sockets: &S, socket: &S::Socket) {
    if let Err(error) = sockets.set_option(socket, SocketOption::Linger, 0) {
        log_event!(DEBUG, %error, "cannot reset failed connection; closing it normally");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::driver::sockets::OsSockets;
    use crate::driver::stream::send_queue::{Queued, SendBuf};

    #[test]
    fn failed_send_fails_the_stream_unless_it_would_block() {
        let mut sends = SendSide::default();
        assert_eq!(sends.sent(Ok(3), 3).unwrap(), 3);
        assert_eq!(sends.sent(Err(io::ErrorKind::WouldBlock.into()), 3).unwrap(), 0);
        assert!(sends.check().is_ok());
        assert!(sends.sent(Err(io::Error::from_raw_os_error(libc::ECONNRESET)), 3).is_err());
        assert_eq!(sends.check().unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        assert!(sends.start_write(&[IoSlice::new(b"x")]).is_err());
        let mut sends = SendSide { may_have_lost_error: true, ..SendSide::default() };
        let error = sends.sent(Err(io::Error::from_raw_os_error(libc::EPIPE)), 3).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "invariant 3"))]
    fn send_of_more_bytes_than_given_fails_the_stream() {
        let mut sends = SendSide::default();
        assert!(sends.sent(Ok(4), 3).is_err() && sends.check().is_err());
    }

    #[test]
    fn write_without_bytes_has_no_cursor() {
        let sends = SendSide::default();
        let bytes = |text: &[u8]| {
            let slices = [IoSlice::new(text)];
            let cursor = sends.start_write(&slices).unwrap();
            cursor.map(|cursor| cursor.remaining_bytes())
        };
        assert_eq!((bytes(b""), bytes(b"ab")), (None, Some(2)));
    }

    #[test]
    fn only_open_write_side_accepts_bytes() {
        for (write_side, is_open) in
            [(WriteSide::Open, true), (WriteSide::ShutdownQueued, false), (WriteSide::ShutDown, false)]
        {
            let sends = SendSide { write_side, ..SendSide::default() };
            assert_eq!(sends.check_open().is_ok(), is_open);
        }
    }

    /// Returns a connected Unix stream and its peer.
    fn pair() -> (OsSockets, OwnedFd, OwnedFd) {
        let mut sockets = OsSockets::new(true);
        let (near, far) = sockets.pair_unix().unwrap();
        (sockets, near, far)
    }

    fn queued(bytes: usize) -> SendSide {
        let mut sends = SendSide::default();
        sends.queue.push(Queued(SendBuf::Vec(vec![0; bytes])));
        sends
    }

    #[test]
    fn eof_is_an_error_only_if_a_send_has_taken_the_error_of_the_connection() {
        let (sockets, open, _peer) = pair();
        let (_, broken, peer) = pair();
        drop(peer);
        for (errno, bytes, may_have_lost_error, socket, expected) in [
            (0, 0, true, &broken, None),
            (0, 1, true, &broken, Some(libc::ECONNRESET)),
            (0, 1, true, &open, None),
            (0, 1, false, &broken, None),
            (libc::ETIMEDOUT, 0, false, &broken, Some(libc::ETIMEDOUT)),
            (libc::EPIPE, 0, false, &broken, None),
            (libc::EPIPE, 0, true, &broken, Some(libc::ECONNRESET)),
        ] {
            let queue = if bytes > 0 { queued(bytes).queue } else { SendQueue::default() };
            let error = NonZero::new(errno);
            let sends = SendSide { may_have_lost_error, error, queue, ..SendSide::default() };
            let eof = sends.check_eof(&sockets, socket).err().and_then(|error| error.raw_os_error());
            assert_eq!(eof, expected, "{errno} {bytes} {may_have_lost_error}");
        }
    }

    #[test]
    fn only_a_broken_connection_fails_a_stream_that_sends_descriptors() {
        let (mut sockets, near, far) = pair();
        let (mut sends, mut metrics) = (SendSide::default(), DriverMetrics::default());
        let mut send = |sends: &mut SendSide, data: &[u8], count| {
            sends.send_with_fds(&mut sockets, &near, data, &vec![near.as_fd(); count], &mut metrics)
        };
        assert_eq!(send(&mut sends, b"abc", 1).unwrap(), Some(3));
        assert!(send(&mut sends, b"abc", 1000).is_err() && sends.check().is_ok());
        let data = vec![0; 1 << 16];
        let (mut complete, mut short) = (1, 0);
        while let Some(count) = send(&mut sends, &data, 0).unwrap() {
            if count == data.len() { complete += 1 } else { short += 1 }
        }
        assert!(sends.check().is_ok());
        drop(far);
        let error = send(&mut sends, b"abc", 1).unwrap_err();
        assert_eq!(error.raw_os_error(), sends.error.map(NonZero::get));
        assert!(sends.check().is_err());
        assert_eq!((metrics.sends, metrics.short_sends), (complete, short));
    }

    #[test]
    fn only_a_broken_connection_fails_a_stream_that_sends_a_file() {
        let (mut sockets, near, far) = pair();
        let (mut sends, mut metrics) = (SendSide::default(), DriverMetrics::default());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let directory = std::fs::File::open("/").unwrap();
        let mut send = |sends: &mut SendSide, file: &std::fs::File| {
            let range = FileRange { file: file.as_fd(), offset: 0, length: 1 << 16 };
            sends.send_file(&mut sockets, &near, Family::Unix, range, &mut metrics)
        };
        assert!(send(&mut sends, &directory).is_err() && sends.check().is_ok());
        let mut sent = 0;
        while let Some(count) = send(&mut sends, &file).unwrap() {
            sent += count as u64;
        }
        assert!(sends.check().is_ok());
        drop(far);
        assert!(send(&mut sends, &file).is_err() && sends.check().is_err());
        assert_eq!(metrics.file_bytes, sent);
    }

    #[test]
    fn task_is_woken_once_half_of_the_queue_is_free() {
        for (max_queue_bytes, bytes, is_woken) in [(8, 3, true), (8, 4, false), (7, 3, true), (7, 4, false)] {
            let mut sends = queued(bytes);
            assert!(sends.poll_flush(Waker::noop()).is_pending());
            sends.wake_if_room(max_queue_bytes, &mut WakeQueue::default());
            assert_eq!(sends.waker.is_waiting(), !is_woken, "{bytes} of {max_queue_bytes}");
        }
    }

    #[test]
    fn shutdown_waits_for_queued_bytes() {
        let (mut sockets, near, far) = pair();
        let mut sends = queued(3);
        sends.shut_down(&sockets, &near).unwrap();
        sends.shut_down_if_queued(&sockets, &near);
        assert_eq!(sends.write_side, WriteSide::ShutdownQueued);
        assert!(sockets.receive(&far, &mut [0]).is_err());
        sends.queue.mark_sent(3).unwrap();
        sends.shut_down_if_queued(&sockets, &near);
        assert_eq!(sends.write_side, WriteSide::ShutDown);
        assert_eq!(sockets.receive(&far, &mut [0]).unwrap(), 0);
    }
}
