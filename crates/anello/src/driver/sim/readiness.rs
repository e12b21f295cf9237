//! The readiness kernel: `epoll_wait(2)`, edge-triggered, over the simulated network.
//!
//! A watched socket has an edge when something has happened to it since the last one and a poll would report anything;
//! the edge then carries all that a poll reports, as epoll's does.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::super::op::Wait;
use super::super::reactor::{Edge, ReadinessKernel};
use super::super::token::Token;
use super::network::{Id, Network};
use super::sockets::{SimNetwork, SimSocket};
use super::{SimOptions, TURN_NS, deadlock_error};

#[derive(Debug)]
pub(in super::super) struct SimReadiness {
    network: SimNetwork,
    watches: BTreeMap<Id, Watch>,
    edges: VecDeque<Edge>,
    /// Edges without cause, by time; with the socket they need, if they need one that is open.
    strays: BTreeMap<(u64, u64), (Token, Option<Id>)>,
    stray_order: u64,
}

#[derive(Debug)]
struct Watch {
    token: Token,
    /// Which endpoint was meant: identifiers are reused.
    serial: u64,
    /// Events reported, `None` when nothing has been.
    seen: Option<u64>,
    /// When the next edge is reported.
    due_ns: Option<u64>,
}

impl SimReadiness {
    /// The network itself, to look at in tests.
    #[cfg(test)]
    pub(super) fn network(&self) -> std::cell::RefMut<'_, Network> {
        self.network.lock()
    }

    pub fn new(options: &SimOptions) -> Self {
        Self {
            network: SimNetwork::new(options),
            watches: BTreeMap::new(),
            edges: VecDeque::new(),
            strays: BTreeMap::new(),
            stray_order: 0,
        }
    }

    /// Forgets watches of sockets that were closed, as epoll does; now and then an edge of one comes all the same.
    fn forget_closed(&mut self) {
        let (mut network, mut strays) = (self.network.lock(), Vec::new());
        self.watches.retain(|id, watch| {
            let open = network.endpoint(*id).is_some_and(|endpoint| endpoint.serial == watch.serial);
            let rate = network.faults.late_completions;
            if !open && network.fault(rate) {
                strays.push(watch.token);
            }
            open
        });
        drop(network);
        for token in strays {
            self.stray_later(token, None);
        }
    }

    fn stray_later(&mut self, token: Token, needed: Option<Id>) {
        let mut network = self.network.lock();
        let at_ns = network.now_ns().saturating_add(network.some_delay_ns());
        self.stray_order += 1;
        self.strays.insert((at_ns, self.stray_order), (token, needed));
    }

    /// Puts together the edges that are due.
    fn collect(&mut self) {
        self.forget_closed();
        let (mut found, mut without_cause) = (Vec::new(), Vec::new());
        let mut network = self.network.lock();
        let faults = network.faults.clone();
        for (id, watch) in &mut self.watches {
            let Some(edge) = watch.edge(*id, &mut network) else { continue };
            if network.fault(faults.spurious_readiness) {
                without_cause.push((edge.token, *id));
            }
            found.push(edge);
        }
        while let Some(entry) = self.strays.first_entry()
            && entry.key().0 <= network.now_ns()
        {
            let (token, needed) = entry.remove();
            let open = |id| self.watches.get(&id).is_some_and(|watch| watch.token == token);
            // One wait reports a socket once.
            let reported = found.iter().any(|edge: &Edge| edge.token == token);
            if needed.is_none_or(open) && !reported {
                found.push(Edge { token, readable: true, writable: false, hung_up: false });
            }
        }
        if network.fault(faults.reordering) {
            network.random.shuffle(&mut found);
        }
        drop(network);
        for (token, id) in without_cause {
            self.stray_later(token, Some(id));
        }
        self.edges.extend(found);
    }

    /// When something may happen next.
    fn next_event_ns(&self) -> Option<u64> {
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
        let events = network.endpoint(id)?.events;
        if self.seen == Some(events) {
            return None;
        }
        let now_ns = network.now_ns();
        let due_ns = *self.due_ns.get_or_insert_with(|| now_ns.saturating_add(network.delay_ns()));
        if due_ns > now_ns {
            return None;
        }
        self.due_ns = None;
        self.seen = Some(events);
        let mask = network.mask(id);
        let has = |bits: i16| mask & i32::from(bits) != 0;
        (mask != 0).then(|| Edge {
            token: self.token,
            readable: has(libc::POLLIN),
            writable: has(libc::POLLOUT),
            hung_up: has(libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR),
        })
    }
}

impl ReadinessKernel for SimReadiness {
    type Sockets = SimNetwork;

    fn sockets(&self) -> &SimNetwork {
        &self.network
    }

    fn sockets_mut(&mut self) -> &mut SimNetwork {
        &mut self.network
    }

    fn watch(&mut self, socket: &SimSocket, token: Token) -> io::Result<()> {
        let serial = self.network.lock().endpoint(socket.id()).map(|endpoint| endpoint.serial);
        let Some(serial) = serial else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let watch = Watch { token, serial, seen: None, due_ns: None };
        match self.watches.insert(socket.id(), watch) {
            Some(before) if before.serial == serial => Err(io::Error::from_raw_os_error(libc::EEXIST)),
            // None, or one of a socket that was closed since the last wait and had the same identifier.
            _ => Ok(()),
        }
    }

    fn unwatch(&mut self, socket: &SimSocket) -> io::Result<()> {
        match self.watches.remove(&socket.id()) {
            Some(_) => Ok(()),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        let now_ns = self.network.lock().now_ns().saturating_add(TURN_NS);
        self.advance_to(now_ns);
        if wait == Wait::No || !self.edges.is_empty() {
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
            let next = self.next_event_ns().into_iter().chain(until_ns).min();
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
