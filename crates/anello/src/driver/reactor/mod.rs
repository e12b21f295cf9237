//! State machine for kernels that report readiness: epoll and the simulated kernel.
//!
//! The reactor is edge-triggered and speculative. Each socket is registered once, for both directions. A receive or
//! send is attempted first, and waits for the next event only if the kernel returned `EAGAIN`. A short read means that
//! the socket is drained, except in the cases of `short_read_is_inconclusive` in `direct_read.rs`. Bytes that cannot be
//! sent immediately are queued and sent by the turn in which the socket becomes writable.
//!
//! After a wait that returned many events, small messages are not sent immediately but in the next turn, once all
//! pending data has been received. This uses 1 to 2 % less CPU time than alternating between receives and sends
//! (`DriverOptions::deferred_send_threshold_edges`).
//!
//! # Invariants
//!
//! - `readable` is false only if the kernel has reported, by a short read or `EAGAIN`, that no data was left, and no
//!   event has arrived since. It stays true at EOF. Likewise, `writable` is false only if a send was short or returned
//!   `EAGAIN`, and no event has arrived since.
//! - The send queue is empty unless `writable` is false, a connect is in progress, or the stream is listed in
//!   `deferred_streams`.

mod descriptors;
mod readiness;
mod source;
mod stored;
mod waiting;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};

use self::stored::Stored;
use crate::driver::source::Readiness;
use crate::driver::{
    AcceptSink, Chunk, DirectRead, DriverMetrics, DriverOptions, Edge, Family, FileRange, Key, Kind, PollIo,
    Pools, Queued, ReadState, ReadinessKernel, SendBuf, SendSide, Socket, Sockets, Table, Token, Wait,
    WakeQueue, WakerSlot, WriteSide, gone, is_per_connection_error, log, store_chunk,
};

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
}

#[derive(Debug)]
struct Source<S> {
    descriptor: Rc<S>,
    readiness: Readiness,
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
            deferred_bytes: options.direct_send_threshold_bytes.saturating_sub(1).min(DEFERRED_BYTES),
            deferred_send_threshold_edges: options.deferred_send_threshold_edges,
            deferring_sends: options.deferred_send_threshold_edges == 0,
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
        // Send deferred messages. After the release, no caller remains to receive an error.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics).ok();
        let has_unsent = !stream.sends.queue.is_empty() && !stream.connecting;
        if !has_unsent {
            self.abort(key);
        }
        has_unsent
    }

    pub fn abort(&mut self, key: Key) {
        // Closing the socket removes it from epoll, unless another descriptor of the same socket exists.
        let Some(stream) = self.streams.remove(key) else { return };
        if stream.reads.state == ReadState::Stored {
            self.stored.remove(&key);
        }
        if stream.may_be_shared {
            // After the release, no caller remains to receive an error.
            self.kernel.unwatch(&stream.socket).ok();
        }
    }

    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> PollIo<(OwnedFd, Vec<Chunk>)> {
        ready!(self.poll_flush(key, waker))?;
        if let Some(errno) = self.stored.get(&key).and_then(|stored| stored.error) {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        let stored = self.take_stored(key).unwrap_or_default();
        let Some(stream) = self.streams.remove(key) else { return Poll::Ready(Err(gone())) };
        let socket = self
            .kernel
            .unwatch(&stream.socket)
            .and_then(|()| self.kernel.sockets_mut().export(stream.socket));
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
        let chunk = stream.reads.receive(self.kernel.sockets_mut(), &stream.socket, &self.pools)?;
        let Some(chunk) = chunk else {
            stream.receive_waker.wait(waker);
            return Poll::Pending;
        };
        if stream.reads.state == ReadState::Open {
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
        if stream.reads.readable
            && let Some(count) =
                stream.reads.receive_into(self.kernel.sockets_mut(), &stream.socket, buffer)?
        {
            self.metrics.receives += 1;
            return Poll::Ready(Ok(count));
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

    // ---- Sending -------------------------------------------------------------------------------------------------

    #[inline(never)]
    pub fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check()?;
        if stream.sends.queue.queued_bytes() >= self.max_send_queue_bytes {
            stream.sends.check_open()?;
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        let can_send_now = stream.writable && stream.sends.queue.is_empty();
        if self.deferring_sends
            && can_send_now
            && stream.sends.write_side == WriteSide::Open
            && stream.sends.queue.start(outgoing, self.deferred_bytes).is_some()
        {
            self.deferred_streams.push(key);
            return Poll::Ready(Ok(()));
        }
        let Some(queued) = outgoing.take().map(Queued) else { return Poll::Ready(Ok(())) };
        if !can_send_now {
            stream.sends.check_open()?;
            stream.sends.queue.queue(queued, &self.pools);
            return Poll::Ready(Ok(()));
        }
        // Usually, the whole buffer is sent in place and is never queued.
        let data = queued.as_slice();
        let sent = self.kernel.sockets_mut().send(&stream.socket, data);
        match stream.sends.sent(sent)? {
            count if count == data.len() => self.metrics.sends += 1,
            count => stream.queue_remainder(queued, count, &mut self.metrics),
        }
        Poll::Ready(Ok(()))
    }

    pub fn poll_write_more(&mut self, key: Key, data: &[u8], waker: &Waker) -> PollIo<usize> {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.writable
            && stream.sends.queue.is_empty()
            && stream.sends.error.is_none()
        {
            let sent = self.kernel.sockets_mut().send_more(&stream.socket, data);
            let count = stream.sends.sent(sent)?;
            stream.writable = count == data.len();
            if count > 0 || data.is_empty() {
                self.metrics.count_send(stream.writable);
                return Poll::Ready(Ok(count));
            }
        }
        self.poll_write(key, &[IoSlice::new(data)], waker)
    }

    /// Accepts bytes from the slices: first as many as the kernel takes immediately, then as many as fit into the send
    /// queue.
    pub fn poll_write(&mut self, key: Key, slices: &[IoSlice<'_>], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let Some(mut cursor) = stream.sends.start_write(slices)? else { return Poll::Ready(Ok(0)) };
        let length = cursor.remaining_bytes();
        let mut written = 0;
        if stream.writable && stream.sends.queue.is_empty() {
            // Slices that are copied into one buffer can be deferred, and are sent by send(2) instead of sendmsg(2).
            let should_gather = self.deferring_sends || slices.len() > 1;
            if should_gather && length <= self.deferred_bytes.min(self.max_send_queue_bytes) {
                let mut gathered = Some(SendBuf::Chunk(cursor.gather(&self.pools)));
                return self.poll_send(key, &mut gathered, waker).map_ok(|()| length);
            }
            let sent = self.kernel.sockets_mut().send_slices(&stream.socket, slices);
            written = stream.sends.sent(sent)?;
            stream.writable = written == length;
            self.metrics.count_send(stream.writable);
            if stream.writable {
                return Poll::Ready(Ok(written));
            }
        } else {
            stream.sends.check_open()?;
        }
        cursor.advance(written);
        cursor.limit(self.max_send_queue_bytes.saturating_sub(stream.sends.queue.queued_bytes()));
        let accepted = cursor.remaining_bytes();
        if written + accepted == 0 {
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        stream.sends.queue.append_copy(&mut cursor, &self.pools);
        Poll::Ready(Ok(written + accepted))
    }

    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        // Send deferred messages first.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)?;
        stream.sends.poll_flush(waker)
    }

    pub fn shutdown_write(&mut self, key: Key) -> io::Result<()> {
        let stream = self.streams.get_mut(key).ok_or_else(gone)?;
        // Send deferred messages first.
        stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)?;
        stream.sends.shut_down(self.kernel.sockets(), &stream.socket)
    }

    pub fn poll_send_file(&mut self, key: Key, range: FileRange<'_>, waker: &Waker) -> PollIo<usize> {
        ready!(self.poll_flush(key, waker))?;
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.writable {
            let socket = (self.kernel.sockets_mut(), &stream.socket, stream.family);
            if let Some(count) = stream.sends.send_file(socket, range, &mut self.metrics)? {
                return Poll::Ready(Ok(count));
            }
            stream.writable = false;
        }
        stream.sends.waker.wait(waker);
        Poll::Pending
    }

    pub fn poll_submitted(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        match self.streams.get(key) {
            Some(stream) if stream.writable && stream.sends.error.is_none() => Poll::Ready(Ok(())),
            _ => self.poll_flush(key, waker),
        }
    }

    // ---- Accepting -----------------------------------------------------------------------------------------------

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.remove(key) else { return };
        // Closing the socket does not remove it from epoll while another descriptor of it exists, in this or another
        // process.
        if let Err(error) = self.kernel.unwatch(&listener.socket) {
            log(|| tracing::debug!(%error, "cannot remove a released listener from epoll"));
        }
    }

    /// Releases a listener. No connection is passed to the sink, because this driver accepts a connection only when a
    /// task polls for one.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        self.release_listener(key);
        accept_sink.listener_released();
    }

    // ---- Turn ----------------------------------------------------------------------------------------------------

    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        self.metrics.turns += 1;
        self.flush_deferred(wakes);
        self.kernel.wait(if wakes.has_work() { Wait::None } else { wait })?;
        let mut edges = 0;
        while let Some(edge) = self.kernel.edge() {
            edges += 1;
            let key = edge.token.key();
            match edge.token.kind() {
                Some(Kind::Readable) => self.on_edge(key, edge, wakes),
                Some(Kind::Accept) => {
                    if let Some(listener) = self.listeners.get_mut(key) {
                        listener.waker.wake(wakes);
                    }
                }
                Some(Kind::Source) => self.on_source(key, edge, wakes),
                Some(Kind::Wake) => wakes.mark_notified(),
                _ => {}
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

    fn flush_deferred(&mut self, wakes: &mut WakeQueue) {
        let mut deferred_streams = std::mem::take(&mut self.deferred_streams);
        for key in deferred_streams.drain(..) {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let Some(data) = stream.sends.queue.pending().filter(|_| stream.writable) else { continue };
            let length = data.len();
            let result = self.kernel.sockets_mut().send(&stream.socket, data);
            let is_whole = matches!(result, Ok(count) if count == length);
            if is_whole && !stream.sends.queue.has_queued_behind_front() {
                // Fast path for nearly all messages.
                self.metrics.sends += 1;
                stream.sends.queue.mark_all_sent();
                stream.sends.waker.wake(wakes);
            } else {
                let result = stream.record_send(result, length, &mut self.metrics);
                self.after_sending(key, result, wakes);
            }
        }
        self.deferred_streams = deferred_streams;
    }

    /// Continues to send the queue after a send, and wakes the task that is waiting for room.
    fn after_sending(&mut self, key: Key, result: io::Result<()>, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        // If a send fails, the queue is cleared, so the waiting task is woken and reads the error.
        result.and_then(|()| stream.send_pending(self.kernel.sockets_mut(), &mut self.metrics)).ok();
        stream.sends.wake_if_room(self.max_send_queue_bytes, wakes);
        stream.sends.shut_down_if_queued(self.kernel.sockets(), &stream.socket);
        if stream.released && stream.sends.queue.is_empty() {
            self.abort(key);
        }
    }

    #[inline]
    fn on_edge(&mut self, key: Key, edge: Edge, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
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

    pub fn release_all(&mut self) {
        self.listeners = Table::new();
        for key in self.streams.keys() {
            self.release(key);
        }
    }

    /// Drops all sockets. The kernel has no operations in flight, so there is nothing to wait for.
    pub fn shut_down(&mut self, _wakes: &mut WakeQueue) -> io::Result<()> {
        self.listeners = Table::new();
        self.streams = Table::new();
        self.stored.clear();
        Ok(())
    }

    pub fn stream(&self, key: Key) -> Option<&Socket<K>> {
        self.streams.get(key).map(|stream| &stream.socket)
    }

    /// Returns `true` if the write direction of a stream has not been shut down.
    pub fn is_write_open(&self, key: Key) -> bool {
        self.streams.get(key).is_some_and(|stream| stream.sends.check_open().is_ok())
    }

    pub fn listener(&self, key: Key) -> Option<&Socket<K>> {
        self.listeners.get(key).map(|listener| &listener.socket)
    }

    pub fn metrics(&self) -> DriverMetrics {
        DriverMetrics {
            sockets: (self.streams.len() + self.listeners.len()) as u64,
            buffers_leased: Pools::leased(&self.pools, 1),
            ..self.metrics
        }
    }

    pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        let stream = self.streams.get_mut(key);
        stream.map_or_else(Default::default, |stream| {
            [&mut stream.receive_waker, &mut stream.sends.waker].map(WakerSlot::take)
        })
    }

    pub fn refuse(&mut self, key: Key) -> usize {
        let Some(listener) = self.listeners.get(key) else { return 0 };
        let rejected = self.kernel.sockets_mut().refuse(&listener.socket);
        self.metrics.refused += rejected as u64;
        rejected
    }

    pub fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        let key = self.listeners.insert(Listener { socket, family, waker: WakerSlot::default() });
        if let Some(listener) = self.listeners.get(key)
            && let Err(error) = self.kernel.watch(&listener.socket, Token::new(Kind::Accept, key))
        {
            self.listeners.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    pub fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(Socket<K>, Family)> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        loop {
            match self.kernel.sockets_mut().accept(&listener.socket) {
                Ok(socket) => {
                    self.metrics.accepted += 1;
                    return Poll::Ready(Ok((socket, listener.family)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error().is_some_and(is_per_connection_error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        listener.waker.wait(waker);
        Poll::Pending
    }
}

impl<S> Stream<S> {
    /// Sends bytes from the queue while the socket is writable.
    #[inline]
    fn send_pending<K: Sockets<Socket = S>>(
        &mut self,
        kernel: &mut K,
        metrics: &mut DriverMetrics,
    ) -> io::Result<()> {
        while self.writable
            && let Some(pending) = self.sends.queue.pending()
        {
            let length = pending.len();
            let result = kernel.send(&self.socket, pending);
            self.record_send(result, length, metrics)?;
        }
        Ok(())
    }

    /// Records the result of sending the next `length` bytes from the queue.
    fn record_send(
        &mut self,
        result: io::Result<usize>,
        length: usize,
        metrics: &mut DriverMetrics,
    ) -> io::Result<()> {
        let count = self.sends.sent(result)?;
        self.sends.queue.mark_sent(count);
        metrics.count_send(count == length);
        if count < length {
            // A short send means that the socket buffer is full.
            self.writable = false;
            self.sends.queue.shrink_front();
        }
        Ok(())
    }

    /// Queues the bytes of a buffer that the first send left unsent, because the socket buffer is full.
    #[cold]
    fn queue_remainder(&mut self, outgoing: Queued, sent_bytes: usize, metrics: &mut DriverMetrics) {
        metrics.short_sends += 1;
        self.writable = false;
        self.sends.queue.push(outgoing);
        self.sends.queue.mark_sent(sent_bytes);
        self.sends.queue.shrink_front();
    }
}
