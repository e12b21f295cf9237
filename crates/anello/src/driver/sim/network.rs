//! An in-memory model of TCP: endpoints with receive buffers, listeners with accept queues, and timers on a virtual
//! clock.
//!
//! A connection consists of two endpoints. Bytes sent by one endpoint are stored in the *inbox* of the other, whose
//! capacity is the sum of the buffers on both sides. Bytes are never in transit: they can be received as soon as they
//! are sent (the kernels that use this module add delays as faults).
//!
//! The model follows Linux wherever a driver could notice a difference:
//!
//! - Closing a socket with unread bytes resets the peer.
//! - Bytes that arrived before a reset can still be received. After those bytes, the error is returned once, followed
//!   by EOF.
//! - The first send to a peer that has closed succeeds and breaks the connection.
//! - A sender that has found the buffer full is woken when a third of the buffer is free.
//!
//! # Invariants
//!
//! - Errors are positive error numbers.
//! - Identifiers correspond to file descriptors: a new endpoint gets the lowest free identifier.
//! - The two `peer` links of a connection are set and cleared together.
//! - Every change that can affect the result of polling an endpoint increments its `events`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};

use fastrand::Rng;

use super::super::clock::VirtualClock;
use super::faults::SimFaults;
use super::options::SimOptions;

/// Duration of a system call in nanoseconds, so that virtual time passes even if no task is waiting.
pub(super) const TURN_NS: u64 = 1_000;

/// Delay before the first retry of a connect, in nanoseconds. It doubles with each retry.
const CONNECT_RETRY_NS: u64 = 1_000_000_000;

/// Maximum number of times that a connect is retried.
const CONNECT_RETRIES: u32 = 6;

/// First automatically assigned port. Applications choose lower ones.
const FIRST_EPHEMERAL_PORT: u16 = 32_768;

/// Maximum rate of a fault. At a rate of 1000, retries would never succeed.
const MAX_FAULT_RATE: u16 = 900;

/// Identifier of an endpoint, which corresponds to a file descriptor.
pub(super) type Id = u32;

/// State of all sockets in one simulated kernel.
#[derive(Debug)]
pub(super) struct Network {
    /// Source of all random decisions, which are drawn in order so that the same seed produces the same run.
    pub random: Rng,
    pub faults: SimFaults,
    pub clock: VirtualClock,
    slots: Vec<Option<Endpoint>>,
    free: BinaryHeap<Reverse<Id>>,
    listeners: BTreeSet<Id>,
    /// Pending timers, by time and then in the order in which they were armed.
    timers: BTreeMap<(u64, u64), Timer>,
    serial: u64,
    next_port: u16,
    buffer_bytes: usize,
}

/// A timer of an endpoint, which retries its connect or reports its readiness again. Ignored if the identifier has been
/// reused for another endpoint.
#[derive(Debug)]
struct Timer {
    id: Id,
    serial: u64,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    /// Serial number, which is never reused, unlike the identifier.
    pub serial: u64,
    pub local: SocketAddr,
    pub remote: Option<SocketAddr>,
    role: Role,
    inbox: VecDeque<u8>,
    /// Buffer sizes of this side. Each contributes to the capacity of one direction.
    pub receive_bytes: usize,
    pub send_bytes: usize,
    /// True if a close resets the connection (`SO_LINGER` with a timeout of 0).
    pub linger_zero: bool,
    peer: Option<Id>,
    /// True if the peer has shut down its write half.
    received_eof: bool,
    /// True if the connection has been reset. No more bytes can be sent or received.
    broken: bool,
    read_shut: bool,
    write_shut: bool,
    error: Option<i32>,
    /// True if a sender is waiting for free space in the buffer.
    wants_space: bool,
    /// Number of events so far that wake the tasks polling this endpoint.
    pub events: u64,
}

#[derive(Debug)]
enum Role {
    Fresh,
    Connecting { retries: u32 },
    Failed,
    Stream,
    Listener { backlog: usize, reuse_port: bool, queue: VecDeque<Id> },
}

impl Network {
    pub fn new(options: &SimOptions) -> Self {
        Self {
            random: Rng::with_seed(options.seed),
            faults: options.faults.clone(),
            clock: VirtualClock::default(),
            slots: Vec::new(),
            free: BinaryHeap::new(),
            listeners: BTreeSet::new(),
            timers: BTreeMap::new(),
            serial: 0,
            next_port: FIRST_EPHEMERAL_PORT,
            buffer_bytes: options.socket_buffer_bytes.max(1),
        }
    }

    // ---- Random decisions ----------------------------------------------------------------------------------------

    /// Returns whether a fault with this rate occurs now.
    pub fn fault(&mut self, per_mille: u16) -> bool {
        chance(&mut self.random, per_mille.min(MAX_FAULT_RATE))
    }

    /// Returns a random delay of at least one microsecond.
    pub fn some_delay_ns(&mut self) -> u64 {
        1_000 + self.random.u64(..self.faults.max_delay_ns.max(1))
    }

    /// Returns a random delay if the delay fault occurs, otherwise 0.
    pub fn delay_ns(&mut self) -> u64 {
        if self.fault(self.faults.delays) { self.some_delay_ns() } else { 0 }
    }

    /// Returns `count`, or a smaller number (often 1) if the fault with this rate occurs.
    pub fn cut(&mut self, count: usize, per_mille: u16) -> usize {
        if count > 1 && self.fault(per_mille) {
            if self.random.bool() { 1 } else { self.random.usize(1..count) }
        } else {
            count
        }
    }

    // ---- Time ----------------------------------------------------------------------------------------------------

    pub fn next_timer_ns(&self) -> Option<u64> {
        self.timers.first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.get_ns()
    }

    /// Advances the clock, and fires the timers that are due.
    pub fn advance_to(&mut self, to_ns: u64) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= to_ns
        {
            let ((at_ns, _), timer) = entry.remove_entry();
            self.clock.advance_to(at_ns);
            self.fire(&timer);
        }
        self.clock.advance_to(to_ns);
    }

    fn fire(&mut self, timer: &Timer) {
        let Some(endpoint) = self.endpoint_mut(timer.id) else { return };
        if endpoint.serial != timer.serial {
            return;
        }
        match endpoint.role {
            Role::Connecting { retries } => self.try_connect(timer.id, retries),
            _ => endpoint.events += 1,
        }
    }

    fn arm(&mut self, id: Id, after_ns: u64) {
        let Some(serial) = self.endpoint(id).map(|endpoint| endpoint.serial) else { return };
        let order = self.new_serial();
        self.timers.insert((self.now_ns().saturating_add(after_ns), order), Timer { id, serial });
    }

    /// Schedules another readiness report after a short delay, because a fault has withheld bytes or a connection.
    pub fn report_later(&mut self, id: Id) {
        let after_ns = self.some_delay_ns();
        self.arm(id, after_ns);
    }

    fn new_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    // ---- Endpoints -----------------------------------------------------------------------------------------------

    pub fn endpoint(&self, id: Id) -> Option<&Endpoint> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub fn endpoint_mut(&mut self, id: Id) -> Option<&mut Endpoint> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    fn insert(&mut self, local: SocketAddr, role: Role) -> Id {
        let endpoint = Endpoint {
            serial: self.new_serial(),
            local,
            remote: None,
            role,
            inbox: VecDeque::new(),
            receive_bytes: self.buffer_bytes / 2,
            send_bytes: self.buffer_bytes.div_ceil(2),
            linger_zero: false,
            peer: None,
            received_eof: false,
            broken: false,
            read_shut: false,
            write_shut: false,
            error: None,
            wants_space: false,
            events: 0,
        };
        if let Some(Reverse(id)) = self.free.pop() {
            self.slots[id as usize] = Some(endpoint);
            return id;
        }
        self.slots.push(Some(endpoint));
        (self.slots.len() - 1) as Id
    }

    /// Returns the number of endpoints, including those in accept queues.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Creates an endpoint that is neither connected nor listening.
    pub fn open_stream(&mut self, source: Option<SocketAddr>) -> Id {
        self.insert(source.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))), Role::Fresh)
    }

    pub fn listen(&mut self, mut address: SocketAddr, backlog: u32, reuse_port: bool) -> Result<Id, i32> {
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        for endpoint in self.listeners() {
            if let Role::Listener { reuse_port: shared, .. } = endpoint.role
                && overlap(endpoint.local, address)
                && !(shared && reuse_port)
            {
                return Err(libc::EADDRINUSE);
            }
        }
        // Like Linux: one more than requested.
        let backlog = backlog as usize + 1;
        let id = self.insert(address, Role::Listener { backlog, reuse_port, queue: VecDeque::new() });
        self.listeners.insert(id);
        Ok(id)
    }

    fn listeners(&self) -> impl Iterator<Item = &Endpoint> {
        self.listeners.iter().filter_map(|id| self.endpoint(*id))
    }

    fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
            if self.listeners().all(|listener| listener.local.port() != port) {
                return port;
            }
        }
    }

    /// Removes the oldest connection from the accept queue.
    pub fn accept(&mut self, listener: Id) -> Result<Id, i32> {
        match self.endpoint_mut(listener).map(|endpoint| &mut endpoint.role) {
            Some(Role::Listener { queue, .. }) => queue.pop_front().ok_or(libc::EAGAIN),
            _ => Err(libc::EINVAL),
        }
    }

    /// Closes an endpoint. Called when its last descriptor is dropped.
    pub fn close(&mut self, id: Id) {
        let Some(endpoint) = self.slots.get_mut(id as usize).and_then(Option::take) else { return };
        self.free.push(Reverse(id));
        if let Role::Listener { queue, .. } = endpoint.role {
            self.listeners.remove(&id);
            for pending in queue {
                if let Some(pending) = self.endpoint_mut(pending) {
                    pending.linger_zero = true;
                }
                self.close(pending);
            }
        }
        if let Some(peer) = endpoint.peer {
            let reset = endpoint.linger_zero || !endpoint.inbox.is_empty();
            self.hang_up(peer, reset);
        }
    }

    /// Disconnects an endpoint whose peer has closed or reset the connection.
    fn hang_up(&mut self, id: Id, reset: bool) {
        let Some(endpoint) = self.endpoint_mut(id) else { return };
        endpoint.peer = None;
        endpoint.events += 1;
        if reset {
            endpoint.error = Some(if endpoint.received_eof { libc::EPIPE } else { libc::ECONNRESET });
            endpoint.broken = true;
        }
        endpoint.received_eof |= !reset;
    }

    /// Resets a connection at both endpoints.
    pub fn reset(&mut self, id: Id) {
        let Some(peer) = self.endpoint(id).filter(|one| one.is_stream()).and_then(|one| one.peer) else {
            return;
        };
        self.hang_up(peer, true);
        self.hang_up(id, true);
    }

    // ---- Connecting ----------------------------------------------------------------------------------------------

    /// Starts a connect. It is attempted immediately, or after a delay if that fault occurs.
    pub fn connect(&mut self, id: Id, peer: SocketAddr) -> Result<(), i32> {
        let (refused, after_ns) = (self.fault(self.faults.refused_connects), self.delay_ns());
        let port = self.free_port();
        let Some(endpoint) = self.endpoint_mut(id) else { return Err(libc::EBADF) };
        match endpoint.role {
            Role::Fresh | Role::Failed => {}
            Role::Connecting { .. } => return Err(libc::EALREADY),
            Role::Stream | Role::Listener { .. } => return Err(libc::EISCONN),
        }
        // All addresses are local.
        let bound = endpoint.local;
        let ip = if bound.ip().is_unspecified() { peer.ip() } else { bound.ip() };
        endpoint.local = SocketAddr::new(ip, if bound.port() == 0 { port } else { bound.port() });
        endpoint.remote = Some(peer);
        endpoint.role = Role::Connecting { retries: 0 };
        match (refused, after_ns) {
            (true, _) => self.fail_connect(id, libc::ECONNREFUSED),
            (false, 0) => self.try_connect(id, 0),
            (false, after_ns) => self.arm(id, after_ns),
        }
        Ok(())
    }

    fn fail_connect(&mut self, id: Id, error: i32) {
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.role = Role::Failed;
            endpoint.error = Some(error);
            endpoint.events += 1;
        }
    }

    fn try_connect(&mut self, id: Id, retries: u32) {
        let Some((local, Some(remote))) = self.endpoint(id).map(|one| (one.local, one.remote)) else {
            return;
        };
        let Some(listener) = self.find_listener(remote) else {
            return self.fail_connect(id, libc::ECONNREFUSED);
        };
        if self.backlog_is_full(listener) {
            if retries == CONNECT_RETRIES {
                return self.fail_connect(id, libc::ETIMEDOUT);
            }
            if let Some(endpoint) = self.endpoint_mut(id) {
                endpoint.role = Role::Connecting { retries: retries + 1 };
            }
            return self.arm(id, CONNECT_RETRY_NS << retries);
        }
        let accepted = self.insert(remote, Role::Stream);
        if let Some(server) = self.endpoint_mut(accepted) {
            server.remote = Some(local);
            server.peer = Some(id);
        }
        if let Some(client) = self.endpoint_mut(id) {
            client.role = Role::Stream;
            client.peer = Some(accepted);
            client.events += 1;
        }
        if let Some(listener) = self.endpoint_mut(listener) {
            listener.events += 1;
            if let Role::Listener { queue, .. } = &mut listener.role {
                queue.push_back(accepted);
            }
        }
    }

    /// Returns the listener for a connection to this address. It is chosen at random among the listeners bound to
    /// exactly this address or, if there are none, among those bound to the unspecified address.
    fn find_listener(&mut self, address: SocketAddr) -> Option<Id> {
        let matching = |matches: &dyn Fn(SocketAddr) -> bool| -> Vec<Id> {
            let ids = self.listeners.iter().copied();
            ids.filter(|id| self.endpoint(*id).is_some_and(|one| matches(one.local))).collect()
        };
        let mut candidates = matching(&|local| local == address);
        if candidates.is_empty() {
            candidates = matching(&|local| overlap(local, address));
        }
        match candidates.len() {
            0 | 1 => candidates.first().copied(),
            count => Some(candidates[self.random.usize(..count)]),
        }
    }

    fn backlog_is_full(&self, listener: Id) -> bool {
        match self.endpoint(listener).map(|endpoint| &endpoint.role) {
            Some(Role::Listener { backlog, queue, .. }) => queue.len() >= *backlog,
            _ => true,
        }
    }

    // ---- Bytes ---------------------------------------------------------------------------------------------------

    /// Returns the number of bytes that can be received, or 0 at EOF.
    pub fn available(&mut self, id: Id) -> Result<usize, i32> {
        let Some(endpoint) = self.endpoint_mut(id) else { return Err(libc::EBADF) };
        match endpoint.inbox.len() {
            0 if endpoint.received_eof => Ok(0),
            0 => match endpoint.error.take() {
                Some(error) => Err(error),
                None if endpoint.broken || endpoint.read_shut => Ok(0),
                None if endpoint.is_stream() => Err(libc::EAGAIN),
                None => Err(libc::ENOTCONN),
            },
            count => Ok(count),
        }
    }

    /// Returns the first `count` received bytes, without consuming them. `count` must not exceed
    /// [`available`](Self::available).
    pub fn peek(&mut self, id: Id, count: usize) -> &[u8] {
        self.endpoint_mut(id).map_or(&[], |endpoint| &endpoint.inbox.make_contiguous()[..count])
    }

    /// Removes received bytes, which frees space for the peer.
    pub fn consume(&mut self, id: Id, count: usize) {
        let Some(endpoint) = self.endpoint_mut(id) else { return };
        endpoint.inbox.drain(..count);
        if let Some(peer) = endpoint.peer
            && self.is_writable(peer)
            && let Some(peer) = self.endpoint_mut(peer)
            && std::mem::take(&mut peer.wants_space)
        {
            peer.events += 1;
        }
    }

    /// Returns the number of bytes that can be sent. If the peer has closed, the number is unlimited: the bytes are
    /// lost and the connection is reset, as on a real network.
    pub fn send_space(&mut self, id: Id) -> Result<usize, i32> {
        let Some(endpoint) = self.endpoint_mut(id) else { return Err(libc::EBADF) };
        if let Some(error) = endpoint.error.take() {
            return Err(error);
        }
        match endpoint.role {
            Role::Connecting { .. } => Err(libc::EAGAIN),
            Role::Stream if !endpoint.broken && !endpoint.write_shut => match self.free_bytes(id) {
                0 => {
                    self.request_space_event(id);
                    Err(libc::EAGAIN)
                }
                free => Ok(free),
            },
            _ => Err(libc::EPIPE),
        }
    }

    /// Sends bytes, at most [`send_space`](Self::send_space).
    pub fn put(&mut self, id: Id, data: &[u8]) {
        let Some(endpoint) = self.endpoint(id) else { return };
        match endpoint.peer {
            Some(peer) => {
                if let Some(peer) = self.endpoint_mut(peer) {
                    peer.inbox.extend(data);
                    peer.events += 1;
                }
            }
            None => self.hang_up(id, true),
        }
    }

    /// Requests an event for when the buffer has free space again.
    pub fn request_space_event(&mut self, id: Id) {
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.wants_space = true;
        }
    }

    fn capacity(&self, id: Id) -> usize {
        let Some(endpoint) = self.endpoint(id) else { return 0 };
        let receiver = endpoint.peer.and_then(|peer| self.endpoint(peer));
        (endpoint.send_bytes + receiver.map_or(0, |receiver| receiver.receive_bytes)).max(1)
    }

    fn free_bytes(&self, id: Id) -> usize {
        match self.endpoint(id).and_then(|endpoint| endpoint.peer).and_then(|peer| self.endpoint(peer)) {
            Some(receiver) => self.capacity(id).saturating_sub(receiver.inbox.len()),
            None => usize::MAX,
        }
    }

    /// Returns whether a third of the buffer is free, which is when a poll reports the socket as writable.
    fn is_writable(&self, id: Id) -> bool {
        let free = self.free_bytes(id);
        free > 0 && free >= self.capacity(id) / 3
    }

    pub fn shutdown(&mut self, id: Id, mode: Shutdown) -> Result<(), i32> {
        let Some(endpoint) = self.endpoint_mut(id) else { return Err(libc::EBADF) };
        if !endpoint.is_stream() || endpoint.broken {
            return Err(libc::ENOTCONN);
        }
        endpoint.events += 1;
        endpoint.read_shut |= mode != Shutdown::Write;
        if mode != Shutdown::Read
            && !std::mem::replace(&mut endpoint.write_shut, true)
            && let Some(peer) = endpoint.peer
            && let Some(peer) = self.endpoint_mut(peer)
        {
            peer.received_eof = true;
            peer.events += 1;
        }
        Ok(())
    }

    // ---- Polling -------------------------------------------------------------------------------------------------

    /// Returns the event bits that `poll(2)` would report.
    pub fn mask(&self, id: Id) -> i32 {
        let Some(endpoint) = self.endpoint(id) else { return i32::from(libc::POLLNVAL) };
        let broken = endpoint.broken;
        let eof = endpoint.received_eof || endpoint.read_shut || broken;
        let (readable, writable, hung_up) = match &endpoint.role {
            Role::Fresh | Role::Connecting { .. } => (false, false, false),
            Role::Failed => (true, true, true),
            Role::Listener { queue, .. } => (!queue.is_empty(), false, false),
            Role::Stream => (
                !endpoint.inbox.is_empty() || eof,
                broken || endpoint.write_shut || self.is_writable(id),
                broken || (eof && endpoint.write_shut),
            ),
        };
        let bits = [
            (readable, libc::POLLIN),
            (writable, libc::POLLOUT),
            (eof, libc::POLLRDHUP),
            (hung_up, libc::POLLHUP),
            (endpoint.error.is_some(), libc::POLLERR),
        ];
        bits.into_iter().filter(|(set, _)| *set).fold(0, |mask, (_, bit)| mask | i32::from(bit))
    }

    /// Returns whether a send would return anything other than `EAGAIN`.
    pub fn can_send(&self, id: Id) -> bool {
        self.endpoint(id).is_none_or(|endpoint| match endpoint.role {
            Role::Stream => {
                endpoint.error.is_some() || endpoint.broken || endpoint.write_shut || self.free_bytes(id) > 0
            }
            Role::Connecting { .. } => false,
            _ => true,
        })
    }

    /// Returns the result of a connect, or `None` while it is in progress.
    pub fn connected(&mut self, id: Id) -> Option<Result<(), i32>> {
        let Some(endpoint) = self.endpoint_mut(id) else { return Some(Err(libc::EBADF)) };
        match endpoint.role {
            Role::Connecting { .. } => None,
            _ => Some(endpoint.error.take().map_or(Ok(()), Err)),
        }
    }

    pub fn is_connecting(&self, id: Id) -> bool {
        self.endpoint(id).is_some_and(|endpoint| matches!(endpoint.role, Role::Connecting { .. }))
    }
}

impl Endpoint {
    pub fn is_stream(&self) -> bool {
        matches!(self.role, Role::Stream)
    }

    pub fn is_quiescent(&self) -> bool {
        self.is_stream() && !self.received_eof && !self.broken && !self.read_shut && !self.write_shut
    }

    /// Returns whether bytes can be received. Unlike [`Network::available`], it does not consume a pending error.
    pub fn has_bytes(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

/// Returns whether a listener on one address accepts connections to the other address, and therefore conflicts with a
/// listener there.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || any)
}

/// Returns the error for a wait that has no deadline and that no event can end.
pub(super) fn deadlock_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::Deadlock,
        "deadlock: waiting without a deadline and no operation in flight (a wake-up was lost or never armed)",
    )
}

/// Returns `true` with a probability of `per_mille` / 1000. No random number is drawn if `per_mille` is 0, so that a
/// kernel without faults is fast.
pub(super) fn chance(random: &mut Rng, per_mille: u16) -> bool {
    per_mille > 0 && random.u16(..1000) < per_mille
}
