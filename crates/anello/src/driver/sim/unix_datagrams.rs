//! Unix datagram sockets of the simulated network: reliable datagrams in bounded queues.
//!
//! Names work as for Unix streams (see [`unix_sockets`](super::unix_sockets)), and all peers are in this process.

use std::os::fd::OwnedFd;

use super::network::{Id, Network, Role};
use super::unix_state::{UnixDatagrams, UnixPacket};
use crate::driver::sockets::messages::ReceivedMessage;

/// Number of datagrams that a queue holds, as on Linux with the default of `net.unix.max_dgram_qlen`.
const MAX_QUEUED_DATAGRAMS: usize = 11;

/// Maximum size of a datagram, as on Linux with the default of `net.core.wmem_default`.
const MAX_PAYLOAD_BYTES: usize = 212_960;

impl Network {
    pub fn open_unix_datagram(&mut self) -> Id {
        self.insert_unix(&[], &[], Role::UnixDatagrams(Box::default()))
    }

    /// Creates two sockets that are connected to each other.
    pub fn pair_unix_datagrams(&mut self) -> (Id, Id) {
        let (one, other) = (self.open_unix_datagram(), self.open_unix_datagram());
        for (id, peer) in [(one, other), (other, one)] {
            let serial = self.endpoint(peer).serial;
            let state = self.unix_datagrams_mut(id);
            (state.peer, state.is_pair) = (Some((peer, serial)), true);
        }
        (one, other)
    }

    pub fn unix_datagrams(&self, id: Id) -> &UnixDatagrams {
        match &self.endpoint(id).role {
            Role::UnixDatagrams(state) => state,
            _ => unreachable!("the endpoint is a Unix datagram socket"),
        }
    }

    pub fn unix_datagrams_mut(&mut self, id: Id) -> &mut UnixDatagrams {
        match &mut self.endpoint_mut(id).role {
            Role::UnixDatagrams(state) => state,
            _ => unreachable!("the endpoint is a Unix datagram socket"),
        }
    }

    pub fn bind_unix_datagram(&mut self, id: Id, name: &[u8]) -> Result<(), i32> {
        if self.endpoint(id).unix.as_ref().is_some_and(|unix| !unix.local.is_empty()) {
            return Err(libc::EINVAL);
        }
        self.claim_unix_name(id, name.to_vec())?;
        if let Some(unix) = &mut self.endpoint_mut(id).unix {
            unix.local = name.to_vec();
        }
        Ok(())
    }

    pub fn connect_unix_datagram(&mut self, id: Id, name: &[u8]) -> Result<(), i32> {
        let peer = self.find_unix_datagram(name)?;
        self.check_unix_sender(id, peer)?;
        let serial = self.endpoint(peer).serial;
        self.unix_datagrams_mut(id).peer = Some((peer, serial));
        let endpoint = self.endpoint_mut(id);
        endpoint.events += 1;
        if let Some(unix) = &mut endpoint.unix {
            unix.remote = name.to_vec();
        }
        Ok(())
    }

    fn find_unix_datagram(&self, name: &[u8]) -> Result<Id, i32> {
        let id = self.find_unix(name)?;
        if matches!(self.endpoint(id).role, Role::UnixDatagrams(_)) { Ok(id) } else { Err(libc::EPROTOTYPE) }
    }

    /// Returns an error if the receiver is connected to another socket.
    fn check_unix_sender(&self, sender: Id, receiver: Id) -> Result<(), i32> {
        let sender = (sender, self.endpoint(sender).serial);
        let is_allowed = self.unix_datagrams(receiver).peer.is_none_or(|peer| peer == sender);
        if is_allowed { Ok(()) } else { Err(libc::EPERM) }
    }

    /// Returns whether a send to the peer would return anything other than `EAGAIN`.
    pub fn accepts_unix_datagrams(&self, sender: &UnixDatagrams) -> bool {
        let peer = sender.peer.filter(|(peer, serial)| self.is_open(*peer, *serial));
        peer.is_none_or(|(peer, _)| {
            self.endpoint(peer).read_shut || self.unix_datagrams(peer).queue.len() < MAX_QUEUED_DATAGRAMS
        })
    }

    /// Sends a datagram to a name, or to the peer. Returns the number of bytes.
    pub fn send_unix_datagram(
        &mut self,
        id: Id,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
        to: Option<&[u8]>,
    ) -> Result<usize, i32> {
        let peer = self.unix_datagrams(id).peer;
        if to.is_none() && peer.is_none() {
            return Err(libc::ENOTCONN);
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(libc::EMSGSIZE);
        }
        if self.endpoint(id).write_shut {
            return Err(libc::EPIPE);
        }
        let receiver = match (to, peer) {
            (Some(name), _) => self.find_unix_datagram(name)?,
            (None, Some((peer, serial))) if self.is_open(peer, serial) => peer,
            (None, _) => {
                self.unix_datagrams_mut(id).peer = None;
                return Err(libc::ECONNREFUSED);
            }
        };
        self.check_unix_sender(id, receiver)?;
        if self.endpoint(receiver).read_shut {
            return Err(libc::EPIPE);
        }
        if self.unix_datagrams(receiver).queue.len() >= MAX_QUEUED_DATAGRAMS {
            return Err(libc::EAGAIN);
        }
        let source = self.endpoint(id).unix.as_ref().map(|unix| unix.local.clone()).unwrap_or_default();
        let packet = UnixPacket { payload: payload.to_vec(), source, descriptors };
        self.unix_datagrams_mut(receiver).queue.push_back(packet);
        self.endpoint_mut(receiver).events += 1;
        Ok(payload.len())
    }

    /// Copies the next datagram into `buffer`. Removes it from the queue unless `peeks` is true, and then also returns
    /// its descriptors.
    pub fn receive_unix_datagram(
        &mut self,
        id: Id,
        buffer: &mut [u8],
        peeks: bool,
    ) -> Result<(ReceivedMessage, Vec<OwnedFd>), i32> {
        let packet = self.unix_datagrams_mut(id).queue.front_mut().ok_or(libc::EAGAIN)?;
        let bytes = packet.payload.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&packet.payload[..bytes]);
        let is_truncated = bytes < packet.payload.len();
        let message = ReceivedMessage {
            bytes,
            source: packet.source.clone(),
            is_truncated,
            ..ReceivedMessage::default()
        };
        if peeks {
            return Ok((message, Vec::new()));
        }
        let descriptors = std::mem::take(&mut packet.descriptors);
        self.unix_datagrams_mut(id).queue.pop_front();
        self.wake_unix_senders(id, self.endpoint(id).serial);
        Ok((message, descriptors))
    }

    /// Reports an event to the sockets that are connected to this one: its queue has room, or it has been closed.
    pub(super) fn wake_unix_senders(&mut self, id: Id, serial: u64) {
        for endpoint in self.endpoints_mut() {
            if let Role::UnixDatagrams(state) = &endpoint.role
                && state.peer == Some((id, serial))
            {
                endpoint.events += 1;
            }
        }
    }
}
