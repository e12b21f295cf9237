//! Sends of several owned buffers.

use std::task::Waker;

use crate::driver::Driver;
use crate::driver::backend::dispatch;
use crate::driver::memory::key::Key;
use crate::driver::stream::send_queue::SendBuf;
use crate::driver::wake::queue::PollIo;

impl Driver {
    /// Accepts several buffers for sending if the queue has room. In that case, takes those that the kernel has not
    /// taken completely from `outgoing`. The caller must drop the others once the driver is no longer borrowed.
    pub fn poll_send_vectored(&mut self, key: Key, outgoing: &mut Vec<SendBuf>, waker: &Waker) -> PollIo<()> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_vectored(key, outgoing, waker))
    }
}
