//! Leases on receive memory that can be dropped on any thread.

use std::alloc::{Layout, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of the buffers of a ring, shared with [`Bytes`] on any thread.
#[derive(Debug)]
pub(super) struct RingMemory {
    base: NonNull<u8>,
    layout: Layout,
    /// Leased buffers whose `Bytes` have been dropped, and which the ring can provide again.
    returned: Mutex<Vec<u16>>,
}

// SAFETY: the fields `base` and `layout` are used only to free the memory, once. The buffers are accessed through leases,
// each of which owns its buffer alone.
unsafe impl Send for RingMemory {}
// SAFETY: as above; the list is protected by a lock.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    pub fn new(base: NonNull<u8>, layout: Layout) -> Self {
        Self { base, layout, returned: Mutex::default() }
    }

    pub fn lock_returned(&self) -> MutexGuard<'_, Vec<u16>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `BufferRing::new` with this layout. Neither the ring nor a lease on a buffer exists any
        // longer, because each owns this object.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A lease that can be dropped on any thread.
pub(super) struct SharedChunk {
    pub data: NonNull<u8>,
    pub length: usize,
    pub memory: SharedMemory,
}

pub(super) enum SharedMemory {
    /// Buffer of a ring, which gets it back.
    Ring { ring: Arc<RingMemory>, id: u16 },
    /// Separate allocation that no longer belongs to the pool.
    Pool { base: NonNull<u8>, layout: Layout },
}

// SAFETY: the lease owns its buffer alone, and the allocator and `RingMemory` can be used on any thread.
unsafe impl Send for SharedChunk {}

impl AsRef<[u8]> for SharedChunk {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `data` points to `length` initialised bytes of the buffer that this lease alone owns. They are never
        // written while it exists.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }
}

impl Drop for SharedChunk {
    fn drop(&mut self) {
        match &self.memory {
            SharedMemory::Ring { ring, id } => ring.lock_returned().push(*id),
            // SAFETY: the buffer was allocated with this layout, and only this lease refers to it.
            SharedMemory::Pool { base, layout } => unsafe { dealloc(base.as_ptr(), *layout) },
        }
    }
}
