//! Waker slots, for the cancellation of waits.

use super::Reactor;
use crate::driver::kernel::ReadinessKernel;
use crate::driver::memory::key::Key;
use crate::driver::source::interest::Side;
use crate::driver::wake::queue::WakerSlot;

impl<K: ReadinessKernel> Reactor<K> {
    /// Returns the waker slot of one side of an object that has not been released.
    pub fn waker_slot(&mut self, key: Key, side: Side) -> Option<&mut WakerSlot> {
        let stream = self.streams.get_mut(key).filter(|stream| !stream.released);
        match side {
            Side::Receive => stream.map(|stream| &mut stream.receive_waker),
            Side::Send => stream.map(|stream| &mut stream.sends.waker),
            Side::Accept => self.listeners.get_mut(key).map(|listener| &mut listener.waker),
            Side::Source(direction) => {
                self.sources.get_mut(key).map(|source| source.readiness.waker_slot(direction))
            }
        }
    }
}
