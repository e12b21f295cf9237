//! Unix stream sockets of the simulated network: their addresses, connections and passed descriptors.
//!
//! An address is only a name: no file is created, and the name is free again when the listener is closed. Connecting
//! completes within the call. The descriptors in messages are real.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

use super::network::{Id, Network, Role, unspecified};
use super::unix_state::UnixState;
use crate::driver::sockets::options::PeerCredentials;

/// Returns a path, or a zero byte and an abstract name.
pub(super) fn name(address: &UnixAddress) -> Result<Vec<u8>, i32> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => Ok(path.as_os_str().as_bytes().to_vec()),
        (None, Some(name)) => Ok([b"\0", name].concat()),
        (None, None) => Err(libc::EINVAL),
    }
}

/// Returns the credentials of every peer: all peers are in this process.
pub(super) fn credentials() -> PeerCredentials {
    PeerCredentials {
        pid: Some(std::process::id()),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

impl Network {
    pub(super) fn insert_unix(&mut self, local: &[u8], remote: &[u8], role: Role) -> Id {
        let id = self.insert(unspecified(false), role);
        self.endpoint_mut(id).unix = Some(Box::new(UnixState::new(local, remote)));
        id
    }

    fn connect_endpoints(&mut self, one: Id, other: Id) {
        self.endpoint_mut(one).peer = Some(other);
        self.endpoint_mut(other).peer = Some(one);
    }

    pub fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> Result<Id, i32> {
        let name = name(address)?;
        // Like Linux, allow one more connection than requested.
        let role = Role::Listener { backlog: backlog as usize + 1, queue: VecDeque::new() };
        let id = self.insert_unix(&name, &[], role);
        let claimed = self.claim_unix_name(id, name);
        claimed.inspect_err(|_| self.close(id)).map(|()| id)
    }

    pub(super) fn claim_unix_name(&mut self, id: Id, name: Vec<u8>) -> Result<(), i32> {
        if self.unix_names.contains_key(&name) {
            return Err(libc::EADDRINUSE);
        }
        self.unix_names.insert(name, id);
        Ok(())
    }

    /// Returns the socket with a name.
    pub(super) fn find_unix(&self, name: &[u8]) -> Result<Id, i32> {
        let is_abstract = name.starts_with(&[0]);
        let missing = if is_abstract { libc::ECONNREFUSED } else { libc::ENOENT };
        self.unix_names.get(name).copied().ok_or(missing)
    }

    /// Connects, or returns `EAGAIN` if the listener's backlog is full.
    pub fn connect_unix(&mut self, address: &UnixAddress) -> Result<Id, i32> {
        let name = name(address)?;
        if self.fault(self.faults.refused_connects) {
            return Err(libc::ECONNREFUSED);
        }
        let listener = self.find_unix(&name)?;
        match &self.endpoint(listener).role {
            Role::Listener { backlog, queue } if queue.len() >= *backlog => return Err(libc::EAGAIN),
            Role::Listener { .. } => {}
            _ => return Err(libc::EPROTOTYPE),
        }
        let server = self.insert_unix(&name, &[], Role::Stream);
        let client = self.insert_unix(&[], &name, Role::Stream);
        self.connect_endpoints(client, server);
        self.enqueue(listener, server);
        Ok(client)
    }

    /// Creates two endpoints that are connected to each other.
    pub fn pair_unix(&mut self) -> (Id, Id) {
        let [one, other] = [(); 2].map(|()| self.insert_unix(&[], &[], Role::Stream));
        self.connect_endpoints(one, other);
        (one, other)
    }

    /// Sends bytes like [`put`](Network::put), with descriptors. Without bytes, they are closed.
    pub fn put_with_descriptors(&mut self, id: Id, data: &[u8], descriptors: Vec<OwnedFd>) {
        if !data.is_empty()
            && let Some(peer) = self.endpoint(id).peer
            && let Some(unix) = &mut self.endpoint_mut(peer).unix
        {
            unix.attach(descriptors, data.len());
        }
        self.put(id, data);
    }
}
