//! Waker slots, for the cancellation of waits.

use super::Reactor;
use crate::driver::{Key, ReadinessKernel, Side, WakerSlot};

impl<K: ReadinessKernel> Reactor<K> {
    pub fn waker_slot(&mut self, key: Key, side: Side) -> Option<&mut WakerSlot> {
        match side {
            Side::Receive => self.streams.get_mut(key).map(|stream| &mut stream.receive_waker),
            Side::Send => self.streams.get_mut(key).map(|stream| &mut stream.sends.waker),
            Side::Accept => self.listeners.get_mut(key).map(|listener| &mut listener.waker),
            Side::Source(direction) => {
                self.sources.get_mut(key).map(|source| source.readiness.waker_slot(direction))
            }
        }
    }
}
