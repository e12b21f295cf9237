//! Interfaces between the state machines and the kernels below them.

pub(super) mod op;
pub(super) mod token;

use std::io;
use std::rc::Rc;

use self::op::{Completion, Op, SendMode, Wait};
use self::token::Token;
use crate::driver::file::operation::FileOperation;
use crate::driver::memory::buffer::Pools;
use crate::driver::memory::key::Key;
use crate::driver::sockets::Sockets;
use crate::driver::wake::notifier::Descriptors;

pub(crate) type Socket<K> = <<K as Kernel>::Sockets as Sockets>::Socket;

pub(crate) trait Kernel: Sized {
    type Sockets: Sockets;
    /// The tables of a simulated kernel are checked after every turn.
    #[cfg(debug_assertions)]
    const IS_SIMULATED: bool = false;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;

    /// Returns the time of the next event that the kernel can foresee, or 0 if a turn would have an effect now. Real
    /// kernels foresee none.
    fn next_event_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the descriptors with which other threads interrupt a wait. Simulated kernels have none.
    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(None)
    }
}

/// A kernel that completes operations.
pub(crate) trait CompletionKernel: Kernel {
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

    /// Queues a read or write of a file, if [`Capabilities::files`] is set. The operation, its file and its memory stay
    /// unchanged until the terminal completion. Returns `true` if the memory is registered with the kernel.
    fn push_file(&mut self, _token: Token, _operation: &mut FileOperation) -> bool {
        false
    }

    /// Submits all queued operations and waits as requested. An interrupted or timed-out wait is not an error.
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

    /// Returns `true` if there are entries to submit or completions to read.
    fn needs_enter(&self) -> bool;

    /// Returns `true` if there are entries to submit. Makes no system call.
    fn has_unsubmitted(&self) -> bool {
        false
    }

    /// Returns `true` if there are completions to read or task work to run. Makes no system call.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Returns the receive memory, whose ring is registered with the kernel.
    fn pools(&self) -> &Rc<Pools>;

    /// Returns the kernel's head of the receive ring. `None` if the kernel cannot report it, or if it takes buffers while
    /// no system call is running.
    fn receive_ring_head(&self) -> Option<u16>;

    fn capabilities(&self) -> Capabilities;

    /// Creates the socket from the result of a successful accept operation.
    fn accepted(&mut self, result: i32) -> Socket<Self>;

    /// Called when a stream is removed from the table.
    fn detached(&mut self, _key: Key) {}

    /// Called when a readiness source is removed from the table.
    fn source_removed(&mut self, _key: Key) {}

    /// Returns `true` if zero-copy sends are to be used on this socket: with `ZeroCopy::Always`, or if the peer is not
    /// on loopback.
    fn zero_copy_pays(&self, socket: &Socket<Self>) -> bool;

    /// Returns the number of times that completions did not fit into the queue.
    fn overflows(&self) -> u64;

    fn operations(&self) -> OperationCounts;

    /// Returns the operations and completions of a simulated kernel, for assertions.
    #[cfg(debug_assertions)]
    fn in_flight(&self) -> Option<InFlight> {
        None
    }
}

/// Operations and buffers of the driver that a simulated kernel holds.
#[cfg(debug_assertions)]
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Operations that have been pushed and have not ended, other than cancellations. Sends have the address of their
    /// bytes.
    pub operations: Vec<(Token, Option<*const u8>)>,
    /// Tokens of completions that the driver has not read, and of notifications that are still to be posted.
    pub completions: Vec<Token>,
    /// Set if completions have been dropped and the driver has not checked for it.
    pub has_dropped: bool,
}

/// Number of operations since the start. The counts are updated once per batch, not per operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationCounts {
    pub submissions: u64,
    pub completions: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub ring_receive: bool,
    /// Set if a receive into the ring can miss a connection reset: it takes the bytes before the reset, finds no more
    /// data, and waits for a wake-up that has already happened. If the bytes and the reset arrive before the receive
    /// runs, the reset was missed on Linux 6.12.74, 6.12.85, 6.18.15 and 6.19.8, but not on 6.1; commit a68ed2df7213
    /// fixes this case (in 6.12.86 and 6.19.10). If they arrive while the receive is armed, the reset was still missed
    /// on 6.12.117 and 6.18.44.
    pub misses_resets: bool,
    pub inline_sends: bool,
    pub zero_copy: bool,
    /// Set if the kernel reads and writes files.
    pub files: bool,
}

/// A kernel that reports readiness.
pub(crate) trait ReadinessKernel: Kernel {
    /// Registers a socket for edge-triggered events in both directions, until it is closed.
    fn watch(&mut self, socket: &Socket<Self>, token: Token) -> io::Result<()>;
    /// Registers a listener: while connections are pending, every wait reports it, until it is unwatched.
    fn watch_listener(&mut self, socket: &Socket<Self>, token: Token) -> io::Result<()>;
    /// Registers a readiness source for edge-triggered events with the given bits, until it is unwatched.
    fn watch_source(&mut self, socket: &Socket<Self>, token: Token, events: u32) -> io::Result<()>;
    /// Replaces the event bits of a watched source. The next wait reports the requested events that have already occurred.
    fn rewatch_source(&mut self, socket: &Socket<Self>, token: Token, events: u32) -> io::Result<()>;
    fn unwatch(&mut self, socket: &Socket<Self>) -> io::Result<()>;
    /// Waits for events as requested. An interrupted or timed-out wait is not an error.
    fn wait(&mut self, wait: Wait) -> io::Result<()>;
    /// Returns the next event from the last wait.
    fn edge(&mut self) -> Option<Edge>;
}

/// A readiness event on a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub token: Token,
    pub readable: bool,
    pub writable: bool,
    /// Set if a short read does not mean that the socket is drained: the peer has shut down its write side, the
    /// connection is broken, or there is urgent data, before which a read stops.
    pub hung_up: bool,
    /// The reported event bits, in the format of `poll(2)`.
    pub events: u32,
}
