//! State machine for kernels that report readiness: epoll and the simulated kernel.
//!
//! The reactor is edge-triggered and speculative. Each socket is registered once, for both directions. A receive or
//! send is attempted first, and waits for the next event only if the kernel returned `EAGAIN`. A short read means that
//! the socket is drained, except in the cases of `may_hold_messages` and `short_read_is_inconclusive` in
//! `direct_read.rs`. Bytes that cannot be sent immediately are queued and sent by the turn in which the socket becomes
//! writable.
//!
//! Listeners are level-triggered. With edges, each event would have to be followed by calls until one fails with
//! `EAGAIN`, and such a call costs about 3,400 instructions, because the kernel creates a socket before it looks for a
//! connection (results/accept.txt).
//!
//! After a wait that returned many events, small messages are not sent immediately but in the next turn, once all
//! pending data has been received. This uses 1 to 2 % less CPU time than alternating between receives and sends
//! (`deferred_send_threshold_edges`).
//!
//! # Invariants
//!
//! - `readable` is false only if the kernel has reported, by a short read or `EAGAIN`, that no data was left, and no
//!   event has arrived since. It stays true at EOF. Likewise, `writable` is false only if a send was short or returned
//!   `EAGAIN`, and no event has arrived since.
//! - The send queue is empty unless `writable` is false, a connect is in progress, or the stream is listed in
//!   `deferred_streams`.

mod accept;
#[cfg(debug_assertions)]
mod check;
mod descriptors;
mod readiness;
mod send;
mod send_vectored;
mod source;
mod stored;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker, ready};

use self::stored::Stored;
use crate::driver::counters::DriverMetrics;
use crate::driver::errors::impossible::report_impossible;
use crate::driver::kernel::op::Wait;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Edge, ReadinessKernel, Socket};
use crate::driver::machine_calls::machine_calls;
use crate::driver::memory::buffer::{Chunk, Pools, store_chunk};
use crate::driver::memory::key::Key;
use crate::driver::memory::table::Table;
use crate::driver::settings::options::DriverOptions;
use crate::driver::sockets::{Family, Sockets, gone};
use crate::driver::source::interest::Direction;
use crate::driver::source::readiness::{Clear, Readiness, Ticket};
use crate::driver::stream::direct_read::{DirectRead, ReadState};
use crate::driver::stream::send_side::SendSide;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

/// Maximum size of a deferred message. Deferring longer messages has no benefit.
const DEFERRED_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Reactor<K: ReadinessKernel> {
    pub(crate) kernel: K,
    streams: Table<Stream<Socket<K>>>,
    listeners: Table<Listener<Socket<K>>>,
    sources: Table<Source<Socket<K>>>,
    pools: Rc<Pools>,
    max_send_queue_bytes: usize,
    /// Maximum size of messages that are deferred to the next turn.
    deferred_bytes: usize,
    deferred_send_threshold_edges: usize,
    /// Set if the last wait returned at least `deferred_send_threshold_edges` events.
    deferring_sends: bool,
    /// Streams with deferred messages. Some may have been released, or may have sent their messages, in the meantime.
    deferred_streams: Vec<Key>,
    /// Bytes and errors of the streams whose state is `Stored`.
    stored: BTreeMap<Key, Stored>,
    metrics: DriverMetrics,
}

/// A stream. The fields are ordered by use: those needed for small messages come first.
#[derive(Debug)]
#[repr(C)]
struct Stream<S> {
    socket: S,
    reads: DirectRead,
    writable: bool,
    connecting: bool,
    released: bool,
    /// Set if another owner may have a descriptor for the same socket.
    may_be_shared: bool,
    family: Family,
    receive_waker: WakerSlot,
    sends: SendSide,
    connect_error: Option<io::Error>,
}

#[derive(Debug)]
struct Listener<S> {
    socket: S,
    family: Family,
    waker: WakerSlot,
    /// Number of connections that may be accepted before the next event.
    remaining: u32,
    /// Value of `remaining` after an event. Grows while connections are pending in consecutive turns.
    batch: u32,
    /// Number of the turn of the last event.
    event_turn: u64,
    /// False if connections were pending while no task was waiting for one: every wait would report them.
    is_watched: bool,
}

#[derive(Debug)]
struct Source<S> {
    descriptor: Rc<S>,
    readiness: Readiness,
    /// Event bits that the kernel reports.
    events: u32,
}

impl<K: ReadinessKernel> Reactor<K> {
    pub fn new(kernel: K, options: &DriverOptions) -> Self {
        Self {
            kernel,
            streams: Table::new(),
            listeners: Table::new(),
            sources: Table::new(),
            pools: Pools::new(None),
            // With a limit of zero, no bytes would ever be accepted.
            max_send_queue_bytes: options.max_send_queue_bytes.max(1),
            // With a threshold of zero, no message is deferred.
            deferred_bytes: options.direct_send_threshold_bytes.saturating_sub(1).min(DEFERRED_BYTES),
            deferred_send_threshold_edges: options.testing.deferred_send_threshold_edges,
            deferring_sends: options.testing.deferred_send_threshold_edges == 0,
            deferred_streams: Vec::new(),
            stored: BTreeMap::new(),
            metrics: DriverMetrics::default(),
        }
    }

    pub fn attach(&mut self, socket: Socket<K>, family: Family, may_be_shared: bool) -> io::Result<Key> {
        let key = self.streams.insert(Stream {
            socket,
            family,
            reads: DirectRead::speculative(family),
            writable: true,
            connecting: false,
            released: false,
            may_be_shared,
            connect_error: None,
            receive_waker: WakerSlot::default(),
            sends: SendSide::default(),
        });
        if let Some(stream) = self.streams.get(key)
            && let Err(error) = self.kernel.watch(&stream.socket, Token::new(Kind::Readable, key))
        {
            self.streams.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    /// Records that another descriptor of the socket exists.
    pub fn mark_shared(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.may_be_shared = true;
        }
    }

    pub fn connect(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().open_stream(peer, source)?;
        self.connect_socket(socket, peer)
    }

    pub fn connect_socket(&mut self, socket: Socket<K>, peer: SocketAddr) -> io::Result<Key> {
        let connecting = match self.kernel.sockets_mut().connect(&socket, peer) {
            Ok(()) => false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => return Err(error),
        };
        let key = self.attach(socket, Family::Internet, false)?;
        if let Some(stream) = self.streams.get_mut(key) {
            (stream.connecting, stream.writable) = (connecting, !connecting);
        }
        Ok(key)
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(error) = stream.connect_error.take() {
            return Poll::Ready(Err(error));
        }
        if stream.connecting {
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    pub fn release(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.get_mut(key) else { return false };
        stream.released = true;
        stream.receive_waker = WakerSlot::default();
        stream.sends.waker = WakerSlot::default();
        // Send deferred messages. After the release, no caller remains to receive an error, which clears the queue.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics).ok();
        if stream.connecting && !stream.sends.queue.is_empty() {
            stream.sends.abort();
        }
        let has_unsent = !stream.sends.queue.is_empty() && stream.sends.error.is_none();
        if !has_unsent {
            self.close(key);
        }
        has_unsent
    }

    /// Returns the number of bytes that the kernel has not taken.
    pub fn unsent_bytes(&self, key: Key) -> usize {
        self.streams.get(key).map_or(0, |stream| stream.sends.queue.queued_bytes())
    }

    /// Sends as many bytes as the kernel has room for.
    pub fn send_again(&mut self, key: Key, wakes: &mut WakeQueue) {
        if let Some(stream) = self.streams.get_mut(key)
            && !stream.connecting
        {
            stream.writable = true;
            self.after_sending(key, Ok(()), wakes);
        }
    }

    pub fn abort(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sends.abort();
        }
        self.close(key);
    }

    fn close(&mut self, key: Key) {
        // Closing the socket removes it from epoll, unless another descriptor of the same socket exists.
        let Some(stream) = self.streams.remove(key) else { return };
        if stream.reads.state == ReadState::Stored {
            self.stored.remove(&key);
        }
        stream.sends.reset_at_close_if_failed(self.kernel.sockets(), &stream.socket, stream.family);
        if stream.may_be_shared {
            // Fails if another owner of the socket has removed it.
            self.kernel.unwatch(&stream.socket).ok();
        }
        self.kernel.sockets().close(stream.socket);
    }

    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> PollIo<(OwnedFd, Vec<Chunk>)> {
        ready!(self.poll_flush(key, waker))?;
        if let Some(errno) = self.stored.get(&key).and_then(|stored| stored.error) {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        // Usually, nothing is stored.
        let stored = self.take_stored(key).unwrap_or_default();
        let Some(stream) = self.streams.remove(key) else { return Poll::Ready(Err(gone())) };
        let socket = self
            .kernel
            .unwatch(&stream.socket)
            .and_then(|()| self.kernel.sockets_mut().export(stream.socket)?.into_descriptor());
        Poll::Ready(socket.map(|descriptor| (descriptor, stored.chunks.into())))
    }

    // ---- Receiving -----------------------------------------------------------------------------------------------

    #[inline(always)]
    pub fn poll_receive(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        if let Some(stream) = self.streams.get_mut(key)
            && !stream.reads.readable
        {
            stream.receive_waker.wait(waker);
            return Poll::Pending;
        }
        self.receive_now(key, received, waker)
    }

    #[inline(never)]
    fn receive_now(&mut self, key: Key, received: &mut Option<Chunk>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.reads.state != ReadState::Open {
            return Poll::Ready(self.receive_stored(key, received));
        }
        let sockets = self.kernel.sockets_mut();
        let chunk = match stream.reads.receive(sockets, &stream.socket, &stream.sends, &self.pools) {
            Err(error) => return Poll::Ready(Err(self.fail_receive(key, error))),
            Ok(chunk) => chunk,
        };
        let Some(chunk) = chunk else {
            stream.receive_waker.wait(waker);
            return Poll::Pending;
        };
        if stream.reads.state == ReadState::Open {
            debug_assert!(!chunk.is_empty(), "invariant 9: a receive without bytes is not EOF");
            self.metrics.receives += 1;
            store_chunk(received, chunk);
        }
        Poll::Ready(Ok(()))
    }

    pub fn poll_read(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if stream.reads.state != ReadState::Open {
            return Poll::Ready(self.read_stored(key, buffer));
        }
        if stream.reads.readable {
            let sockets = self.kernel.sockets_mut();
            match stream.reads.receive_into(sockets, &stream.socket, &stream.sends, buffer) {
                Err(error) => return Poll::Ready(Err(self.fail_receive(key, error))),
                Ok(Some(count)) => {
                    self.metrics.receives += 1;
                    return Poll::Ready(Ok(count));
                }
                Ok(None) => {}
            }
        }
        stream.receive_waker.wait(waker);
        Poll::Pending
    }

    pub fn poll_copy(
        &mut self,
        key: Key,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        waker: &Waker,
    ) -> PollIo<usize> {
        if let Some(stream) = self.streams.get_mut(key)
            && !stream.reads.readable
        {
            stream.receive_waker.wait(waker);
            return Poll::Pending;
        }
        // Receive at most `max_bytes` bytes, so that none remain after the copy.
        let mut chunk = self.pools.lease(Pools::class_for(max_bytes));
        let spare = chunk.spare();
        let room = spare.len().min(max_bytes);
        let count = ready!(self.poll_read(key, &mut spare[..room], waker))?;
        copy(&spare[..count]);
        Poll::Ready(Ok(count))
    }

    // ---- Turn ----------------------------------------------------------------------------------------------------

    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        let turned = self.take_turn(wait, wakes);
        #[cfg(debug_assertions)]
        self.check_sometimes();
        turned
    }

    #[inline]
    fn take_turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        self.metrics.turns += 1;
        self.flush_deferred(wakes);
        self.kernel.wait(if wakes.has_work() { Wait::None } else { wait })?;
        let mut edges = 0;
        while let Some(edge) = self.kernel.edge() {
            edges += 1;
            let key = edge.token.key();
            match edge.token.kind() {
                Some(Kind::Readable) => self.on_edge(key, edge, wakes),
                Some(Kind::Accept) => self.on_pending_connections(key, wakes),
                Some(Kind::Source) => self.on_source(key, edge, wakes),
                Some(Kind::Wake) => wakes.mark_notified(),
                _ => self.on_late_event(false),
            }
        }
        self.metrics.completions += edges as u64;
        self.deferring_sends = edges >= self.deferred_send_threshold_edges;
        Ok(())
    }

    pub fn find_work(&mut self, wakes: &mut WakeQueue) -> io::Result<bool> {
        self.turn(Wait::None, wakes)?;
        Ok(wakes.has_work())
    }

    pub fn needs_turn(&self) -> bool {
        !self.deferred_streams.is_empty()
    }

    /// Counts an event for an entry that is no longer in its table. `is_earlier` is set if the entry was removed, which
    /// is the only reason.
    #[cold]
    #[inline(never)]
    fn on_late_event(&mut self, is_earlier: bool) {
        if !is_earlier {
            report_impossible("invariant 7: event on a descriptor that was never watched");
        }
        self.metrics.late_completions += 1;
    }

    #[inline]
    fn on_edge(&mut self, key: Key, edge: Edge, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_event(self.streams.is_earlier(key));
        };
        if edge.readable || edge.hung_up {
            stream.reads.readable = true;
            stream.reads.short_read_is_inconclusive |= edge.hung_up;
            stream.receive_waker.wake(wakes);
        }
        if (edge.writable || edge.hung_up) && !stream.writable {
            if stream.connecting {
                stream.connecting = false;
                stream.connect_error = self.kernel.sockets_mut().connect_result(&stream.socket).err();
            }
            stream.writable = true;
            self.after_sending(key, Ok(()), wakes);
        }
    }

    /// Drops all sockets. The kernel has no operations in flight, so there is nothing to wait for.
    pub fn shut_down(&mut self, _wakes: &mut WakeQueue) -> io::Result<()> {
        self.listeners = Table::new();
        for key in self.streams.keys() {
            if self.unsent_bytes(key) > 0 { self.abort(key) } else { self.close(key) }
        }
        debug_assert_eq!(self.sources.len(), 0, "invariant 15: shutdown ends while a source is in its table");
        Ok(())
    }

    pub fn metrics(&self) -> DriverMetrics {
        DriverMetrics {
            sockets: (self.streams.len() + self.listeners.len()) as u64,
            buffers_leased: Pools::leased(&self.pools, 1),
            ..self.metrics
        }
    }

    /// Returns the number of streams.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }
}

machine_calls!(Reactor<ReadinessKernel>);

#[cfg(all(test, feature = "sim"))]
mod tests;
