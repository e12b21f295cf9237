//! An in-memory model of UDP: bound sockets with bounded queues, and datagrams that can be lost, duplicated or delayed.
//!
//! A datagram is copied to the queue of each receiver when it is sent. A delay fault keeps it for some time, so that
//! later datagrams overtake it. The model follows Linux wherever an application could notice a difference:
//!
//! - A datagram is discarded if the receiver's queue is full.
//! - A datagram without a receiver is discarded. If the sender is connected, its next call fails with `ECONNREFUSED`.
//! - A connected socket receives only from its peer.
//! - The kernel never splits or merges received datagrams, except those that the sender has asked it to split.
//!
//! A socket for IPv6 receives no datagrams that are sent to an IPv4 address. Interfaces are not simulated: all
//! datagrams arrive on the interface with the index 1.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::datagram_state::{DatagramState, Packet};
use super::network::{FIRST_EPHEMERAL_PORT, Id, Network, Role, unspecified};
use crate::driver::datagram::info::{DatagramInfo, MAX_UDP_PAYLOAD_BYTES, OutgoingDatagram};
use crate::driver::sockets::options::SocketOption;

/// Capacity of a queue in bytes, like `net.core.rmem_default`.
const QUEUE_BYTES: usize = 212_992;

/// Index of the loopback interface.
const LOOPBACK_INDEX: u32 = 1;

impl Network {
    pub fn open_datagram_socket(&mut self, is_ipv6: bool) -> Id {
        let state = DatagramState { is_ipv6, ..DatagramState::default() };
        let id = self.insert(unspecified(is_ipv6), Role::Datagrams(Box::new(state)));
        let endpoint = self.endpoint_mut(id);
        (endpoint.receive_bytes, endpoint.send_bytes) = (QUEUE_BYTES, QUEUE_BYTES);
        self.datagram_sockets.insert(id);
        id
    }

    fn datagrams(&self, id: Id) -> &DatagramState {
        match &self.endpoint(id).role {
            Role::Datagrams(state) => state,
            _ => unreachable!("the endpoint is a datagram socket"),
        }
    }

    fn datagrams_mut(&mut self, id: Id) -> &mut DatagramState {
        match &mut self.endpoint_mut(id).role {
            Role::Datagrams(state) => state,
            _ => unreachable!("the endpoint is a datagram socket"),
        }
    }

    pub fn bind_datagram_socket(&mut self, id: Id, mut address: SocketAddr) -> Result<(), i32> {
        if address.is_ipv6() != self.datagrams(id).is_ipv6 {
            return Err(libc::EAFNOSUPPORT);
        }
        if self.endpoint(id).local.port() != 0 {
            return Err(libc::EINVAL);
        }
        if !self.is_local(address.ip()) && !address.ip().is_multicast() && !is_broadcast(address.ip()) {
            return Err(libc::EADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(self.free_datagram_port());
        }
        let is_shared = self.shares_address(id);
        let is_used = self.datagram_sockets.iter().any(|other| {
            let local = self.endpoint(*other).local;
            local.is_ipv6() == address.is_ipv6()
                && local.port() == address.port()
                && (local.ip() == address.ip()
                    || local.ip().is_unspecified()
                    || address.ip().is_unspecified())
                && !(is_shared && self.shares_address(*other))
        });
        if is_used {
            return Err(libc::EADDRINUSE);
        }
        self.endpoint_mut(id).local = address;
        Ok(())
    }

    fn free_datagram_port(&mut self) -> u16 {
        let used: BTreeSet<u16> =
            self.datagram_sockets.iter().map(|id| self.endpoint(*id).local.port()).collect();
        (FIRST_EPHEMERAL_PORT..=u16::MAX).find(|port| !used.contains(port)).unwrap_or(FIRST_EPHEMERAL_PORT)
    }

    /// Sets the peer, and binds the socket to a local address and port if it is not bound.
    pub fn connect_datagram_socket(&mut self, id: Id, peer: SocketAddr) -> Result<(), i32> {
        if peer.is_ipv6() != self.datagrams(id).is_ipv6 {
            return Err(libc::EAFNOSUPPORT);
        }
        self.bind_automatically(id)?;
        let source_ip = self.route_source(peer.ip());
        let endpoint = self.endpoint_mut(id);
        if endpoint.local.ip().is_unspecified() {
            endpoint.local.set_ip(source_ip);
        }
        endpoint.remote = Some(peer);
        Ok(())
    }

    fn shares_address(&self, id: Id) -> bool {
        let options = &self.endpoint(id).options;
        options.is_set(SocketOption::ReusePort) || options.is_set(SocketOption::ReuseAddress)
    }

    fn bind_automatically(&mut self, id: Id) -> Result<(), i32> {
        match self.endpoint(id).local {
            local if local.port() == 0 => self.bind_datagram_socket(id, local),
            _ => Ok(()),
        }
    }

    // ---- Sending -------------------------------------------------------------------------------------------------

    /// Sends a datagram, or several if its payload is to be split. Returns the number of bytes.
    pub fn send_datagram(&mut self, id: Id, datagram: &OutgoingDatagram<'_>) -> Result<usize, i32> {
        if let Some(error) = self.endpoint_mut(id).error.take() {
            return Err(error);
        }
        let mut to = datagram.destination.or(self.endpoint(id).remote).ok_or(libc::EDESTADDRREQ)?;
        if to.is_ipv6() != self.datagrams(id).is_ipv6 {
            return Err(libc::EAFNOSUPPORT);
        }
        if to.port() == 0 {
            return Err(libc::EINVAL);
        }
        if datagram.payload.len() > MAX_UDP_PAYLOAD_BYTES - if to.is_ipv4() { 20 } else { 0 } {
            return Err(libc::EMSGSIZE);
        }
        if is_broadcast(to.ip()) && !self.endpoint(id).options.is_set(SocketOption::Broadcast) {
            return Err(libc::EACCES);
        }
        if to.ip().is_unspecified() {
            to.set_ip(loopback_source(to.ip()));
        }
        self.bind_automatically(id)?;
        let local = self.endpoint(id).local;
        let bound_ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let source_ip = datagram.source.or(bound_ip).unwrap_or_else(|| self.route_source(to.ip()));
        for segment in 0..datagram.segment_count() {
            let packet = Packet {
                payload: datagram.segment(segment).payload.to_vec(),
                source: SocketAddr::new(source_ip, local.port()),
                destination: to.ip(),
                ecn: datagram.ecn.unwrap_or_default(),
            };
            self.route(id, to, &packet);
        }
        Ok(datagram.payload.len())
    }

    /// Delivers a packet to its receivers.
    fn route(&mut self, sender: Id, to: SocketAddr, packet: &Packet) {
        let is_group = to.ip().is_multicast() || is_broadcast(to.ip());
        if !self.is_local(to.ip()) {
            self.send_remote_datagram(sender, to, packet);
            if !is_group {
                return;
            }
        }
        let loops_back = self.multicast_loops_back(sender);
        let receivers = self.receivers(loops_back, to, packet.source);
        if receivers.is_empty() && !is_group {
            let endpoint = self.endpoint_mut(sender);
            if endpoint.remote == Some(to) {
                endpoint.error = Some(libc::ECONNREFUSED);
                endpoint.events += 1;
            }
        }
        self.receive_packet(receivers, packet);
    }

    /// Adds a packet to the queues of its receivers, unless faults occur.
    pub(super) fn receive_packet(&mut self, receivers: Vec<Id>, packet: &Packet) {
        for receiver in receivers {
            if self.fault(self.faults.datagram_losses) {
                continue;
            }
            let copies = if self.fault(self.faults.datagram_duplicates) { 2 } else { 1 };
            for _ in 0..copies {
                if self.fault(self.faults.datagram_delays) {
                    let at_ns = self.some_time_later_ns();
                    self.arm(receiver, at_ns);
                    self.datagrams_mut(receiver).delayed.push((at_ns, packet.clone()));
                } else {
                    self.deliver(receiver, packet.clone());
                }
            }
        }
    }

    /// Returns the sockets that receive a packet: all members of a multicast group, otherwise the most specific one.
    pub(super) fn receivers(&mut self, loops_back: bool, to: SocketAddr, from: SocketAddr) -> Vec<Id> {
        let is_group = to.ip().is_multicast() || is_broadcast(to.ip());
        let mut best = Vec::new();
        let mut best_score = 0;
        for id in &self.datagram_sockets {
            let (endpoint, state) = (self.endpoint(*id), self.datagrams(*id));
            let (is_exact, is_from_peer) = (endpoint.local.ip() == to.ip(), endpoint.remote == Some(from));
            if endpoint.local.port() != to.port()
                || state.is_ipv6 != to.is_ipv6()
                || endpoint.remote.is_some() && !is_from_peer
                || !(is_exact || endpoint.local.ip().is_unspecified())
            {
                continue;
            }
            if is_group {
                let is_member = is_broadcast(to.ip()) || state.groups.contains(&to.ip());
                if is_member && (loops_back || is_broadcast(to.ip())) {
                    best.push(*id);
                }
                continue;
            }
            let score = 1 + usize::from(is_exact) + 2 * usize::from(is_from_peer);
            if score > best_score {
                best.clear();
                best_score = score;
            }
            if score == best_score {
                best.push(*id);
            }
        }
        if best.len() > 1 && !is_group {
            // The sockets share the address. The kernel selects one by a hash.
            best = self.random.choice(best).into_iter().collect();
        }
        best
    }

    /// Returns the source address of datagrams to an address.
    fn route_source(&self, destination: IpAddr) -> IpAddr {
        let own_ip = if self.is_local(destination) { None } else { self.own_ip(destination.is_ipv6()) };
        own_ip.unwrap_or_else(|| loopback_source(destination))
    }

    fn multicast_loops_back(&self, id: Id) -> bool {
        let endpoint = self.endpoint(id);
        let option = match endpoint.local {
            SocketAddr::V4(_) => SocketOption::MulticastLoopV4,
            SocketAddr::V6(_) => SocketOption::MulticastLoopV6,
        };
        endpoint.options.get(endpoint.local, option) != Ok(0)
    }

    fn deliver(&mut self, id: Id, packet: Packet) {
        let limit_bytes = self.endpoint(id).receive_bytes;
        let state = self.datagrams_mut(id);
        let bytes = packet.occupied_bytes();
        if state.queued_bytes > 0 && state.queued_bytes + bytes > limit_bytes {
            return;
        }
        state.queued_bytes += bytes;
        state.queue.push_back(packet);
        self.endpoint_mut(id).events += 1;
    }

    /// Delivers the delayed packets that are due. Also called when readiness is to be reported again.
    pub fn deliver_delayed(&mut self, id: Id) {
        let now_ns = self.now_ns();
        let due: Vec<_> =
            self.datagrams_mut(id).delayed.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect();
        for (_, packet) in due {
            self.deliver(id, packet);
        }
        self.endpoint_mut(id).events += 1;
    }

    // ---- Receiving -----------------------------------------------------------------------------------------------

    /// Copies the next datagram into `buffer`. Removes it from the queue unless `peeks` is true.
    pub fn receive_datagram(&mut self, id: Id, buffer: &mut [u8], peeks: bool) -> Result<DatagramInfo, i32> {
        if let Some(error) = self.endpoint_mut(id).error.take() {
            return Err(error);
        }
        let endpoint = self.endpoint(id);
        let local = endpoint.local;
        let is_on = |option| endpoint.options.is_set(option);
        let reports_packet_info = is_on(SocketOption::PacketInfoV4) || is_on(SocketOption::PacketInfoV6);
        let reports_ecn =
            is_on(SocketOption::ReceiveTypeOfService) || is_on(SocketOption::ReceiveTrafficClass);
        let state = self.datagrams_mut(id);
        let packet = state.queue.front().ok_or(libc::EAGAIN)?;
        let bytes = packet.payload.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&packet.payload[..bytes]);
        let mut info = DatagramInfo::new(packet.source, bytes);
        info.is_truncated = bytes < packet.payload.len();
        info.ecn = reports_ecn.then_some(packet.ecn);
        if reports_packet_info {
            let is_group = packet.destination.is_multicast() || is_broadcast(packet.destination);
            (info.destination, info.interface_index) = (Some(packet.destination), Some(LOOPBACK_INDEX));
            info.reply_source = match is_group {
                true => Some(local.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_multicast()),
                false => Some(packet.destination),
            };
        }
        if !peeks && let Some(packet) = state.queue.pop_front() {
            state.queued_bytes -= packet.occupied_bytes();
        }
        Ok(info)
    }

    // ---- Options -------------------------------------------------------------------------------------------------

    pub fn set_datagram_option(&mut self, id: Id, option: SocketOption, value: i32) -> Result<(), i32> {
        let endpoint = self.endpoint_mut(id);
        // Linux doubles the sizes of buffers.
        let doubled = value.max(0).saturating_mul(2) as usize;
        match option {
            SocketOption::ReceiveBufferBytes => endpoint.receive_bytes = doubled,
            SocketOption::SendBufferBytes => endpoint.send_bytes = doubled,
            SocketOption::MtuV4 | SocketOption::MtuV6 => return Err(libc::ENOPROTOOPT),
            _ => {}
        }
        endpoint.options.set(endpoint.local, option, value)
    }

    pub fn datagram_option(&self, id: Id, option: SocketOption) -> Result<i32, i32> {
        let endpoint = self.endpoint(id);
        let size = |bytes: usize| Ok(bytes.try_into().unwrap_or(i32::MAX));
        match option {
            SocketOption::ReceiveBufferBytes => size(endpoint.receive_bytes),
            SocketOption::SendBufferBytes => size(endpoint.send_bytes),
            SocketOption::MtuV4 | SocketOption::MtuV6 if endpoint.remote.is_none() => Err(libc::ENOTCONN),
            _ => endpoint.options.get(endpoint.local, option),
        }
    }

    pub fn set_membership(&mut self, id: Id, group: IpAddr, is_member: bool) -> Result<(), i32> {
        let state = self.datagrams_mut(id);
        if group.is_ipv6() && !state.is_ipv6 {
            return Err(libc::ENOPROTOOPT);
        }
        if !group.is_multicast() {
            return Err(libc::EINVAL);
        }
        match is_member {
            true if !state.groups.insert(group) => Err(libc::EADDRINUSE),
            false if !state.groups.remove(&group) => Err(libc::EADDRNOTAVAIL),
            _ => Ok(()),
        }
    }
}

/// Returns the source address of datagrams to an address of the same host.
fn loopback_source(destination: IpAddr) -> IpAddr {
    match destination {
        IpAddr::V4(address) if address.is_multicast() || address.is_broadcast() => {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        }
        IpAddr::V6(address) if address.is_multicast() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        // Sending to the unspecified address reaches the loopback interface.
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    }
}

fn is_broadcast(address: IpAddr) -> bool {
    address == IpAddr::V4(Ipv4Addr::BROADCAST)
}
