//! The state machine over kernels that complete operations: io_uring, and the simulated kernel.
//!
//! # Receiving
//!
//! ```text
//!              poll                      small messages
//!   Idle ───────────────> Ring ──────────────────────────────> chunks from the buffer ring
//!    ^  \                  │  full buffer and more behind it, no buffer left, queue full: cancel
//!    │   \                 v
//!    │    \            Stopping ── terminal completion ──> Idle
//!    │     \  direct
//!    │      └───────────> Watch ── readable ──> recv(2) into hot memory, sent on while it is hot
//!    └── small messages again: cancel ──┘
//! ```
//!
//! A stream whose messages do not fit a ring buffer is *direct*: the ring only tells when it is readable. That is also
//! the way out when the ring has run dry, where the kernel has no buffer ring, and for sockets that multishot receive
//! is not trusted with.
//!
//! # Sending
//!
//! One send in flight per stream, the front of its queue. A send that completes at submission is settled when the
//! kernel has consumed its entry and all completions have been read: none means that all bytes were taken.
//!
//! # Invariants
//!
//! - A stream leaves the table only when `receiving` is `Idle`, `sending` is `Idle` and no connect is in flight: the
//!   kernel then holds neither its descriptor nor any of its memory.
//! - The front of the send queue is neither replaced nor dropped while `sending` is not `Idle`.
//! - A direct receive happens only while no ring receive is armed and the queue of chunks is empty: order is kept.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::buffer::{Chunk, Pools};
use super::counters::Metrics;
use super::direct::{Direct, Outcome};
use super::op::{Completion, Op, SendHow, Wait};
use super::options::DriverOptions;
use super::sockets::{ListenOptions, Sockets, StreamOption, kernel_error};
use super::table::Table;
use super::token::{Key, Kind, Token};
use super::transmit::{Outgoing, Transmit};
use super::wake::{Waiter, Woken};

/// A kernel that completes operations.
pub(crate) trait CompletionKernel: Sized {
    type Sockets: Sockets;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;

    /// Notes an operation for the next [`enter`](Self::enter) and returns its place in the order of submission.
    /// Never fails and drops nothing: what does not fit the queue waits in a backlog.
    fn push(&mut self, token: Token, op: Op<'_, Socket<Self>>) -> u32;

    /// Hands everything noted to the kernel and waits as told until there is a completion. An interrupted or timed-out
    /// wait is not an error.
    fn enter(&mut self, wait: Wait) -> io::Result<()>;

    /// The next completion. `None` when all that the kernel has posted was read, also what did not fit its queue.
    fn completion(&mut self) -> Option<Completion>;

    /// Called with completions of connects and wakes, which the kernel layer keeps something for.
    fn ended(&mut self, _completion: &Completion) {}

    /// Whether the kernel has consumed the submission at this place of the order.
    fn consumed(&self, place: u32) -> bool;

    /// Whether there is something to submit or to read, so that a turn that does not wait is worth a system call.
    fn needs_enter(&self) -> bool;

    /// The receive memory, its ring registered with the kernel.
    fn pools(&self) -> &Rc<Pools>;

    /// What the kernel can do.
    fn abilities(&self) -> Abilities;

    /// Makes the socket of a successful accept.
    fn accepted(&mut self, result: i32) -> Socket<Self>;

    /// Called once for each stream that enters the table, and when it leaves.
    fn attached(&mut self, key: Key, socket: &Socket<Self>);
    fn detached(&mut self, key: Key);

    /// Whether zero-copy sends to the socket's peer would really not copy.
    fn zero_copy_pays(&self, socket: &Socket<Self>) -> bool;

    /// Whether the ring may receive for this socket.
    fn ring_receive_trusted(&self, socket: &Socket<Self>) -> bool;

    fn count(&self, metrics: &mut Metrics);
}

/// What a completion kernel can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub ring_receive: bool,
    pub sends_at_submission: bool,
    pub zero_copy: bool,
}

/// Reads in a row that would have fitted a ring buffer after which a direct stream goes back to the ring.
const SMALL_READS_TO_RING: u8 = 64;

/// Most bytes of one send.
const MOST_PER_SEND_BYTES: usize = 1 << 30;

/// How long a kernel may take to end what was cancelled; only a kernel at fault takes longer than a moment.
const SHUT_DOWN_WITHIN_NS: u64 = 10_000_000_000;

type Socket<K> = <<K as CompletionKernel>::Sockets as Sockets>::Socket;

#[derive(Debug)]
pub(crate) struct Proactor<K: CompletionKernel> {
    pub(crate) kernel: K,
    abilities: Abilities,
    streams: Table<Stream<Socket<K>>>,
    listeners: Table<Listener<Socket<K>>>,
    held: Table<Held>,
    /// Sends that complete at submission, in the order of their places.
    unsettled: Vec<(Key, u32)>,
    /// Something waits for one of them to be settled: the next turn must not sleep first, because a send that succeeds
    /// at submission wakes nobody.
    settle_soon: bool,
    /// The receive ring has grown since the kernel was last entered.
    grown: bool,
    limits: DriverOptions,
    zero_copy_bytes: usize,
    /// Messages of at least so many bytes are sent by a system call at once, or without a copy.
    direct_bytes: usize,
    /// How all others are sent.
    small_sends: SendHow,
    pools: Rc<Pools>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Stream<S> {
    socket: S,
    receiving: Receiving,
    sending: Sending,
    /// Whether this stream is received by `recv(2)` on readiness instead of by the ring.
    direct: bool,
    reads: Direct,
    small_reads: u8,
    /// Nobody holds the key any more.
    released: bool,
    connect: Connect,
    receive_error: Option<i32>,
    send_error: Option<i32>,
    received: Received,
    transmit: Transmit,
    receive_waker: Waiter,
    send_waker: Waiter,
}

impl<S> Stream<S> {
    #[inline]
    fn awaits_settling(&self) -> bool {
        matches!(self.sending, Sending::AtSubmission(_))
    }
}

/// What the kernel has in flight for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Idle,
    Ring,
    Watch,
    /// Either, with a cancellation under way.
    Stopping,
}

/// What the kernel has in flight for sending: the front of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Idle,
    /// With its place in the order of submission.
    AtSubmission(u32),
    Ordinary,
    /// Without a copy, with the key of what it holds; completed short, and waiting for the memory, when there is a
    /// result.
    ZeroCopy(Key, Option<i32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connect {
    Done,
    InFlight,
    Failed(i32),
}

/// Chunks not yet taken by the program: mostly none or one, which needs no memory beside the stream.
#[derive(Debug, Default)]
struct Received {
    front: Option<Chunk>,
    rest: VecDeque<Chunk>,
}

impl Received {
    #[inline]
    fn push(&mut self, chunk: Chunk) -> usize {
        if self.front.is_none() {
            self.front = Some(chunk);
        } else {
            self.rest.push_back(chunk);
        }
        self.rest.len() + 1
    }

    #[inline]
    fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.front.take()?;
        if !self.rest.is_empty() {
            self.front = self.rest.pop_front();
        }
        Some(chunk)
    }

    /// Puts back what is left of the chunk popped last.
    fn unpop(&mut self, chunk: Chunk) {
        if let Some(front) = self.front.replace(chunk) {
            self.rest.push_front(front);
        }
    }
}

/// A zero-copy send that has not ended. Its memory is here once the kernel has taken all of it: the stream goes on, and
/// the notification, which comes when the peer has acknowledged, frees it.
#[derive(Debug)]
struct Held {
    stream: Key,
    memory: Option<Outgoing>,
}

#[derive(Debug)]
struct Listener<S> {
    socket: S,
    armed: bool,
    stopping: bool,
    released: bool,
    error: Option<i32>,
    queue: VecDeque<S>,
    waker: Waiter,
}

impl<K: CompletionKernel> Proactor<K> {
    pub fn new(kernel: K, options: &DriverOptions) -> Self {
        use super::options::ZeroCopy;
        let zero_copy_bytes = match options.zero_copy {
            ZeroCopy::Never => usize::MAX,
            ZeroCopy::Remote { threshold_bytes } | ZeroCopy::Always { threshold_bytes } => threshold_bytes,
        };
        let abilities = kernel.abilities();
        Self {
            abilities,
            pools: Rc::clone(kernel.pools()),
            kernel,
            direct_bytes: options.direct_send_bytes.min(zero_copy_bytes).min(MOST_PER_SEND_BYTES),
            small_sends: if abilities.sends_at_submission {
                SendHow::AtSubmission
            } else {
                SendHow::Ordinary
            },
            streams: Table::new(),
            listeners: Table::new(),
            held: Table::new(),
            unsettled: Vec::new(),
            settle_soon: false,
            grown: false,
            limits: options.clone(),
            zero_copy_bytes,
            metrics: Metrics::default(),
        }
    }

    // ---- Streams come and go -------------------------------------------------------------------------------------

    pub fn attach(&mut self, socket: Socket<K>) -> io::Result<Key> {
        Ok(self.insert(socket, Connect::Done))
    }

    fn insert(&mut self, socket: Socket<K>, connect: Connect) -> Key {
        let direct = !self.abilities.ring_receive || !self.kernel.ring_receive_trusted(&socket);
        let key = self.streams.insert(Stream {
            socket,
            receiving: Receiving::Idle,
            sending: Sending::Idle,
            direct,
            reads: Direct::speculative(),
            small_reads: 0,
            released: false,
            connect,
            receive_error: None,
            send_error: None,
            received: Received::default(),
            transmit: Transmit::default(),
            receive_waker: Waiter::default(),
            send_waker: Waiter::default(),
        });
        if let Some(stream) = self.streams.get(key) {
            self.kernel.attached(key, &stream.socket);
        }
        key
    }

    pub fn connect(&mut self, peer: SocketAddr) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().open_stream(peer)?;
        let key = self.insert(socket, Connect::InFlight);
        if let Some(stream) = self.streams.get(key) {
            let op = Op::Connect { socket: &stream.socket, address: peer };
            self.kernel.push(Token::new(Kind::Connect, key), op);
        }
        Ok(key)
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        match stream.connect {
            Connect::Done => Poll::Ready(Ok(())),
            Connect::Failed(result) => Poll::Ready(Err(kernel_error(result))),
            Connect::InFlight => {
                stream.send_waker.wait(waker);
                Poll::Pending
            }
        }
    }

    /// Gives the key up; what was accepted for sending is still sent. Whether there is such.
    pub fn release(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.get_mut(key) else { return false };
        stream.released = true;
        stream.receive_waker = Waiter::default();
        stream.send_waker = Waiter::default();
        stream.received = Received::default();
        self.settle_soon |= stream.awaits_settling();
        if stream.connect == Connect::InFlight {
            self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Connect, key) });
        }
        self.stop_receiving(key);
        self.finish(key);
        self.streams.get(key).is_some_and(|stream| !stream.transmit.is_empty())
    }

    pub fn holds(&self, key: Key) -> bool {
        self.streams.get(key).is_some()
    }

    /// Gives the key up and drops what was not yet sent.
    pub fn abort(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send_error = Some(-libc::ECONNABORTED);
            match stream.sending {
                Sending::Idle => stream.transmit.clear(),
                // Settled by the next turn; what a short send leaves is then dropped.
                Sending::AtSubmission(_) => {}
                Sending::Ordinary => {
                    self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Send, key) });
                }
                Sending::ZeroCopy(held, _) => {
                    let target = Token::new(Kind::SendZeroCopy, held);
                    self.kernel.push(cancel_token(), Op::Cancel { target });
                }
            }
        }
        self.release(key);
    }

    /// Waits until nothing is in flight for a stream and everything accepted was sent, then takes the socket out,
    /// with the chunks that were received and not taken.
    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<(OwnedFd, Vec<Chunk>)>> {
        self.stop_receiving(key);
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.receiving != Receiving::Idle || stream.sending != Sending::Idle {
            stream.receive_waker.wait(waker);
            stream.send_waker.wait(waker);
            self.settle_soon |= stream.awaits_settling();
            return Poll::Pending;
        }
        let Some(mut stream) = self.streams.remove(key) else { return Poll::Ready(Err(gone())) };
        self.kernel.detached(key);
        let chunks = std::iter::from_fn(|| stream.received.pop()).collect();
        Poll::Ready(self.kernel.sockets_mut().export(stream.socket).map(|descriptor| (descriptor, chunks)))
    }

    /// Closes a released stream once the kernel holds nothing of it.
    fn finish(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let quiescent = stream.receiving == Receiving::Idle
            && stream.sending == Sending::Idle
            && stream.connect != Connect::InFlight
            && (stream.transmit.is_empty() || stream.send_error.is_some());
        if stream.released && quiescent {
            self.streams.remove(key);
            self.kernel.detached(key);
        }
    }

    // ---- Receiving -----------------------------------------------------------------------------------------------

    /// The next bytes of a stream; `None` at its end.
    #[inline]
    pub fn poll_receive(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Option<Chunk>>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(chunk) = stream.received.pop() {
            return Poll::Ready(Ok(Some(chunk)));
        }
        if stream.receiving == Receiving::Ring && !stream.reads.ended && stream.receive_error.is_none() {
            stream.receive_waker.wait(waker);
            return Poll::Pending;
        }
        self.poll_receive_slow(key, waker)
    }

    #[inline(never)]
    fn poll_receive_slow(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Option<Chunk>>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.reads.ended {
            return Poll::Ready(Ok(None));
        }
        if let Some(result) = stream.receive_error {
            return Poll::Ready(Err(kernel_error(result)));
        }
        let ring_armed = stream.receiving == Receiving::Ring || stream.receiving == Receiving::Stopping;
        if stream.direct && !ring_armed && stream.reads.readable {
            let outcome = stream.reads.receive(self.kernel.sockets_mut(), &stream.socket, &self.pools);
            match outcome {
                Outcome::Chunk(chunk) => {
                    self.metrics.receives += 1;
                    self.after_direct_receive(key, chunk.len());
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Outcome::End => return Poll::Ready(Ok(None)),
                Outcome::Failed(error) => return Poll::Ready(Err(error)),
                Outcome::Wait => {}
            }
        }
        stream.receive_waker.wait(waker);
        if stream.receiving == Receiving::Idle {
            self.start_receiving(key);
        }
        Poll::Pending
    }

    /// Copies bytes into the caller's memory; 0 at the end of the stream.
    pub fn poll_read(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let Poll::Ready(received) = self.poll_receive(key, waker) else { return Poll::Pending };
        let Some(mut chunk) = received? else { return Poll::Ready(Ok(0)) };
        let count = chunk.len().min(buffer.len());
        buffer[..count].copy_from_slice(&chunk[..count]);
        if count < chunk.len()
            && let Some(stream) = self.streams.get_mut(key)
        {
            chunk.advance(count);
            stream.received.unpop(chunk);
        }
        Poll::Ready(Ok(count))
    }

    fn start_receiving(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.direct {
            stream.receiving = Receiving::Watch;
            let op = Op::Readable { socket: &stream.socket };
            self.kernel.push(Token::new(Kind::Readable, key), op);
        } else {
            stream.receiving = Receiving::Ring;
            let op = Op::Receive { socket: &stream.socket };
            self.kernel.push(Token::new(Kind::Receive, key), op);
        }
    }

    fn stop_receiving(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let kind = match stream.receiving {
            Receiving::Ring => Kind::Receive,
            Receiving::Watch => Kind::Readable,
            Receiving::Idle | Receiving::Stopping => return,
        };
        stream.receiving = Receiving::Stopping;
        self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(kind, key) });
    }

    /// Sends a direct stream back to the ring when its messages have become small.
    fn after_direct_receive(&mut self, key: Key, length: usize) {
        let fits_ring = length <= self.limits.receive_buffer_bytes;
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.small_reads = if fits_ring { stream.small_reads.saturating_add(1) } else { 0 };
        if stream.small_reads < SMALL_READS_TO_RING {
            return;
        }
        stream.small_reads = 0;
        if self.abilities.ring_receive && self.kernel.ring_receive_trusted(&stream.socket) {
            stream.direct = false;
            self.stop_receiving(key);
        }
    }

    #[inline]
    fn on_receive(&mut self, key: Key, completion: &Completion, woken: &mut Woken) {
        let chunk = match completion.buffer {
            Some(id) => self.pools.filled(id, usize::try_from(completion.result).unwrap_or(0)),
            None => None,
        };
        let Some(stream) = self.streams.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        stream.receive_waker.wake(woken);
        let to_direct = completion.more_to_receive
            && usize::try_from(completion.result)
                .is_ok_and(|count| count >= self.limits.receive_buffer_bytes);
        match chunk {
            Some(chunk) if completion.result > 0 && completion.more && !stream.released && !to_direct => {
                self.metrics.receives += 1;
                if stream.received.push(chunk) >= self.limits.receive_queue_chunks {
                    self.stop_receiving(key);
                }
            }
            chunk => self.on_last_receive(key, completion, chunk, to_direct),
        }
    }

    /// A receive that is not just one of many: the last of its operation, the end, an error, or one after which the
    /// stream is received otherwise.
    #[inline(never)]
    fn on_last_receive(&mut self, key: Key, completion: &Completion, chunk: Option<Chunk>, to_direct: bool) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !completion.more {
            stream.receiving = Receiving::Idle;
        }
        stream.direct |= to_direct;
        match (completion.result, chunk) {
            (1.., Some(chunk)) => {
                self.metrics.receives += 1;
                if !stream.released {
                    let queued = stream.received.push(chunk);
                    if to_direct || queued >= self.limits.receive_queue_chunks {
                        self.stop_receiving(key);
                    }
                }
            }
            // Bytes without a buffer of ours cannot be: the stream's order is lost, so it ends with an error.
            (1.., None) => stream.receive_error = Some(-libc::EIO),
            (0, _) => stream.reads.ended = true,
            (error, _) => self.on_receive_error(key, -error),
        }
        self.finish(key);
    }

    fn on_receive_error(&mut self, key: Key, errno: i32) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        match errno {
            // The woken task polls again, which arms again.
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
            libc::ENOBUFS => {
                self.metrics.buffer_exhaustions += 1;
                // One turn brings many of these at once: one of them lets the ring grow, the others try again.
                let grown = self.grown || self.pools.ring().is_some_and(|ring| ring.grow());
                self.grown = grown;
                if !grown {
                    // The ring is as large as it may be: this stream receives into other memory for a while.
                    stream.direct = true;
                    stream.reads.readable = true;
                }
            }
            _ => stream.receive_error = Some(-errno),
        }
    }

    #[inline(never)]
    fn on_readable(&mut self, key: Key, completion: &Completion, woken: &mut Woken) {
        let Some(stream) = self.streams.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        if !completion.more {
            stream.receiving = Receiving::Idle;
        }
        if completion.result >= 0 {
            let mask = completion.result as u32;
            stream.reads.readable = true;
            let ends = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;
            stream.reads.hung_up |= mask & ends as u32 != 0;
        } else if completion.result != -libc::ECANCELED {
            stream.receive_error = Some(completion.result);
        }
        stream.receive_waker.wake(woken);
        if stream.released {
            self.finish(key);
        }
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    /// Accepts bytes for sending when there is room. `outgoing` is taken then.
    #[inline]
    pub fn poll_send(
        &mut self,
        key: Key,
        outgoing: &mut Option<Outgoing>,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(result) = stream.send_error {
            return Poll::Ready(Err(kernel_error(result)));
        }
        if stream.transmit.queued_bytes() >= self.limits.send_queue_bytes {
            stream.send_waker.wait(waker);
            self.settle_soon |= stream.awaits_settling();
            return Poll::Pending;
        }
        let Some(taken) = outgoing.take() else { return Poll::Ready(Ok(())) };
        if stream.sending != Sending::Idle {
            self.settle_soon |= stream.awaits_settling();
            stream.transmit.queue(taken, &self.pools);
            return Poll::Ready(Ok(()));
        }
        let data = taken.as_slice();
        let (address, length) = (data.as_ptr(), data.len());
        if length >= self.direct_bytes || length == 0 || self.small_sends != SendHow::AtSubmission {
            stream.transmit.push(taken);
            return Poll::Ready(self.start_sending(key));
        }
        // The way of nearly every message: noted for the next turn, and settled by it.
        stream.transmit.start(taken, length);
        let op = Op::Send {
            socket: &stream.socket,
            data: address,
            length_bytes: length as u32,
            how: SendHow::AtSubmission,
        };
        let place = self.kernel.push(Token::new(Kind::Send, key), op);
        stream.sending = Sending::AtSubmission(place);
        self.unsettled.push((key, place));
        Poll::Ready(Ok(()))
    }

    /// Accepts a copy of as much of `data` as there is room for.
    pub fn poll_write(&mut self, key: Key, data: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(result) = stream.send_error {
            return Poll::Ready(Err(kernel_error(result)));
        }
        let room = self.limits.send_queue_bytes.saturating_sub(stream.transmit.queued_bytes());
        if room == 0 && !data.is_empty() {
            stream.send_waker.wait(waker);
            self.settle_soon |= stream.awaits_settling();
            return Poll::Pending;
        }
        let accepted = data.len().min(room);
        stream.transmit.append_copy(&data[..accepted], &self.pools);
        self.settle_soon |= stream.awaits_settling();
        if stream.sending == Sending::Idle
            && let Err(error) = self.start_sending(key)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(accepted))
    }

    /// Ready when the kernel has taken everything that was accepted.
    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(result) = stream.send_error {
            return Poll::Ready(Err(kernel_error(result)));
        }
        if stream.transmit.is_empty() {
            return Poll::Ready(Ok(()));
        }
        stream.send_waker.wait(waker);
        self.settle_soon |= stream.awaits_settling();
        Poll::Pending
    }

    /// Sends the front of the queue: at once by a system call when it is large, so that it is read while the cache
    /// still holds it, else with the next turn.
    #[inline(never)]
    fn start_sending(&mut self, key: Key) -> io::Result<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Err(gone()) };
        let mut refused = false;
        while let Some(pending) = stream.transmit.pending() {
            let length = pending.len();
            let zero_copy = length >= self.zero_copy_bytes
                && self.abilities.zero_copy
                && self.kernel.zero_copy_pays(&stream.socket);
            let large = length >= self.limits.direct_send_bytes;
            if zero_copy || refused || !large {
                let how = match () {
                    () if zero_copy => SendHow::ZeroCopy,
                    () if refused => SendHow::Ordinary,
                    () => self.small_sends,
                };
                self.submit_send(key, how);
                return Ok(());
            }
            match self.kernel.sockets_mut().send(&stream.socket, pending) {
                Ok(count) => {
                    refused = count < length;
                    if refused {
                        self.metrics.short_sends += 1;
                    } else {
                        self.metrics.sends += 1;
                    }
                    stream.transmit.taken(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => refused = true,
                Err(error) => {
                    stream.send_error = Some(-error.raw_os_error().unwrap_or(libc::EIO));
                    stream.transmit.clear();
                    return Err(error);
                }
            }
            if refused {
                stream.transmit.shrink_front();
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn submit_send(&mut self, key: Key, how: SendHow) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(pending) = stream.transmit.pending() else { return };
        // The kernel cuts longer sends short: they are told how much of them was taken.
        let cut = pending.len() > MOST_PER_SEND_BYTES;
        let how = if cut && how == SendHow::AtSubmission { SendHow::Ordinary } else { how };
        let length_bytes = pending.len().min(MOST_PER_SEND_BYTES) as u32;
        let op = Op::Send { socket: &stream.socket, data: pending.as_ptr(), length_bytes, how };
        let token = match how {
            SendHow::ZeroCopy => {
                Token::new(Kind::SendZeroCopy, self.held.insert(Held { stream: key, memory: None }))
            }
            SendHow::AtSubmission | SendHow::Ordinary => Token::new(Kind::Send, key),
        };
        let place = self.kernel.push(token, op);
        stream.sending = match how {
            SendHow::AtSubmission => {
                self.unsettled.push((key, place));
                self.settle_soon |=
                    stream.transmit.has_rest() || stream.send_waker.is_waiting() || stream.released;
                Sending::AtSubmission(place)
            }
            SendHow::Ordinary => Sending::Ordinary,
            SendHow::ZeroCopy => {
                self.metrics.zero_copy_sends += 1;
                Sending::ZeroCopy(token.key(), None)
            }
        };
    }

    #[inline(never)]
    fn on_send(&mut self, key: Key, completion: &Completion, woken: &mut Woken) {
        if self.streams.get(key).is_none() {
            self.metrics.late_completions += 1;
            return;
        }
        self.sent(key, completion.result, woken);
    }

    #[inline(never)]
    fn on_send_zero_copy(&mut self, held: Key, completion: &Completion, woken: &mut Woken) {
        let Some(&Held { stream: key, ref memory }) = self.held.get(held) else {
            self.metrics.late_completions += 1;
            return;
        };
        if !completion.more {
            // The last word: of a send that failed at once, or about the memory.
            let stream_has_gone_on = memory.is_some();
            self.held.remove(held);
            let Some(stream) = self.streams.get(key).filter(|_| !stream_has_gone_on) else { return };
            let result = match stream.sending {
                Sending::ZeroCopy(_, Some(result)) if completion.notification => result,
                _ => completion.result,
            };
            self.sent(key, result, woken);
            return;
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        let pending_bytes = stream.transmit.pending().map_or(0, <[u8]>::len);
        if usize::try_from(completion.result) != Ok(pending_bytes) {
            stream.sending = Sending::ZeroCopy(held, Some(completion.result));
            return;
        }
        let memory = stream.transmit.take_front();
        stream.sending = Sending::Idle;
        self.metrics.sends += 1;
        if let Some(held) = self.held.get_mut(held) {
            held.memory = memory;
        }
        self.after_send(key, false, woken);
    }

    /// A send has ended with a count or an error.
    fn sent(&mut self, key: Key, result: i32, woken: &mut Woken) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let before = std::mem::replace(&mut stream.sending, Sending::Idle);
        match result {
            0.. => {
                let whole = stream.transmit.pending().is_none_or(|pending| pending.len() <= result as usize);
                stream.transmit.taken(result as usize);
                if whole { self.metrics.sends += 1 } else { self.metrics.short_sends += 1 }
            }
            _ => match -result {
                libc::EAGAIN | libc::EINTR => self.metrics.short_sends += 1,
                // Once more, as a send that may wait; if that has no memory either, it is an error.
                libc::ENOBUFS | libc::ENOMEM if matches!(before, Sending::AtSubmission(_)) => {
                    self.metrics.short_sends += 1;
                }
                libc::EOPNOTSUPP if matches!(before, Sending::ZeroCopy(..)) => {
                    self.zero_copy_bytes = usize::MAX
                }
                _ => stream.send_error = stream.send_error.or(Some(result)),
            },
        }
        self.after_send(key, matches!(before, Sending::AtSubmission(_)), woken);
    }

    /// Goes on with the queue, wakes whoever waits for room, closes a stream that was released.
    #[inline(never)]
    fn after_send(&mut self, key: Key, was_refused: bool, woken: &mut Woken) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.send_error.is_some() {
            stream.transmit.clear();
        } else if was_refused && !stream.transmit.is_empty() {
            // What was refused at submission waits for room.
            stream.transmit.shrink_front();
            self.submit_send(key, SendHow::Ordinary);
        } else if !stream.transmit.is_empty()
            && let Err(error) = self.start_sending(key)
        {
            tracing::debug!(%error, "a queued send failed: the next use of the stream tells");
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.transmit.queued_bytes() < self.limits.send_queue_bytes.div_ceil(2) {
            stream.send_waker.wake(woken);
        }
        if stream.released {
            self.finish(key);
        }
    }

    /// Settles the sends whose submission was consumed and that posted no completion: all their bytes were taken.
    fn settle_sends(&mut self, woken: &mut Woken) {
        let mut settled = 0;
        while let Some(&(key, place)) = self.unsettled.get(settled) {
            if !self.kernel.consumed(place) {
                break;
            }
            settled += 1;
            let Some(stream) = self.streams.get_mut(key) else { continue };
            if stream.sending == Sending::AtSubmission(place) {
                stream.sending = Sending::Idle;
                stream.transmit.taken_whole();
                self.metrics.sends += 1;
                if !stream.transmit.is_empty() || stream.send_waker.is_waiting() || stream.released {
                    self.after_send(key, false, woken);
                }
            }
        }
        // Nearly always all of them; what was sent on meanwhile stands behind.
        if settled == self.unsettled.len() {
            self.unsettled.clear();
        } else {
            self.unsettled.drain(..settled);
        }
    }

    // ---- Connecting and accepting --------------------------------------------------------------------------------

    #[inline(never)]
    fn on_connect(&mut self, key: Key, completion: &Completion, woken: &mut Woken) {
        let Some(stream) = self.streams.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        stream.connect = match completion.result {
            0.. => Connect::Done,
            result => Connect::Failed(result),
        };
        stream.send_waker.wake(woken);
        if stream.released {
            self.finish(key);
        }
    }

    pub fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().listen(address, options)?;
        self.attach_listener(socket)
    }

    pub fn attach_listener(&mut self, socket: Socket<K>) -> io::Result<Key> {
        Ok(self.listeners.insert(Listener {
            socket,
            armed: false,
            stopping: false,
            released: false,
            error: None,
            queue: VecDeque::new(),
            waker: Waiter::default(),
        }))
    }

    pub fn poll_accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Key>> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(socket) = listener.queue.pop_front() {
            return Poll::Ready(self.attach(socket));
        }
        if let Some(result) = listener.error.take() {
            return Poll::Ready(Err(kernel_error(result)));
        }
        listener.waker.wait(waker);
        if !listener.armed {
            listener.armed = true;
            let op = Op::Accept { listener: &listener.socket };
            self.kernel.push(Token::new(Kind::Accept, key), op);
        }
        Poll::Pending
    }

    /// Refuses what waits at a listener for which there are no descriptors.
    pub fn refuse(&mut self, key: Key) -> usize {
        let Some(listener) = self.listeners.get(key) else { return 0 };
        let refused = self.kernel.sockets_mut().refuse(&listener.socket);
        self.metrics.refused += refused as u64;
        refused
    }

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.released = true;
        listener.waker = Waiter::default();
        listener.queue.clear();
        if listener.armed {
            self.stop_accepting(key);
        } else {
            self.listeners.remove(key);
        }
    }

    fn stop_accepting(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if listener.armed && !listener.stopping {
            listener.stopping = true;
            self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Accept, key) });
        }
    }

    #[inline(never)]
    fn on_accept(&mut self, key: Key, completion: &Completion, woken: &mut Woken) {
        // A late success carries a socket: it is made whole first, so that it is closed wherever it ends.
        let socket = (completion.result >= 0).then(|| self.kernel.accepted(completion.result));
        let Some(listener) = self.listeners.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        if !completion.more {
            listener.armed = false;
            listener.stopping = false;
        }
        if let Some(socket) = socket.filter(|_| !listener.released) {
            self.metrics.accepted += 1;
            listener.queue.push_back(socket);
        } else if completion.result < 0 {
            match -completion.result {
                // Of one client, or of our own making: accept goes on.
                libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ECONNABORTED | libc::EPROTO => {}
                _ => listener.error = Some(completion.result),
            }
        }
        listener.waker.wake(woken);
        let full = listener.queue.len() >= self.limits.accept_queue;
        if listener.released && !listener.armed {
            self.listeners.remove(key);
        } else if full {
            self.stop_accepting(key);
        }
    }

    // ---- The turn ------------------------------------------------------------------------------------------------

    pub fn turn(&mut self, wait: Wait, woken: &mut Woken) -> io::Result<()> {
        loop {
            let settle = std::mem::take(&mut self.settle_soon);
            let wait_now = if settle { Wait::No } else { wait };
            if settle || wait != Wait::No || self.kernel.needs_enter() {
                self.metrics.turns += 1;
                self.kernel.enter(wait_now)?;
                self.grown = false;
            }
            while let Some(completion) = self.kernel.completion() {
                self.dispatch(&completion, woken);
            }
            self.settle_sends(woken);
            // The kernel may have stopped before the submission that somebody waits for.
            self.settle_soon |= settle && !self.unsettled.is_empty();
            if wait_now == wait || woken.any() {
                return Ok(());
            }
        }
    }

    #[inline]
    fn dispatch(&mut self, completion: &Completion, woken: &mut Woken) {
        let key = completion.token.key();
        match completion.token.kind() {
            Some(Kind::Receive) => self.on_receive(key, completion, woken),
            Some(Kind::Send) => self.on_send(key, completion, woken),
            Some(Kind::SendZeroCopy) => self.on_send_zero_copy(key, completion, woken),
            Some(Kind::Readable) => self.on_readable(key, completion, woken),
            Some(Kind::Accept) => self.on_accept(key, completion, woken),
            Some(Kind::Connect) => {
                self.kernel.ended(completion);
                self.on_connect(key, completion, woken);
            }
            Some(Kind::Wake) => {
                self.kernel.ended(completion);
                woken.rung();
            }
            Some(Kind::Message) => self.kernel.ended(completion),
            // A failed cancellation means that its target has ended or is about to: that completion counts.
            Some(Kind::Cancel) => {}
            None => self.metrics.late_completions += 1,
        }
    }

    /// Gives every key up.
    pub fn release_all(&mut self) {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.release(key);
        }
    }

    /// Cancels everything and waits for every terminal completion.
    pub fn shut_down(&mut self) -> io::Result<()> {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.abort(key);
        }
        let mut woken = Woken::default();
        let deadline_ns = self.kernel.sockets().now_ns() + SHUT_DOWN_WITHIN_NS;
        while self.streams.len() + self.listeners.len() + self.held.len() > 0 {
            self.turn(Wait::For(1_000_000), &mut woken)?;
            if self.kernel.sockets().now_ns() > deadline_ns {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    // ---- Small things --------------------------------------------------------------------------------------------

    pub fn shutdown(&mut self, key: Key, how: Shutdown) -> io::Result<()> {
        let stream = self.streams.get(key).ok_or_else(gone)?;
        self.kernel.sockets_mut().shutdown(&stream.socket, how)
    }

    pub fn set_option(&mut self, key: Key, option: StreamOption) -> io::Result<()> {
        let stream = self.streams.get(key).ok_or_else(gone)?;
        self.kernel.sockets_mut().set_option(&stream.socket, option)
    }

    pub fn local_address(&self, key: Key) -> io::Result<SocketAddr> {
        self.kernel.sockets().local_address(&self.streams.get(key).ok_or_else(gone)?.socket)
    }

    pub fn peer_address(&self, key: Key) -> io::Result<SocketAddr> {
        self.kernel.sockets().peer_address(&self.streams.get(key).ok_or_else(gone)?.socket)
    }

    pub fn listener_address(&self, key: Key) -> io::Result<SocketAddr> {
        self.kernel.sockets().local_address(&self.listeners.get(key).ok_or_else(gone)?.socket)
    }

    pub fn import(&mut self, descriptor: OwnedFd) -> io::Result<Socket<K>> {
        self.kernel.sockets_mut().import(descriptor)
    }

    pub fn now_ns(&self) -> u64 {
        self.kernel.sockets().now_ns()
    }

    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.metrics;
        metrics.sockets = (self.streams.len() + self.listeners.len()) as u64;
        self.kernel.count(&mut metrics);
        metrics
    }
}

fn cancel_token() -> Token {
    Token::internal(Kind::Cancel)
}

/// The key is stale: only possible after the runtime was shut down.
pub(super) fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket was closed with its runtime")
}
