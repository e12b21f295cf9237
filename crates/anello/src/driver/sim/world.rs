//! The network between simulated hosts: addresses, links, and packets in transit on one virtual clock.
//!
//! Each host has its own [`Network`](super::network::Network), which passes packets to the world. A scheduler (see
//! [`Simulation`](crate::sim::Simulation)) takes them from the world when they are due, and delivers them.
//!
//! A packet is lost or waits depending on the state of its link and of its receiver at the time of its arrival, not of
//! its departure. Packets that have waited are delivered before all others. Therefore, the packets of a connection are
//! never reordered.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, SystemTime};

use fastrand::Rng;

use super::event_queue::EventQueue;
use super::link::{Link, LinkOptions, LinkStatistics};
use super::segment::{Payload, RemoteSocket, SERIAL_BITS, Segment};
use super::signal::SimSignal;
use super::trace::{Operation, Trace};
use crate::driver::file::disk::{CrashLoss, Disk, Journal};
use crate::driver::wait::clock::VirtualClock;
use crate::driver::wake::woken_hosts::{HostId, WokenHosts};

/// Additional delay of a lost packet that TCP sends again: Linux's minimum retransmission timeout.
const RETRANSMISSION_NS: u64 = 200_000_000;

/// Bytes of a packet in addition to its data.
const HEADER_BYTES: u64 = 40;

/// Address of the first host, minus one.
const FIRST_IPV4: u32 = 0x0a00_0000;
const FIRST_IPV6: u128 = 0xfd00 << 112;

/// Time after which a connection with unacknowledged packets times out: Linux's default (`net.ipv4.tcp_retries2`).
pub(crate) const DEFAULT_TCP_TIMEOUT: Duration = Duration::from_secs(924);

#[derive(Debug)]
pub(crate) struct World {
    clock: Rc<Cell<u64>>,
    random: Rng,
    hosts: Vec<HostRecord>,
    names: BTreeMap<String, HostId>,
    default_link: LinkOptions,
    links: BTreeMap<(HostId, HostId), Link>,
    queue: EventQueue<Event>,
    waited: u64,
    /// Sockets of crashed hosts of which a packet was lost, so that later ones must not be delivered.
    cut_off: BTreeSet<RemoteSocket>,
    /// Time for which a packet of a connection waits before the connection times out.
    pub(crate) tcp_timeout_ns: u64,
    trace: Trace,
    /// Wall-clock time at the start.
    pub(crate) start_time: Option<SystemTime>,
    woken: Arc<WokenHosts>,
}

#[derive(Debug)]
struct HostRecord {
    name: String,
    clock: Rc<VirtualClock>,
    /// Number of times that the host has been started.
    starts: u64,
    is_up: bool,
    disk_delay: RangeInclusive<Duration>,
    /// Time until which the disk is busy with earlier operations.
    disk_busy_until_ns: u64,
    /// Rate of failed file operations in per mille.
    disk_errors: u16,
    /// Packets sent to each host.
    sent: Vec<LinkStatistics>,
    /// Set if a crash loses changes that have not been synced.
    journal: Option<Journal>,
    /// Numbers of caught signals, and their listeners.
    signals: Vec<(i32, Weak<SimSignal>)>,
}

#[derive(Debug)]
enum Event {
    Segment(Segment),
    /// The deadline of a packet that waits on a link.
    Timeout {
        link: (HostId, HostId),
        number: u64,
    },
    Wake(HostId),
}

/// An event that the scheduler handles.
#[derive(Debug)]
pub(crate) enum Due {
    Segment(Segment),
    Wake(HostId),
}

pub(crate) fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl World {
    pub fn new(seed: u64, default_link: LinkOptions, trace_events: usize) -> Self {
        Self {
            clock: Rc::default(),
            random: Rng::with_seed(seed),
            hosts: Vec::new(),
            names: BTreeMap::new(),
            default_link,
            links: BTreeMap::new(),
            queue: EventQueue::new(),
            waited: 0,
            cut_off: BTreeSet::new(),
            tcp_timeout_ns: duration_ns(DEFAULT_TCP_TIMEOUT),
            trace: Trace::new(trace_events),
            start_time: None,
            woken: Arc::default(),
        }
    }

    pub fn clock(&self) -> &Rc<Cell<u64>> {
        &self.clock
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.get()
    }

    pub fn random(&mut self) -> &mut Rng {
        &mut self.random
    }

    pub fn woken(&self) -> &Arc<WokenHosts> {
        &self.woken
    }

    // ---- Hosts ---------------------------------------------------------------------------------------------------

    /// Adds a host that is down. Returns `None` if the name is taken.
    pub fn add_host(&mut self, name: &str) -> Option<HostId> {
        let host = self.hosts.len() as HostId;
        if self.names.contains_key(name) {
            return None;
        }
        self.names.insert(name.to_owned(), host);
        let disk_delay = Duration::ZERO..=Duration::ZERO;
        self.hosts.push(HostRecord {
            name: name.to_owned(),
            clock: Rc::new(VirtualClock::new(Rc::clone(&self.clock), self.start_time)),
            starts: 0,
            is_up: false,
            disk_delay,
            disk_busy_until_ns: 0,
            disk_errors: 0,
            sent: Vec::new(),
            journal: None,
            signals: Vec::new(),
        });
        Some(host)
    }

    pub fn name(&self, host: HostId) -> &str {
        &self.hosts[host as usize].name
    }

    /// Returns the clock of a host.
    pub fn host_clock(&self, host: HostId) -> &Rc<VirtualClock> {
        &self.hosts[host as usize].clock
    }

    pub fn find(&self, name: &str) -> Option<HostId> {
        self.names.get(name).copied()
    }

    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts[host as usize].is_up
    }

    /// Returns the number of times that the host has been started.
    pub(super) fn starts(&self, host: HostId) -> u64 {
        self.hosts[host as usize].starts
    }

    /// Marks a host as started. Packets that have waited for it arrive.
    pub fn start(&mut self, host: HostId) {
        let record = &mut self.hosts[host as usize];
        (record.starts, record.is_up, record.disk_busy_until_ns) = (record.starts + 1, true, 0);
        self.record(host, Operation::Start, None, 0);
        self.release_waiting(|(_, to)| to == host);
    }

    /// Marks a host as crashed: it sends nothing more, and forgets its connections.
    pub fn crash(&mut self, host: HostId) {
        self.hosts[host as usize].is_up = false;
        self.record(host, Operation::Crash, None, 0);
        let mut lost = Vec::new();
        for ((from, to), link) in &mut self.links {
            if *from == host {
                lost.push((*to, link.waiting.len()));
                let packets = link.waiting.drain(..).filter(|(_, packet)| !packet.is_datagram());
                self.cut_off.extend(packets.map(|(_, packet)| packet.from));
            }
        }
        for (to, packets) in lost {
            self.statistics(host, to).lost += packets as u64;
        }
    }

    pub fn ipv4(host: HostId) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_IPV4 + host + 1)
    }

    pub fn ipv6(host: HostId) -> Ipv6Addr {
        Ipv6Addr::from_bits(FIRST_IPV6 + u128::from(host) + 1)
    }

    /// Returns the host with an address.
    pub fn host_of(&self, address: IpAddr) -> Option<HostId> {
        let number = match address {
            IpAddr::V4(address) => address.to_bits().checked_sub(FIRST_IPV4 + 1)?,
            IpAddr::V6(address) => address.to_bits().checked_sub(FIRST_IPV6 + 1)?.try_into().ok()?,
        };
        ((number as usize) < self.hosts.len()).then_some(number)
    }

    pub fn host_count(&self) -> HostId {
        self.hosts.len() as HostId
    }

    pub fn set_disk_delay(&mut self, host: HostId, delay: RangeInclusive<Duration>) {
        self.hosts[host as usize].disk_delay = delay;
    }

    pub fn set_disk_errors(&mut self, host: HostId, per_mille: u16) {
        self.hosts[host as usize].disk_errors = per_mille;
    }

    pub fn set_crash_loss(&mut self, host: HostId, loss: CrashLoss) {
        self.hosts[host as usize].journal = match loss {
            CrashLoss::Nothing => None,
            CrashLoss::Data => Some(Journal::new(false)),
            CrashLoss::DataAndNames => Some(Journal::new(true)),
        };
    }

    /// Undoes a random part of the changes to files that a host has not synced.
    pub fn lose_unsynced(&mut self, host: HostId) -> io::Result<()> {
        let journal = self.hosts[host as usize].journal.clone();
        journal.map_or(Ok(()), |journal| journal.lose(&mut self.random))
    }

    /// Catches a signal until the returned value is dropped.
    pub fn catch_signal(&mut self, host: HostId, number: i32) -> Rc<SimSignal> {
        let (signals, signal) = (&mut self.hosts[host as usize].signals, Rc::default());
        signals.retain(|(_, signal)| signal.strong_count() > 0);
        signals.push((number, Rc::downgrade(&signal)));
        signal
    }

    /// Delivers a signal to all of its listeners. Returns `None` if there are none, and otherwise the wakers to call.
    pub fn deliver_signal(&mut self, host: HostId, number: i32) -> Option<Vec<Waker>> {
        self.record(host, Operation::Signal, None, 0);
        let signals = self.hosts[host as usize].signals.iter().filter(|(caught, _)| *caught == number);
        let signals: Vec<Rc<SimSignal>> = signals.filter_map(|(_, signal)| signal.upgrade()).collect();
        (!signals.is_empty()).then(|| signals.iter().filter_map(|signal| signal.deliver()).collect())
    }

    /// Ends all listeners of a host. Returns the wakers to call.
    pub fn close_signals(&mut self, host: HostId) -> Vec<Waker> {
        let signals = std::mem::take(&mut self.hosts[host as usize].signals);
        signals.iter().filter_map(|(_, signal)| signal.upgrade()?.close()).collect()
    }

    /// Returns the disk of a host for the next operation.
    pub fn disk(&mut self, host: HostId) -> Disk {
        let HostRecord { disk_errors, journal, .. } = &self.hosts[host as usize];
        let fails = *disk_errors > 0 && self.random.u16(..1000) < *disk_errors;
        Disk::new(fails, journal.clone())
    }

    /// Returns the time at which a file operation of this host ends, or `None` if it ends immediately. Operations run in
    /// order.
    pub fn disk_deadline_ns(&mut self, host: HostId) -> Option<u64> {
        let now_ns = self.now_ns();
        let record = &mut self.hosts[host as usize];
        let is_delayed = *record.disk_delay.end() > Duration::ZERO || record.disk_busy_until_ns > now_ns;
        if !is_delayed {
            return None;
        }
        let delay_ns = draw(&mut self.random, &record.disk_delay);
        let deadline_ns = record.disk_busy_until_ns.max(now_ns).saturating_add(delay_ns);
        record.disk_busy_until_ns = deadline_ns;
        self.record(host, Operation::File, None, 0);
        Some(deadline_ns)
    }

    // ---- Links ---------------------------------------------------------------------------------------------------

    fn link_mut(&mut self, from: HostId, to: HostId) -> &mut Link {
        self.links.entry((from, to)).or_default()
    }

    pub fn set_link(&mut self, from: HostId, to: HostId, options: LinkOptions) {
        self.link_mut(from, to).options = Some(options);
    }

    pub fn cut(&mut self, from: HostId, to: HostId) {
        self.link_mut(from, to).is_cut = true;
        self.record(from, Operation::Partition, Some(to), 0);
    }

    pub fn repair(&mut self, from: HostId, to: HostId) {
        self.link_mut(from, to).is_cut = false;
        self.record(from, Operation::Repair, Some(to), 0);
        self.release_waiting(|link| link == (from, to));
    }

    pub fn pause(&mut self, from: HostId, to: HostId) {
        self.link_mut(from, to).is_paused = true;
        self.record(from, Operation::Hold, Some(to), 0);
    }

    pub fn resume(&mut self, from: HostId, to: HostId) {
        self.link_mut(from, to).is_paused = false;
        self.record(from, Operation::Release, Some(to), 0);
        self.release_waiting(|link| link == (from, to));
    }

    pub fn degrade(&mut self, from: HostId, to: HostId, options: LinkOptions) {
        self.link_mut(from, to).degraded = Some(options);
        self.record(from, Operation::Degrade, Some(to), 0);
    }

    /// Ends everything that impairs the selected links, in order: a partition, the holding of packets, degradation.
    pub fn heal(&mut self, is_selected: impl Fn((HostId, HostId)) -> bool) {
        for (link, state) in &mut self.links {
            if is_selected(*link) {
                (state.is_cut, state.is_paused, state.degraded) = (false, false, None);
            }
        }
        self.release_waiting(is_selected);
    }

    /// Delivers the packets that wait on the selected links, unless they still cannot be delivered.
    fn release_waiting(&mut self, is_selected: impl Fn((HostId, HostId)) -> bool) {
        for (&(from, to), link) in &mut self.links {
            let is_open = !link.is_cut && !link.is_paused && self.hosts[to as usize].is_up;
            if !is_selected((from, to)) || !is_open || link.waiting.is_empty() {
                continue;
            }
            for (_, segment) in link.waiting.drain(..) {
                // Before all other events, because later packets of the same connection may be due already.
                self.queue.push(0, Event::Segment(segment));
            }
        }
    }

    /// Returns the statistics of a link.
    pub fn statistics(&mut self, from: HostId, to: HostId) -> &mut LinkStatistics {
        let sent = &mut self.hosts[from as usize].sent;
        if sent.len() <= to as usize {
            sent.resize(to as usize + 1, LinkStatistics::default());
        }
        &mut sent[to as usize]
    }

    // ---- Packets -------------------------------------------------------------------------------------------------

    /// Sends a packet. The packets of a connection arrive no earlier than `last_arrival_ns`, which is updated.
    pub(super) fn send(&mut self, segment: Segment, last_arrival_ns: &mut u64) {
        let (from, to) = (segment.from.host, segment.to.host);
        let sender = &self.hosts[from as usize];
        if !sender.is_up || sender.starts != segment.from.serial >> SERIAL_BITS {
            return;
        }
        let (now_ns, is_datagram) = (self.now_ns(), segment.is_datagram());
        self.record(from, Operation::of(&segment.payload), Some(to), segment.data_bytes());
        let statistics = self.statistics(from, to);
        statistics.packets += 1;
        statistics.bytes += segment.data_bytes() as u64;
        // Most simulations have no link of their own, so that the map is empty.
        let mut link = if self.links.is_empty() { None } else { self.links.get_mut(&(from, to)) };
        let own_options = link.as_ref().and_then(|link| link.degraded.as_ref().or(link.options.as_ref()));
        let options = own_options.unwrap_or(&self.default_link);
        let mut at_ns = now_ns.saturating_add(draw(&mut self.random, &options.latency));
        let mut occurs = |per_mille: u16| per_mille > 0 && self.random.u16(..1000) < per_mille;
        if occurs(options.loss) {
            if is_datagram {
                return self.lose(&segment);
            }
            at_ns = at_ns.saturating_add(RETRANSMISSION_NS);
        }
        if matches!(segment.payload, Payload::Bytes(_)) && occurs(options.resets) {
            self.record(from, Operation::Reset, Some(to), 0);
            return self.reset(segment.from, segment.to, at_ns, last_arrival_ns);
        }
        let copy = match &segment.payload {
            Payload::Datagram { packet, destination } if occurs(options.duplicates) => {
                let payload = Payload::Datagram { packet: packet.clone(), destination: *destination };
                Some((payload, draw(&mut self.random, &options.latency)))
            }
            _ => None,
        };
        if let Some(bandwidth) = options.bandwidth {
            let bytes = segment.data_bytes() as u64 + HEADER_BYTES;
            let duration_ns = bytes.saturating_mul(1_000_000_000) / bandwidth.max(1);
            let link = match link.take() {
                Some(link) => link,
                None => self.links.entry((from, to)).or_default(),
            };
            link.busy_until_ns = link.busy_until_ns.max(now_ns).saturating_add(duration_ns);
            at_ns = at_ns.saturating_add(link.busy_until_ns - now_ns);
        }
        if !is_datagram {
            at_ns = at_ns.max(*last_arrival_ns);
            *last_arrival_ns = at_ns;
        }
        if let Some((payload, delay_ns)) = copy {
            let copy = Segment { payload, ..segment };
            self.queue.push(at_ns.saturating_add(delay_ns), Event::Segment(copy));
        }
        self.queue.push(at_ns, Event::Segment(segment));
    }

    /// Records that a packet is lost.
    fn lose(&mut self, segment: &Segment) {
        let (from, to) = (segment.from.host, segment.to.host);
        self.statistics(from, to).lost += 1;
        self.record(to, Operation::Lost, Some(from), segment.data_bytes());
    }

    /// Resets a connection on both sides.
    fn reset(&mut self, from: RemoteSocket, to: RemoteSocket, at_ns: u64, last_arrival_ns: &mut u64) {
        let at_ns = at_ns.max(*last_arrival_ns);
        *last_arrival_ns = at_ns;
        for (from, to) in [(from, to), (to, from)] {
            let segment = Segment { from, to, payload: Payload::Reset, timeout_ns: u64::MAX };
            self.queue.push(at_ns, Event::Segment(segment));
        }
    }

    /// Schedules a connection attempt again, because the accept queue was full.
    pub(super) fn retry(&mut self, segment: Segment, delay_ns: u64) {
        self.queue.push(self.now_ns().saturating_add(delay_ns), Event::Segment(segment));
    }

    // ---- Events --------------------------------------------------------------------------------------------------

    pub fn wake_at(&mut self, host: HostId, at_ns: u64) {
        self.queue.push(at_ns, Event::Wake(host));
    }

    pub fn next_event_ns(&self) -> Option<u64> {
        self.queue.next_ns()
    }

    /// Removes and returns the next event that is due, if any.
    pub fn next_due(&mut self) -> Option<Due> {
        while let Some(event) = self.queue.pop_due(self.now_ns()) {
            match event {
                Event::Wake(host) => return Some(Due::Wake(host)),
                Event::Segment(segment) => {
                    if let Some(segment) = self.arrive(segment) {
                        return Some(Due::Segment(segment));
                    }
                }
                Event::Timeout { link, number } => {
                    if let Some(segment) = self.time_out(link.0, link.1, number) {
                        return Some(Due::Segment(segment));
                    }
                }
            }
        }
        None
    }

    /// Returns the packet if it can be delivered. Otherwise it is lost, or waits.
    fn arrive(&mut self, segment: Segment) -> Option<Segment> {
        let (from, to) = (segment.from.host, segment.to.host);
        let link = if self.links.is_empty() { None } else { self.links.get(&(from, to)) };
        let (is_cut, is_paused) = link.map_or((false, false), |link| (link.is_cut, link.is_paused));
        let is_unreachable = is_cut || !self.is_up(to);
        let bytes = segment.data_bytes();
        if self.cut_off.contains(&segment.from) {
            self.lose(&segment);
            return None;
        }
        if !is_unreachable && !is_paused {
            self.record(to, Operation::Deliver, Some(from), bytes);
            return Some(segment);
        }
        // A crashed sender does not send its packets again.
        let sender = &self.hosts[from as usize];
        let is_repeated = sender.is_up && sender.starts == segment.from.serial >> SERIAL_BITS;
        if is_unreachable && (segment.is_datagram() || !is_repeated) {
            self.lose(&segment);
            if !segment.is_datagram() {
                self.cut_off.insert(segment.from);
            }
            return None;
        }
        self.record(to, Operation::Wait, Some(from), bytes);
        self.waited += 1;
        let number = self.waited;
        if is_unreachable {
            let at_ns = self.now_ns().saturating_add(segment.timeout_ns);
            self.queue.push(at_ns, Event::Timeout { link: (from, to), number });
        }
        self.link_mut(from, to).waiting.push_back((number, segment));
        None
    }

    /// Fails the connection of a packet if the packet still waits. Returns the report to its sender.
    fn time_out(&mut self, from: HostId, to: HostId, number: u64) -> Option<Segment> {
        let link = self.links.get_mut(&(from, to))?;
        let sender = link.waiting.iter().find(|(other, _)| *other == number)?.1.from;
        link.waiting.retain(|(_, segment)| segment.from != sender);
        self.record(from, Operation::TimedOut, Some(to), 0);
        let unknown = RemoteSocket { host: to, id: 0, serial: 0 };
        Some(Segment { from: unknown, to: sender, payload: Payload::TimedOut, timeout_ns: u64::MAX })
    }

    // ---- Trace ---------------------------------------------------------------------------------------------------

    fn record(&mut self, host: HostId, operation: Operation, peer: Option<HostId>, bytes: usize) {
        self.trace.record(self.clock.get(), host, operation, peer, bytes);
    }

    pub fn trace(&self) -> String {
        self.trace.format(|host| self.name(host))
    }

    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }
}

/// Returns a random number of nanoseconds in the range.
fn draw(random: &mut Rng, range: &RangeInclusive<Duration>) -> u64 {
    let (min, max) = (duration_ns(*range.start()), duration_ns(*range.end()));
    if min >= max { min } else { random.u64(min..=max) }
}
