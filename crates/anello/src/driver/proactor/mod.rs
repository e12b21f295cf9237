//! State machine for kernels that complete operations: io_uring and the simulated kernel.
//!
//! # Receiving
//!
//! ```text
//!              poll                      small messages
//!   Idle ───────────────> Ring ──────────────────────────────> chunks from the buffer ring
//!    ^  \                  │  full buffer and more data, no buffer left, queue full: cancel
//!    │   \                 v
//!    │    \           Cancelling ── terminal completion ──> Idle
//!    │     \  direct
//!    │      └───────────> Polling ── readable ──> recv(2) into memory in the CPU cache
//!    └── small messages again: cancel ──┘
//! ```
//!
//! A stream whose messages do not fit a ring buffer is *direct*: the ring only polls it for readability, and the driver
//! receives by system calls. Streams are also direct when the buffer ring is exhausted, if the kernel has no buffer
//! rings, and for sockets on which multishot receive is not reliable.
//!
//! On kernels where a receive into the ring can miss a connection reset, a poll for a hangup is also in flight. Its
//! completion cancels the receive, and the next receive reports the reset. The invariants apply to this poll as to a
//! receive.
//!
//! # Sending
//!
//! One send is in flight per stream: the front of its queue. An inline send is confirmed when the kernel has consumed
//! its entry and all completions have been read. If there is no completion for it, all its bytes were sent.
//!
//! # Invariants
//!
//! - A stream is removed from the table only when `receiving` and `sending` are `Idle` and neither a hangup poll nor a
//!   connect is in flight. The kernel then uses neither its descriptor nor its memory, except memory in
//!   `zero_copy_sends`.
//! - The front of the send queue is neither replaced nor dropped while `sending` is not `Idle`.
//! - A direct receive is made only while no ring receive is armed and the queue of chunks is empty. This preserves the
//!   order of bytes.
//! - While `receiving` is `Ring`, no EOF and no error is pending; while `sending` is `Idle`, the send queue is empty.
//!   The fast paths of `poll_receive` and `poll_send` rely on both.

mod accept;
mod dropped_completions;
mod kernel;
mod receive;
mod send;
mod stream;

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use self::accept::Listener;
use self::dropped_completions::RecoveryCancels;
use self::kernel::Socket;
pub(crate) use self::kernel::{Capabilities, CompletionKernel};
use self::stream::{Connect, Received, Receiving, Sending, Stream};
use super::buffer::{Chunk, Pools};
use super::catch_panic::log;
use super::counters::DriverMetrics;
use super::op::{Completion, Op, SendMode, Wait};
use super::options::DriverOptions;
use super::send_queue::Queued;
use super::sockets::{Family, Sockets, StreamOption};
use super::table::Table;
use super::token::{Key, Kind, Token};
use super::wake::{WakeQueue, WakerSlot};

/// Maximum number of bytes per send.
const MAX_SEND_BYTES: usize = 1 << 30;

/// Maximum time for the kernel to complete cancelled operations. Only a faulty kernel needs more than a moment.
const SHUTDOWN_TIMEOUT_NS: u64 = 10_000_000_000;

/// Maximum time that shutdown waits for peers to acknowledge the zero-copy sends of connections that are already
/// closed.
const ZERO_COPY_ACK_TIMEOUT_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct Proactor<K: CompletionKernel> {
    pub(crate) kernel: K,
    capabilities: Capabilities,
    streams: Table<Stream<Socket<K>>>,
    listeners: Table<Listener<Socket<K>>>,
    zero_copy_sends: Table<ZeroCopySend>,
    /// Inline sends that are not yet confirmed, in submission order: the slot of the stream and the submission index.
    unconfirmed_sends: Vec<(u32, u32)>,
    /// Empty list that replaces `unconfirmed_sends` while its entries are processed.
    unconfirmed_scratch: Vec<(u32, u32)>,
    /// Set if a task waits for an unconfirmed send. The next turn must confirm sends before it sleeps, because a
    /// successful inline send wakes no task.
    confirm_without_sleeping: bool,
    /// Set if the receive ring has grown since the last enter.
    ring_grown: bool,
    limits: DriverOptions,
    zero_copy_bytes: usize,
    /// Mode of sends that are submitted to the ring and are not zero-copy sends.
    default_send_mode: SendMode,
    /// Maximum size of messages on the fast path for inline sends; zero if inline sends are not used.
    inline_send_bytes: usize,
    pools: Rc<Pools>,
    metrics: DriverMetrics,
    /// Operations that were in flight when the kernel dropped completions.
    recovery: RecoveryCancels,
}

/// A zero-copy send whose last completion has not arrived.
///
/// Its memory moves here once the kernel has taken all of it or the stream was aborted. The stream then continues or
/// closes. The notification frees the memory; it arrives when the peer has acknowledged the data or the connection was
/// reset.
#[derive(Debug)]
struct ZeroCopySend {
    stream: Key,
    /// Result of a short send. The stream continues when the memory is no longer in use.
    short_result: Option<i32>,
    memory: Option<Queued>,
}

impl<K: CompletionKernel> Proactor<K> {
    pub fn new(kernel: K, options: &DriverOptions) -> Self {
        use super::options::ZeroCopy;
        let zero_copy_bytes = match options.zero_copy {
            ZeroCopy::Never => usize::MAX,
            ZeroCopy::RemoteOnly { threshold_bytes } | ZeroCopy::Always { threshold_bytes } => {
                threshold_bytes
            }
        };
        let capabilities = kernel.capabilities();
        // Larger messages are sent directly by a system call or as zero-copy sends.
        let small_bytes =
            options.direct_send_threshold_bytes.min(zero_copy_bytes).min(MAX_SEND_BYTES).saturating_sub(1);
        let inline_sends = capabilities.inline_sends;
        Self {
            capabilities,
            pools: Rc::clone(kernel.pools()),
            kernel,
            default_send_mode: if inline_sends { SendMode::Inline } else { SendMode::Async },
            inline_send_bytes: if inline_sends { small_bytes } else { 0 },
            streams: Table::new(),
            listeners: Table::new(),
            zero_copy_sends: Table::new(),
            unconfirmed_sends: Vec::new(),
            unconfirmed_scratch: Vec::new(),
            confirm_without_sleeping: false,
            ring_grown: false,
            // With a limit of zero, no bytes would ever be accepted.
            limits: DriverOptions {
                max_send_queue_bytes: options.max_send_queue_bytes.max(1),
                ..options.clone()
            },
            zero_copy_bytes,
            metrics: DriverMetrics::default(),
            recovery: RecoveryCancels::default(),
        }
    }

    // ---- Attaching and releasing streams -------------------------------------------------------------------------

    pub fn attach(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.insert(socket, family, Connect::Done))
    }

    fn insert(&mut self, socket: Socket<K>, family: Family, connect: Connect) -> Key {
        let direct = !self.capabilities.ring_receive || family != Family::Internet;
        let key = self.streams.insert(Stream::new(socket, family, connect, direct));
        if let Some(stream) = self.streams.get(key) {
            self.kernel.attached(key, &stream.socket);
        }
        key
    }

    /// Releases the key. Accepted bytes are still sent. Returns `true` if any remain.
    pub fn release(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.get_mut(key) else { return false };
        stream.released = true;
        stream.receive_waker = WakerSlot::default();
        stream.send_waker = WakerSlot::default();
        stream.received = Received::default();
        self.confirm_without_sleeping |= stream.is_unconfirmed();
        if stream.connect == Connect::InFlight {
            self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Connect, key) });
        }
        self.stop_receiving(key);
        self.cancel_hangup_poll(key);
        self.cancel_writable_poll(key);
        self.finish(key);
        self.streams.get(key).is_some_and(|stream| !stream.send_queue.is_empty())
    }

    pub fn holds(&self, key: Key) -> bool {
        self.streams.get(key).is_some()
    }

    /// Releases the key and drops unsent bytes.
    pub fn abort(&mut self, key: Key) {
        self.reset_at_close(key);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send_error = NonZero::new(-libc::ECONNABORTED);
            match stream.sending {
                Sending::Idle | Sending::Polling => stream.send_queue.clear(),
                // Confirmed by the next turn, which drops the rest after a short send.
                Sending::Inline(_) => {}
                Sending::Async => {
                    self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Send, key) });
                }
                Sending::ZeroCopy(send_key)
                    if self.zero_copy_sends.get(send_key).is_some_and(|send| send.short_result.is_some()) =>
                {
                    self.detach_buffer(key, send_key);
                }
                Sending::ZeroCopy(send_key) => {
                    let target = Token::new(Kind::SendZeroCopy, send_key);
                    self.kernel.push(cancel_token(), Op::Cancel { target });
                }
            }
        }
        self.release(key);
    }

    /// Takes the wakers of the tasks waiting to read from or write to a stream.
    pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        let Some(stream) = self.streams.get_mut(key) else { return [None, None] };
        [stream.receive_waker.take(), stream.send_waker.take()]
    }

    /// Configures the socket of an aborted stream so that closing it resets the connection and the kernel drops unsent
    /// data. Otherwise, the kernel would keep the data, and use the memory of zero-copy sends, without limit if the
    /// peer does not read.
    fn reset_at_close(&mut self, key: Key) {
        if self.zero_copy_sends.len() == 0 {
            return;
        }
        let (send_keys, reset) = (self.zero_copy_sends.keys(), StreamOption::Linger(Some(Duration::ZERO)));
        let holds_memory =
            |send_key: &Key| self.zero_copy_sends.get(*send_key).is_some_and(|send| send.stream == key);
        if send_keys.iter().any(holds_memory)
            && let Some(stream) = self.streams.get(key)
            && let Err(error) = self.kernel.sockets().set_option(&stream.socket, reset)
        {
            log(|| tracing::debug!(%error, "cannot reset aborted connection; closing it normally"));
        }
    }

    /// Waits until all accepted bytes were sent and no operation is in flight. Then removes the socket from the driver
    /// and returns it with the received chunks that were not taken.
    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<(OwnedFd, Vec<Chunk>)>> {
        ready!(self.poll_flush(key, waker))?;
        self.stop_receiving(key);
        self.cancel_hangup_poll(key);
        self.cancel_writable_poll(key);
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let is_receiving = stream.receiving != Receiving::Idle || stream.hangup_poll.is_in_flight();
        if is_receiving || stream.sending != Sending::Idle {
            stream.receive_waker.wait(waker);
            stream.send_waker.wait(waker);
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Pending;
        }
        let Some(mut stream) = self.streams.remove(key) else { return Poll::Ready(Err(gone())) };
        self.kernel.detached(key);
        let chunks = std::iter::from_fn(|| stream.received.pop()).collect();
        Poll::Ready(self.kernel.sockets_mut().export(stream.socket).map(|descriptor| (descriptor, chunks)))
    }

    /// Closes a released stream once the kernel uses neither its socket nor its memory.
    fn finish(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let quiescent = stream.receiving == Receiving::Idle
            && !stream.hangup_poll.is_in_flight()
            && stream.sending == Sending::Idle
            && stream.connect != Connect::InFlight
            && (stream.send_queue.is_empty() || stream.send_error.is_some());
        if stream.released && quiescent {
            self.streams.remove(key);
            self.kernel.detached(key);
        }
    }

    // ---- Turn ----------------------------------------------------------------------------------------------------

    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        loop {
            let confirm_now = std::mem::take(&mut self.confirm_without_sleeping);
            let wait_now = if confirm_now { Wait::None } else { wait };
            if confirm_now || wait != Wait::None || self.kernel.needs_enter() {
                self.metrics.turns += 1;
                self.kernel.enter(wait_now)?;
                self.ring_grown = false;
            }
            while let Some(completion) = self.kernel.completion() {
                if completion.token.kind() == Some(Kind::Receive) {
                    self.on_receive(completion, wakes);
                } else {
                    self.dispatch(&completion, wakes);
                }
            }
            if self.kernel.has_dropped() {
                self.on_completions_dropped(wakes);
            }
            self.confirm_sends(wakes);
            // The kernel may have stopped before it consumed the submission that a task waits for.
            self.confirm_without_sleeping |= confirm_now && !self.unconfirmed_sends.is_empty();
            if wait_now == wait || wakes.has_work() {
                return Ok(());
            }
        }
    }

    /// Separate from `turn`, which handles receives on a fast path.
    #[inline(never)]
    fn dispatch(&mut self, completion: &Completion, wakes: &mut WakeQueue) {
        let key = completion.token.key();
        match completion.token.kind() {
            Some(Kind::Receive) => self.on_receive(*completion, wakes),
            Some(Kind::Send) => self.on_send(key, completion, wakes),
            Some(Kind::SendZeroCopy) => self.on_send_zero_copy(key, completion, wakes),
            Some(Kind::Readable) => self.on_readable(key, completion, wakes),
            Some(Kind::Writable) => self.on_writable(key, wakes),
            Some(Kind::Hangup) => self.on_hangup(key, completion, wakes),
            Some(Kind::Accept) => self.on_accept(key, completion, wakes),
            Some(Kind::Connect) => {
                self.kernel.ended(completion);
                self.on_connect(key, completion, wakes);
            }
            Some(Kind::Wake) => {
                self.kernel.ended(completion);
                wakes.mark_notified();
            }
            Some(Kind::Message) => self.kernel.ended(completion),
            // If a cancellation fails, its target has ended or is about to end. The completion of the target decides.
            Some(Kind::Cancel) => {
                if completion.result == -libc::ENOENT {
                    self.on_cancel_not_found(key, wakes);
                }
            }
            None => self.metrics.late_completions += 1,
        }
    }

    /// Releases every key.
    pub fn release_all(&mut self) {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.release(key);
        }
    }

    /// Returns `true` if the kernel uses no memory of this driver. The memory of each operation belongs to a stream, a
    /// listener or a zero-copy send, which remains in its table until the terminal completion. This includes receives
    /// into the buffer ring.
    pub fn is_quiescent(&self) -> bool {
        self.streams.len() + self.listeners.len() + self.zero_copy_sends.len() == 0
    }

    /// Cancels all operations and waits for their terminal completions.
    pub fn shut_down(&mut self, wakes: &mut WakeQueue) -> io::Result<()> {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.abort(key);
        }
        let started_ns = self.kernel.sockets().now_ns();
        if !self.turn_until(started_ns.saturating_add(SHUTDOWN_TIMEOUT_NS), wakes, |this| {
            this.streams.len() + this.listeners.len() == 0
        })? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let ack_deadline_ns = self.kernel.sockets().now_ns().saturating_add(ZERO_COPY_ACK_TIMEOUT_NS);
        if !self.turn_until(ack_deadline_ns, wakes, |this| this.zero_copy_sends.len() == 0)? {
            // The kernel may retransmit the data, so the memory must stay unchanged until the peer has acknowledged it.
            for key in self.zero_copy_sends.keys() {
                std::mem::forget(self.zero_copy_sends.remove(key));
            }
        }
        Ok(())
    }

    /// Turns until the condition holds. Returns `false` if the deadline is reached first.
    fn turn_until(
        &mut self,
        deadline_ns: u64,
        wakes: &mut WakeQueue,
        condition: impl Fn(&Self) -> bool,
    ) -> io::Result<bool> {
        while !condition(self) {
            if self.kernel.sockets().now_ns() > deadline_ns {
                return Ok(false);
            }
            self.turn(Wait::For(1_000_000), wakes)?;
        }
        Ok(true)
    }

    // ---- Accessors -----------------------------------------------------------------------------------------------

    /// Returns the socket of a stream and the `Sockets` implementation to use it with.
    pub fn stream_socket(&self, key: Key) -> io::Result<(&K::Sockets, &Socket<K>)> {
        Ok((self.kernel.sockets(), &self.streams.get(key).ok_or_else(gone)?.socket))
    }

    /// Returns the socket of a listener and the `Sockets` implementation to use it with.
    pub fn listener_socket(&self, key: Key) -> io::Result<(&K::Sockets, &Socket<K>)> {
        Ok((self.kernel.sockets(), &self.listeners.get(key).ok_or_else(gone)?.socket))
    }

    pub fn metrics(&self) -> DriverMetrics {
        let mut metrics = self.metrics;
        metrics.sockets = (self.streams.len() + self.listeners.len()) as u64;
        self.kernel.count(&mut metrics);
        metrics
    }
}

fn cancel_token() -> Token {
    Token::internal(Kind::Cancel)
}

/// Returns the error for a stale key. Keys become stale only when the runtime is shut down or the stream is reset
/// through its shutdown handle.
pub(super) fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "socket closed: runtime shut down, or connection reset locally",
    )
}
