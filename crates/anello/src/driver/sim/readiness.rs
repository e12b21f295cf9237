//! The readiness-based kernel: edge-triggered `epoll_wait(2)` on the simulated network.
//!
//! A watched socket has a pending event if its state has changed since the last reported event and a poll would report
//! at least one bit. As with epoll, the event contains all bits that a poll reports.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::network::{Id, Network, deadlock_error};
use super::socket::SimSocket;
use super::sockets::SimNetwork;
use crate::driver::kernel::op::Wait;
use crate::driver::kernel::token::Token;
use crate::driver::kernel::{Edge, Kernel, ReadinessKernel};

#[derive(Debug)]
pub(in super::super) struct SimReadiness {
    network: SimNetwork,
    watches: BTreeMap<Id, Watch>,
    edges: VecDeque<Edge>,
    /// Spurious and late events, ordered by time. If an entry contains an identifier, its event is reported only if
    /// that socket is still open.
    strays: BTreeMap<(u64, u64), (Token, Option<Id>)>,
    stray_order: u64,
}

#[derive(Debug)]
struct Watch {
    token: Token,
    /// Serial number of the endpoint. Identifiers are reused.
    serial: u64,
    /// Value of the endpoint's `events` at the last reported event, or `None` before the first one.
    seen: Option<u64>,
    /// Time at which a delayed event is reported.
    due_ns: Option<u64>,
    /// The requested event bits.
    events: i32,
    /// Set if the events are reported as long as they last.
    is_level_triggered: bool,
}

/// Event bits that are reported even if they were not requested.
const UNREQUESTED: i32 = (libc::POLLHUP | libc::POLLERR) as i32;

impl SimReadiness {
    pub fn new(network: SimNetwork) -> Self {
        Self {
            network,
            watches: BTreeMap::new(),
            edges: VecDeque::new(),
            strays: BTreeMap::new(),
            stray_order: 0,
        }
    }

    /// Removes the watches of closed sockets, as epoll does. If the late completion fault occurs, schedules a late
    /// event for such a socket.
    fn remove_closed(&mut self) {
        let (mut network, mut strays) = (self.network.lock(), Vec::new());
        self.watches.retain(|id, watch| {
            let open = network.is_open(*id, watch.serial);
            let rate = network.faults.late_completions;
            if !open && network.fault(rate) {
                strays.push(watch.token);
            }
            open
        });
        drop(network);
        for token in strays {
            self.schedule_stray(token, None);
        }
    }

    fn schedule_stray(&mut self, token: Token, needed: Option<Id>) {
        let mut network = self.network.lock();
        let at_ns = network.some_time_later_ns();
        self.stray_order += 1;
        self.strays.insert((at_ns, self.stray_order), (token, needed));
    }

    /// Collects the events that are due.
    fn collect(&mut self) {
        self.remove_closed();
        let (mut edges, mut spurious) = (Vec::new(), Vec::new());
        let mut network = self.network.lock();
        let faults = network.faults.clone();
        for (id, watch) in &mut self.watches {
            let Some(edge) = watch.edge(*id, &mut network) else { continue };
            if network.fault(faults.spurious_readiness) {
                spurious.push((edge.token, *id));
            }
            edges.push(edge);
        }
        while let Some(entry) = self.strays.first_entry()
            && entry.key().0 <= network.now_ns()
        {
            let (token, needed) = entry.remove();
            let open = |id| self.watches.get(&id).is_some_and(|watch| watch.token == token);
            // A wait reports each socket at most once.
            let reported = edges.iter().any(|edge: &Edge| edge.token == token);
            if needed.is_none_or(open) && !reported {
                edges.push(Edge {
                    token,
                    readable: true,
                    writable: false,
                    hung_up: false,
                    events: libc::POLLIN as u32,
                });
            }
        }
        if network.fault(faults.reordering) {
            network.random.shuffle(&mut edges);
        }
        drop(network);
        for (token, id) in spurious {
            self.schedule_stray(token, Some(id));
        }
        self.edges.extend(edges);
    }

    /// Returns the time of the next possible event.
    fn next_due_ns(&self) -> Option<u64> {
        let watches = self.watches.values().filter_map(|watch| watch.due_ns);
        let strays = self.strays.first_key_value().map(|((at_ns, _), _)| *at_ns);
        watches.chain(strays).chain(self.network.lock().next_timer_ns()).min()
    }

    fn advance_to(&mut self, to_ns: u64) {
        self.network.lock().advance_to(to_ns);
        self.collect();
    }
}

impl Watch {
    fn edge(&mut self, id: Id, network: &mut Network) -> Option<Edge> {
        let events = network.endpoint(id).events;
        if self.is_level_triggered && network.mask(id) & self.events == 0 {
            self.due_ns = None;
            return None;
        }
        if self.seen == Some(events) && !self.is_level_triggered {
            return None;
        }
        if *self.due_ns.get_or_insert_with(|| network.maybe_later_ns()) > network.now_ns() {
            return None;
        }
        self.due_ns = None;
        self.seen = Some(events);
        let mask = network.mask(id) & (self.events | UNREQUESTED);
        let has = |bits: i16| mask & i32::from(bits) != 0;
        (mask != 0).then(|| Edge {
            token: self.token,
            readable: has(libc::POLLIN),
            writable: has(libc::POLLOUT),
            hung_up: has(libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR),
            events: mask.cast_unsigned(),
        })
    }
}

impl Kernel for SimReadiness {
    type Sockets = SimNetwork;
    #[cfg(debug_assertions)]
    const IS_SIMULATED: bool = true;

    fn next_event_ns(&self) -> Option<u64> {
        if self.edges.is_empty() { self.next_due_ns() } else { Some(0) }
    }

    fn sockets(&self) -> &SimNetwork {
        &self.network
    }

    fn sockets_mut(&mut self) -> &mut SimNetwork {
        &mut self.network
    }
}

impl ReadinessKernel for SimReadiness {
    fn watch(&mut self, socket: &SimSocket, token: Token) -> io::Result<()> {
        let events = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
        self.watch_source(socket, token, events as u32)
    }

    fn watch_listener(&mut self, socket: &SimSocket, token: Token) -> io::Result<()> {
        self.watch_source(socket, token, libc::POLLIN as u32)?;
        self.watches.entry(socket.id()).and_modify(|watch| watch.is_level_triggered = true);
        Ok(())
    }

    fn watch_source(&mut self, socket: &SimSocket, token: Token, events: u32) -> io::Result<()> {
        let serial = self.network.lock().endpoint(socket.id()).serial;
        let events = events.cast_signed();
        let watch = Watch { token, serial, seen: None, due_ns: None, events, is_level_triggered: false };
        match self.watches.insert(socket.id(), watch) {
            Some(previous) if previous.serial == serial => Err(io::Error::from_raw_os_error(libc::EEXIST)),
            // There was no watch, or only one for a socket with the same identifier that has been closed since the last
            // wait.
            _ => Ok(()),
        }
    }

    fn rewatch_source(&mut self, socket: &SimSocket, _token: Token, events: u32) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(&socket.id()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        (watch.seen, watch.events) = (None, events.cast_signed());
        Ok(())
    }

    fn unwatch(&mut self, socket: &SimSocket) -> io::Result<()> {
        let removed = self.watches.remove(&socket.id());
        removed.map(|_| ()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        let now_ns = self.network.lock().advance_by_turn();
        self.collect();
        if wait == Wait::None || !self.edges.is_empty() {
            return Ok(());
        }
        let mut network = self.network.lock();
        let rate = network.faults.interruptions;
        if network.fault(rate) {
            return Ok(());
        }
        drop(network);
        let until_ns = match wait {
            Wait::For(nanoseconds) => Some(now_ns.saturating_add(nanoseconds)),
            _ => None,
        };
        while self.edges.is_empty() {
            let next = self.next_due_ns().into_iter().chain(until_ns).min();
            self.advance_to(next.ok_or_else(deadlock_error)?);
            if next == until_ns {
                break;
            }
        }
        Ok(())
    }

    fn edge(&mut self) -> Option<Edge> {
        self.edges.pop_front()
    }
}
