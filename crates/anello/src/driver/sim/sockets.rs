//! Non-blocking system calls on the simulated network, with fault injection.

use std::cell::{RefCell, RefMut};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use rustix::process::PidfdFlags;
use socket2::SockAddr;

use super::network::{Id, Network, unspecified};
use super::remote_state::Uplink;
use super::segment::Segment;
use super::socket::{SimDetached, SimSocket};
use super::unix_sockets;
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sockets::detached::{DetachedSocket, no_descriptors};
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::sockets::options::{PeerCredentials, SocketOption};
use crate::driver::sockets::{End, Family, FileRange, Sockets, messages};
use crate::driver::wait::clock::Clock;

/// Maximum number of bytes that one call sends from a file.
const FILE_CHUNK_BYTES: usize = 16 * 1024;

/// A handle to the network. Clones share one network.
#[derive(Clone, Debug)]
pub(crate) struct SimNetwork {
    network: Rc<RefCell<Network>>,
}

impl SimNetwork {
    pub fn new(options: &SimOptions) -> Self {
        Self { network: Rc::new(RefCell::new(Network::new(options))) }
    }

    /// Creates the network of one of several hosts.
    pub fn for_host(options: &SimOptions, uplink: Uplink) -> Self {
        Self { network: Rc::new(RefCell::new(Network::for_host(options, uplink))) }
    }

    /// Fills a buffer with random bytes.
    pub fn fill_random(&self, bytes: &mut [u8]) {
        self.lock().random.fill(bytes);
    }

    /// Delivers a packet from another host.
    pub fn deliver(&self, segment: Segment) {
        self.lock().deliver_segment(segment);
    }

    /// Returns the access to the network between hosts, if this is one of several hosts.
    pub fn uplink(&self) -> Option<Uplink> {
        self.lock().uplink.clone()
    }

    /// Borrows the state. The borrow must end before any socket is dropped.
    pub(super) fn lock(&self) -> RefMut<'_, Network> {
        self.network.borrow_mut()
    }

    /// Creates the descriptor of an endpoint that has none yet.
    pub(super) fn socket(&self, id: Id) -> SimSocket {
        SimSocket::new(id, Rc::clone(&self.network))
    }

    fn send_message(
        &mut self,
        socket: &SimSocket,
        data: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let (id, mut network) = (socket.id(), self.lock());
        let faults = network.faults.clone();
        if network.fault(faults.resets) {
            network.reset(id);
        }
        if network.endpoint(id).is_quiescent() && network.fault(faults.refused_sends) {
            network.request_space_event(id);
            network.report_later(id);
            return would_block();
        }
        let possible = to_io_result(network.send_space(id))?.min(data.len());
        let count = network.cut(possible, faults.short_sends);
        if descriptors.is_empty() {
            network.put(id, &data[..count]);
        } else {
            network.put_with_descriptors(id, &data[..count], descriptors);
        }
        if count < data.len() {
            network.request_space_event(id);
        }
        if count < possible {
            network.report_later(id);
        }
        Ok(count)
    }
}

pub(super) fn to_io_result<T>(result: Result<T, i32>) -> io::Result<T> {
    result.map_err(io::Error::from_raw_os_error)
}

pub(super) fn would_block<T>() -> io::Result<T> {
    to_io_result(Err(libc::EAGAIN))
}

impl Sockets for SimNetwork {
    type Socket = SimSocket;

    fn open(&mut self, is_ipv6: bool) -> io::Result<SimSocket> {
        let id = self.lock().open_stream(unspecified(is_ipv6));
        Ok(self.socket(id))
    }

    fn bind(&mut self, socket: &SimSocket, address: SocketAddr) -> io::Result<()> {
        to_io_result(self.lock().bind(socket.id(), address))
    }

    fn start_listening(&mut self, socket: &SimSocket, backlog: u32) -> io::Result<()> {
        to_io_result(self.lock().listen(socket.id(), backlog))
    }

    fn open_stream(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<SimSocket> {
        let id = self.lock().open_stream(source.unwrap_or_else(|| unspecified(peer.is_ipv6())));
        Ok(self.socket(id))
    }

    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<SimSocket> {
        let id = to_io_result(self.lock().listen_unix(address, backlog))?;
        Ok(self.socket(id))
    }

    fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<SimSocket> {
        let id = to_io_result(self.lock().connect_unix(peer))?;
        Ok(self.socket(id))
    }

    fn pair_unix(&mut self) -> io::Result<(SimSocket, SimSocket)> {
        let (one, other) = self.lock().pair_unix();
        Ok((self.socket(one), self.socket(other)))
    }

    fn accept(&mut self, listener: &SimSocket) -> io::Result<SimSocket> {
        let mut network = self.lock();
        let faults = network.faults.clone();
        if network.fault(faults.spurious_readiness) {
            network.report_later(listener.id());
            return would_block();
        }
        if network.fault(faults.descriptor_exhaustion) {
            return to_io_result(Err(libc::EMFILE));
        }
        let id = to_io_result(network.accept(listener.id()))?;
        drop(network);
        Ok(self.socket(id))
    }

    fn reject_pending(&mut self, listener: &SimSocket) -> usize {
        let mut network = self.lock();
        std::iter::from_fn(|| network.accept(listener.id()).ok().map(|id| network.close(id))).count()
    }

    fn connect(&mut self, socket: &SimSocket, peer: SocketAddr) -> io::Result<()> {
        let mut network = self.lock();
        to_io_result(network.connect(socket.id(), peer))?;
        network.connected(socket.id()).map_or_else(would_block, to_io_result)
    }

    fn connect_result(&mut self, socket: &SimSocket) -> io::Result<()> {
        to_io_result(self.lock().connected(socket.id()).unwrap_or(Ok(())))
    }

    fn receive(&mut self, socket: &SimSocket, buffer: &mut [u8]) -> io::Result<usize> {
        // The received descriptors are closed.
        self.receive_with_fds(socket, buffer, &mut ReceivedFds::default())
    }

    fn receive_with_fds(
        &mut self,
        socket: &SimSocket,
        buffer: &mut [u8],
        descriptors: &mut ReceivedFds,
    ) -> io::Result<usize> {
        let (id, mut network) = (socket.id(), self.lock());
        let faults = network.faults.clone();
        if network.fault(faults.resets) {
            network.reset(id);
        }
        if network.endpoint(id).is_quiescent() && network.fault(faults.spurious_readiness) {
            network.report_later(id);
            return would_block();
        }
        let possible = to_io_result(network.available(id))?.min(buffer.len());
        let count = network.cut(possible, faults.short_receives);
        if count < possible {
            network.report_later(id);
        }
        buffer[..count].copy_from_slice(network.peek(id, count));
        descriptors.fds.append(&mut network.consume(id, count));
        Ok(count)
    }

    fn peek(&mut self, socket: &SimSocket, buffer: &mut [u8]) -> io::Result<usize> {
        let (id, mut network) = (socket.id(), self.lock());
        let faults = network.faults.clone();
        if network.endpoint(id).is_quiescent() && network.fault(faults.spurious_readiness) {
            network.report_later(id);
            return would_block();
        }
        let possible = to_io_result(network.available(id))?.min(buffer.len());
        let count = network.cut(possible, faults.short_receives);
        buffer[..count].copy_from_slice(network.peek(id, count));
        Ok(count)
    }

    fn send_with_fds(
        &mut self,
        socket: &SimSocket,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        messages::check_fd_count(descriptors.len())?;
        let descriptors =
            descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        self.send_message(socket, data, descriptors)
    }

    /// Returns a descriptor of this process, because all peers are in it.
    fn peer_pidfd(&self, _: &SimSocket) -> io::Result<OwnedFd> {
        Ok(rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?)
    }

    fn has_bytes(&self, socket: &SimSocket) -> bool {
        self.lock().endpoint(socket.id()).has_bytes()
    }

    fn is_hung_up(&self, socket: &SimSocket) -> bool {
        self.lock().mask(socket.id()) & i32::from(libc::POLLHUP) != 0
    }

    fn is_peer_closed(&self, socket: &SimSocket, family: Family) -> bool {
        self.lock().is_peer_closed(socket.id(), family)
    }

    fn is_broken(&self, socket: &SimSocket, family: Family) -> bool {
        match family {
            Family::Internet => self.lock().endpoint(socket.id()).broken,
            Family::Unix => self.is_hung_up(socket),
        }
    }

    fn send(&mut self, socket: &SimSocket, data: &[u8]) -> io::Result<usize> {
        self.send_message(socket, data, Vec::new())
    }

    fn prepare_send_file(&mut self, _: &SimSocket) -> io::Result<()> {
        Ok(())
    }

    /// Reads from a real file: only the network is simulated.
    fn send_file(
        &mut self,
        socket: &SimSocket,
        _: Family,
        FileRange { file, offset, length }: FileRange<'_>,
    ) -> io::Result<usize> {
        let mut bytes = vec![0; length.min(FILE_CHUNK_BYTES)];
        let count = rustix::io::pread(file, &mut bytes, offset)?;
        if count == 0 { Ok(0) } else { self.send(socket, &bytes[..count]) }
    }

    fn send_more(&mut self, socket: &SimSocket, data: &[u8]) -> io::Result<usize> {
        self.send(socket, data)
    }

    fn send_slices(&mut self, socket: &SimSocket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut data = Vec::new();
        slices.iter().for_each(|slice| data.extend_from_slice(slice));
        self.send(socket, &data)
    }

    fn shutdown(&self, socket: &SimSocket, mode: Shutdown) -> io::Result<()> {
        to_io_result(self.lock().shutdown(socket.id(), mode))
    }

    fn set_option(&self, socket: &SimSocket, option: SocketOption, value: i32) -> io::Result<()> {
        let mut network = self.lock();
        let endpoint = network.endpoint_mut(socket.id());
        match option {
            SocketOption::Linger => endpoint.linger_zero = value == 0,
            SocketOption::ReceiveBufferBytes => endpoint.receive_bytes = value.max(0) as usize,
            SocketOption::SendBufferBytes => endpoint.send_bytes = value.max(0) as usize,
            _ => {}
        }
        to_io_result(endpoint.options.set(endpoint.local, option, value))
    }

    fn option(&self, socket: &SimSocket, option: SocketOption) -> io::Result<i32> {
        let network = self.lock();
        let endpoint = network.endpoint(socket.id());
        let size = |bytes: usize| Ok(bytes.try_into().unwrap_or(i32::MAX));
        match option {
            SocketOption::ReceiveBufferBytes => size(endpoint.receive_bytes),
            SocketOption::SendBufferBytes => size(endpoint.send_bytes),
            _ => to_io_result(endpoint.options.get(endpoint.local, option)),
        }
    }

    fn bind_device(&self, socket: &SimSocket, device: Option<&[u8]>) -> io::Result<()> {
        to_io_result(self.lock().endpoint_mut(socket.id()).options.bind_device(device))
    }

    fn device(&self, socket: &SimSocket) -> io::Result<Option<Vec<u8>>> {
        Ok(self.lock().endpoint(socket.id()).options.device())
    }

    fn take_error(&self, socket: &SimSocket) -> io::Result<Option<io::Error>> {
        Ok(self.lock().endpoint_mut(socket.id()).error.take().map(io::Error::from_raw_os_error))
    }

    fn address(&self, socket: &SimSocket, end: End) -> io::Result<SockAddr> {
        let network = self.lock();
        let endpoint = network.endpoint(socket.id());
        if let Some(unix) = &endpoint.unix
            && (matches!(end, End::Local) || endpoint.is_stream())
        {
            return unix.address(end);
        }
        let address = match end {
            End::Local => Some(endpoint.local),
            End::Peer => endpoint.remote.filter(|_| endpoint.is_stream()),
        };
        to_io_result(address.ok_or(libc::ENOTCONN)).map(SockAddr::from)
    }

    fn peer_credentials(&self, _socket: &SimSocket) -> io::Result<PeerCredentials> {
        Ok(unix_sockets::credentials())
    }

    fn duplicate(&self, _socket: &SimSocket) -> io::Result<OwnedFd> {
        Err(no_descriptors())
    }

    fn descriptor<'a>(&self, _socket: &'a SimSocket) -> io::Result<BorrowedFd<'a>> {
        Err(no_descriptors())
    }

    fn raw_fd(&self, _socket: &SimSocket) -> RawFd {
        -1
    }

    fn import(&mut self, socket: DetachedSocket) -> io::Result<(SimSocket, Family)> {
        let socket = socket.get::<SimDetached>().ok_or_else(no_descriptors)?.socket()?;
        if !Rc::ptr_eq(socket.network(), &self.network) {
            let text = "cannot use the socket of another simulated host, or one from before a restart";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let is_unix = self.lock().endpoint(socket.id()).unix.is_some();
        Ok((socket, if is_unix { Family::Unix } else { Family::Internet }))
    }

    fn import_source(&mut self, _descriptor: Rc<OwnedFd>) -> io::Result<Rc<SimSocket>> {
        Err(no_descriptors())
    }

    fn is_priority_ready(&self, socket: &SimSocket) -> bool {
        self.lock().mask(socket.id()) & i32::from(libc::POLLPRI) != 0
    }

    fn export(&mut self, socket: SimSocket) -> io::Result<DetachedSocket> {
        Ok(SimDetached::new(socket).into())
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(Rc::clone(&self.lock().clock))
    }
}
