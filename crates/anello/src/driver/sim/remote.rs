//! Connections and datagrams between the networks of simulated hosts.
//!
//! Each side of a connection has an endpoint in its own [`Network`], and knows the other one by host, identifier and
//! serial number. The sender counts the bytes that the application on the other host has not yet received, so that the
//! buffers of both sides are limited as within a host.

use std::net::{IpAddr, SocketAddr};

use super::datagram_state::Packet;
use super::network::{CONNECT_RETRY_NS, Id, MAX_CONNECT_RETRIES, Network, Role};
use super::remote_state::Remote;
use super::segment::{Payload, RemoteSocket, SERIAL_BITS, Segment};
use crate::driver::sockets::options::SocketOption;
use crate::driver::wake::woken_hosts::HostId;

/// Time after which a connection attempt without a reply fails, as on Linux (`net.ipv4.tcp_syn_retries`).
const CONNECT_TIMEOUT_NS: u64 = 127_000_000_000;

impl Network {
    /// Returns whether the host has an address. All addresses are local unless there are several hosts.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        let Some(uplink) = &self.uplink else { return true };
        ip.is_unspecified() || ip.is_loopback() || uplink.is_own(ip)
    }

    /// Returns the own address from which packets reach another host.
    pub(super) fn own_ip(&self, is_ipv6: bool) -> Option<IpAddr> {
        self.uplink.as_ref().map(|uplink| uplink.own_ip(is_ipv6))
    }

    fn remote_host(&self, ip: IpAddr) -> Option<HostId> {
        self.uplink.as_ref()?.world.borrow().host_of(ip)
    }

    fn transmit(&mut self, id: Id, payload: Payload) {
        let (Some(uplink), Some(endpoint)) = (&self.uplink, &mut self.slots[id as usize]) else { return };
        let from = RemoteSocket { host: uplink.host, id, serial: endpoint.serial };
        let Some(remote) = &mut endpoint.remote_end else { return };
        let mut world = uplink.world.borrow_mut();
        let timeout_ns = match endpoint.options.get(endpoint.local, SocketOption::UserTimeout) {
            Ok(milliseconds @ 1..) => milliseconds as u64 * 1_000_000,
            _ if matches!(payload, Payload::Syn { .. }) => CONNECT_TIMEOUT_NS,
            _ => world.tcp_timeout_ns,
        };
        world.send(Segment { from, to: remote.peer, payload, timeout_ns }, &mut remote.last_arrival_ns);
    }

    // ---- Calls of the endpoint -----------------------------------------------------------------------------------

    /// Starts a connection attempt to another host. The endpoint's addresses have been set.
    pub(super) fn connect_remote(&mut self, id: Id, source: SocketAddr, destination: SocketAddr) {
        let Some(host) = self.remote_host(destination.ip()) else {
            return self.fail_connect(id, libc::ENETUNREACH);
        };
        let endpoint = self.endpoint_mut(id);
        let window = endpoint.receive_bytes;
        endpoint.remote_end = Some(Box::new(Remote::new(RemoteSocket { host, id: 0, serial: 0 }, 0)));
        self.transmit(id, Payload::Syn { source, destination, window, retries: 0 });
    }

    pub(super) fn put_remote(&mut self, id: Id, data: &[u8]) {
        if let Some(remote) = &mut self.endpoint_mut(id).remote_end {
            remote.unread_bytes += data.len();
        }
        self.transmit(id, Payload::Bytes(data.to_vec()));
    }

    /// Reports received bytes to the peer, after a quarter of the receive buffer.
    pub(super) fn consume_remote(&mut self, id: Id, count: usize) {
        let endpoint = self.endpoint_mut(id);
        let threshold = endpoint.receive_bytes / 4;
        let Some(remote) = &mut endpoint.remote_end else { return };
        remote.unreported_bytes += count;
        if remote.unreported_bytes > threshold {
            let bytes = std::mem::take(&mut remote.unreported_bytes);
            self.transmit(id, Payload::Window(bytes));
        }
    }

    pub(super) fn shut_down_remote(&mut self, id: Id) {
        self.transmit(id, Payload::Fin);
    }

    pub(super) fn reset_remote(&mut self, id: Id) {
        self.transmit(id, Payload::Reset);
        self.hang_up(id, true);
    }

    /// Informs the peer that the endpoint is being closed.
    pub(super) fn close_remote(&mut self, id: Id) {
        let endpoint = self.endpoint(id);
        if !endpoint.is_stream() || endpoint.broken {
            return;
        }
        if endpoint.linger_zero || endpoint.has_bytes() {
            self.transmit(id, Payload::Reset);
        } else if !endpoint.write_shut {
            self.transmit(id, Payload::Fin);
        }
    }

    // ---- Arrivals ------------------------------------------------------------------------------------------------

    /// Handles a packet that arrives from another host.
    pub fn deliver_segment(&mut self, segment: Segment) {
        let Segment { from, to, payload, timeout_ns } = segment;
        match payload {
            Payload::Syn { source, destination, window, retries } => {
                return self.accept_remote(from, source, destination, window, retries, timeout_ns);
            }
            Payload::Datagram { packet, destination } => {
                return self.deliver_remote_datagram(from, destination, &packet);
            }
            _ => {}
        }
        let is_open = (to.id as usize) < self.slots.len() && self.is_open(to.id, to.serial);
        if !is_open {
            let is_restarted = self.first_serial >> SERIAL_BITS != to.serial >> SERIAL_BITS;
            let is_rejected = match payload {
                Payload::Bytes(_) | Payload::SynAck { .. } => true,
                // After a regular close, the kernel acknowledges these.
                Payload::Fin | Payload::Window(_) => is_restarted,
                _ => false,
            };
            if is_rejected {
                self.reply(from, Payload::Reset);
            }
            return;
        }
        let id = to.id;
        let endpoint = self.endpoint_mut(id);
        match payload {
            Payload::SynAck { window } => {
                if endpoint.is_connecting()
                    && let Some(remote) = &mut endpoint.remote_end
                {
                    (remote.peer, remote.window) = (from, window);
                    endpoint.role = Role::Stream;
                    endpoint.events += 1;
                }
            }
            Payload::Bytes(bytes) if !endpoint.broken => {
                endpoint.inbox.extend(bytes);
                endpoint.events += 1;
            }
            Payload::Window(count) => {
                if let Some(remote) = &mut endpoint.remote_end {
                    remote.unread_bytes = remote.unread_bytes.saturating_sub(count);
                }
                if self.is_writable(id) {
                    let endpoint = self.endpoint_mut(id);
                    endpoint.events += u64::from(std::mem::take(&mut endpoint.wants_space));
                }
            }
            // After a reset, the error must not be taken for the end of the stream.
            Payload::Fin if !endpoint.broken => {
                endpoint.received_eof = true;
                endpoint.events += 1;
            }
            Payload::Reset if endpoint.is_connecting() => self.fail_connect(id, libc::ECONNREFUSED),
            Payload::TimedOut if endpoint.is_connecting() => self.fail_connect(id, libc::ETIMEDOUT),
            Payload::Reset if !endpoint.broken => self.hang_up(id, true),
            Payload::TimedOut if !endpoint.broken => {
                self.hang_up(id, true);
                self.endpoint_mut(id).error = Some(libc::ETIMEDOUT);
            }
            Payload::Unreachable(destination) if endpoint.remote == Some(destination) => {
                endpoint.error = Some(libc::ECONNREFUSED);
                endpoint.events += 1;
            }
            _ => {}
        }
    }

    /// Sends a packet that does not belong to an endpoint of this host.
    fn reply(&mut self, to: RemoteSocket, payload: Payload) {
        let Some(uplink) = &self.uplink else { return };
        let from = RemoteSocket { host: uplink.host, id: 0, serial: self.first_serial };
        let segment = Segment { from, to, payload, timeout_ns: u64::MAX };
        uplink.world.borrow_mut().send(segment, &mut 0);
    }

    fn accept_remote(
        &mut self,
        from: RemoteSocket,
        source: SocketAddr,
        destination: SocketAddr,
        window: usize,
        retries: u32,
        timeout_ns: u64,
    ) {
        let Some(listener) = self.find_listener(destination) else { return self.reply(from, Payload::Reset) };
        if self.is_backlog_full(listener) {
            let Some(uplink) = &self.uplink else { return };
            let to = RemoteSocket { host: uplink.host, id: 0, serial: 0 };
            if retries == MAX_CONNECT_RETRIES {
                return self.reply(from, Payload::TimedOut);
            }
            let payload = Payload::Syn { source, destination, window, retries: retries + 1 };
            let segment = Segment { from, to, payload, timeout_ns };
            return uplink.world.borrow_mut().retry(segment, CONNECT_RETRY_NS << retries);
        }
        let accepted = self.insert(destination, Role::Stream);
        let inherited = self.endpoint(listener).options.clone();
        let server = self.endpoint_mut(accepted);
        server.options = inherited;
        server.remote = Some(source);
        server.remote_end = Some(Box::new(Remote::new(from, window)));
        let window = server.receive_bytes;
        self.enqueue(listener, accepted);
        self.transmit(accepted, Payload::SynAck { window });
    }

    // ---- Datagrams -----------------------------------------------------------------------------------------------

    /// Sends a datagram to the other hosts that its destination selects: one, or all for a group.
    pub(super) fn send_remote_datagram(&mut self, id: Id, destination: SocketAddr, packet: &Packet) {
        let Some(uplink) = &self.uplink else { return };
        let mut world = uplink.world.borrow_mut();
        let from = RemoteSocket { host: uplink.host, id, serial: self.endpoint(id).serial };
        let hosts = match world.host_of(destination.ip()) {
            Some(host) => host..host + 1,
            None => 0..world.host_count(),
        };
        for host in hosts.filter(|host| *host != uplink.host) {
            let payload = Payload::Datagram { packet: packet.clone(), destination };
            let to = RemoteSocket { host, id: 0, serial: 0 };
            world.send(Segment { from, to, payload, timeout_ns: u64::MAX }, &mut 0);
        }
    }

    fn deliver_remote_datagram(&mut self, from: RemoteSocket, destination: SocketAddr, packet: &Packet) {
        let receivers = self.receivers(true, destination, packet.source);
        if receivers.is_empty() && self.is_local(destination.ip()) {
            return self.reply(from, Payload::Unreachable(destination));
        }
        self.receive_packet(receivers, packet);
    }
}
