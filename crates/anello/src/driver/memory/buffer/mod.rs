//! Receive memory: the buffer ring that the kernel fills, the buffer pool for direct reads, and [`Chunk`], a lease on
//! one buffer.
//!
//! ```text
//!  BufferRing                                   LifoPool
//!  entries: [bid 3][bid 0][bid 7]...  <- tail     4 KiB: [..][..]      last in, first out:
//!  memory:  |bid 0|bid 1|...|bid 63| (grows) |   16 KiB: [..]          the next read uses memory
//!                                         128, 256 KiB: [..]          that is still in the CPU cache
//! ```
//!
//! # Invariants
//!
//! - A ring buffer is either *provided* (its ID is between the kernel's head and the driver's tail), *leased* (one
//!   `Chunk` owns it) or *withheld* (the ring has shrunk, and only the driver can use it).
//! - Only the memory of withheld buffers is returned to the operating system. It then reads as zeros, so it stays
//!   initialised.
//! - Memory is freed when the last `Chunk` and the driver are dropped, and the driver is dropped only after every
//!   operation has ended. Bytes that were converted from a chunk also keep the memory of the ring alive.

mod lifo_pool;
mod shared;
#[cfg(test)]
mod tests;

use std::alloc::{Layout, dealloc};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use rustix::mm::{Advice, madvise};

pub(crate) use self::lifo_pool::CLASS_BYTES;
use self::lifo_pool::{LifoPool, allocate, layout, try_allocate};
use self::shared::{RingMemory, SharedChunk, SharedMemory};

/// Set in the ID of a chunk from the pool; the low bits are then its class.
const POOL_FLAG: u32 = 1 << 31;

/// Bounds on the size of one ring buffer and of all ring buffers. Option values outside these bounds are clamped.
const MIN_BUFFER_BYTES: usize = 64;
const MAX_BUFFER_BYTES: usize = 1 << 20;
const MAX_RING_BYTES: usize = 1 << 30;

/// Gap between two buffers in the ring.
const STAGGER_BYTES: usize = 128;

const CACHE_LINE_BYTES: usize = 64;

/// Received bytes, in memory leased from the runtime. Dropping a chunk returns its memory.
///
/// [`TcpStream::recv`](crate::net::TcpStream::recv) returns chunks. A chunk dereferences to the received bytes, which
/// the kernel has written directly to this memory, and can be passed to
/// [`TcpStream::send`](crate::net::TcpStream::send) of any stream without a copy. It stays on the thread of its runtime;
/// [`Bytes::from`] converts it, also without a copy, into bytes that can leave the thread.
///
/// A proxy passes chunks from one stream to another:
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
///
/// let ((mut client, mut near), (mut far, mut server)) = (UnixStream::pair()?, UnixStream::pair()?);
/// client.write_all(b"ciao").await?;
/// client.shutdown().await?;
/// while let Some(chunk) = near.recv().await? {
///     far.send(chunk).await?;
/// }
/// far.shutdown().await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
///
/// A chunk occupies a whole receive buffer ([`receive_buffer_bytes`](crate::DriverOptions::receive_buffer_bytes)),
/// however few bytes it contains. Copy data that is kept for a long time.
pub struct Chunk {
    base: NonNull<u8>,
    start: u32,
    end: u32,
    id: u32,
    pools: Rc<Pools>,
}

impl Chunk {
    /// Removes the first `count` bytes from the chunk.
    ///
    /// # Panics
    /// Panics if `count` is greater than the length.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"headbody").await?;
    /// let mut chunk = other.recv().await?.expect("bytes");
    /// chunk.advance(4);
    /// assert_eq!(&*chunk, b"body");
    /// # }
    /// ```
    #[track_caller]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "cannot advance a chunk of {} bytes by {count}", self.len());
        self.start += count as u32;
    }

    /// Shortens the chunk to `length` bytes. Does nothing if it already has at most `length` bytes.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"headbody").await?;
    /// let mut chunk = other.recv().await?.expect("bytes");
    /// chunk.truncate(4);
    /// assert_eq!(&*chunk, b"head");
    /// # }
    /// ```
    pub fn truncate(&mut self, length: usize) {
        if length < self.len() {
            self.end = self.start + length as u32;
        }
    }

    /// Returns `true` if this is a pool buffer of a class above the smallest. The pool keeps only a few of these, fewer
    /// than the number of tasks that one turn of the event loop can run.
    #[inline]
    pub(crate) fn is_large_pool_buffer(&self) -> bool {
        // Excludes ring buffers, whose IDs do not have the flag, and class 0, for which the pool keeps enough buffers.
        self.id > POOL_FLAG
    }

    /// Returns the size of the leased buffer in bytes, which is at least the length of the data.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UnixStream;
    /// # let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all(b"ciao").await?;
    /// let chunk = other.recv().await?.expect("bytes");
    /// // The chunk occupies a whole buffer.
    /// assert!(chunk.len() == 4 && chunk.capacity() >= 4096);
    /// # }
    /// ```
    #[inline]
    pub fn capacity(&self) -> usize {
        if self.is_pooled() {
            CLASS_BYTES[(self.id & !POOL_FLAG) as usize]
        } else {
            self.pools.ring.as_ref().map_or(0, |ring| ring.buffer_bytes)
        }
    }

    /// Returns `true` if this is a pool buffer, whose spare capacity belongs to this lease alone.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        self.id & POOL_FLAG != 0
    }

    /// Returns the unused part of the buffer, for a read to fill.
    #[inline]
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        let (from, to) = (self.end as usize, self.capacity());
        // SAFETY: `base` points to `capacity()` initialised bytes (zeroed when allocated) that this lease alone owns;
        // `end` never exceeds the capacity.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(from), to - from) }
    }

    /// Marks the first `count` bytes of [`spare`](Self::spare) as filled with data.
    #[inline]
    pub(crate) fn mark_filled(&mut self, count: usize) {
        debug_assert!(
            self.end as usize + count <= self.capacity(),
            "invariant 1: {count} bytes were received into a buffer without room for them"
        );
        self.end += count as u32;
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let length = (self.end - self.start) as usize;
        // SAFETY: `start..end` lies within the buffer that this lease alone owns, and its bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.start as usize), length) }
    }
}

impl AsRef<[u8]> for Chunk {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Chunk").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        if self.is_pooled() {
            self.pools.lifo.release((self.id & !POOL_FLAG) as usize, self.base);
        } else if let Some(ring) = &self.pools.ring {
            ring.provide(self.id as u16, self.base);
        }
    }
}

/// Stores a chunk in a variable that is `None`, which avoids moving the chunk through nested return values.
#[inline]
pub(crate) fn store_chunk(received: &mut Option<Chunk>, chunk: Chunk) {
    debug_assert!(
        received.is_none(),
        "invariant 5: a chunk is stored over another one, whose buffer is lost"
    );
    // The old value is `None`, but the compiler cannot know that. Forgetting the value avoids the drop code.
    std::mem::forget(received.replace(chunk));
}

/// Copies as many bytes as fit into `buffer` and returns their number.
pub(crate) fn copy_prefix(bytes: &[u8], buffer: &mut [u8]) -> usize {
    let count = bytes.len().min(buffer.len());
    buffer[..count].copy_from_slice(&bytes[..count]);
    count
}

/// A driver's receive memory.
#[derive(Debug)]
pub(crate) struct Pools {
    pub ring: Option<BufferRing>,
    lifo: LifoPool,
}

impl Pools {
    pub fn new(ring: Option<BufferRing>) -> Rc<Self> {
        Rc::new(Self { ring, lifo: LifoPool::default() })
    }

    /// Creates a lease on a ring buffer that the kernel has filled with `length` bytes. Returns `None` if the kernel
    /// reported an ID that was never provided, or a length greater than the buffer size.
    #[inline]
    pub fn filled(self: &Rc<Self>, id: u16, length: usize) -> Option<Chunk> {
        let ring = self.ring.as_ref()?;
        if u32::from(id) >= ring.provided.get() || length > ring.buffer_bytes {
            return None;
        }
        #[cfg(debug_assertions)]
        ring.set_state(id, BufferState::Provided, BufferState::Leased);
        ring.filled.set(ring.filled.get().wrapping_add(1));
        Some(Chunk {
            base: ring.address(id),
            start: 0,
            end: length as u32,
            id: u32::from(id),
            pools: Rc::clone(self),
        })
    }

    /// Returns the number of chunks, each of which holds a reference. `owners` is the number of other references.
    pub fn leased(this: &Rc<Self>, owners: usize) -> u64 {
        let references = Rc::strong_count(this);
        debug_assert!(
            references >= owners,
            "invariant 5: {owners} owners of a pool with {references} references"
        );
        (references - owners) as u64
    }

    /// Returns an empty chunk with a buffer of the given class.
    #[inline]
    pub fn lease(self: &Rc<Self>, class: usize) -> Chunk {
        let base = self.lifo.take(class);
        Chunk { base, start: 0, end: 0, id: POOL_FLAG | class as u32, pools: Rc::clone(self) }
    }

    /// Copies bytes to pool buffers.
    pub fn copy(self: &Rc<Self>, bytes: &[u8]) -> impl Iterator<Item = Chunk> {
        bytes.chunks(CLASS_BYTES[CLASS_BYTES.len() - 1]).map(|part| {
            let mut chunk = self.lease(Self::class_for(part.len()));
            chunk.spare()[..part.len()].copy_from_slice(part);
            chunk.mark_filled(part.len());
            chunk
        })
    }

    /// Returns the smallest class with room for `length` bytes, or else the largest class.
    pub fn class_for(length: usize) -> usize {
        CLASS_BYTES.iter().position(|bytes| *bytes >= length).unwrap_or(CLASS_BYTES.len() - 1)
    }
}

/// A ring of buffers: the kernel consumes buffers at the head and the driver provides buffers at the tail
/// (`IORING_REGISTER_PBUF_RING`, Linux 5.19). The simulated kernel reads the same memory.
#[derive(Debug)]
pub(crate) struct BufferRing {
    entries: NonNull<Entry>,
    mask: u16,
    tail: Cell<u16>,
    /// The allocation that contains the buffers. `memory` is its first cache line boundary.
    allocation: Arc<RingMemory>,
    memory: NonNull<u8>,
    pub buffer_bytes: usize,
    /// Distance between the starts of two buffers. It is slightly greater than the buffer size, so that the first cache
    /// lines of the buffers, which are all that small messages use, do not all map to the same cache sets.
    stride_bytes: usize,
    initial: u32,
    /// Number of buffers that have been provided at least once. The limit is the number of entries.
    provided: Cell<u32>,
    /// Number of buffers that the kernel has filled so far, modulo 65,536.
    filled: Cell<u16>,
    /// Buffers that were taken out of the ring, the highest ID first.
    withheld: RefCell<Vec<u16>>,
    /// States of the buffers that have been provided at least once.
    #[cfg(debug_assertions)]
    states: RefCell<Vec<BufferState>>,
}

/// State of a ring buffer, for assertions.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BufferState {
    /// The kernel can fill it, or has filled it and the driver has not read the completion.
    Provided,
    /// Owned by a [`Chunk`] or by [`Bytes`], or released by `Bytes` and not yet reclaimed.
    Leased,
    Withheld,
}

/// Use of a receive ring at one time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RingUsage {
    /// Number of buffers that the kernel has filled so far, modulo 65,536.
    pub filled: u16,
    /// Number of buffers that hold received bytes. They can have been converted to [`Bytes`].
    pub in_use: u32,
}

/// `struct io_uring_buf`. The ring's tail is stored in the last field of the first entry.
#[repr(C)]
struct Entry {
    address: u64,
    length: u32,
    id: u16,
    tail: AtomicU16,
}

impl BufferRing {
    /// Creates a ring that grows from `initial` to at most `limit` buffers. Both are rounded up to a power of two, at
    /// most 32,768. If too little address space is available, the limit is halved until an allocation succeeds. Returns
    /// `None` if there is not even space for a single buffer.
    pub fn new(initial: u32, limit: u32, buffer_bytes: usize) -> Option<Self> {
        let buffer_bytes = buffer_bytes.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
        let max_buffers = (MAX_RING_BYTES / (buffer_bytes + STAGGER_BYTES)) as u32;
        let limit = limit.clamp(1, max_buffers.min(1 << 15)).next_power_of_two().min(1 << 15);
        let stride_bytes = buffer_bytes + STAGGER_BYTES;
        let mut limits = std::iter::successors(Some(limit), |limit| (*limit > 1).then_some(limit / 2));
        let allocate_for = |limit| Some((limit, try_allocate(memory_layout(stride_bytes, limit))?));
        let (limit, base) = limits.find_map(allocate_for)?;
        let padding_bytes = base.align_offset(CACHE_LINE_BYTES).min(CACHE_LINE_BYTES);
        let initial = initial.clamp(1, limit).next_power_of_two();
        let ring = Self {
            entries: allocate(layout(size_of::<Entry>() * limit as usize)).cast(),
            allocation: Arc::new(RingMemory::new(base, memory_layout(stride_bytes, limit))),
            // SAFETY: the allocation is one cache line longer than the buffers.
            memory: unsafe { base.add(padding_bytes) },
            mask: (limit - 1) as u16,
            tail: Cell::new(0),
            buffer_bytes,
            stride_bytes,
            initial,
            provided: Cell::new(0),
            filled: Cell::new(0),
            withheld: RefCell::default(),
            #[cfg(debug_assertions)]
            states: RefCell::default(),
        };
        ring.provide_up_to(initial);
        Some(ring)
    }

    pub fn entries_address(&self) -> u64 {
        self.entries.as_ptr() as u64
    }

    pub fn limit(&self) -> u32 {
        u32::from(self.mask) + 1
    }

    /// Doubles the number of buffers. Returns `false` if the limit has been reached.
    pub fn grow(&self) -> bool {
        let previous = self.len();
        self.provide_up_to((previous * 2).min(self.limit()));
        self.len() > previous
    }

    /// Returns the number of buffers that are provided or leased.
    pub fn len(&self) -> u32 {
        self.provided.get() - self.withheld.borrow().len() as u32
    }

    pub fn has_grown(&self) -> bool {
        self.len() > self.initial
    }

    /// Returns the use of the ring, without completions that the driver has not read.
    pub fn usage(&self) -> RingUsage {
        let filled = self.filled.get();
        let provided = u32::from(self.tail.get().wrapping_sub(filled));
        debug_assert!(
            provided <= self.len(),
            "invariant 5: {provided} of {} buffers are provided",
            self.len()
        );
        // Not below zero even if the kernel has reported a buffer twice, which only the assertions detect.
        RingUsage { filled, in_use: self.len().saturating_sub(provided) }
    }

    /// Takes buffers out of the ring until `length`, or the initial number, are left, and returns their memory to the
    /// operating system. Does nothing if this is more than half of the buffers. Buffers in use stay. Returns `false` if the
    /// head of the ring is unknown.
    ///
    /// `head` returns the kernel's head. If the kernel is taking a buffer, it waits until the kernel has done so.
    pub fn shrink(&self, length: u32, head: impl Fn() -> Option<u16>) -> bool {
        let Some(first) = head() else { return false };
        let tail = self.tail.get();
        let provided = u32::from(tail.wrapping_sub(first));
        let (current, length) = (self.len(), length.max(self.initial));
        // The head comes from the kernel. One that the tail has not reached would mean more buffers than there are.
        if provided > current || length > current / 2 {
            return true;
        }
        // More buffers can be in use than are to be left.
        let kept = length.saturating_sub(current - provided).max(1);
        if kept >= provided {
            return true;
        }
        let shortened = first.wrapping_add(kept as u16);
        self.set_tail(shortened);
        // The kernel takes buffers during system calls of this thread and, rarely, on threads of its own. Once the head is
        // known again, these read the new tail, so the kernel takes no buffer behind it.
        if head().is_none_or(|head| u32::from(head.wrapping_sub(first)) > kept) {
            self.set_tail(tail);
            return true;
        }
        let mut withheld = self.withheld.borrow_mut();
        withheld.extend((kept..provided).map(|offset| {
            let index = first.wrapping_add(offset as u16) & self.mask;
            // SAFETY: the masked index is within the entries, and entries before the old tail are initialised.
            unsafe { (&raw const (*self.entries.add(usize::from(index)).as_ptr()).id).read() }
        }));
        withheld.sort_unstable_by(|id, other| other.cmp(id));
        debug_assert!(
            withheld.windows(2).all(|pair| pair[0] > pair[1]),
            "invariant 5: a buffer is withheld twice"
        );
        #[cfg(debug_assertions)]
        for id in withheld.iter().filter(|id| self.state(**id) != Some(BufferState::Withheld)) {
            self.set_state(*id, BufferState::Provided, BufferState::Withheld);
        }
        for ids in withheld.chunk_by(|id, next| *id == next + 1) {
            // SAFETY: the buffers are withheld and adjacent, so nothing else uses their memory.
            unsafe { discard(self.address(ids[ids.len() - 1]), ids.len() * self.stride_bytes) }
        }
        true
    }

    /// Provides the buffers of dropped [`Bytes`] to the kernel again. Returns `false` if there are none.
    pub fn reclaim(&self) -> bool {
        let returned = std::mem::take(&mut *self.allocation.lock_returned());
        returned.iter().for_each(|id| self.provide(*id, self.address(*id)));
        !returned.is_empty()
    }

    fn provide_up_to(&self, count: u32) {
        while self.len() < count {
            let withheld = self.withheld.borrow_mut().pop();
            let id = withheld.unwrap_or_else(|| self.provided.replace(self.provided.get() + 1) as u16);
            self.provide(id, self.address(id));
        }
    }

    fn address(&self, id: u16) -> NonNull<u8> {
        // SAFETY: provided IDs are below the limit, and the memory has room for `limit` strides.
        unsafe { self.memory.add(usize::from(id) * self.stride_bytes) }
    }

    /// Provides the buffer `id`, whose address is `base`, to the kernel, for the first time or again.
    #[inline]
    fn provide(&self, id: u16, base: NonNull<u8>) {
        debug_assert_eq!(
            base,
            self.address(id),
            "invariant 5: a buffer is provided at the address of another one"
        );
        #[cfg(debug_assertions)]
        self.set_provided(id);
        let tail = self.tail.get();
        // SAFETY: the masked index is within the entries. There are never more buffers than entries, so the kernel has
        // consumed the entry at the tail. Address, length and ID are written field by field because the tail shares the
        // first entry.
        unsafe {
            let entry = self.entries.add(usize::from(tail & self.mask)).as_ptr();
            (&raw mut (*entry).address).write(base.as_ptr() as u64);
            (&raw mut (*entry).length).write(self.buffer_bytes as u32);
            (&raw mut (*entry).id).write(id);
        }
        self.set_tail(tail.wrapping_add(1));
    }

    #[cfg(debug_assertions)]
    fn state(&self, id: u16) -> Option<BufferState> {
        self.states.borrow().get(usize::from(id)).copied()
    }

    #[cfg(debug_assertions)]
    fn set_state(&self, id: u16, from: BufferState, to: BufferState) {
        let previous =
            self.states.borrow_mut().get_mut(usize::from(id)).map(|state| std::mem::replace(state, to));
        assert_eq!(previous, Some(from), "invariant 5: buffer {id} becomes {to:?}");
    }

    /// Records that a buffer is provided for the first time, after a lease, or after it was withheld.
    #[cfg(debug_assertions)]
    fn set_provided(&self, id: u16) {
        match self.state(id) {
            None => {
                assert_eq!(
                    self.states.borrow().len(),
                    usize::from(id),
                    "invariant 5: a buffer ID is skipped"
                );
                self.states.borrow_mut().push(BufferState::Provided);
            }
            Some(BufferState::Provided) => panic!("invariant 5: buffer {id} is provided twice"),
            Some(previous) => self.set_state(id, previous, BufferState::Provided),
        }
    }

    /// Checks that each buffer is provided, leased or withheld, and that the entries between the kernel's head, if it is
    /// known, and the tail of the ring are distinct.
    #[cfg(debug_assertions)]
    pub fn check(&self, head: Option<u16>) {
        let states = self.states.borrow();
        let count = |state| states.iter().filter(|other| **other == state).count();
        assert_eq!(states.len(), self.provided.get() as usize, "invariant 5: a buffer has no state");
        assert!(states.len() <= self.limit() as usize, "invariant 5: the ring has more buffers than entries");
        let provided = self.tail.get().wrapping_sub(self.filled.get());
        assert_eq!(
            count(BufferState::Provided),
            usize::from(provided),
            "invariant 5: buffers between the last one that was filled and the tail of the ring"
        );
        assert_eq!(
            count(BufferState::Withheld),
            self.withheld.borrow().len(),
            "invariant 5: a withheld buffer is not listed"
        );
        let Some(head) = head else { return };
        let mut is_listed = vec![false; states.len()];
        for offset in 0..self.tail.get().wrapping_sub(head) {
            let index = head.wrapping_add(offset) & self.mask;
            // SAFETY: the masked index is within the entries, and all entries were zeroed when they were allocated.
            let id = unsafe { (&raw const (*self.entries.add(usize::from(index)).as_ptr()).id).read() };
            assert_eq!(
                states.get(usize::from(id)),
                Some(&BufferState::Provided),
                "invariant 5: buffer {id} is in the ring"
            );
            assert!(
                !std::mem::replace(&mut is_listed[usize::from(id)], true),
                "invariant 5: buffer {id} is in the ring twice"
            );
        }
    }

    #[inline]
    fn set_tail(&self, tail: u16) {
        self.tail.set(tail);
        self.shared_tail().store(tail, Ordering::Release);
    }

    fn shared_tail(&self) -> &AtomicU16 {
        // SAFETY: the first entry exists, and its last field is only accessed atomically.
        unsafe { &(*self.entries.as_ptr()).tail }
    }

    /// Consumes a buffer in the same way as the kernel: takes the buffer at `head`, if any, and fills it from `data`.
    /// Returns its ID and the number of bytes copied. Used by the simulated kernel.
    pub fn consume(&self, head: &mut u16, data: &[u8]) -> Option<(u16, usize)> {
        if *head == self.shared_tail().load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the masked index is within the entries, as in `provide`. Entries between head and tail are
        // initialised, and the buffers that they refer to are not leased.
        unsafe {
            let entry = self.entries.add(usize::from(*head & self.mask)).as_ptr();
            let id = (&raw const (*entry).id).read();
            let count = data.len().min(self.buffer_bytes);
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.address(id).as_ptr(), count);
            *head = head.wrapping_add(1);
            Some((id, count))
        }
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout. No chunk is left, because each chunk owns the `Pools` that own
        // this ring. The ring may still be registered if a handle keeps the io_uring descriptor open, but the kernel
        // uses it only for an armed receive, and none is armed. If a stream is still in the driver's table, the driver
        // leaks itself and everything that it owns, including its `Pools` (see `Drop for Driver`). The probe during
        // setup waits for its receive to end.
        unsafe {
            dealloc(self.entries.as_ptr().cast(), layout(size_of::<Entry>() * self.limit() as usize));
        }
    }
}

/// Converts a chunk without copying its bytes.
///
/// The result can be sent to other threads and outlive the runtime. A buffer of the receive ring returns to the ring when
/// the last clone is dropped; until then, the ring has one buffer less, and its memory is not freed. The bytes occupy a
/// whole receive buffer, so copy small messages that are kept for a long time
/// ([`Bytes::copy_from_slice`]).
///
/// ```
/// # anello::example! {
/// use anello::net::UnixStream;
/// use bytes::Bytes;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// one.write_all(b"ciao").await?;
/// let bytes = Bytes::from(other.recv().await?.expect("bytes"));
/// let text = std::thread::spawn(move || String::from_utf8_lossy(&bytes).into_owned());
/// assert_eq!(text.join().unwrap(), "ciao");
/// # }
/// ```
impl From<Chunk> for Bytes {
    fn from(chunk: Chunk) -> Self {
        if chunk.is_empty() {
            return Self::new();
        }
        let length = chunk.len();
        let memory = match &chunk.pools.ring {
            _ if chunk.is_pooled() => {
                let class = (chunk.id & !POOL_FLAG) as usize;
                SharedMemory::Pool { base: chunk.base, layout: layout(CLASS_BYTES[class]) }
            }
            Some(ring) => {
                ring.reclaim();
                SharedMemory::Ring { ring: Arc::clone(&ring.allocation), id: chunk.id as u16 }
            }
            None => return Self::copy_from_slice(&chunk),
        };
        // The new lease replaces the chunk, which must not return its buffer.
        let chunk = ManuallyDrop::new(chunk);
        // SAFETY: the chunk is not used or dropped afterwards.
        drop(unsafe { std::ptr::read(&raw const chunk.pools) });
        // SAFETY: `start` lies within the buffer.
        let data = unsafe { chunk.base.add(chunk.start as usize) };
        Self::from_owner(SharedChunk { data, length, memory })
    }
}

/// Returns the layout for all buffers of a ring. The caller aligns the address itself, because allocators touch the
/// pages of zeroed memory if more than their default alignment is requested.
fn memory_layout(stride_bytes: usize, limit: u32) -> Layout {
    Layout::from_size_align(stride_bytes * limit as usize + CACHE_LINE_BYTES, 16)
        .expect("buffer size is below isize::MAX")
}

/// Returns the whole pages of memory to the operating system. The next access finds zeros, or the old content if the
/// pages cannot be returned, for example because they are locked.
///
/// # Safety
/// The memory must be part of an allocation that nothing else uses.
unsafe fn discard(base: NonNull<u8>, bytes: usize) {
    let page_bytes = rustix::param::page_size();
    let padding_bytes = base.align_offset(page_bytes);
    let whole_bytes = bytes.saturating_sub(padding_bytes) / page_bytes * page_bytes;
    if whole_bytes > 0 && !cfg!(miri) {
        // SAFETY: the range lies within the memory, which only the caller uses.
        unsafe { madvise(base.add(padding_bytes).as_ptr().cast(), whole_bytes, Advice::LinuxDontNeed) }.ok();
    }
}
