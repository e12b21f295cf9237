//! Provided receive buffers: the kernel takes them from a ring in shared memory.
//!
//! ```text
//!   one mapping:  | ring: `count` entries of 16 bytes | buffer 0 | buffer 1 | ... | buffer count-1 |
//! ```
//!
//! Initially, few buffers are active, so that they stay in the CPU cache. Invariant: either a buffer ID is in the ring
//! and the kernel can write to the buffer, or it is outside the ring and this process owns the buffer. A completion
//! takes the ID out of the ring; `recycle` puts it back. The memory is never unmapped.
//!
//! The configurable server also uses:
//! - *Own buffers*, which belong to one connection and are never in the ring. Their IDs start at the capacity of the
//!   ring.
//! - The *follower* of each buffer: the buffer that was recycled next. The completion of a bundle contains only the ID
//!   of its first buffer and the total number of bytes; the others are the followers. A follower is overwritten only
//!   after its buffer has been recycled again, and thus after the completion of the bundle has been handled.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

pub(super) const BUFFER_GROUP: u16 = 0;
const INITIAL_BUFFERS: u16 = 32;
/// Number of own buffers per connection: one is filled while the other is being sent.
const OWN_BUFFERS: usize = 2;
const PAGE_BYTES: usize = 4096;

pub(super) struct Pool<const CONFIGURABLE: bool> {
    ring: *mut BufRingEntry,
    buffers: *mut u8,
    pub(super) buffer_bytes: u32,
    /// Capacity of the ring, a power of two.
    count: u16,
    /// Buffers with a lower ID have been added to the ring.
    active_buffers: u16,
    tail: u16,
    /// Data in each buffer that this process owns.
    chunks: Vec<Chunk>,
    own_buffers: Vec<OwnBuffer>,
    /// For each buffer, the buffer that was recycled after it. Empty unless the server is configurable.
    pub(super) followers: Vec<u16>,
    last_recycled: u16,
}

struct OwnBuffer {
    /// Never grows or shrinks.
    memory: Vec<u8>,
    is_in_use: bool,
}

/// Received data of a connection, in the buffer whose ID is the index of the chunk.
#[derive(Clone, Copy, Default)]
pub(super) struct Chunk {
    bytes: u32,
    /// Next chunk of the connection, if any.
    pub(super) next: u32,
}

impl<const CONFIGURABLE: bool> Pool<CONFIGURABLE> {
    /// Maps memory for up to `count` buffers and registers the ring: `IORING_REGISTER_PBUF_RING`, Linux 5.19.
    pub(super) fn new(submitter: &Submitter<'_>, count: u16, buffer_bytes: u32) -> io::Result<Self> {
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
        let mut pool = Pool {
            ring,
            buffers,
            buffer_bytes,
            count,
            active_buffers: 0,
            tail: 0,
            chunks: vec![Chunk::default(); usize::from(count)],
            own_buffers: Vec::new(),
            followers: if CONFIGURABLE { vec![0; usize::from(count)] } else { Vec::new() },
            last_recycled: 0,
        };
        pool.add_buffers(INITIAL_BUFFERS);
        Ok(pool)
    }

    /// Doubles the number of active buffers. Returns `false` if the capacity is reached.
    #[cold]
    pub(super) fn grow(&mut self) -> bool {
        let has_grown = self.active_buffers < self.count;
        self.add_buffers(self.active_buffers);
        has_grown
    }

    fn add_buffers(&mut self, more: u16) {
        for buffer_id in self.active_buffers..self.active_buffers.saturating_add(more).min(self.count) {
            self.active_buffers = buffer_id + 1;
            self.recycle(buffer_id.into());
        }
    }

    /// Adds [`OWN_BUFFERS`] buffers for one connection and returns the ID of the first.
    pub(super) fn add_own_buffers(&mut self) -> u32 {
        let first = self.chunks.len() as u32;
        for _ in 0..OWN_BUFFERS {
            self.chunks.push(Chunk::default());
            let memory = vec![0; self.buffer_bytes as usize];
            self.own_buffers.push(OwnBuffer { memory, is_in_use: false });
        }
        first
    }

    /// Takes an unused connection buffer; `first` is the ID of the connection's first buffer. The returned ID, address
    /// and length are valid until the buffer is recycled.
    pub(super) fn take_own_buffer(&mut self, first: u32) -> Option<(u32, *mut u8, u32)> {
        let start = first as usize - usize::from(self.count);
        let buffers = &mut self.own_buffers[start..start + OWN_BUFFERS];
        let position = buffers.iter().position(|buffer| !buffer.is_in_use)?;
        buffers[position].is_in_use = true;
        let memory = &mut buffers[position].memory;
        Some((first + position as u32, memory.as_mut_ptr(), memory.len() as u32))
    }

    /// Records that the kernel took the buffer from the ring and wrote `bytes` bytes to it.
    #[inline]
    pub(super) fn mark_received(&mut self, buffer_id: u32, bytes: u32) {
        self.chunks[buffer_id as usize] = Chunk { bytes: bytes.min(self.buffer_bytes), next: 0 };
    }

    #[inline]
    pub(super) fn chunk(&mut self, buffer_id: u32) -> &mut Chunk {
        &mut self.chunks[buffer_id as usize]
    }

    /// Returns the address and length of a chunk for a send. They are valid until the buffer is recycled.
    #[inline]
    pub(super) fn raw_chunk(&self, buffer_id: u32) -> (*const u8, u32) {
        let bytes = self.chunks[buffer_id as usize].bytes;
        match self.own_index(buffer_id) {
            Some(index) => (self.own_buffers[index].memory.as_ptr(), bytes),
            None => (self.ring_buffer(buffer_id), bytes),
        }
    }

    pub(super) fn bytes(&self, buffer_id: u32) -> &[u8] {
        let (start, bytes) = self.raw_chunk(buffer_id);
        // SAFETY: the ID was bounds-checked. This process owns the buffer (module invariant), so the kernel does not
        // write to it, and `bytes` is at most its size. The memory contains zeros or received data.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }

    /// Returns the index of a connection buffer, or `None` for a ring buffer.
    #[inline]
    fn own_index(&self, buffer_id: u32) -> Option<usize> {
        if CONFIGURABLE { (buffer_id as usize).checked_sub(self.count.into()) } else { None }
    }

    #[inline]
    fn ring_buffer(&self, buffer_id: u32) -> *mut u8 {
        debug_assert!(buffer_id < self.count.into());
        // SAFETY: IDs of the ring are less than `count` (`chunks` is indexed before an ID is used), so the buffer lies
        // within the mapping.
        unsafe { self.buffers.add(buffer_id as usize * self.buffer_bytes as usize) }
    }

    /// Returns a buffer to the ring, or marks a connection buffer as unused. The kernel sees a ring buffer after the
    /// next [`publish`](Pool::publish).
    #[inline]
    pub(super) fn recycle(&mut self, buffer_id: u32) {
        if let Some(index) = self.own_index(buffer_id) {
            self.own_buffers[index].is_in_use = false;
            return;
        }
        let address = self.ring_buffer(buffer_id) as u64;
        // SAFETY: the index is masked to the ring. The kernel reads only the entries from its head to the published
        // tail. At most `count` buffers exist, so the entry at the private tail is not one of these entries. The fields
        // written here exclude the one that holds the tail.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail & (self.count - 1))) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes);
        entry.set_bid(buffer_id as u16);
        self.tail = self.tail.wrapping_add(1);
        if CONFIGURABLE {
            self.followers[usize::from(self.last_recycled)] = buffer_id as u16;
            self.last_recycled = buffer_id as u16;
        }
    }

    /// Makes all recycled buffers visible to the kernel.
    #[inline]
    pub(super) fn publish(&mut self) {
        // SAFETY: the tail is an aligned u16 in the first entry, which is never unmapped. After registration, it is
        // written only by this store; the kernel loads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
