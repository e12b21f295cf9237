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
//! A stream whose messages do not fit into a ring buffer is *direct*: the ring only polls it for readability, and the
//! driver receives its data with system calls. Streams are also direct when the buffer ring is exhausted, when the
//! kernel has no buffer rings, and when multishot receive is unreliable on their sockets.
//!
//! On kernels where a receive into the ring can miss a connection reset, a hangup poll is also in flight. Its
//! completion cancels the receive, and the next receive reports the reset. The invariants below apply to this poll as
//! they do to a receive.
//!
//! # Sending
//!
//! At most one send is in flight per stream, for the front of its queue. An inline send is confirmed when the kernel
//! has consumed its entry and all completions have been read. If there is no completion for it, all its bytes were
//! sent.
//!
//! # Invariants
//!
//! - A stream is removed from the table only when `receiving` and `sending` are `Idle` and neither a hangup poll nor a
//!   connect is in flight. The kernel then uses neither its descriptor nor its memory, except memory in
//!   `zero_copy_sends`.
//! - The front of the send queue is neither replaced nor dropped while `sending` is not `Idle`.
//! - A direct receive is made only while no ring receive is armed and the queue of chunks is empty. This preserves the
//!   byte order of the stream.
//! - While `receiving` is `Ring`, neither EOF nor an error is pending; while `sending` is `Idle`, the send queue is
//!   empty. The fast paths of `poll_receive` and `poll_send` rely on both.

mod accept;
mod buffered_writes;
#[cfg(debug_assertions)]
mod check;
mod descriptors;
mod dropped_completions;
mod file;
mod readiness;
mod receive;
mod receive_window;
mod release;
mod send;
mod send_vectored;
mod source;
mod stream;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use self::receive_window::ReceiveWindow;
use self::stream::{Connect, Listener, Source, Stream};
use crate::driver::counters::DriverMetrics;
use crate::driver::errors::impossible::report_impossible;
use crate::driver::file::operation::FileOperation;
use crate::driver::kernel::op::{Completion, Op, SendMode, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Capabilities, CompletionKernel, OperationCounts, Socket};
use crate::driver::machine_calls::machine_calls;
use crate::driver::memory::buffer::Pools;
use crate::driver::memory::key::Key;
use crate::driver::memory::table::Table;
use crate::driver::settings::options::{DriverOptions, ZeroCopy};
use crate::driver::sockets::{Family, Sockets, gone};
use crate::driver::source::interest::Direction;
use crate::driver::source::readiness::{Clear, Ticket};
use crate::driver::stream::send_queue::Queued;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

/// Maximum number of bytes per send.
const MAX_SEND_BYTES: usize = 1 << 30;

/// Maximum time for the kernel to complete cancelled operations. Only a faulty kernel takes this long.
const SHUTDOWN_TIMEOUT_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(crate) struct Proactor<K: CompletionKernel> {
    pub(crate) kernel: K,
    capabilities: Capabilities,
    streams: Table<Stream<Socket<K>>>,
    listeners: Table<Listener<Socket<K>>>,
    sources: Table<Source<Socket<K>>>,
    zero_copy_sends: Table<ZeroCopySend>,
    files: Table<FileOperation>,
    /// Number of writes to the page cache whose terminal completion is certain to follow, including those in the queue.
    incomplete_writes: usize,
    /// Writes to the page cache that are not yet submitted.
    queued_writes: VecDeque<Key>,
    /// Number of waits before the worker yields its core to writes again.
    waits_without_yield: u32,
    /// Inline sends that are not yet confirmed, in submission order. Each entry holds the slot of the stream and the
    /// submission index.
    unconfirmed_sends: Vec<(u32, u32)>,
    /// Set if a task is waiting for an unconfirmed send. The next turn must confirm sends before it blocks, because a
    /// successful inline send does not wake any task.
    confirm_without_sleeping: bool,
    /// Set if the receive ring has grown since the last call to `enter`.
    ring_grown: bool,
    /// Open while the receive ring is larger than initially.
    receive_window: Option<ReceiveWindow>,
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
/// Its buffer moves here once the kernel has taken all the bytes or the stream has been aborted. The stream can then
/// continue or be closed. The memory is freed when the notification arrives, after the peer has acknowledged the data
/// or the connection has been reset.
#[derive(Debug)]
struct ZeroCopySend {
    pub stream: Key,
    /// Result of a short send. The stream continues when the memory is no longer in use.
    pub short_result: Option<i32>,
    pub memory: Option<Queued>,
}

/// Operations that were cancelled because their completions may have been dropped.
#[derive(Debug, Default)]
struct RecoveryCancels {
    /// Generation in the tokens of these cancellations; the index in such a token is the position of its target in
    /// `targets`. Other cancellations have generation zero.
    pub round: u32,
    pub targets: Vec<Token>,
}

machine_calls!(Proactor<CompletionKernel>);

impl<K: CompletionKernel> Proactor<K> {
    pub fn new(kernel: K, options: &DriverOptions) -> Self {
        let zero_copy_bytes = match options.zero_copy {
            ZeroCopy::Never => usize::MAX,
            ZeroCopy::RemoteOnly { threshold_bytes } | ZeroCopy::Always { threshold_bytes } => {
                threshold_bytes
            }
        };
        let capabilities = kernel.capabilities();
        // Larger messages are sent directly by a system call or as zero-copy sends. With a threshold of zero, all are.
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
            sources: Table::new(),
            zero_copy_sends: Table::new(),
            files: Table::new(),
            incomplete_writes: 0,
            queued_writes: VecDeque::new(),
            waits_without_yield: 0,
            unconfirmed_sends: Vec::new(),
            confirm_without_sleeping: false,
            ring_grown: false,
            receive_window: None,
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

    fn insert(&mut self, socket: Socket<K>, family: Family, connect: Connect) -> Key {
        let direct = !self.capabilities.ring_receive || family != Family::Internet;
        self.streams.insert(Stream::new(socket, family, connect, direct))
    }

    fn cancel(&mut self, kind: Kind, key: Key) {
        self.kernel.push(cancellation_of(key), Op::Cancel { target: Token::new(kind, key) });
    }

    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        let turned = self.take_turn(wait, wakes);
        #[cfg(debug_assertions)]
        self.check_sometimes();
        turned
    }

    #[inline]
    fn take_turn(&mut self, mut wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        if self.receive_window.is_some() {
            wait = self.shrink_ring_before_wait(wait);
        }
        loop {
            let confirm_now = std::mem::take(&mut self.confirm_without_sleeping);
            let mut wait_now = if confirm_now { Wait::None } else { wait };
            if self.incomplete_writes > 0 {
                wait_now = self.submit_writes(wait_now)?;
            }
            if confirm_now || wait_now != Wait::None || self.kernel.needs_enter() {
                self.enter(wait_now)?;
            }
            let mut must_recover = self.abort_lost_receives(wakes);
            loop {
                while let Some(completion) = self.kernel.completion() {
                    if completion.token.kind() == Some(Kind::Receive) {
                        self.on_receive(completion, wakes);
                    } else {
                        self.dispatch(&completion, wakes);
                    }
                }
                if !self.abort_lost_receives(wakes) {
                    break;
                }
                must_recover = true;
            }
            if must_recover {
                self.on_completions_dropped(wakes);
            }
            self.confirm_sends(wakes);
            // A turn that has processed writes instead of waiting also returns, because time has passed.
            if !confirm_now {
                return Ok(());
            }
            // The kernel may not yet have consumed the submission for which a task is waiting.
            self.confirm_without_sleeping |= !self.unconfirmed_sends.is_empty();
            if wait == Wait::None || wakes.has_work() {
                return Ok(());
            }
        }
    }

    #[inline]
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.metrics.turns += 1;
        self.kernel.enter(wait)?;
        self.ring_grown = false;
        Ok(())
    }

    /// Returns `true` if operations wait to be submitted or completions to be read, or if the next turn must not sleep.
    pub fn has_queued_work(&self) -> bool {
        self.confirm_without_sleeping || self.has_unsubmitted() || self.kernel.has_pending_work()
    }

    /// Returns `true` if operations wait to be submitted.
    pub fn has_unsubmitted(&self) -> bool {
        !self.queued_writes.is_empty() || self.kernel.has_unsubmitted()
    }

    /// Returns `true` if a turn would submit queued operations or read pending completions.
    pub fn needs_turn(&self) -> bool {
        !self.queued_writes.is_empty() || self.kernel.needs_enter()
    }

    /// Reads pending completions while the driver is spinning. Returns `true` if there were any.
    pub fn find_work(&mut self, wakes: &mut WakeQueue) -> io::Result<bool> {
        let has_work = self.kernel.has_pending_work();
        if has_work {
            self.turn(Wait::None, wakes)?;
        }
        Ok(has_work)
    }

    /// A separate function, because `turn` handles receives on a fast path.
    #[inline(never)]
    fn dispatch(&mut self, completion: &Completion, wakes: &mut WakeQueue) {
        let key = completion.token.key();
        match completion.token.kind() {
            Some(Kind::Receive) => self.on_receive(*completion, wakes),
            Some(Kind::Send) => self.on_send(key, completion.result, wakes),
            Some(Kind::SendZeroCopy) => self.on_send_zero_copy(key, completion, wakes),
            Some(Kind::Readable) => self.on_readable(key, completion, wakes),
            Some(Kind::Writable) => self.on_writable(key, wakes),
            Some(Kind::Hangup) => self.on_hangup(key, completion, wakes),
            Some(Kind::Source) => self.on_source(completion, wakes),
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
            Some(Kind::File) => self.on_file(completion, wakes),
            // If a cancellation fails, its target usually has ended or is about to end, and the target's own completion
            // carries the result.
            Some(Kind::Cancel) => {
                if completion.result == -libc::ENOENT {
                    if key.generation == 0 {
                        self.cancel_again(key.index);
                    } else {
                        self.on_cancel_not_found(key, wakes);
                    }
                }
            }
            None => self.on_late_completion(false),
        }
    }

    /// Counts a completion for an entry that is no longer in its table. `is_earlier` is set if the entry was removed,
    /// which is the only reason.
    #[cold]
    #[inline(never)]
    fn on_late_completion(&mut self, is_earlier: bool) {
        if !is_earlier {
            report_impossible("invariant 7: completion of an operation that was never started");
        }
        self.metrics.late_completions += 1;
    }

    /// Fails a stream after a completion that none of its operations in flight can have: what has been received or sent
    /// is unknown. Both directions return an error, and the connection is reset.
    #[cold]
    #[inline(never)]
    fn on_impossible_completion(&mut self, key: Key, message: &'static str, wakes: &mut WakeQueue) {
        report_impossible(message);
        self.stop_receiving(key);
        self.abort_incomplete(key, wakes);
    }

    /// Cancels all operations and waits for their terminal completions.
    pub fn shut_down(&mut self, wakes: &mut WakeQueue) -> io::Result<()> {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            if self.unsent_bytes(key) > 0 {
                self.abort(key);
            } else {
                self.release(key);
            }
        }
        self.cancel_files();
        let started_ns = self.kernel.sockets().now_ns();
        let deadline_ns = started_ns.saturating_add(SHUTDOWN_TIMEOUT_NS);
        let is_idle = |this: &Self| {
            this.streams.len() + this.listeners.len() + this.sources.len() == 0 && !this.awaits_files()
        };
        if !self.turn_until(deadline_ns, wakes, is_idle)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.leak_files_in_doubt();
        let ack_timeout_ns =
            u64::try_from(self.limits.testing.zero_copy_ack_timeout.as_nanos()).unwrap_or(u64::MAX);
        let ack_deadline_ns = self.kernel.sockets().now_ns().saturating_add(ack_timeout_ns);
        if !self.turn_until(ack_deadline_ns, wakes, |this| this.zero_copy_sends.len() == 0)? {
            // The kernel may retransmit the data, so the memory must stay unchanged until the peer has acknowledged it.
            for key in self.zero_copy_sends.keys() {
                std::mem::forget(self.zero_copy_sends.remove(key));
            }
        }
        debug_assert!(self.is_quiescent(), "invariant 15: shutdown ends while an entry is in a table");
        #[cfg(debug_assertions)]
        self.check();
        Ok(())
    }

    /// Runs turns until the condition holds. Returns `false` if the deadline is reached first.
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

    /// Returns the error of a failed receive.
    pub fn receive_error(&self, key: Key) -> Option<io::Error> {
        let errno = self.streams.get(key)?.receive_error?;
        Some(io::Error::from_raw_os_error(errno.get()))
    }

    pub fn metrics(&self) -> DriverMetrics {
        let OperationCounts { submissions, completions } = self.kernel.operations();
        DriverMetrics {
            sockets: (self.streams.len() + self.listeners.len()) as u64,
            submissions,
            completions,
            completion_overflows: self.kernel.overflows(),
            // The kernel and the state machine hold one reference each.
            buffers_leased: Pools::leased(&self.pools, 2),
            ring_buffers: self.pools.ring.as_ref().map_or(0, |ring| ring.len().into()),
            ..self.metrics
        }
    }

    /// Returns the number of streams, including streams that are being closed.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns `true` if the kernel no longer uses the driver's memory. The memory of each operation, including a
    /// receive into the buffer ring, belongs to a stream, a listener, a zero-copy send or a file operation, which remains
    /// in its table until the terminal completion.
    pub fn is_quiescent(&self) -> bool {
        self.streams.len()
            + self.listeners.len()
            + self.sources.len()
            + self.zero_copy_sends.len()
            + self.files.len()
            == 0
    }

    pub fn attach(&mut self, socket: Socket<K>, family: Family, _may_be_shared: bool) -> io::Result<Key> {
        Ok(self.insert(socket, family, Connect::Done))
    }

    pub fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.listeners.insert(Listener {
            socket,
            family,
            shared: false,
            armed: false,
            accepts_ahead: true,
            cancelling: false,
            in_doubt: false,
            released: false,
            accept_sink: None,
            error: None,
            queue: VecDeque::new(),
            waker: WakerSlot::default(),
        }))
    }

    /// Accepts the next connection, without attaching it as a stream.
    pub fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(Socket<K>, Family)> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        debug_assert!(!listener.released, "invariant 2: a listener is polled after its release");
        if let Some(socket) = listener.queue.pop_front() {
            return Poll::Ready(Ok((socket, listener.family)));
        }
        if let Some(errno) = listener.error.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        listener.waker.wait(waker);
        if !listener.armed {
            listener.armed = true;
            let multishot = listener.accepts_ahead && !listener.shared;
            let op = Op::Accept { listener: &listener.socket, multishot };
            self.kernel.push(Token::new(Kind::Accept, key), op);
        }
        Poll::Pending
    }

    /// Marks the listener as shared with other workers. The kernel wakes the worker that has been waiting longest. A
    /// multishot accept would keep its position in the wait queue and receive every connection; an accept that is armed
    /// again moves to the end of the queue.
    pub fn share_listener(&mut self, key: Key) {
        if let Some(listener) = self.listeners.get_mut(key) {
            listener.shared = true;
        }
    }

    /// Sets whether the kernel may accept connections before the application polls for them. If not, each accept
    /// operation accepts one connection, so that at most one open connection has not been returned to the application.
    /// A multishot accept would take all connections in the backlog before it could be cancelled.
    pub fn set_accept_ahead(&mut self, key: Key, accepts_ahead: bool) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if std::mem::replace(&mut listener.accepts_ahead, accepts_ahead) && !accepts_ahead {
            self.stop_accepting(key);
        }
    }
}

/// Returns the token of the cancellation of an operation of a slot. Its generation is zero, unlike that of a cancellation
/// for a recovery.
fn cancellation_of(key: Key) -> Token {
    Token::new(Kind::Cancel, Key { index: key.index, generation: 0 })
}

#[cfg(all(test, feature = "sim"))]
mod tests;
