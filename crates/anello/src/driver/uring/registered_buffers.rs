//! The buffer table of a ring (`IORING_REGISTER_BUFFERS2` and `IORING_REGISTER_BUFFERS_UPDATE`).
//!
//! The kernel pins the pages of a registered buffer until the slot is cleared or the ring is closed, even if the
//! process has freed the memory. Without `CAP_IPC_LOCK`, they count towards `RLIMIT_MEMLOCK`.

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::io_uring::{IoringRegisterOp, io_uring_rsrc_update2, iovec};

use super::ring::Ring;
use crate::driver::errors::log::log_event;
use crate::driver::file::operation::Memory;
use crate::driver::file::registration::{Registration, ReleasedSlots};

/// Number of slots. The kernel allows 16384, and allocates 8 bytes for each of them.
const REGISTERED_BUFFERS: u16 = 4096;

#[derive(Debug)]
pub(super) struct RegisteredBuffers {
    released: Arc<ReleasedSlots>,
    free: Vec<u16>,
}

impl RegisteredBuffers {
    /// Registers an empty table (`struct io_uring_rsrc_register`, Linux 5.19).
    pub fn new(ring: &Ring) -> io::Result<Self> {
        const SPARSE: u32 = 1;
        let table: [u32; 8] = [REGISTERED_BUFFERS.into(), SPARSE, 0, 0, 0, 0, 0, 0];
        let bytes = size_of_val(&table) as u32;
        // SAFETY: the argument is one registration of the given size, which the kernel reads only during the call.
        unsafe { ring.register(IoringRegisterOp::RegisterBuffers2, table.as_ptr(), bytes) }?;
        Ok(Self { released: Arc::default(), free: (0..REGISTERED_BUFFERS).rev().collect() })
    }

    /// Registers memory. Returns `ENOBUFS` if all slots are in use.
    pub fn register(&mut self, ring: &Ring, memory: &mut Memory) -> io::Result<()> {
        self.clear_released(ring);
        let slot = *self.free.last().ok_or(Errno::NOBUFS)?;
        let bytes = memory.as_mut_slice();
        update(ring, slot, &[iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }])?;
        self.free.pop();
        debug_assert!(
            memory.registration.is_none(),
            "invariant 20: the slot of a buffer is released while the buffer may be in use"
        );
        memory.registration = Some(Registration::new(&self.released, slot));
        Ok(())
    }

    /// Returns the slot of the memory if it is registered with this ring.
    pub fn slot(&self, memory: &Memory) -> Option<u16> {
        memory.registration.as_ref()?.slot_on(&self.released)
    }

    /// Unpins the pages of buffers that have been dropped.
    pub fn clear_released(&mut self, ring: &Ring) {
        // Each registration holds a reference, which it drops after it has released its slot.
        let registered = Arc::strong_count(&self.released) - 1;
        if registered + self.free.len() == usize::from(REGISTERED_BUFFERS) {
            return;
        }
        let mut released = self.released.take();
        released.sort_unstable();
        debug_assert!(
            released.windows(2).all(|pair| pair[0] != pair[1])
                && released.iter().all(|slot| !self.free.contains(slot)),
            "invariant 20: a slot of the buffer table is released twice"
        );
        for slots in released.chunk_by(|slot, next| slot + 1 == *next) {
            let empty = vec![iovec { iov_base: ptr::null_mut(), iov_len: 0 }; slots.len()];
            if let Err(error) = update(ring, slots[0], &empty) {
                // The slots can still be reused, which replaces the buffers.
                log_event!(DEBUG, %error, "cannot unregister buffers; their memory stays locked");
            }
        }
        self.free.extend(released);
        debug_assert!(
            self.free.len() <= usize::from(REGISTERED_BUFFERS),
            "invariant 20: more slots of the buffer table are free than exist"
        );
    }
}

/// Replaces the buffers in consecutive slots that no operation uses, the first of which is `slot`.
fn update(ring: &Ring, slot: u16, buffers: &[iovec]) -> io::Result<()> {
    let mut update = io_uring_rsrc_update2::default();
    update.offset = slot.into();
    update.data = buffers.as_ptr().cast_mut().cast::<c_void>().into();
    update.nr = buffers.len() as u32;
    let bytes = size_of_val(&update) as u32;
    // SAFETY: the argument is an update with `nr` buffers, which the kernel reads only during the call. Afterwards, the
    // kernel holds references to the pages of the buffers, but accesses them only in operations that refer to the slots.
    // Each of these owns the memory and its registration until it has completed.
    let count = unsafe { ring.register(IoringRegisterOp::RegisterBuffersUpdate, &raw const update, bytes) }?;
    // The kernel stops at the first slot that it cannot update.
    if count == update.nr { Ok(()) } else { Err(Errno::INVAL.into()) }
}

#[cfg(test)]
mod tests {
    use rustix::io_uring::io_uring_params;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn slot_is_valid_on_its_ring_and_reused_after_drop() {
        let open = || {
            let ring = Ring::new(4, io_uring_params::default())?;
            let buffers = RegisteredBuffers::new(&ring)?;
            io::Result::Ok((ring, buffers))
        };
        let (Ok((ring, mut buffers)), Ok((other_ring, mut other))) = (open(), open()) else { return };
        let registered = |ring: &Ring, buffers: &mut RegisteredBuffers| {
            let mut memory = Memory::new(vec![0; 100], 10, 50);
            buffers.register(ring, &mut memory).map(|()| memory)
        };
        let Ok(first) = registered(&ring, &mut buffers) else { return };
        let second = registered(&ring, &mut buffers).expect("register second buffer");
        let foreign = registered(&other_ring, &mut other).expect("register buffer of other ring");
        assert_eq!([&first, &second, &foreign].map(|memory| buffers.slot(memory)), [Some(0), Some(1), None]);
        assert_eq!([&first, &foreign].map(|memory| other.slot(memory)), [None, Some(0)]);
        std::thread::spawn(|| drop(first)).join().expect("drop buffer");
        buffers.clear_released(&ring);
        assert_eq!(buffers.free.len(), usize::from(REGISTERED_BUFFERS) - 1);
        let third = registered(&ring, &mut buffers).expect("register third buffer");
        assert_eq!(buffers.slot(&third), Some(0));
        drop((buffers, ring));
        // The registrations outlive the ring.
        drop((second, third));
    }
}
