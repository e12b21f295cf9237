//! The two queues that are shared with the kernel, and the calls on them.
//!
//! ```text
//!   submission                                   completion
//!   head (kernel) … tail (shared) … our tail     head (ours, shared per batch) … tail (kernel)
//!   └ taken at enter ┘└ published at enter ┘     └ read in place, published when the batch is read ┘
//! ```
//!
//! Entries are written where the kernel reads them, and completions read where it wrote them: nothing is copied.
//!
//! Invariants: this thread alone writes our tail and our head; slots between the kernel's head and our tail belong to
//! the kernel once published; the mappings live as long as the ring.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags, IoringRegisterOp,
    IoringSetupFlags, IoringSqFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg,
    io_uring_params, io_uring_register, io_uring_rsrc_update, io_uring_setup,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::super::catch_panic::log;
use super::super::op::Wait;
use super::sqe::Sqe;

/// How often deferred work is asked for in a row: more may come as fast as it is done.
const MAX_DEFERRED_ENTERS: usize = 64;

/// A ring of this thread.
#[derive(Debug)]
pub(super) struct Ring {
    descriptor: OwnedFd,
    /// Index of the registered descriptor, which saves a look-up at each enter.
    registered: Option<RawFd>,
    parameters: io_uring_params,
    queues: Mapping,
    entries: Mapping,
    /// Our tail, and the head that the kernel had reached when last looked at. Both wrap.
    tail: u32,
    consumed: u32,
    /// Our tail when there is no room left.
    full_at: u32,
    /// Our place in the completions, and where the known ones end.
    completion_head: u32,
    completion_tail: u32,
    /// The kernel's count of dropped completions when last looked at. It wraps.
    dropped: u32,
}

/// `struct io_uring_cqe`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Cqe {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

impl Ring {
    /// `io_uring_setup(2)` and the mappings of the queues.
    pub fn new(entries: u32, mut parameters: io_uring_params) -> io::Result<Self> {
        // SAFETY: the parameters name no memory (no `NO_MMAP`).
        let descriptor = unsafe { io_uring_setup(entries, &mut parameters) }?;
        if !parameters.features.contains(IoringFeatureFlags::SINGLE_MMAP) {
            return Err(Errno::INVAL.into());
        }
        let (submission, completion) = (parameters.sq_off, parameters.cq_off);
        let arrays = [
            submission.array as usize + parameters.sq_entries as usize * size_of::<u32>(),
            completion.cqes as usize + parameters.cq_entries as usize * size_of::<Cqe>(),
        ];
        let queues = Mapping::new(&descriptor, arrays[0].max(arrays[1]), IORING_OFF_SQ_RING)?;
        let entries_bytes = parameters.sq_entries as usize * size_of::<Sqe>();
        let entries = Mapping::new(&descriptor, entries_bytes, IORING_OFF_SQES)?;
        let mut ring = Self {
            descriptor,
            registered: None,
            parameters,
            queues,
            entries,
            tail: 0,
            consumed: 0,
            full_at: parameters.sq_entries,
            completion_head: 0,
            completion_tail: 0,
            dropped: 0,
        };
        ring.fill_array();
        Ok(ring)
    }

    /// Before 6.6 the kernel looks entries up through an array of indexes: ours stand in order, for good.
    fn fill_array(&mut self) {
        if !self.parameters.flags.contains(IoringSetupFlags::NO_SQARRAY) {
            for index in 0..self.parameters.sq_entries {
                // SAFETY: the array has `sq_entries` places within the mapping; the kernel reads it only at an enter.
                unsafe {
                    self.queues.ptr_at::<u32>(self.parameters.sq_off.array).add(index as usize).write(index)
                }
            }
        }
    }

    pub fn features(&self) -> IoringFeatureFlags {
        self.parameters.features
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    // ---- Submitting ----------------------------------------------------------------------------------------------

    /// The place in the order of submission that the next entry gets.
    #[inline]
    pub fn submission_index(&self) -> u32 {
        self.tail
    }

    /// Whether the kernel had consumed the entry of that place at the last enter.
    #[inline]
    pub fn has_consumed(&self, submission_index: u32) -> bool {
        self.consumed.wrapping_sub(submission_index).cast_signed() > 0
    }

    /// Entries that the kernel has not consumed.
    #[inline]
    pub fn unsubmitted(&self) -> u32 {
        self.tail.wrapping_sub(self.consumed)
    }

    /// Writes an entry; `false` when the queue is full. What it names must outlive the operation.
    #[inline(always)]
    pub fn push(&mut self, entry: Sqe) -> bool {
        if self.is_full() {
            return false;
        }
        // SAFETY: not full.
        unsafe { self.put(entry) };
        true
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.tail == self.full_at
    }

    /// Writes an entry, of which what [`push`](Self::push) says holds.
    ///
    /// # Safety
    /// The queue must not be full.
    #[inline(always)]
    pub unsafe fn put(&mut self, entry: Sqe) {
        debug_assert!(!self.is_full());
        let index = self.tail & (self.parameters.sq_entries - 1);
        // SAFETY: the masked index lies within the entries, and the kernel has consumed what stood there: by the caller.
        unsafe { self.entries.ptr_at::<Sqe>(0).add(index as usize).write(entry) }
        self.tail = self.tail.wrapping_add(1);
    }

    /// One `io_uring_enter(2)`: submits what was pushed, asks for completions and waits as told. Interruptions,
    /// timeouts and a full completion queue are ordinary: what was consumed is read from the queue, not the result. So is
    /// `EBADR`, by which the kernel tells once that it dropped completions: see [`has_dropped`](Self::has_dropped).
    #[inline]
    pub fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.submission(self.parameters.sq_off.tail).store(self.tail, Ordering::Release);
        let mut flags = IoringEnterFlags::GETEVENTS;
        if self.parameters.flags.contains(IoringSetupFlags::SQPOLL) {
            // The kernel's thread announces its sleep, then looks once more; we publish, then look for that.
            std::sync::atomic::fence(Ordering::SeqCst);
            if self.flags().contains(IoringSqFlags::NEED_WAKEUP) {
                flags |= IoringEnterFlags::SQ_WAKEUP;
            }
        }
        let mut ring = self.descriptor.as_raw_fd();
        if let Some(index) = self.registered {
            flags |= IoringEnterFlags::REGISTERED_RING;
            ring = index;
        }
        // SAFETY: an open descriptor, or the index that the kernel gave for it; valid as long as the ring.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let to_submit = self.unsubmitted();
        let result = match wait {
            // SAFETY: the entries are complete; no argument is passed.
            Wait::No => unsafe { io_uring_enter(ring, to_submit, 0, flags) },
            // SAFETY: as above.
            Wait::Forever => unsafe { io_uring_enter(ring, to_submit, 1, flags) },
            Wait::For(nanoseconds) => {
                let timeout = Timespec {
                    tv_sec: (nanoseconds / 1_000_000_000).try_into().unwrap_or(i64::MAX),
                    tv_nsec: (nanoseconds % 1_000_000_000) as _,
                };
                let timeout = (&raw const timeout).cast_mut().cast::<c_void>().into();
                let argument = io_uring_getevents_arg { ts: timeout, ..Default::default() };
                flags |= IoringEnterFlags::EXT_ARG;
                // SAFETY: the argument and the timeout it points to live until the call returns.
                unsafe { io_uring_enter_arg(ring, to_submit, 1, flags, Some(&argument)) }
            }
        };
        if result.is_ok() && self.parameters.flags.contains(IoringSetupFlags::DEFER_TASKRUN) {
            self.run_deferred(ring, flags.difference(IoringEnterFlags::EXT_ARG));
        }
        self.consumed = self.submission(self.parameters.sq_off.head).load(Ordering::Acquire);
        self.full_at = self.consumed.wrapping_add(self.parameters.sq_entries);
        match result {
            Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN | Errno::BADR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks again while the kernel has deferred work left: since 6.13 an enter does some twenty pieces of it. That all
    /// which has come is received before anything of it is answered takes a quarter less CPU a request with hundreds of
    /// busy connections (on 6.18: 3.2 instead of 4.2 µs at 300; results/batches.txt).
    #[inline]
    fn run_deferred(&self, ring: BorrowedFd<'_>, flags: IoringEnterFlags) {
        for _ in 0..MAX_DEFERRED_ENTERS {
            let tail = self.submission(self.parameters.cq_off.tail).load(Ordering::Acquire);
            let is_filling = tail.wrapping_sub(self.completion_head) > self.parameters.cq_entries / 2;
            if !self.flags().contains(IoringSqFlags::TASKRUN) || is_filling {
                return;
            }
            // SAFETY: the ring is open, or its index valid, as for the enter before; nothing is submitted and no argument
            // passed. An error is met again by the next enter.
            if unsafe { io_uring_enter(ring, 0, 0, flags) }.is_err() {
                return;
            }
        }
    }

    // ---- Completions ---------------------------------------------------------------------------------------------

    /// The next completion that is in the queue. The head is published when those known are read.
    #[inline]
    pub fn completion(&mut self) -> Option<Cqe> {
        if self.completion_head == self.completion_tail && !self.refresh() {
            return None;
        }
        let index = self.completion_head & (self.parameters.cq_entries - 1);
        // SAFETY: the masked index lies within the completions; between our head and the tail that was read with
        // acquire, the kernel has written and does not write again before the head is published.
        let completion =
            unsafe { self.queues.ptr_at::<Cqe>(self.parameters.cq_off.cqes).add(index as usize).read() };
        self.completion_head = self.completion_head.wrapping_add(1);
        Some(completion)
    }

    /// Publishes what was read and looks for more.
    fn refresh(&mut self) -> bool {
        self.submission(self.parameters.cq_off.head).store(self.completion_head, Ordering::Release);
        self.completion_tail = self.submission(self.parameters.cq_off.tail).load(Ordering::Acquire);
        self.completion_head != self.completion_tail
    }

    /// Whether a completion waits to be read.
    pub fn has_completion(&self) -> bool {
        self.completion_head != self.submission(self.parameters.cq_off.tail).load(Ordering::Acquire)
    }

    /// Whether the kernel has dropped completions since this was asked last: the queue was full, and there was no memory to
    /// keep them. It counts them in shared memory before the enter returns that caused them.
    #[inline]
    pub fn has_dropped(&mut self) -> bool {
        let dropped = self.submission(self.parameters.cq_off.overflow).load(Ordering::Relaxed);
        std::mem::replace(&mut self.dropped, dropped) != dropped
    }

    /// What the kernel says about the ring in shared memory.
    #[inline]
    pub fn flags(&self) -> IoringSqFlags {
        IoringSqFlags::from_bits_retain(self.submission(self.parameters.sq_off.flags).load(Ordering::Relaxed))
    }

    #[inline]
    fn submission(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of a counter within the mapping, which is only accessed atomically.
        unsafe { &*self.queues.ptr_at::<AtomicU32>(offset) }
    }

    // ---- Registering ---------------------------------------------------------------------------------------------

    /// `io_uring_register(2)`.
    ///
    /// # Safety
    /// The argument must be what the operation expects, and live as long as the kernel uses it.
    pub unsafe fn register<T>(
        &self,
        opcode: IoringRegisterOp,
        argument: *const T,
        count: u32,
    ) -> io::Result<u32> {
        // SAFETY: by the caller.
        Ok(unsafe { io_uring_register(&self.descriptor, opcode, argument.cast(), count) }?)
    }

    /// Registers the ring's own descriptor (Linux 5.18); whether the kernel did.
    pub fn register_itself(&mut self) -> bool {
        let mut update = io_uring_rsrc_update::default();
        update.offset = u32::MAX;
        update.data = (self.descriptor.as_raw_fd() as usize as *mut c_void).into();
        // SAFETY: the argument is one update, which the kernel reads and writes during the call only.
        let registered = unsafe { self.register(IoringRegisterOp::RegisterRingFds, &raw mut update, 1) };
        self.registered = registered.ok().and_then(|_| RawFd::try_from(update.offset).ok());
        self.registered.is_some()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The thread would keep the registered descriptor, and with it the ring.
        if let Some(index) = self.registered {
            let mut update = io_uring_rsrc_update::default();
            update.offset = index.cast_unsigned();
            // SAFETY: one update, read during the call only.
            let unregistered =
                unsafe { self.register(IoringRegisterOp::UnregisterRingFds, &raw const update, 1) };
            if let Err(error) = unregistered {
                log(
                    || tracing::debug!(%error, "the ring's registration was not given up: another thread dropped it"),
                );
            }
        }
    }
}

/// Memory shared with the kernel.
#[derive(Debug)]
struct Mapping {
    base: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    fn new(ring: &OwnedFd, length: usize, offset: u64) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), length, access, flags, ring, offset) }?;
        // SAFETY: the mapping just made. A forked child must not share the queues.
        if let Err(error) = unsafe { madvise(base, length, Advice::LinuxDontFork) } {
            tracing::debug!(%error, "a forked child would see the ring");
        }
        let base = NonNull::new(base).ok_or(Errno::FAULT)?;
        Ok(Self { base, length })
    }

    /// # Safety
    /// `offset` must lie within the mapping and suit the type.
    #[inline]
    unsafe fn ptr_at<T>(&self, offset: u32) -> *mut T {
        // SAFETY: by the caller.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset as usize).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing refers to it any more.
        if let Err(error) = unsafe { munmap(self.base.as_ptr(), self.length) } {
            log(|| tracing::error!(%error, "the ring's memory could not be unmapped"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_completions_are_told_once() {
        // io_uring may be forbidden here.
        let Ok(mut ring) = Ring::new(4, io_uring_params::default()) else { return };
        assert!(!ring.has_dropped());
        ring.enter(Wait::No).unwrap();
        assert!(!ring.has_dropped());
        // As the kernel counts, in memory that both may write.
        ring.submission(ring.parameters.cq_off.overflow).fetch_add(2, Ordering::Relaxed);
        assert!(ring.has_dropped());
        assert!(!ring.has_dropped());
    }
}
