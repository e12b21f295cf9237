//! An in-memory model of stream sockets, mainly TCP: endpoints with receive buffers, listeners with accept queues, and
//! timers on a virtual clock.
//!
//! A connection consists of two endpoints. Bytes sent by one endpoint are stored in the *inbox* of the other, whose
//! capacity is the sum of the buffers on both sides. Bytes are never in transit: they can be received as soon as they
//! are sent (the kernels that use this module add delays as faults). Connections to other simulated hosts have one
//! endpoint here; see [`remote`](super::remote).
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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use fastrand::Rng;

use super::datagram_state::DatagramState;
use super::remote_state::{Remote, Uplink};
use super::socket_options::Options;
use super::unix_state::{UnixDatagrams, UnixState};
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::sockets::Family;
use crate::driver::sockets::options::SocketOption;
use crate::driver::wait::clock::VirtualClock;

/// Virtual duration in nanoseconds of a system call that follows many at the same time, so that time passes even if no
/// task is waiting.
const TURN_NS: u64 = 1_000;

/// The same duration if there are several hosts: their system calls run in parallel, but share the clock.
const HOST_TURN_NS: u64 = 100;

/// Delay before a connection attempt is first retried, in nanoseconds. It doubles with each retry.
pub(super) const CONNECT_RETRY_NS: u64 = 1_000_000_000;

pub(super) const MAX_CONNECT_RETRIES: u32 = 6;

/// First automatically assigned port. Lower ports are left to applications.
pub(super) const FIRST_EPHEMERAL_PORT: u16 = 32_768;

/// Maximum rate of a fault in per mille. At a rate of 1000, retries would never succeed.
const MAX_FAULT_RATE: u16 = 900;

/// Identifier of an endpoint, which corresponds to a file descriptor.
pub(super) type Id = u32;

#[derive(Debug)]
pub(super) struct Network {
    /// Source of all random decisions, which are drawn in order so that the same seed produces the same run.
    pub random: Rng,
    pub faults: SimFaults,
    /// The clock of the driver, which also advances the time on the network.
    pub clock: Rc<VirtualClock>,
    /// Virtual duration of a system call in nanoseconds.
    pub turn_ns: u64,
    /// Set if this is one of several hosts.
    pub(super) uplink: Option<Uplink>,
    /// Serial numbers are greater than this one, which no earlier start of this host has used.
    pub(super) first_serial: u64,
    pub(super) slots: Vec<Option<Endpoint>>,
    free: BinaryHeap<Reverse<Id>>,
    listeners: BTreeSet<Id>,
    /// Bound Unix sockets by name; see [`unix_sockets`](super::unix_sockets).
    pub(super) unix_names: BTreeMap<Vec<u8>, Id>,
    /// Endpoints of datagram sockets; see [`datagrams`](super::datagrams).
    pub(super) datagram_sockets: BTreeSet<Id>,
    /// The endpoint and serial number of each pending timer, ordered by time and then by the order in which the timers
    /// were armed. A timer retries a connection attempt or reports readiness again.
    timers: BTreeMap<(u64, u64), (Id, u64)>,
    serial: u64,
    next_port: u16,
    buffer_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    /// Serial number, which is never reused, unlike the identifier.
    pub serial: u64,
    pub local: SocketAddr,
    pub remote: Option<SocketAddr>,
    pub(super) role: Role,
    pub(super) inbox: VecDeque<u8>,
    /// Buffer sizes of this side. Each contributes to the capacity of one direction.
    pub receive_bytes: usize,
    pub send_bytes: usize,
    /// True if a close resets the connection (`SO_LINGER` with a timeout of 0).
    pub linger_zero: bool,
    pub options: Options,
    pub(super) peer: Option<Id>,
    /// Set for a connection to another host, or an attempt to connect to one.
    pub(super) remote_end: Option<Box<Remote>>,
    /// True if the peer has shut down its write half.
    pub(super) received_eof: bool,
    /// True if the connection has been reset. No more bytes can be sent or received.
    pub broken: bool,
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    pub error: Option<i32>,
    /// Set for a Unix socket, which does not use `local` and `remote`.
    pub(super) unix: Option<Box<UnixState>>,
    /// True if a sender is waiting for free space in the buffer.
    pub(super) wants_space: bool,
    /// Number of events so far. Each event wakes the tasks that are polling this endpoint.
    pub events: u64,
}

#[derive(Debug)]
pub(super) enum Role {
    Fresh,
    Connecting { retries: u32 },
    Failed,
    Stream,
    Listener { backlog: usize, queue: VecDeque<Id> },
    Datagrams(Box<DatagramState>),
    UnixDatagrams(Box<UnixDatagrams>),
}

impl Network {
    pub fn new(options: &SimOptions) -> Self {
        Self {
            random: Rng::with_seed(options.seed),
            faults: options.faults.clone(),
            clock: Rc::default(),
            turn_ns: TURN_NS,
            uplink: None,
            first_serial: 0,
            slots: Vec::new(),
            free: BinaryHeap::new(),
            listeners: BTreeSet::new(),
            unix_names: BTreeMap::new(),
            datagram_sockets: BTreeSet::new(),
            timers: BTreeMap::new(),
            serial: 0,
            next_port: FIRST_EPHEMERAL_PORT,
            buffer_bytes: options.socket_buffer_bytes.max(1),
        }
    }

    /// Creates the network of one of several hosts, which has been started.
    pub fn for_host(options: &SimOptions, uplink: Uplink) -> Self {
        let (mut network, first_serial) = (Self::new(options), uplink.first_serial());
        network.clock = Rc::clone(uplink.world.borrow().host_clock(uplink.host));
        (network.serial, network.first_serial) = (first_serial, first_serial);
        (network.turn_ns, network.uplink) = (HOST_TURN_NS, Some(uplink));
        network
    }

    // ---- Random decisions ----------------------------------------------------------------------------------------

    /// Returns whether a fault with this rate occurs now. Draws no random number if the rate is 0, so that a kernel
    /// without faults is fast.
    pub fn fault(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.random.u16(..1000) < per_mille.min(MAX_FAULT_RATE)
    }

    /// Returns a time after a random delay of at least one microsecond.
    pub fn some_time_later_ns(&mut self) -> u64 {
        self.now_ns().saturating_add(1_000 + self.random.u64(..self.faults.max_delay_ns.max(1)))
    }

    /// Returns a random time in the future if the delay fault occurs, otherwise the current time.
    pub fn maybe_later_ns(&mut self) -> u64 {
        if self.fault(self.faults.delays) { self.some_time_later_ns() } else { self.now_ns() }
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
        self.clock.network_now_ns()
    }

    /// Advances the clock, and fires the timers that are due.
    pub fn advance_to(&mut self, to_ns: u64) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= to_ns
        {
            let ((at_ns, _), (id, serial)) = entry.remove_entry();
            self.clock.advance_network(at_ns);
            if self.is_open(id, serial) {
                match self.endpoint(id).role {
                    Role::Connecting { retries } => self.try_connect(id, retries),
                    Role::Datagrams(_) => self.deliver_delayed(id),
                    _ => self.endpoint_mut(id).events += 1,
                }
            }
        }
        self.clock.advance_network(to_ns);
    }

    /// Advances the clock by the duration of a system call, if many have been made at the same time. Returns the new time.
    pub fn advance_by_turn(&mut self) -> u64 {
        let now_ns = self.clock.next_turn_ns(self.turn_ns);
        self.advance_to(now_ns);
        now_ns
    }

    pub(super) fn arm(&mut self, id: Id, at_ns: u64) {
        let (order, serial) = (self.new_serial(), self.endpoint(id).serial);
        self.timers.insert((at_ns, order), (id, serial));
    }

    /// Schedules another readiness report after a short delay, because a fault has withheld bytes or a connection.
    pub fn report_later(&mut self, id: Id) {
        let at_ns = self.some_time_later_ns();
        self.arm(id, at_ns);
    }

    fn new_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    // ---- Endpoints -----------------------------------------------------------------------------------------------

    /// Returns an endpoint. It must be open, that is, a descriptor, a peer or an accept queue must refer to it.
    pub fn endpoint(&self, id: Id) -> &Endpoint {
        self.slots[id as usize].as_ref().expect("the endpoint is open")
    }

    pub fn endpoint_mut(&mut self, id: Id) -> &mut Endpoint {
        self.slots[id as usize].as_mut().expect("the endpoint is open")
    }

    pub(super) fn endpoints_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        self.slots.iter_mut().flatten()
    }

    pub fn is_open(&self, id: Id, serial: u64) -> bool {
        self.slots[id as usize].as_ref().is_some_and(|endpoint| endpoint.serial == serial)
    }

    pub(super) fn insert(&mut self, local: SocketAddr, role: Role) -> Id {
        let endpoint = Endpoint {
            serial: self.new_serial(),
            local,
            remote: None,
            role,
            inbox: VecDeque::new(),
            receive_bytes: self.buffer_bytes / 2,
            send_bytes: self.buffer_bytes.div_ceil(2),
            linger_zero: false,
            options: Options::default(),
            peer: None,
            remote_end: None,
            received_eof: false,
            broken: false,
            read_shut: false,
            write_shut: false,
            error: None,
            unix: None,
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

    /// Creates an endpoint that is neither connected nor listening.
    pub fn open_stream(&mut self, local: SocketAddr) -> Id {
        self.insert(local, Role::Fresh)
    }

    /// Assigns a local address. Conflicts are detected when the endpoint listens.
    pub fn bind(&mut self, id: Id, mut address: SocketAddr) -> Result<(), i32> {
        let endpoint = self.endpoint(id);
        let is_bound = endpoint.local.port() != 0 || !endpoint.local.ip().is_unspecified();
        if is_bound || !matches!(endpoint.role, Role::Fresh) {
            return Err(libc::EINVAL);
        }
        if endpoint.local.is_ipv4() != address.is_ipv4() {
            return Err(libc::EAFNOSUPPORT);
        }
        if !self.is_local(address.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        self.endpoint_mut(id).local = address;
        Ok(())
    }

    pub fn listen(&mut self, id: Id, backlog: u32) -> Result<(), i32> {
        if !matches!(self.endpoint(id).role, Role::Fresh) {
            return Err(libc::EINVAL);
        }
        if self.endpoint(id).local.port() == 0 {
            let port = self.free_port();
            self.endpoint_mut(id).local.set_port(port);
        }
        let endpoint = self.endpoint(id);
        let (address, reuse_port) = (endpoint.local, endpoint.options.is_set(SocketOption::ReusePort));
        for other in self.listeners() {
            let is_shared = reuse_port && other.options.is_set(SocketOption::ReusePort);
            if overlap(other.local, address) && !is_shared {
                return Err(libc::EADDRINUSE);
            }
        }
        // Like Linux, allow one more connection than requested.
        let backlog = backlog as usize + 1;
        self.endpoint_mut(id).role = Role::Listener { backlog, queue: VecDeque::new() };
        self.listeners.insert(id);
        Ok(())
    }

    fn listeners(&self) -> impl Iterator<Item = &Endpoint> {
        self.listeners.iter().map(|id| self.endpoint(*id))
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
        match &mut self.endpoint_mut(listener).role {
            Role::Listener { queue, .. } => queue.pop_front().ok_or(libc::EAGAIN),
            _ => Err(libc::EINVAL),
        }
    }

    /// Closes an endpoint. Called when its last descriptor is dropped.
    pub fn close(&mut self, id: Id) {
        if self.slots[id as usize].as_ref().is_some_and(|endpoint| endpoint.remote_end.is_some()) {
            self.close_remote(id);
        }
        let Some(endpoint) = self.slots[id as usize].take() else { return };
        self.free.push(Reverse(id));
        self.datagram_sockets.remove(&id);
        if endpoint.unix.is_some() {
            self.unix_names.retain(|_, socket| *socket != id);
            self.wake_unix_senders(id, endpoint.serial);
        }
        if let Role::Listener { queue, .. } = endpoint.role {
            self.listeners.remove(&id);
            for pending in queue {
                self.endpoint_mut(pending).linger_zero = true;
                self.close(pending);
            }
        }
        if let Some(peer) = endpoint.peer {
            self.hang_up(peer, endpoint.linger_zero || !endpoint.inbox.is_empty());
        }
    }

    /// Disconnects an endpoint whose peer has closed or reset the connection.
    pub(super) fn hang_up(&mut self, id: Id, reset: bool) {
        let endpoint = self.endpoint_mut(id);
        (endpoint.peer, endpoint.remote_end) = (None, None);
        endpoint.events += 1;
        if reset {
            let is_tcp = endpoint.unix.is_none();
            endpoint.error =
                Some(if endpoint.received_eof && is_tcp { libc::EPIPE } else { libc::ECONNRESET });
            endpoint.broken = true;
        }
        endpoint.received_eof |= !reset;
        // A Unix socket reports immediately that its peer has been closed.
        endpoint.broken |= endpoint.unix.is_some();
    }

    /// Resets a connection at both endpoints.
    pub fn reset(&mut self, id: Id) {
        if let Some(peer) = self.endpoint(id).peer {
            self.hang_up(peer, true);
            self.hang_up(id, true);
        } else if self.endpoint(id).remote_end.is_some() && self.endpoint(id).is_stream() {
            self.reset_remote(id);
        }
    }

    // ---- Connecting ----------------------------------------------------------------------------------------------

    /// Starts a connection attempt, either immediately or, if the delay fault occurs, later.
    pub fn connect(&mut self, id: Id, peer: SocketAddr) -> Result<(), i32> {
        let (refused, at_ns) = (self.fault(self.faults.refused_connects), self.maybe_later_ns());
        let port = self.free_port();
        let now_ns = self.now_ns();
        let own_ip = if self.is_local(peer.ip()) { None } else { self.own_ip(peer.is_ipv6()) };
        let endpoint = self.endpoint_mut(id);
        match endpoint.role {
            Role::Fresh | Role::Failed => {}
            Role::Connecting { .. } => return Err(libc::EALREADY),
            _ => return Err(libc::EISCONN),
        }
        let bound = endpoint.local;
        if bound.is_ipv4() != peer.is_ipv4() {
            return Err(libc::EAFNOSUPPORT);
        }
        let ip = if bound.ip().is_unspecified() { own_ip.unwrap_or(peer.ip()) } else { bound.ip() };
        let local = SocketAddr::new(ip, if bound.port() == 0 { port } else { bound.port() });
        endpoint.local = local;
        endpoint.remote = Some(peer);
        endpoint.role = Role::Connecting { retries: 0 };
        if refused {
            self.fail_connect(id, libc::ECONNREFUSED);
        } else if own_ip.is_some() {
            self.connect_remote(id, local, peer);
        } else if at_ns > now_ns {
            self.arm(id, at_ns);
        } else {
            self.try_connect(id, 0);
        }
        Ok(())
    }

    pub(super) fn fail_connect(&mut self, id: Id, error: i32) {
        let endpoint = self.endpoint_mut(id);
        (endpoint.role, endpoint.remote_end) = (Role::Failed, None);
        endpoint.error = Some(error);
        endpoint.events += 1;
    }

    fn try_connect(&mut self, id: Id, retries: u32) {
        let (local, Some(remote)) = (self.endpoint(id).local, self.endpoint(id).remote) else { return };
        let Some(listener) = self.find_listener(remote) else {
            return self.fail_connect(id, libc::ECONNREFUSED);
        };
        if self.is_backlog_full(listener) {
            if retries == MAX_CONNECT_RETRIES {
                return self.fail_connect(id, libc::ETIMEDOUT);
            }
            self.endpoint_mut(id).role = Role::Connecting { retries: retries + 1 };
            return self.arm(id, self.now_ns().saturating_add(CONNECT_RETRY_NS << retries));
        }
        let accepted = self.insert(remote, Role::Stream);
        let inherited = self.endpoint(listener).options.clone();
        let server = self.endpoint_mut(accepted);
        server.options = inherited;
        (server.remote, server.peer) = (Some(local), Some(id));
        let client = self.endpoint_mut(id);
        (client.role, client.peer) = (Role::Stream, Some(accepted));
        client.events += 1;
        self.enqueue(listener, accepted);
    }

    pub(super) fn is_backlog_full(&self, listener: Id) -> bool {
        matches!(&self.endpoint(listener).role, Role::Listener { backlog, queue } if queue.len() >= *backlog)
    }

    /// Adds a connection to the accept queue.
    pub(super) fn enqueue(&mut self, listener: Id, accepted: Id) {
        let listener = self.endpoint_mut(listener);
        listener.events += 1;
        if let Role::Listener { queue, .. } = &mut listener.role {
            queue.push_back(accepted);
        }
    }

    /// Returns the listener for a connection to this address. It is chosen at random among the listeners bound to
    /// exactly this address or, if there are none, among those bound to the unspecified address.
    pub(super) fn find_listener(&mut self, address: SocketAddr) -> Option<Id> {
        let matching = |matches: fn(SocketAddr, SocketAddr) -> bool| -> Vec<Id> {
            let listeners = self.listeners.iter().copied();
            listeners.filter(|id| matches(self.endpoint(*id).local, address)).collect()
        };
        let mut candidates = matching(|local, address| local == address);
        if candidates.is_empty() {
            candidates = matching(overlap);
        }
        self.random.choice(candidates)
    }

    // ---- Polling -------------------------------------------------------------------------------------------------

    /// Returns the event bits that `poll(2)` would report.
    pub fn mask(&self, id: Id) -> i32 {
        let endpoint = self.endpoint(id);
        let broken = endpoint.broken;
        let eof = endpoint.received_eof || endpoint.read_shut || broken;
        let (readable, writable, hung_up) = match &endpoint.role {
            Role::Fresh | Role::Connecting { .. } => (false, false, false),
            Role::Failed => (true, true, true),
            Role::Listener { queue, .. } => (!queue.is_empty(), false, false),
            Role::Datagrams(datagrams) => (datagrams.has_packets() || endpoint.error.is_some(), true, false),
            Role::UnixDatagrams(state) => (
                state.has_packets() || eof,
                self.accepts_unix_datagrams(state),
                endpoint.read_shut && endpoint.write_shut,
            ),
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

    pub fn is_peer_closed(&self, id: Id, family: Family) -> bool {
        let endpoint = self.endpoint(id);
        endpoint.broken || (family == Family::Internet && endpoint.received_eof)
    }

    /// Returns whether a send would return anything other than `EAGAIN`.
    pub fn can_send(&self, id: Id) -> bool {
        let endpoint = self.endpoint(id);
        match endpoint.role {
            Role::Stream => {
                endpoint.error.is_some() || endpoint.broken || endpoint.write_shut || self.free_bytes(id) > 0
            }
            Role::Connecting { .. } => false,
            _ => true,
        }
    }

    /// Returns the result of a connection attempt, or `None` while it is in progress.
    pub fn connected(&mut self, id: Id) -> Option<Result<(), i32>> {
        let endpoint = self.endpoint_mut(id);
        (!endpoint.is_connecting()).then(|| endpoint.error.take().map_or(Ok(()), Err))
    }
}

/// Detects sockets that a driver has not closed. By this point, all descriptors have been dropped.
impl Drop for Network {
    fn drop(&mut self) {
        let is_closed = self.slots.iter().all(Option::is_none);
        debug_assert!(is_closed || std::thread::panicking(), "sockets left open: {:?}", self.slots);
    }
}

impl Endpoint {
    pub fn is_stream(&self) -> bool {
        matches!(self.role, Role::Stream)
    }

    pub fn is_connecting(&self) -> bool {
        matches!(self.role, Role::Connecting { .. })
    }

    pub fn is_quiescent(&self) -> bool {
        self.is_stream() && !self.received_eof && !self.broken && !self.read_shut && !self.write_shut
    }

    /// Returns whether bytes can be received. Unlike [`Network::available`], it does not consume a pending error.
    pub fn has_bytes(&self) -> bool {
        !self.inbox.is_empty()
    }
}

pub(super) fn unspecified(is_ipv6: bool) -> SocketAddr {
    let ip = if is_ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// Returns whether a listener on one of the addresses accepts connections to the other, so that listeners on both
/// conflict.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || any)
}

/// Returns the error for a wait that has no deadline and that no event can end.
pub(super) fn deadlock_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::Deadlock,
        "deadlock: waiting without a deadline while no operation is in flight (a wake-up was lost or never requested)",
    )
}
