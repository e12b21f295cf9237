//! The table of the UDP sockets of an event loop.

use std::io;

use super::event::UdpId;
use crate::driver::{DatagramSocket, Key, gone};

/// The UDP sockets of a loop, by the indices of their keys.
#[derive(Debug, Default)]
pub(super) struct UdpSockets {
    slots: Vec<Option<(Key, DatagramSocket)>>,
}

impl UdpSockets {
    pub fn insert(&mut self, key: Key, socket: DatagramSocket) {
        let index = key.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some((key, socket));
    }

    #[inline]
    pub fn get(&self, id: UdpId) -> io::Result<&DatagramSocket> {
        match self.slots.get(id.key.index as usize) {
            Some(Some((key, socket))) if *key == id.key => Ok(socket),
            _ => Err(gone()),
        }
    }

    pub fn remove(&mut self, id: UdpId) -> Option<DatagramSocket> {
        self.get(id).ok()?;
        self.slots[id.key.index as usize].take().map(|(_, socket)| socket)
    }
}
