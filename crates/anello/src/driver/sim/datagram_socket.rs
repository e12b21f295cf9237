//! Non-blocking system calls on simulated datagram sockets, with fault injection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::network::Network;
use super::socket::SimSocket;
use super::sockets::{SimNetwork, to_io_result, would_block};
use crate::driver::datagram::info::{DatagramInfo, OutgoingDatagram};
use crate::driver::datagram::recv_batch::RecvBatch;
use crate::driver::sockets::options::SocketOption;

/// A simulated datagram socket. The driver and the owner share it, as they share the descriptor of a real socket.
#[derive(Clone, Debug)]
pub(crate) struct SimDatagramSocket {
    network: SimNetwork,
    socket: Rc<SimSocket>,
}

impl SimNetwork {
    pub fn open_datagram_socket(&self, is_ipv6: bool) -> SimDatagramSocket {
        let id = self.lock().open_datagram_socket(is_ipv6);
        self.datagram_socket(id)
    }

    /// Creates the handle of a datagram socket that has none yet.
    pub(super) fn datagram_socket(&self, id: u32) -> SimDatagramSocket {
        SimDatagramSocket { network: self.clone(), socket: Rc::new(self.socket(id)) }
    }
}

impl SimDatagramSocket {
    /// Returns the socket for the driver, which reports its readiness.
    pub fn source(&self) -> Rc<SimSocket> {
        Rc::clone(&self.socket)
    }

    pub(super) fn with<T>(&self, action: impl FnOnce(&mut Network, u32) -> Result<T, i32>) -> io::Result<T> {
        to_io_result(action(&mut self.network.lock(), self.socket.id()))
    }

    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        self.with(|network, id| network.bind_datagram_socket(id, address))
    }

    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.with(|network, id| network.connect_datagram_socket(id, peer))
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.with(|network, id| Ok(network.endpoint(id).local))
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.with(|network, id| network.endpoint(id).remote.ok_or(libc::ENOTCONN))
    }

    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.with(|network, id| Ok(network.endpoint_mut(id).error.take().map(io::Error::from_raw_os_error)))
    }

    pub fn set_option(&self, option: SocketOption, value: i32) -> io::Result<()> {
        self.with(|network, id| network.set_datagram_option(id, option, value))
    }

    pub fn option(&self, option: SocketOption) -> io::Result<i32> {
        self.with(|network, id| network.datagram_option(id, option))
    }

    pub fn bind_device(&self, device: Option<&[u8]>) -> io::Result<()> {
        self.with(|network, id| network.endpoint_mut(id).options.bind_device(device))
    }

    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        self.with(|network, id| Ok(network.endpoint(id).options.device()))
    }

    pub fn set_membership(&self, group: IpAddr, is_member: bool) -> io::Result<()> {
        self.with(|network, id| network.set_membership(id, group, is_member))
    }

    /// Fails with `EAGAIN` if the fault occurs, and schedules another readiness report.
    pub(super) fn maybe_refuse(&self, rate: fn(&Network) -> u16) -> io::Result<()> {
        let mut network = self.network.lock();
        let rate = rate(&network);
        if network.fault(rate) {
            network.report_later(self.socket.id());
            return would_block();
        }
        Ok(())
    }

    pub fn recv_message(&self, buffer: &mut [u8], peeks: bool) -> io::Result<DatagramInfo> {
        self.maybe_refuse(|network| network.faults.spurious_readiness)?;
        self.with(|network, id| network.receive_datagram(id, buffer, peeks))
    }

    /// Replaces the datagrams in the batch by as many as have arrived. On error, the batch is empty.
    pub fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<()> {
        batch.clear();
        self.maybe_refuse(|network| network.faults.spurious_readiness)?;
        let (datagram_bytes, max_datagrams) = (batch.datagram_bytes(), batch.max_datagrams());
        let (bytes, infos, _) = batch.parts_mut();
        let mut network = self.network.lock();
        let rate = network.faults.short_receives;
        let count = network.cut(max_datagrams, rate);
        for buffer in bytes.chunks_exact_mut(datagram_bytes).take(count) {
            match network.receive_datagram(self.socket.id(), buffer, false) {
                Ok(info) => infos.push(info),
                Err(error) if infos.is_empty() => return to_io_result(Err(error)),
                Err(libc::EAGAIN) => return Ok(()),
                Err(error) => {
                    // Like recvmmsg(2), report the error at the next call.
                    network.endpoint_mut(self.socket.id()).error = Some(error);
                    return Ok(());
                }
            }
        }
        if count < max_datagrams {
            network.report_later(self.socket.id());
        }
        Ok(())
    }

    pub fn send_message(&self, datagram: &OutgoingDatagram<'_>) -> io::Result<usize> {
        self.maybe_refuse(|network| network.faults.refused_sends)?;
        self.with(|network, id| network.send_datagram(id, datagram))
    }

    /// Returns the number of datagrams that were sent. Returns an error only if the first one could not be sent.
    pub fn send_batch(&self, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
        self.maybe_refuse(|network| network.faults.refused_sends)?;
        let mut network = self.network.lock();
        let rate = network.faults.short_sends;
        let count = network.cut(datagrams.len(), rate);
        for (index, datagram) in datagrams[..count].iter().enumerate() {
            match network.send_datagram(self.socket.id(), datagram) {
                Ok(_) => {}
                Err(error) if index == 0 => return to_io_result(Err(error)),
                Err(_) => return Ok(index),
            }
        }
        Ok(count)
    }
}
