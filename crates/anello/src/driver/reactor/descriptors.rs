//! Sending and receiving descriptors through Unix streams.

use std::os::fd::BorrowedFd;
use std::task::{Poll, Waker, ready};

use super::Reactor;
use crate::driver::kernel::ReadinessKernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::gone;
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::stream::direct_read::ReadState;
use crate::driver::wake::queue::PollIo;

impl<K: ReadinessKernel> Reactor<K> {
    /// Sends bytes and descriptors once all previously accepted bytes have been sent. Returns the number of bytes that
    /// the kernel took.
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
        if stream.writable {
            let (sockets, sends) = (self.kernel.sockets_mut(), &mut stream.sends);
            if let Some(count) =
                sends.send_with_fds(sockets, &stream.socket, data, descriptors, &mut self.metrics)?
            {
                return Poll::Ready(Ok(count));
            }
            stream.writable = false;
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
        if stream.reads.state != ReadState::Open {
            return self.poll_read(key, buffer, waker);
        }
        let received = stream.reads.receive_with_fds(
            self.kernel.sockets_mut(),
            &stream.socket,
            &stream.sends,
            buffer,
            descriptors,
            &mut self.metrics,
        );
        match received {
            Err(error) => return Poll::Ready(Err(self.fail_receive(key, error))),
            Ok(Some(count)) => return Poll::Ready(Ok(count)),
            Ok(None) => {}
        }
        stream.receive_waker.wait(waker);
        Poll::Pending
    }
}
