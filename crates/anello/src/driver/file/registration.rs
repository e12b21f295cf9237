//! Registrations of memory with a ring. An operation on registered memory takes less CPU time, because the kernel does
//! not look up and pin the pages of the memory each time.
//!
//! # Invariants
//!
//! - A registration belongs to a [`Memory`](super::operation::Memory), which is never reallocated, and an operation in
//!   flight owns its memory. A registration is therefore dropped, and its slot released, only when no operation uses the
//!   slot.
//! - A slot is used only on the ring that registered the memory. Each ring is identified by its list of released slots.

use std::sync::{Arc, Mutex, PoisonError};

/// The slots of a ring whose registrations have been dropped, on any thread.
#[derive(Debug, Default)]
pub(crate) struct ReleasedSlots(Mutex<Vec<u16>>);

impl ReleasedSlots {
    pub fn take(&self) -> Vec<u16> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A slot in the buffer table of a ring. Dropping it releases the slot.
#[derive(Debug)]
pub(crate) struct Registration {
    ring: Arc<ReleasedSlots>,
    slot: u16,
}

impl Registration {
    pub fn new(ring: &Arc<ReleasedSlots>, slot: u16) -> Self {
        Self { ring: Arc::clone(ring), slot }
    }

    /// Returns the slot if it is in the table of this ring.
    pub fn slot_on(&self, ring: &Arc<ReleasedSlots>) -> Option<u16> {
        Arc::ptr_eq(&self.ring, ring).then_some(self.slot)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.ring.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
    }
}
