//! What the state machine needs of a kernel that completes operations.

use std::io;
use std::rc::Rc;

use crate::driver::buffer::Pools;
use crate::driver::counters::DriverMetrics;
use crate::driver::op::{Completion, Op, SendMode, Wait};
use crate::driver::sockets::Sockets;
use crate::driver::token::{Key, Token};

/// A kernel that completes operations.
pub(crate) trait CompletionKernel: Sized {
    type Sockets: Sockets;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;

    /// Notes an operation for the next [`enter`](Self::enter) and returns its place in the order of submission.
    /// Never fails and drops nothing: what does not fit the queue waits in a backlog.
    fn push(&mut self, token: Token, op: Op<'_, Socket<Self>>) -> u32;

    /// The same for a send that completes at submission: a kernel may have a shorter way for it.
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

    /// Hands everything noted to the kernel and waits as told until there is a completion. An interrupted or timed-out
    /// wait is not an error.
    fn enter(&mut self, wait: Wait) -> io::Result<()>;

    /// The next completion. `None` when all that the kernel has posted was read, also what did not fit its queue.
    fn completion(&mut self) -> Option<Completion>;

    /// Called with completions of connects, wakes and messages, which the kernel layer keeps something for.
    fn ended(&mut self, _completion: &Completion) {}

    /// Whether the kernel has dropped completions since this was asked last, for want of memory to keep them.
    fn has_dropped(&mut self) -> bool;

    /// Whether the kernel has consumed the submission at this place of the order.
    fn consumed(&self, submission_index: u32) -> bool;

    /// Whether there is something to submit or to read, so that a turn that does not wait is worth a system call.
    fn needs_enter(&self) -> bool;

    /// The receive memory, its ring registered with the kernel.
    fn pools(&self) -> &Rc<Pools>;

    /// What the kernel can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes the socket of a successful accept.
    fn accepted(&mut self, result: i32) -> Socket<Self>;

    /// Called once for each stream that enters the table, and when it leaves.
    fn attached(&mut self, key: Key, socket: &Socket<Self>);
    fn detached(&mut self, key: Key);

    /// Whether zero-copy sends to the socket's peer would really not copy.
    fn zero_copy_pays(&self, socket: &Socket<Self>) -> bool;

    fn count(&self, metrics: &mut DriverMetrics);
}

/// What a completion kernel can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub ring_receive: bool,
    /// A receive into the ring may not see that the connection was reset: it takes the bytes before the reset, finds that
    /// none are left, and waits for a wake-up that has been. When both arrive before it runs: seen on 6.12.74, 6.12.85,
    /// 6.18.15 and 6.19.8, not on 6.1; mended by Linux commit a68ed2df7213 (in 6.12.86 and 6.19.10). Still when both
    /// arrive while it is armed: seen on 6.12.117 and 6.18.44.
    pub misses_resets: bool,
    pub inline_sends: bool,
    pub zero_copy: bool,
}

pub(super) type Socket<K> = <<K as CompletionKernel>::Sockets as Sockets>::Socket;
