//! Interface between the proactor and a kernel that completes operations.

use std::io;
use std::rc::Rc;

use super::buffer::Pools;
use super::counters::DriverMetrics;
use super::notifier::Descriptors;
use super::op::{Completion, Op, SendMode, Wait};
use super::sockets::Sockets;
use super::token::{Key, Token};

/// A kernel that completes operations.
pub(crate) trait CompletionKernel: Sized {
    type Sockets: Sockets;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;

    /// Queues an operation for the next [`enter`](Self::enter) and returns its submission index. Never fails or drops
    /// an operation: operations that do not fit into the submission queue wait in a backlog.
    fn push(&mut self, token: Token, op: Op<'_, Socket<Self>>) -> u32;

    /// Queues an inline send. Kernels can override this with a faster implementation.
    #[inline]
    fn push_inline_send(
        &mut self,
        token: Token,
        socket: &Socket<Self>,
        data: *const u8,
        length_bytes: u32,
    ) -> u32 {
        self.push(token, Op::Send { socket, data, length_bytes, mode: SendMode::Inline })
    }

    /// Submits all queued operations and waits for a completion as requested. An interrupted or timed-out wait is not
    /// an error.
    fn enter(&mut self, wait: Wait) -> io::Result<()>;

    /// Returns the next completion, or `None` if all posted completions have been read, including those that did not
    /// fit into the queue. Also returns `None` if completions were dropped while such completions were being fetched.
    fn completion(&mut self) -> Option<Completion>;

    /// Called with the completions of connects, wake-ups and messages, for which the kernel layer holds resources.
    fn ended(&mut self, _completion: &Completion) {}

    /// Returns `true` if the kernel has dropped completions for lack of memory since the last call.
    fn has_dropped(&mut self) -> bool;

    /// Returns `true` if the kernel has consumed the entry with this submission index.
    fn consumed(&self, submission_index: u32) -> bool;

    /// Returns `true` if there are entries to submit or completions to read, so that a non-blocking turn is worth a
    /// system call.
    fn needs_enter(&self) -> bool;

    /// Returns `true` if there are completions to read or task work to run, without a system call.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Returns the descriptors with which other threads interrupt a wait. Simulated kernels have none.
    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(None)
    }

    /// Returns the receive memory, whose ring is registered with the kernel.
    fn pools(&self) -> &Rc<Pools>;

    fn capabilities(&self) -> Capabilities;

    /// Creates the socket for a successful accept.
    fn accepted(&mut self, result: i32) -> Socket<Self>;

    /// Called when a stream is added to the table.
    fn attached(&mut self, key: Key, socket: &Socket<Self>);
    /// Called when a stream is removed from the table.
    fn detached(&mut self, key: Key);

    /// Returns `true` if zero-copy sends to the peer of this socket avoid the copy.
    fn zero_copy_pays(&self, socket: &Socket<Self>) -> bool;

    fn count(&self, metrics: &mut DriverMetrics);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub ring_receive: bool,
    /// Set if a receive into the ring can miss a connection reset: it takes the bytes before the reset, finds no more
    /// data, and waits for a wake-up that has already happened. When the bytes and the reset arrive before the receive
    /// runs, this was observed on 6.12.74, 6.12.85, 6.18.15 and 6.19.8, but not on 6.1; Linux commit a68ed2df7213 fixes
    /// it (in 6.12.86 and 6.19.10). When they arrive while the receive is armed, it was still observed on 6.12.117 and
    /// 6.18.44.
    pub misses_resets: bool,
    pub inline_sends: bool,
    pub zero_copy: bool,
}

pub(crate) type Socket<K> = <<K as CompletionKernel>::Sockets as Sockets>::Socket;
