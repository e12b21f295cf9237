//! Provided receive buffers: the kernel takes them from a ring in shared memory.
//!
//! ```text
//!   one mapping:  | ring: `count` entries of 16 bytes | buffer 0 | buffer 1 | ... | buffer count-1 |
//! ```
//!
//! Initially few buffers are active, so that they stay in the CPU cache. More are added when they run out. Invariant:
//! a buffer ID is either in the ring, and the kernel can write to the buffer, or outside the ring, and this process
//! owns it. A completion takes it out of the ring, `recycle` puts it back. The memory is never unmapped.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// Buffer group ID of a ring's only pool.
pub(crate) const BUFFER_GROUP: u16 = 0;
/// Initial number of active buffers.
const INITIAL_BUFFERS: u16 = 32;
const PAGE_BYTES: usize = 4096;

pub(crate) struct Pool {
    ring: *mut BufRingEntry,
    buffers: *mut u8,
    buffer_bytes: u32,
    /// Capacity of the ring, a power of two.
    count: u16,
    /// Number of buffers that were added to the ring: the IDs below it.
    active_buffers: u16,
    tail: u16,
    /// Data in each buffer that this process owns.
    chunks: Box<[Chunk]>,
}

/// Received part of a stream, in the buffer with the same ID.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chunk {
    bytes: u32,
    /// Next chunk of the connection, if any.
    pub(crate) next: u16,
}

impl Pool {
    /// Maps memory for up to `count` buffers and registers the ring: `IORING_REGISTER_PBUF_RING`, Linux 5.19.
    pub(crate) fn new(submitter: &Submitter<'_>, count: u16, buffer_bytes: u32) -> io::Result<Pool> {
        let count = count.clamp(1, 1 << 15).next_power_of_two();
        let buffer_bytes = buffer_bytes.clamp(1, 1 << 30);
        let ring_bytes = (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_BYTES);
        let map_bytes = ring_bytes + usize::from(count) * buffer_bytes as usize;
        // SAFETY: a new anonymous mapping at an address chosen by the kernel overlaps no other memory.
        let map = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), map_bytes, access, kind, -1, 0)
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = map.cast::<BufRingEntry>();
        // SAFETY: `ring` is page-aligned, holds `count` entries, and stays mapped for the life of the process.
        unsafe { submitter.register_buf_ring_with_flags(ring as u64, count, BUFFER_GROUP, 0) }?;
        // SAFETY: the mapping has `map_bytes` bytes, and the buffers follow the first `ring_bytes` of them.
        let buffers = unsafe { map.cast::<u8>().add(ring_bytes) };
        let chunks = vec![Chunk::default(); usize::from(count)].into_boxed_slice();
        let mut pool = Pool { ring, buffers, buffer_bytes, count, active_buffers: 0, tail: 0, chunks };
        pool.add_buffers(INITIAL_BUFFERS);
        Ok(pool)
    }

    /// Returns the number of buffers that were added to the ring. Their IDs are the numbers below it.
    pub(crate) fn active_buffers(&self) -> u16 {
        self.active_buffers
    }

    /// Returns the capacity of the ring, a power of two.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Doubles the number of active buffers, up to the capacity. Called when the kernel found no buffer.
    #[cold]
    pub(crate) fn grow(&mut self) {
        self.add_buffers(self.active_buffers);
    }

    fn add_buffers(&mut self, more: u16) {
        for buffer_id in self.active_buffers..self.active_buffers.saturating_add(more).min(self.count) {
            self.active_buffers = buffer_id + 1;
            self.recycle(buffer_id);
        }
    }

    /// Returns the size of one buffer in bytes.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Records that the kernel took the buffer from the ring and wrote `bytes` bytes to it.
    #[inline]
    pub(crate) fn mark_received(&mut self, buffer_id: u16, bytes: u32) {
        self.chunks[usize::from(buffer_id)] = Chunk { bytes: bytes.min(self.buffer_bytes), next: 0 };
    }

    #[inline]
    pub(crate) fn chunk(&mut self, buffer_id: u16) -> &mut Chunk {
        &mut self.chunks[usize::from(buffer_id)]
    }

    /// Returns the address and length of a chunk for a send. They are valid until the buffer is recycled.
    #[inline]
    pub(crate) fn raw_chunk(&self, buffer_id: u16) -> (*const u8, u32) {
        let bytes = self.chunks[usize::from(buffer_id)].bytes;
        (self.buffer(buffer_id), bytes)
    }

    /// Returns the bytes of a chunk.
    pub(crate) fn bytes(&self, buffer_id: u16) -> &[u8] {
        let (start, bytes) = self.raw_chunk(buffer_id);
        // SAFETY: the ID was bounds-checked. This process owns the buffer (module invariant), so the kernel does not
        // write to it, and `bytes` is at most its size. The mapping contains zeros or received data.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }

    #[inline]
    fn buffer(&self, buffer_id: u16) -> *mut u8 {
        debug_assert!(buffer_id < self.count);
        // SAFETY: IDs are less than `count` (`chunks` is indexed before an ID is used), so the buffer lies within the
        // mapping.
        unsafe { self.buffers.add(usize::from(buffer_id) * self.buffer_bytes as usize) }
    }

    /// Returns a buffer to the ring. The kernel sees it after the next [`publish`](Pool::publish).
    #[inline]
    pub(crate) fn recycle(&mut self, buffer_id: u16) {
        let address = self.buffer(buffer_id) as u64;
        // SAFETY: the index is masked to the ring. The kernel reads only the entries from its head to the published
        // tail. At most `count` buffers exist, so the entry at the private tail is not among them. The fields written
        // here exclude the one that holds the tail.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail & (self.count - 1))) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes);
        entry.set_bid(buffer_id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes all recycled buffers visible to the kernel.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // SAFETY: the tail is an aligned u16 in the first entry, which is never unmapped. After registration only
        // this store writes it; the kernel loads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
