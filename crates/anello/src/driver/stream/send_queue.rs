//! The send queue of a stream: an ordered, bounded queue of owned buffers that the kernel has not yet taken.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::rc::Rc;

use bytes::{Buf, Bytes};

use crate::driver::errors::catch_panic::catch_and_log_panic;
use crate::driver::memory::buffer::{CLASS_BYTES, Chunk, Pools};
use crate::driver::memory::io_slice_cursor::IoSliceCursor;

/// A buffer to send. The stream owns the buffer until the kernel has taken its bytes. Moving a `SendBuf` does not move
/// its bytes.
///
/// ```
/// # anello::example! {
/// use anello::net::{SendBuf, UnixStream};
/// use bytes::Bytes;
///
/// let (mut one, mut other) = UnixStream::pair()?;
/// for bytes in [SendBuf::from(b"un".to_vec()), Bytes::from_static(b"o, ").into(), "due".into()] {
///     one.send(bytes).await?;
/// }
/// let mut text = [0; 8];
/// other.read_exact(&mut text).await?;
/// assert_eq!(&text, b"uno, due");
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SendBuf {
    /// A received chunk, sent without a copy.
    Chunk(Chunk),
    /// Shared immutable bytes.
    ///
    /// Their owner ([`Bytes::from_owner`]) can be dropped while the driver is in use. Its `Drop` implementation may
    /// read the clock and drop streams, listeners and runtimes, but must not use the runtime in any other way. If it
    /// panics, the panic is caught and logged.
    Bytes(Bytes),
    /// A vector of bytes.
    Vec(Vec<u8>),
}

/// Maximum number of sent vectors that a thread keeps. One turn of the event loop runs at most as many tasks.
const MAX_SPARE_VECTORS: usize = 256;
/// Maximum capacity of a vector that is kept.
const MAX_SPARE_VECTOR_BYTES: usize = CLASS_BYTES[0];

/// The vectors of [`SendBuf::spare_vec`].
struct SpareVectors {
    /// Empty vectors, reused in LIFO order, so that the next message is written to memory that is in the CPU cache.
    free: Vec<Vec<u8>>,
    /// Number of vectors that were returned to a caller and not kept again. No more than these are kept, so that a
    /// program that sends other vectors does not occupy their memory. Together with `free`, at most
    /// `MAX_SPARE_VECTORS`.
    taken: usize,
}

thread_local! {
    static SPARE_VECTORS: RefCell<SpareVectors> =
        const { RefCell::new(SpareVectors { free: Vec::new(), taken: 0 }) };
}

impl SendBuf {
    /// Returns an empty vector for a message. If it can, it reuses the memory of a vector that was sent on this thread:
    /// up to 256 vectors of at most 4 KiB are kept. A program that writes its messages to such vectors neither allocates
    /// nor copies when it sends them.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{SendBuf, UnixStream};
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// let mut message = SendBuf::spare_vec();
    /// message.extend_from_slice(b"ciao");
    /// one.send(message).await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"ciao"[..]));
    /// # }
    /// ```
    #[inline]
    pub fn spare_vec() -> Vec<u8> {
        let spare = SPARE_VECTORS.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            spare.taken = MAX_SPARE_VECTORS.min(spare.taken + 1);
            spare.free.pop()
        });
        // The destructor of another thread-local value can send messages after the vectors have been freed.
        spare.ok().flatten().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Chunk(chunk) => chunk,
            Self::Bytes(bytes) => bytes,
            Self::Vec(vector) => vector,
        }
    }

    /// Removes the first `count` bytes. Does not copy the others.
    ///
    /// # Panics
    /// Panics if `count` is greater than the length.
    ///
    /// ```
    /// # use anello::net::SendBuf;
    /// let mut bytes = SendBuf::from("headbody");
    /// bytes.advance(4);
    /// assert_eq!(&*bytes, b"body");
    /// ```
    #[track_caller]
    pub fn advance(&mut self, count: usize) {
        match self {
            Self::Chunk(chunk) => chunk.advance(count),
            Self::Bytes(bytes) => bytes.advance(count),
            Self::Vec(vector) => {
                let mut bytes = Bytes::from(std::mem::take(vector));
                bytes.advance(count);
                *self = Self::Bytes(bytes);
            }
        }
    }

    /// Returns `true` if the buffer must be sent immediately, however short it is. Until it is sent, it occupies one of
    /// the few large pool buffers, so that other streams have to allocate new ones.
    #[inline]
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Chunk(chunk) if chunk.is_large_pool_buffer())
    }
}

impl Deref for SendBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for SendBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// Does not copy the bytes.
impl From<SendBuf> for Bytes {
    fn from(buffer: SendBuf) -> Self {
        match buffer {
            SendBuf::Chunk(chunk) => chunk.into(),
            SendBuf::Bytes(bytes) => bytes,
            SendBuf::Vec(vector) => vector.into(),
        }
    }
}

impl From<Chunk> for SendBuf {
    #[inline]
    fn from(chunk: Chunk) -> Self {
        Self::Chunk(chunk)
    }
}

impl From<Bytes> for SendBuf {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(vector: Vec<u8>) -> Self {
        Self::Vec(vector)
    }
}

impl From<&'static [u8]> for SendBuf {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Bytes(Bytes::from_static(bytes))
    }
}

impl From<&'static str> for SendBuf {
    fn from(text: &'static str) -> Self {
        Self::Bytes(Bytes::from_static(text.as_bytes()))
    }
}

/// A buffer in the queue. Dropping it does not panic: the owner of shared bytes is application code, and a panic in it
/// must not interrupt the driver's work for other streams.
#[derive(Debug)]
pub(crate) struct Queued(pub SendBuf);

impl Queued {
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl Drop for Queued {
    #[inline]
    fn drop(&mut self) {
        match &mut self.0 {
            SendBuf::Chunk(_) => {}
            SendBuf::Vec(vector) => keep_spare(std::mem::take(vector)),
            SendBuf::Bytes(bytes) => drop_shared(bytes),
        }
    }
}

/// Keeps the memory of a sent vector for [`SendBuf::spare_vec`].
fn keep_spare(mut vector: Vec<u8>) {
    if !(1..=MAX_SPARE_VECTOR_BYTES).contains(&vector.capacity()) {
        return;
    }
    let kept = SPARE_VECTORS.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.taken > 0 {
            debug_assert!(spare.free.len() + spare.taken <= MAX_SPARE_VECTORS, "too many vectors are kept");
            vector.clear();
            spare.taken -= 1;
            spare.free.push(vector);
        }
    });
    // When the thread exits, the spare vectors may already have been destroyed.
    kept.ok();
}

#[cold]
#[inline(never)]
fn drop_shared(bytes: &mut Bytes) {
    catch_and_log_panic("owner of sent bytes panicked while being dropped", || drop(std::mem::take(bytes)));
}

pub(in crate::driver) fn io_slices(buffers: &[SendBuf]) -> Vec<IoSlice<'_>> {
    buffers.iter().map(|buffer| IoSlice::new(buffer.as_slice())).collect()
}

/// Maximum size of a message that is copied to the end of a queued buffer instead of being queued separately.
const MAX_COPY_BYTES: usize = 512;

/// A send queue. The front buffer is being sent, and stays in place until all of it has been sent.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SendQueue {
    /// Total number of unsent bytes; zero if and only if there is no front buffer. This is the first field because a
    /// stream that sends immediately accesses no other field.
    queued_bytes: usize,
    front: Option<Queued>,
    /// Number of bytes sent from the front buffer.
    sent_bytes: usize,
    /// Buffers behind the front buffer. Empty and not allocated for a stream that sends one message at a time.
    queued: VecDeque<Queued>,
}

impl SendQueue {
    #[inline]
    pub fn is_empty(&self) -> bool {
        debug_assert_eq!(
            self.queued_bytes == 0,
            self.front.is_none(),
            "invariant 3: the number of queued bytes does not belong to the front of the send queue"
        );
        self.queued_bytes == 0
    }

    #[inline]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    #[inline]
    pub fn has_queued_behind_front(&self) -> bool {
        !self.queued.is_empty()
    }

    #[inline]
    pub fn push(&mut self, outgoing: Queued) {
        let length = outgoing.as_slice().len();
        if length == 0 {
            return;
        }
        self.queued_bytes += length;
        if self.front.is_none() {
            self.front = Some(outgoing);
        } else {
            self.queued.push_back(outgoing);
        }
    }

    /// Adds a buffer that cannot be sent immediately. Small messages are copied into one buffer, so that a stream with
    /// a slow peer does not hold a whole receive buffer for each of them, and fewer calls are needed to send them.
    pub fn queue(&mut self, outgoing: Queued, pools: &Rc<Pools>) {
        let length = outgoing.as_slice().len();
        let copy = match &outgoing.0 {
            SendBuf::Chunk(chunk) => length * 2 < chunk.capacity(),
            SendBuf::Bytes(_) | SendBuf::Vec(_) => length <= MAX_COPY_BYTES,
        };
        if copy && !self.is_empty() {
            self.append_copy(&mut IoSliceCursor::new(&[IoSlice::new(outgoing.as_slice())]), pools);
        } else {
            self.push(outgoing);
        }
    }

    /// Adds the buffers of a vectored send, of which `sent_bytes` bytes have already been sent. Buffers that have been
    /// sent completely stay in `outgoing`. If bytes have been sent, the queue must be empty.
    ///
    /// # Errors
    /// The same as those of [`mark_sent`](Self::mark_sent).
    pub fn queue_unsent(
        &mut self,
        outgoing: &mut Vec<SendBuf>,
        mut sent_bytes: usize,
        pools: &Rc<Pools>,
    ) -> io::Result<()> {
        debug_assert!(
            sent_bytes == 0 || self.is_empty(),
            "invariant 3: bytes were sent before those at the front of the send queue"
        );
        let is_sent = |buffer: &&SendBuf| match sent_bytes.checked_sub(buffer.len()) {
            Some(rest) => {
                sent_bytes = rest;
                true
            }
            None => false,
        };
        let sent_count = outgoing.iter().take_while(is_sent).count();
        for buffer in outgoing.drain(sent_count..) {
            self.queue(Queued(buffer), pools);
        }
        self.mark_sent(sent_bytes)
    }

    /// Moves a buffer into the empty queue, to be sent later, if it has 1 to `max_bytes` bytes and is not urgent.
    /// Returns the address and length of its bytes.
    #[inline(always)]
    pub fn start(&mut self, outgoing: &mut Option<SendBuf>, max_bytes: usize) -> Option<(*const u8, u32)> {
        debug_assert!(self.is_empty(), "invariant 3: the front of the send queue is replaced");
        let message = outgoing.as_ref()?;
        let data = message.as_slice();
        let (address, length) = (data.as_ptr(), data.len());
        // A single comparison checks both bounds: a length of zero wraps to the maximum.
        if length.wrapping_sub(1) >= max_bytes || message.is_urgent() {
            return None;
        }
        self.queued_bytes = length;
        // The old value is `None`, but the compiler cannot know that. Forgetting the value avoids the drop code.
        std::mem::forget(std::mem::replace(&mut self.front, outgoing.take().map(Queued)));
        Some((address, length as u32))
    }

    #[inline]
    pub fn pending(&self) -> Option<&[u8]> {
        self.front.as_ref().map(|front| &front.as_slice()[self.sent_bytes..])
    }

    /// Returns `true` if [`pending`](Self::pending) must be sent immediately, however short it is.
    pub fn is_urgent(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.0.is_urgent())
    }

    /// Records that `count` bytes of [`pending`](Self::pending) have been sent.
    ///
    /// # Errors
    /// Returns an error if there are fewer bytes. It is then unknown which bytes were sent, so the caller must fail the
    /// stream.
    #[inline]
    pub fn mark_sent(&mut self, count: usize) -> io::Result<()> {
        let pending_bytes = self.pending().map_or(0, <[u8]>::len);
        if count > pending_bytes {
            return Err(too_many_sent(count, pending_bytes));
        }
        if count == pending_bytes {
            self.mark_all_sent();
        } else {
            self.queued_bytes -= count;
            self.sent_bytes += count;
        }
        Ok(())
    }

    /// Records that all of [`pending`](Self::pending) has been sent.
    #[inline]
    pub fn mark_all_sent(&mut self) {
        if self.queued.is_empty() {
            self.queued_bytes = 0;
            self.sent_bytes = 0;
            self.front = None;
            return;
        }
        drop(self.take_front());
    }

    /// Removes and returns the front buffer, whose memory the kernel may still be reading.
    pub fn take_front(&mut self) -> Option<Queued> {
        let front = self.front.take()?;
        debug_assert!(
            self.queued_bytes >= front.as_slice().len() - self.sent_bytes,
            "invariant 3: the front of the send queue has more bytes than the queue"
        );
        self.queued_bytes -= front.as_slice().len() - self.sent_bytes;
        self.sent_bytes = 0;
        self.front = self.queued.pop_front();
        Some(front)
    }

    pub fn clear(&mut self) {
        drop(std::mem::take(self));
    }

    /// Checks the number of bytes and the order of the buffers.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        let mut buffers = self.front.iter().chain(&self.queued);
        assert!(
            buffers.clone().all(|buffer| !buffer.as_slice().is_empty()),
            "invariant 3: the send queue contains an empty buffer"
        );
        let bytes: usize = buffers.by_ref().map(|buffer| buffer.as_slice().len()).sum();
        assert_eq!(
            self.queued_bytes + self.sent_bytes,
            bytes,
            "invariant 3: the number of queued bytes is wrong"
        );
        let front_bytes = self.front.as_ref().map(|front| front.as_slice().len());
        assert!(
            front_bytes
                .map_or(self.queued.is_empty() && self.sent_bytes == 0, |bytes| self.sent_bytes < bytes),
            "invariant 3: {} bytes of the front of the send queue were sent: {front_bytes:?}",
            self.sent_bytes
        );
    }

    /// Copies the remaining bytes of `cursor` to the end of the queue: into the spare capacity of the last buffer, if
    /// that is a pool buffer that is not being sent, and then into new buffers. Data that would fill less than half of
    /// its pool buffer is stored in memory of exactly its size, because it waits for a slow peer.
    pub fn append_copy(&mut self, cursor: &mut IoSliceCursor<'_>, pools: &Rc<Pools>) {
        if let Some(Queued(SendBuf::Chunk(last))) = self.queued.back_mut()
            && last.is_pooled()
        {
            self.queued_bytes += cursor.copy_into(last);
        }
        if (CLASS_BYTES[1] + 1..=CLASS_BYTES[2] / 2).contains(&cursor.remaining_bytes()) {
            return self.push(Queued(SendBuf::Vec(cursor.gather_vec())));
        }
        while cursor.remaining_bytes() > 0 {
            self.push(Queued(SendBuf::Chunk(cursor.gather(pools))));
        }
    }

    /// Replaces the buffer at the front with a copy of exactly the required size if most of its memory is empty or
    /// already sent. Data that waits for a slow peer must not hold a receive buffer or a vector that can be reused. Must
    /// not be called while an operation is reading the memory.
    pub fn shrink_front(&mut self) {
        let Some(Queued(front)) = &self.front else { return };
        let capacity = match front {
            SendBuf::Chunk(chunk) => chunk.capacity(),
            SendBuf::Vec(vector) if vector.capacity() <= MAX_SPARE_VECTOR_BYTES => vector.capacity(),
            SendBuf::Bytes(_) | SendBuf::Vec(_) => return,
        };
        debug_assert!(
            self.sent_bytes < front.len(),
            "invariant 3: the front of the send queue has been sent"
        );
        let pending_bytes = front.len() - self.sent_bytes;
        if pending_bytes * 2 < capacity {
            let copy = front[self.sent_bytes..].to_vec();
            self.sent_bytes = 0;
            self.front = Some(Queued(SendBuf::Vec(copy)));
        }
    }
}

/// Error of a send that has sent more bytes than were queued. Only a fault in this crate or in the kernel causes it.
#[cold]
pub(in crate::driver) fn too_many_sent(count: usize, pending_bytes: usize) -> io::Error {
    io::Error::other(format!("cannot continue to send: {count} of {pending_bytes} bytes were sent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(send_queue: &mut SendQueue, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(pending) = send_queue.pending() {
            let count = pending.len().min(step);
            out.extend_from_slice(&pending[..count]);
            send_queue.mark_sent(count).unwrap();
            #[cfg(debug_assertions)]
            send_queue.check();
        }
        out
    }

    #[test]
    fn bytes_are_sent_in_queue_order() {
        for step in [1, 3, 100_000] {
            let pools = Pools::new(None);
            let mut send_queue = SendQueue::default();
            let mut expected = Vec::new();
            for n in 0..50u8 {
                let message = vec![n; usize::from(n) * 37];
                expected.extend_from_slice(&message);
                match n % 3 {
                    0 => send_queue.push(Queued(SendBuf::Vec(message))),
                    1 => send_queue.push(Queued(SendBuf::Bytes(Bytes::from(message)))),
                    _ => send_queue.append_copy(&mut IoSliceCursor::new(&[IoSlice::new(&message)]), &pools),
                }
            }
            assert_eq!(send_queue.queued_bytes(), expected.len());
            assert_eq!(drain(&mut send_queue, step), expected);
            assert_eq!((send_queue.queued_bytes(), send_queue.is_empty()), (0, true));
        }
    }

    #[test]
    fn vectored_send_queues_only_unsent_buffers() {
        let pools = Pools::new(None);
        let parts: [&[u8]; 5] = [b"one", b"", b"two", b"", b"three"];
        let whole = parts.concat();
        for sent_bytes in 0..=whole.len() {
            let mut send_queue = SendQueue::default();
            let mut outgoing = Vec::from(parts.map(|part| SendBuf::Vec(part.to_vec())));
            send_queue.queue_unsent(&mut outgoing, sent_bytes, &pools).unwrap();
            assert!(outgoing.iter().map(|buffer| buffer.len()).sum::<usize>() <= sent_bytes);
            assert_eq!(send_queue.queued_bytes(), whole.len() - sent_bytes);
            assert_eq!(drain(&mut send_queue, 2), whole[sent_bytes..]);
        }
    }

    #[test]
    fn more_sent_bytes_than_queued_is_an_error() {
        let pools = Pools::new(None);
        let mut send_queue = SendQueue::default();
        assert!(send_queue.mark_sent(0).is_ok() && send_queue.mark_sent(1).is_err());
        send_queue.push(Queued(SendBuf::Vec(vec![1; 10])));
        send_queue.push(Queued(SendBuf::Vec(vec![2; 10])));
        // The second buffer is not part of the send.
        assert!(send_queue.mark_sent(11).is_err());
        assert_eq!(send_queue.queued_bytes(), 20);
        assert!(send_queue.mark_sent(4).is_ok() && send_queue.mark_sent(7).is_err());
        let mut outgoing = vec![SendBuf::Vec(vec![3; 5])];
        assert!(SendQueue::default().queue_unsent(&mut outgoing, 6, &pools).is_err());
    }

    fn chunk_of(pools: &Rc<Pools>, class: usize, data: &[u8]) -> SendBuf {
        let mut chunk = pools.lease(class);
        chunk.spare()[..data.len()].copy_from_slice(data);
        chunk.mark_filled(data.len());
        SendBuf::Chunk(chunk)
    }

    /// Queues three such buffers. Returns whether those behind the front were copied into one.
    fn is_copied(pools: &Rc<Pools>, buffer: impl Fn() -> SendBuf) -> bool {
        let (mut send_queue, first) = (SendQueue::default(), buffer());
        let address = first.as_ptr();
        send_queue.queue(Queued(first), pools);
        assert_eq!(send_queue.pending().unwrap().as_ptr(), address, "the front is not copied");
        assert!(!send_queue.has_queued_behind_front());
        send_queue.queue(Queued(buffer()), pools);
        send_queue.queue(Queued(buffer()), pools);
        assert!(send_queue.has_queued_behind_front());
        send_queue.queued.len() == 1
    }

    #[test]
    fn small_messages_share_one_buffer_behind_front() {
        let pools = Pools::new(None);
        for (length, expected) in [(MAX_COPY_BYTES, true), (MAX_COPY_BYTES + 1, false)] {
            assert_eq!(is_copied(&pools, || SendBuf::Vec(vec![1; length])), expected);
        }
        // A chunk is copied if less than half of it is used.
        for (length, expected) in [(CLASS_BYTES[0] / 2 - 1, true), (CLASS_BYTES[0] / 2, false)] {
            assert_eq!(is_copied(&pools, || chunk_of(&pools, 0, &vec![1; length])), expected);
        }
    }

    #[test]
    fn copy_that_fills_less_than_half_of_pool_buffer_has_exact_size() {
        let pools = Pools::new(None);
        let half = CLASS_BYTES[2] / 2;
        for (length, is_exact) in
            [(CLASS_BYTES[1], false), (CLASS_BYTES[1] + 1, true), (half, true), (half + 1, false)]
        {
            let (mut send_queue, data) = (SendQueue::default(), vec![7; length]);
            send_queue.append_copy(&mut IoSliceCursor::new(&[IoSlice::new(&data)]), &pools);
            let front = send_queue.front.as_ref();
            assert_eq!(matches!(front, Some(Queued(SendBuf::Vec(_)))), is_exact, "{length} bytes");
        }
    }

    #[test]
    fn front_that_is_half_full_is_not_replaced() {
        for (sent_bytes, is_replaced) in [(0, false), (1, true)] {
            let mut send_queue = SendQueue::default();
            let data = [7; CLASS_BYTES[0] / 2];
            send_queue.push(Queued(chunk_of(&Pools::new(None), 0, &data)));
            send_queue.mark_sent(sent_bytes).unwrap();
            send_queue.shrink_front();
            assert_eq!(matches!(&send_queue.front, Some(Queued(SendBuf::Vec(_)))), is_replaced);
        }
    }

    #[test]
    fn mostly_empty_front_is_replaced_by_exact_copy() {
        let mut send_queue = SendQueue::default();
        send_queue.push(Queued(chunk_of(&Pools::new(None), 2, &[7; 100])));
        send_queue.mark_sent(40).unwrap();
        send_queue.shrink_front();
        assert!(matches!(&send_queue.front, Some(Queued(SendBuf::Vec(copy))) if copy.len() == 60));
        assert_eq!(drain(&mut send_queue, 7), vec![7; 60]);
    }

    #[test]
    fn partly_sent_vector_is_replaced_by_exact_copy() {
        for (capacity, is_replaced) in [(MAX_SPARE_VECTOR_BYTES, true), (MAX_SPARE_VECTOR_BYTES + 1, false)] {
            let mut vector = Vec::with_capacity(capacity);
            vector.extend_from_slice(&[7; 100]);
            let mut send_queue = SendQueue::default();
            send_queue.push(Queued(SendBuf::Vec(vector)));
            send_queue.mark_sent(40).unwrap();
            send_queue.shrink_front();
            let length = if is_replaced { 60 } else { 100 };
            assert!(matches!(&send_queue.front, Some(Queued(SendBuf::Vec(front))) if front.len() == length));
            assert_eq!(drain(&mut send_queue, 7), vec![7; 60]);
        }
    }

    /// Writes a message of this length and sends it. Returns the capacity of the vector before and after that.
    fn send_spare(length: usize) -> (usize, usize) {
        let mut vector = SendBuf::spare_vec();
        let before = vector.capacity();
        assert!(vector.is_empty());
        vector.resize(length, 7);
        let after = vector.capacity();
        let mut send_queue = SendQueue::default();
        send_queue.push(Queued(SendBuf::Vec(vector)));
        drain(&mut send_queue, 99);
        (before, after)
    }

    #[test]
    fn sent_vectors_are_reused() {
        let (first, capacity) = send_spare(100);
        assert_eq!(first, 0);
        assert_eq!(send_spare(10), (capacity, capacity));
        assert_eq!(SendBuf::spare_vec().capacity(), capacity);
        drop(Queued(SendBuf::Vec(Vec::with_capacity(1000))));
        assert_eq!(SendBuf::spare_vec().capacity(), 1000, "replaces the vector that was not sent");
        drop(Queued(SendBuf::Vec(Vec::with_capacity(MAX_SPARE_VECTOR_BYTES + 1))));
        assert_eq!(SendBuf::spare_vec().capacity(), 0, "too large");
    }

    #[test]
    fn only_vectors_that_are_reused_are_kept() {
        for _ in 0..3 {
            drop(Queued(SendBuf::Vec(vec![7; 100])));
        }
        assert_eq!(SendBuf::spare_vec().capacity(), 0);
        let vectors = Vec::from_iter((0..MAX_SPARE_VECTORS * 2).map(|_| SendBuf::spare_vec()));
        for mut vector in vectors {
            vector.push(7);
            drop(Queued(SendBuf::Vec(vector)));
        }
        let kept = (0..MAX_SPARE_VECTORS * 2).take_while(|_| SendBuf::spare_vec().capacity() > 0);
        assert_eq!(kept.count(), MAX_SPARE_VECTORS);
    }

    #[test]
    fn large_pool_buffer_is_not_deferred() {
        let pools = Pools::new(None);
        let try_start = |outgoing: SendBuf| {
            let (mut send_queue, mut outgoing) = (SendQueue::default(), Some(outgoing));
            let started = send_queue.start(&mut outgoing, 100).is_some();
            assert_eq!((started, send_queue.is_empty()), (outgoing.is_none(), outgoing.is_some()));
            if let Some(urgent) = outgoing {
                send_queue.push(Queued(urgent));
            }
            (started, send_queue.is_urgent())
        };
        let chunks = [0, 1, 2].map(|class| try_start(chunk_of(&pools, class, &[1; 100])));
        assert_eq!(chunks, [(true, false), (false, true), (false, true)]);
        assert_eq!(try_start(SendBuf::Vec(vec![1; 100])), (true, false));
        assert_eq!(try_start(SendBuf::Vec(vec![1; 101])), (false, false), "too long");
    }

    #[test]
    fn buffer_is_consumed_from_its_start() {
        let chunk = chunk_of(&Pools::new(None), 0, b"headbody");
        for mut buffer in [chunk, Bytes::from_static(b"headbody").into(), b"headbody".to_vec().into()] {
            buffer.advance(4);
            assert_eq!(buffer.as_ref(), b"body");
            assert_eq!(Bytes::from(buffer), "body");
        }
    }

    #[test]
    fn panic_of_an_owner_of_sent_bytes_is_caught() {
        struct Owner;

        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                b"x"
            }
        }

        impl Drop for Owner {
            fn drop(&mut self) {
                panic!("panic of a destructor");
            }
        }

        let mut send_queue = SendQueue::default();
        send_queue.push(Queued(SendBuf::Bytes(Bytes::from_owner(Owner))));
        assert_eq!(drain(&mut send_queue, 1), b"x");
    }
}
