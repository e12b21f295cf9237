//! System calls on the simulated network that never wait, with their faults; and the descriptor of such a socket.

use std::cell::{RefCell, RefMut};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use super::super::clock::Clock;
use super::super::sockets::{Family, ListenOptions, PeerCredentials, Sockets, StreamOption};
use super::SimOptions;
use super::network::{Endpoint, Id, Network};

/// Most bytes that are read of a file at once to be sent.
const FILE_PIECE_BYTES: usize = 16 * 1024;

/// The network as the drivers see it; clones share it.
#[derive(Clone, Debug)]
pub(in super::super) struct SimNetwork {
    network: Rc<RefCell<Network>>,
}

/// An open socket. Clones are what the kernel holds while an operation is in flight: the last one closes it.
#[derive(Clone, Debug)]
pub(in super::super) struct SimSocket {
    descriptor: Rc<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    id: Id,
    network: Rc<RefCell<Network>>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Borrowed only when a test has failed in the middle of a call: then nobody looks at the network any more.
        if let Ok(mut network) = self.network.try_borrow_mut() {
            network.close(self.id);
        }
    }
}

impl SimSocket {
    pub(super) fn id(&self) -> Id {
        self.descriptor.id
    }
}

impl SimNetwork {
    pub fn new(options: &SimOptions) -> Self {
        Self { network: Rc::new(RefCell::new(Network::new(options))) }
    }

    /// The state. Not to be held while a socket may be dropped.
    pub(super) fn lock(&self) -> RefMut<'_, Network> {
        self.network.borrow_mut()
    }

    /// Makes a descriptor of an endpoint that has none yet.
    pub(super) fn socket(&self, id: Id) -> SimSocket {
        SimSocket { descriptor: Rc::new(Descriptor { id, network: Rc::clone(&self.network) }) }
    }
}

/// An error of the simulated kernel.
fn failed<T>(result: Result<T, i32>) -> io::Result<T> {
    result.map_err(io::Error::from_raw_os_error)
}

fn would_block<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

fn no_descriptors() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the simulated driver has no descriptors: use the uring or epoll driver to take over or give up sockets",
    )
}

/// Once connected, a Unix stream is to the state machines what a TCP stream is, but for the ways that the kernel does not
/// have for it: to simulate both would try nothing more.
fn no_unix_sockets() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the simulated network has no Unix sockets: use TCP there, or the uring or epoll driver",
    )
}

impl Sockets for SimNetwork {
    type Socket = SimSocket;

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<SimSocket> {
        let listening = self.lock().listen(address, options.backlog, options.reuse_port);
        Ok(self.socket(failed(listening)?))
    }

    fn open_stream(&mut self, _peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<SimSocket> {
        let id = self.lock().open_stream(source);
        Ok(self.socket(id))
    }

    fn listen_unix(&mut self, _address: &UnixAddress, _backlog: u32) -> io::Result<SimSocket> {
        Err(no_unix_sockets())
    }

    fn connect_unix(&mut self, _peer: &UnixAddress) -> io::Result<SimSocket> {
        Err(no_unix_sockets())
    }

    fn accept(&mut self, listener: &SimSocket) -> io::Result<SimSocket> {
        let mut network = self.lock();
        let faults = network.faults.clone();
        if network.fault(faults.spurious_readiness) {
            network.announce_later(listener.id());
            return would_block();
        }
        if network.fault(faults.descriptor_exhaustion) {
            return failed(Err(libc::EMFILE));
        }
        let id = failed(network.accept(listener.id()))?;
        drop(network);
        Ok(self.socket(id))
    }

    fn refuse(&mut self, listener: &SimSocket) -> usize {
        let mut network = self.lock();
        let mut refused = 0;
        while let Ok(id) = network.accept(listener.id()) {
            network.close(id);
            refused += 1;
        }
        refused
    }

    fn connect(&mut self, socket: &SimSocket, peer: SocketAddr) -> io::Result<()> {
        let mut network = self.lock();
        failed(network.connect(socket.id(), peer))?;
        match network.connected(socket.id()) {
            Some(result) => failed(result),
            None => would_block(),
        }
    }

    fn connect_result(&mut self, socket: &SimSocket) -> io::Result<()> {
        failed(self.lock().connected(socket.id()).unwrap_or(Ok(())))
    }

    fn receive(&mut self, socket: &SimSocket, buffer: &mut [u8]) -> io::Result<usize> {
        let (id, mut network) = (socket.id(), self.lock());
        let faults = network.faults.clone();
        if network.fault(faults.resets) {
            network.reset(id);
        }
        let calm = network.endpoint(id).is_some_and(|endpoint| endpoint.is_quiescent());
        if calm && network.fault(faults.spurious_readiness) {
            network.announce_later(id);
            return would_block();
        }
        let possible = failed(network.available(id))?.min(buffer.len());
        let count = network.cut(possible, faults.short_receives);
        if count < possible {
            network.announce_later(id);
        }
        buffer[..count].copy_from_slice(network.peek(id, count));
        network.consume(id, count);
        Ok(count)
    }

    fn has_bytes(&self, socket: &SimSocket) -> bool {
        self.lock().endpoint(socket.id()).is_some_and(Endpoint::has_bytes)
    }

    fn send(&mut self, socket: &SimSocket, data: &[u8]) -> io::Result<usize> {
        let (id, mut network) = (socket.id(), self.lock());
        let faults = network.faults.clone();
        if network.fault(faults.resets) {
            network.reset(id);
        }
        let calm = network.endpoint(id).is_some_and(|endpoint| endpoint.is_quiescent());
        if calm && network.fault(faults.refused_sends) {
            network.want_room(id);
            network.announce_later(id);
            return would_block();
        }
        let possible = failed(network.room(id))?.min(data.len());
        let count = network.cut(possible, faults.short_sends);
        network.put(id, &data[..count]);
        if count < data.len() {
            network.want_room(id);
        }
        if count < possible {
            network.announce_later(id);
        }
        Ok(count)
    }

    fn prepare_send_file(&mut self, _: &SimSocket) -> io::Result<()> {
        Ok(())
    }

    /// The file is one of the operating system's: only the network is simulated.
    fn send_file(
        &mut self,
        socket: &SimSocket,
        _: Family,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        let mut bytes = vec![0; length.min(FILE_PIECE_BYTES)];
        let count = rustix::io::pread(file, &mut bytes, offset)?;
        if count == 0 { Ok(0) } else { self.send(socket, &bytes[..count]) }
    }

    fn send_more(&mut self, socket: &SimSocket, data: &[u8]) -> io::Result<usize> {
        self.send(socket, data)
    }

    fn send_slices(&mut self, socket: &SimSocket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let data: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.send(socket, &data)
    }

    fn shutdown(&self, socket: &SimSocket, mode: Shutdown) -> io::Result<()> {
        failed(self.lock().shutdown(socket.id(), mode))
    }

    fn set_option(&self, socket: &SimSocket, option: StreamOption) -> io::Result<()> {
        let mut network = self.lock();
        let Some(endpoint) = network.endpoint_mut(socket.id()) else { return failed(Err(libc::EBADF)) };
        match option {
            // What these change takes longer, or goes out in other pieces, than is simulated.
            StreamOption::NoDelay(_) | StreamOption::KeepAlive(_) | StreamOption::UrgentInline => {}
            StreamOption::Linger(linger) => endpoint.linger_zero = linger.is_some_and(|time| time.is_zero()),
            StreamOption::ReceiveBufferBytes(bytes) => endpoint.receive_bytes = bytes,
            StreamOption::SendBufferBytes(bytes) => endpoint.send_bytes = bytes,
        }
        Ok(())
    }

    fn local_address(&self, socket: &SimSocket) -> io::Result<SocketAddr> {
        failed(self.lock().endpoint(socket.id()).map(|endpoint| endpoint.local).ok_or(libc::EBADF))
    }

    fn peer_address(&self, socket: &SimSocket) -> io::Result<SocketAddr> {
        let network = self.lock();
        let connected = network.endpoint(socket.id()).filter(|one| one.is_stream() && !one.is_broken());
        failed(connected.and_then(|endpoint| endpoint.remote).ok_or(libc::ENOTCONN))
    }

    fn family(&self, _socket: &SimSocket) -> io::Result<Family> {
        Ok(Family::Internet)
    }

    fn local_unix_address(&self, _socket: &SimSocket) -> io::Result<UnixAddress> {
        Err(no_unix_sockets())
    }

    fn peer_unix_address(&self, _socket: &SimSocket) -> io::Result<UnixAddress> {
        Err(no_unix_sockets())
    }

    fn peer_credentials(&self, _socket: &SimSocket) -> io::Result<PeerCredentials> {
        Err(no_unix_sockets())
    }

    fn import(&mut self, _descriptor: OwnedFd) -> io::Result<SimSocket> {
        Err(no_descriptors())
    }

    fn export(&mut self, _socket: SimSocket) -> io::Result<OwnedFd> {
        Err(no_descriptors())
    }

    fn now_ns(&self) -> u64 {
        self.clock().now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(self.lock().clock.clone())
    }
}
