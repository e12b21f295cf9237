//! Bytes of simulated connections: the buffers, and the end of each direction.

use std::net::Shutdown;
use std::os::fd::OwnedFd;

use super::network::{Id, Network, Role};

impl Network {
    /// Returns the number of bytes that one call can receive, or 0 at EOF.
    pub fn available(&mut self, id: Id) -> Result<usize, i32> {
        let endpoint = self.endpoint_mut(id);
        match endpoint.inbox.len() {
            0 if endpoint.received_eof => Ok(0),
            0 => match endpoint.error.take() {
                Some(error) => Err(error),
                None if endpoint.broken || endpoint.read_shut => Ok(0),
                None if endpoint.is_stream() => Err(libc::EAGAIN),
                None => Err(libc::ENOTCONN),
            },
            count => Ok(endpoint.unix.as_ref().map_or(count, |unix| unix.limit(count))),
        }
    }

    /// Returns the first `count` received bytes, without consuming them. `count` must not exceed
    /// [`available`](Self::available).
    pub fn peek(&mut self, id: Id, count: usize) -> &[u8] {
        &self.endpoint_mut(id).inbox.make_contiguous()[..count]
    }

    /// Removes received bytes, which frees space for the peer. Returns the descriptors that were sent with them.
    pub fn consume(&mut self, id: Id, count: usize) -> Vec<OwnedFd> {
        let endpoint = self.endpoint_mut(id);
        endpoint.inbox.drain(..count);
        let descriptors = endpoint.unix.as_mut().map(|unix| unix.consume(count)).unwrap_or_default();
        if self.endpoint(id).remote_end.is_some() {
            self.consume_remote(id, count);
        }
        if let Some(peer) = self.endpoint(id).peer
            && self.is_writable(peer)
        {
            let peer = self.endpoint_mut(peer);
            peer.events += u64::from(std::mem::take(&mut peer.wants_space));
        }
        descriptors
    }

    /// Returns the number of bytes that can be sent. If the peer has closed the connection, the number is unlimited:
    /// the bytes are lost and the connection is reset, as on a real network.
    pub fn send_space(&mut self, id: Id) -> Result<usize, i32> {
        let free_bytes = self.free_bytes(id);
        let endpoint = self.endpoint_mut(id);
        // Sends on a Unix socket never take the error.
        if endpoint.unix.is_none()
            && let Some(error) = endpoint.error.take()
        {
            return Err(error);
        }
        match endpoint.role {
            Role::Connecting { .. } => Err(libc::EAGAIN),
            Role::Stream if !endpoint.broken && !endpoint.write_shut => {
                endpoint.wants_space |= free_bytes == 0;
                if free_bytes == 0 { Err(libc::EAGAIN) } else { Ok(free_bytes) }
            }
            _ => Err(libc::EPIPE),
        }
    }

    /// Sends bytes. Their number must not exceed [`send_space`](Self::send_space).
    pub fn put(&mut self, id: Id, data: &[u8]) {
        if self.endpoint(id).remote_end.is_some() {
            return self.put_remote(id, data);
        }
        let Some(peer) = self.endpoint(id).peer else { return self.hang_up(id, true) };
        let peer = self.endpoint_mut(peer);
        peer.inbox.extend(data);
        peer.events += 1;
        if let Some(unix) = &mut peer.unix {
            unix.add(data.len(), peer.events);
        }
    }

    /// Sets an error that the next call returns, as for an ICMP error.
    #[cfg(test)]
    pub fn set_error(&mut self, id: Id, error: i32) {
        let endpoint = self.endpoint_mut(id);
        endpoint.error = Some(error);
        endpoint.events += 1;
    }

    /// Requests an event when the buffer has free space again.
    pub fn request_space_event(&mut self, id: Id) {
        self.endpoint_mut(id).wants_space = true;
    }

    fn capacity(&self, id: Id) -> usize {
        let endpoint = self.endpoint(id);
        let peer_bytes = match (&endpoint.remote_end, endpoint.peer) {
            (Some(remote), _) => remote.window,
            (None, Some(peer)) => self.endpoint(peer).receive_bytes,
            (None, None) => 0,
        };
        (endpoint.send_bytes + peer_bytes).max(1)
    }

    pub(super) fn free_bytes(&self, id: Id) -> usize {
        let endpoint = self.endpoint(id);
        let unread_bytes = match (&endpoint.remote_end, endpoint.peer) {
            (Some(remote), _) => remote.unread_bytes,
            (None, Some(peer)) => self.endpoint(peer).inbox.len(),
            (None, None) => return usize::MAX,
        };
        self.capacity(id).saturating_sub(unread_bytes)
    }

    /// Returns whether a third of the buffer is free, which is when a poll reports the socket as writable.
    pub(super) fn is_writable(&self, id: Id) -> bool {
        let free = self.free_bytes(id);
        free > 0 && free >= self.capacity(id) / 3
    }

    pub fn shutdown(&mut self, id: Id, mode: Shutdown) -> Result<(), i32> {
        let endpoint = self.endpoint_mut(id);
        if !endpoint.is_stream() || (endpoint.broken && endpoint.unix.is_none()) {
            return Err(libc::ENOTCONN);
        }
        endpoint.events += 1;
        endpoint.read_shut |= mode != Shutdown::Write;
        // The peer of a Unix socket learns that its bytes are no longer received.
        let informs_peer = endpoint.unix.is_some() && mode != Shutdown::Write;
        if mode != Shutdown::Read && !std::mem::replace(&mut endpoint.write_shut, true) {
            if endpoint.remote_end.is_some() {
                self.shut_down_remote(id);
            } else if let Some(peer) = endpoint.peer {
                let peer = self.endpoint_mut(peer);
                peer.received_eof = true;
                peer.events += 1;
            }
        }
        if informs_peer && let Some(peer) = self.endpoint(id).peer {
            let peer = self.endpoint_mut(peer);
            peer.write_shut = true;
            peer.events += 1;
        }
        Ok(())
    }
}
