//! Sending and receiving descriptors through Unix streams.

use std::os::fd::BorrowedFd;
use std::task::{Poll, Waker, ready};

use super::Proactor;
use super::stream::{Receiving, Sending};
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::Op;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::Key;
use crate::driver::sockets::gone;
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::stream::direct_read::ReadState;
use crate::driver::wake::queue::PollIo;

impl<K: CompletionKernel> Proactor<K> {
    /// Sends bytes and descriptors with a system call once all previously accepted bytes have been sent. Returns the
    /// number of bytes that the kernel took.
    pub fn poll_send_with_fds(
        &mut self,
        key: Key,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
        waker: &Waker,
    ) -> PollIo<usize> {
        ready!(self.poll_flush(key, waker))?;
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check_open()?;
        if stream.sending == Sending::Idle {
            let (sockets, sends) = (self.kernel.sockets_mut(), &mut stream.sends);
            if let Some(count) =
                sends.send_with_fds(sockets, &stream.socket, data, descriptors, &mut self.metrics)?
            {
                return Poll::Ready(Ok(count));
            }
            stream.sending = Sending::Polling;
            self.kernel.push(Token::new(Kind::Writable, key), Op::Writable { socket: &stream.socket });
        }
        stream.sends.waker.wait(waker);
        Poll::Pending
    }

    /// Receives bytes and descriptors. Bytes that are already in the driver's memory have no descriptors.
    pub fn poll_receive_with_fds(
        &mut self,
        key: Key,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
        waker: &Waker,
    ) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let is_direct = stream.direct && matches!(stream.receiving, Receiving::Idle | Receiving::Polling);
        let is_open = stream.reads.state == ReadState::Open && stream.receive_error.is_none();
        if !is_direct || !is_open || !stream.received.is_empty() || stream.released {
            return self.poll_read(key, buffer, waker);
        }
        // Invariant 4: no receive into the ring is armed and no chunk is queued.
        let received = stream.reads.receive_with_fds(
            self.kernel.sockets_mut(),
            &stream.socket,
            &stream.sends,
            buffer,
            descriptors,
            &mut self.metrics,
        );
        if let Some(count) = received.map_err(|error| stream.fail_receive(error))? {
            return Poll::Ready(Ok(count));
        }
        self.wait_for_receive(key, waker);
        Poll::Pending
    }
}
