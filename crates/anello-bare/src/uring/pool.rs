//! Receive buffers that the kernel takes from a ring in shared memory.
//!
//! ```text
//!   one mapping:  | ring: `count` entries of 16 bytes | buffer 0 | buffer 1 | ... | buffer count-1 |
//! ```
//!
//! Few buffers are in use at first, so that they stay in the cache, and more are added when they run out.
//! Invariant: a buffer's number is in the ring (the kernel's to write), or out of it (ours), never both; `take`
//! and `recycle` move it. The mapping is never undone.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// The buffer group of a ring's only pool.
pub(crate) const BUFFER_GROUP: u16 = 0;
/// Buffers in use at first.
const INITIAL_BUFFERS: u16 = 32;
const PAGE_BYTES: usize = 4096;

pub(crate) struct Pool {
    ring: *mut BufRingEntry,
    buffers: *mut u8,
    buffer_bytes: u32,
    /// A power of two.
    count: u16,
    /// Buffers that were ever put into the ring: the numbers below it.
    active_buffers: u16,
    tail: u16,
    /// What the kernel wrote into each buffer that is ours.
    chunks: Box<[Chunk]>,
}

/// A received piece of a stream, in the buffer of the same number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chunk {
    bytes: u32,
    /// The connection's next chunk, if it has one.
    pub(crate) next: u16,
}

impl Pool {
    /// Maps memory for up to `count` buffers and registers the ring: `IORING_REGISTER_PBUF_RING`, Linux 5.19.
    pub(crate) fn new(submitter: &Submitter<'_>, count: u16, buffer_bytes: u32) -> io::Result<Pool> {
        let count = count.clamp(1, 1 << 15).next_power_of_two();
        let buffer_bytes = buffer_bytes.clamp(1, 1 << 30);
        let ring_bytes = (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_BYTES);
        let map_bytes = ring_bytes + usize::from(count) * buffer_bytes as usize;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of ours.
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
        // SAFETY: the mapping has `map_bytes`, of which the buffers are what follows `ring_bytes`.
        let buffers = unsafe { map.cast::<u8>().add(ring_bytes) };
        let chunks = vec![Chunk::default(); usize::from(count)].into_boxed_slice();
        let mut pool = Pool { ring, buffers, buffer_bytes, count, active_buffers: 0, tail: 0, chunks };
        pool.add_buffers(INITIAL_BUFFERS);
        Ok(pool)
    }

    /// Buffers that were ever in the ring: their numbers are those below.
    pub(crate) fn active_buffers(&self) -> u16 {
        self.active_buffers
    }

    /// Entries of the ring, a power of two.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Doubles the buffers in use, up to the limit; to be called when the kernel found none.
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

    /// Bytes of one buffer.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// Takes note that the kernel wrote `bytes` into a buffer and gave it to us.
    #[inline]
    pub(crate) fn mark_received(&mut self, buffer_id: u16, bytes: u32) {
        self.chunks[usize::from(buffer_id)] = Chunk { bytes: bytes.min(self.buffer_bytes), next: 0 };
    }

    #[inline]
    pub(crate) fn chunk(&mut self, buffer_id: u16) -> &mut Chunk {
        &mut self.chunks[usize::from(buffer_id)]
    }

    /// Where the kernel finds a chunk that it is to send: valid until the buffer is recycled.
    #[inline]
    pub(crate) fn raw_chunk(&self, buffer_id: u16) -> (*const u8, u32) {
        let bytes = self.chunks[usize::from(buffer_id)].bytes;
        (self.buffer(buffer_id), bytes)
    }

    /// The bytes of a chunk.
    pub(crate) fn bytes(&self, buffer_id: u16) -> &[u8] {
        let (start, bytes) = self.raw_chunk(buffer_id);
        // SAFETY: the number was bounds-checked, the buffer is ours (module invariant), so the kernel does not
        // write to it, and `bytes` is no more than its size; the mapping is zeroed memory or what was received.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }

    #[inline]
    fn buffer(&self, buffer_id: u16) -> *mut u8 {
        debug_assert!(buffer_id < self.count);
        // SAFETY: numbers are below `count` (`chunks` is indexed before a number is taken), so the buffer lies
        // within the mapping.
        unsafe { self.buffers.add(usize::from(buffer_id) * self.buffer_bytes as usize) }
    }

    /// Gives a buffer back; the kernel sees it after the next [`publish`](Pool::publish).
    #[inline]
    pub(crate) fn recycle(&mut self, buffer_id: u16) {
        let address = self.buffer(buffer_id) as u64;
        // SAFETY: the index is masked to the ring. The kernel reads entries from its head to the published tail
        // only; at most `count` buffers exist, so the entry at our tail is not among them, and the fields written
        // here leave out the one that holds the tail.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail & (self.count - 1))) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes);
        entry.set_bid(buffer_id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel all buffers that were given back.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // SAFETY: the tail is an aligned u16 within the first entry, mapped for good, and after registration only
        // this store writes it; the kernel loads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
