//! The io_uring kernel: operations to submission queue entries, completion queue entries to completions.
//!
//! One ring per worker, set up by [`setup`] with the best flags that the kernel takes. The submission queue is filled
//! in user memory and handed over by one `io_uring_enter(2)` a turn, which also waits.
//!
//! Invariants: entries reach the kernel in the order of [`push`](CompletionKernel::push), through the backlog when the
//! queue is full, so that the place of an entry tells whether it was consumed; memory named by an entry (a stream's
//! outgoing bytes, the address of a connect, the buffer ring) is owned by the driver and outlives the operation.

mod setup;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use io_uring::squeue::Flags;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg};
use socket2::SockAddr;

use super::buffer::Pools;
use super::counters::Metrics;
use super::op::{Completion, Op, SendHow, Wait};
use super::options::DriverOptions;
use super::options::ZeroCopy;
use super::proactor::{Abilities, CompletionKernel};
use super::sockets::{OsSockets, is_internet, is_loopback, raw};
use super::token::{Key, Kind, Token};

pub use setup::Features;

/// Group id of the receive ring.
const BUFFER_GROUP: u16 = 0;

/// Completions copied out at a time.
const BATCH: usize = 64;

/// Entries in the table of registered files, when asked for.
const REGISTERED_FILES: u32 = 16 * 1024;

pub(crate) struct Uring {
    ring: IoUring,
    /// Index of the registered ring descriptor, which saves a look-up at each enter.
    registered_ring: Option<RawFd>,
    features: Features,
    sockets: OsSockets,
    pools: Rc<Pools>,
    /// Entries for which the queue had no room, in order.
    backlog: VecDeque<squeue::Entry>,
    /// Entries put into the queue so far, and those that the kernel had consumed after the last enter. Both wrap.
    queued: u32,
    consumed: u32,
    batch: Box<[MaybeUninit<cqueue::Entry>; BATCH]>,
    batch_next: usize,
    batch_length: usize,
    /// Addresses that the kernel reads until a connect completes.
    addresses: HashMap<u64, Box<SockAddr>>,
    wake: Arc<OwnedFd>,
    zero_copy: ZeroCopy,
    overflows: u64,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Uring").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Uring {
    /// Sets a ring up.
    ///
    /// # Errors
    /// Names the cause (forbidden, too old, no memory) and the remedy.
    pub fn new(options: &DriverOptions) -> io::Result<Self> {
        let setup::Ring { ring, registered_ring, features, pools } = setup::ring(options)?;
        let wake = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
        let mut uring = Self {
            ring,
            registered_ring,
            features,
            sockets: OsSockets::new(false),
            pools,
            backlog: VecDeque::new(),
            queued: 0,
            consumed: 0,
            batch: Box::new([const { MaybeUninit::uninit() }; BATCH]),
            batch_next: 0,
            batch_length: 0,
            addresses: HashMap::new(),
            wake,
            zero_copy: options.zero_copy,
            overflows: 0,
        };
        uring.arm_wake();
        Ok(uring)
    }

    pub fn features(&self) -> &Features {
        &self.features
    }

    pub fn wake_descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }

    /// A second descriptor of the ring, for other rings to send messages to.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring's descriptor is open as long as `self.ring`.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        ring.try_clone_to_owned()
    }

    /// Wakes the owner of another ring through `MSG_RING` (Linux 5.18), with the next enter.
    pub fn send_wake(&mut self, target: RawFd) {
        let wake = Token::internal(Kind::Wake).0;
        let entry = opcode::MsgRingData::new(types::Fd(target), 0, wake, None).build();
        self.queue(self.quiet(entry).user_data(Token::internal(Kind::Cancel).0));
    }

    /// Reports every write to the eventfd. It is never read: each write is an edge of its own.
    fn arm_wake(&mut self) {
        let entry = opcode::PollAdd::new(types::Fd(raw(&self.wake)), libc::POLLIN as u32).multi(true).build();
        self.queue(entry.user_data(Token::internal(Kind::Wake).0));
    }

    /// Without a completion when it succeeds, where the kernel can do that.
    fn quiet(&self, entry: squeue::Entry) -> squeue::Entry {
        if self.features.completion_skip { entry.flags(Flags::SKIP_SUCCESS) } else { entry }
    }

    #[inline(always)]
    fn queue(&mut self, entry: squeue::Entry) {
        // SAFETY: the module's invariant: what the entry names outlives the operation.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.queued = self.queued.wrapping_add(1);
        } else {
            self.put_off(entry);
        }
    }

    #[cold]
    fn put_off(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
    }

    /// Moves as much of the backlog as fits; whether some of it is left.
    fn refill(&mut self) -> bool {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `queue`.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return true;
            }
            self.queued = self.queued.wrapping_add(1);
            self.backlog.pop_front();
        }
        false
    }

    /// One `io_uring_enter(2)`. Interruptions, timeouts and a full completion queue are ordinary: what was consumed is
    /// read from the queue, not from the result.
    #[inline]
    fn enter_once(&mut self, wait: Wait) -> io::Result<()> {
        let (to_submit, sleeping_thread) = {
            let mut submission = self.ring.submission();
            submission.sync();
            let sleeping = self.features.submission_polling && submission.need_wakeup();
            (submission.len() as u32, sleeping)
        };
        let mut flags = IoringEnterFlags::GETEVENTS;
        if sleeping_thread {
            flags |= IoringEnterFlags::SQ_WAKEUP;
        }
        let ring = match self.registered_ring {
            Some(index) => {
                flags |= IoringEnterFlags::REGISTERED_RING;
                index
            }
            None => self.ring.as_raw_fd(),
        };
        // SAFETY: an open descriptor, or the index that the kernel gave for it at set-up; valid as long as `self.ring`.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let entered = match wait {
            // SAFETY: the entries are complete; no argument is passed.
            Wait::No => unsafe { io_uring_enter(ring, to_submit, 0, flags) },
            // SAFETY: as above.
            Wait::Forever => unsafe { io_uring_enter(ring, to_submit, 1, flags) },
            Wait::For(nanoseconds) => {
                let timeout = Timespec {
                    tv_sec: (nanoseconds / 1_000_000_000).try_into().unwrap_or(i64::MAX),
                    tv_nsec: (nanoseconds % 1_000_000_000) as _,
                };
                let mut argument = io_uring_getevents_arg::default();
                argument.ts = (&raw const timeout).cast_mut().cast::<std::ffi::c_void>().into();
                flags |= IoringEnterFlags::EXT_ARG;
                // SAFETY: the argument and the timeout it points to live until the call returns.
                unsafe { io_uring_enter_arg(ring, to_submit, 1, flags, Some(&argument)) }
            }
        };
        let left = self.ring.submission().len() as u32;
        self.consumed = self.queued.wrapping_sub(left);
        match entered {
            Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Inlined into each caller, where the operation is known: most of it folds away.
    #[inline(always)]
    fn entry(&mut self, token: Token, op: Op<'_, OwnedFd>) -> squeue::Entry {
        let index = token.key().index;
        let fixed = self.features.registered_files && index < REGISTERED_FILES;
        match op {
            Op::Accept { listener } if self.features.multishot_accept => {
                opcode::AcceptMulti::new(types::Fd(raw(listener))).flags(libc::SOCK_CLOEXEC).build()
            }
            Op::Accept { listener } => {
                let null = std::ptr::null_mut();
                opcode::Accept::new(types::Fd(raw(listener)), null, null.cast())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Op::Connect { socket, address } => {
                let address = Box::new(SockAddr::from(address));
                let entry =
                    opcode::Connect::new(types::Fd(raw(socket)), address.as_ptr().cast(), address.len());
                self.addresses.insert(token.0, address);
                entry.build()
            }
            Op::Receive { socket } if self.features.multishot_receive => {
                if fixed {
                    opcode::RecvMulti::new(types::Fixed(index), BUFFER_GROUP).build()
                } else {
                    opcode::RecvMulti::new(types::Fd(raw(socket)), BUFFER_GROUP).build()
                }
            }
            Op::Receive { socket } => {
                let (null, length) = (std::ptr::null_mut(), 0);
                let entry = if fixed {
                    opcode::Recv::new(types::Fixed(index), null, length).buf_group(BUFFER_GROUP).build()
                } else {
                    opcode::Recv::new(types::Fd(raw(socket)), null, length).buf_group(BUFFER_GROUP).build()
                };
                entry.flags(Flags::BUFFER_SELECT)
            }
            Op::Send { socket, data, length_bytes, how } => {
                let all = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                let flags = if how == SendHow::AtSubmission { all | libc::MSG_DONTWAIT } else { all };
                let entry = match (how, fixed) {
                    (SendHow::ZeroCopy, _) => {
                        opcode::SendZc::new(types::Fd(raw(socket)), data, length_bytes).flags(flags).build()
                    }
                    (_, true) => {
                        opcode::Send::new(types::Fixed(index), data, length_bytes).flags(flags).build()
                    }
                    (_, false) => {
                        opcode::Send::new(types::Fd(raw(socket)), data, length_bytes).flags(flags).build()
                    }
                };
                if how == SendHow::AtSubmission { entry.flags(Flags::SKIP_SUCCESS) } else { entry }
            }
            Op::Readable { socket } => {
                let mask = (libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP) as u32;
                opcode::PollAdd::new(types::Fd(raw(socket)), mask).multi(true).build()
            }
            Op::Cancel { target } => self.quiet(opcode::AsyncCancel::new(target.0).build()),
        }
        .user_data(token.0)
    }

    /// Copies a batch of completions out and publishes the head once; whether there were any.
    fn read_batch(&mut self) -> bool {
        self.batch_next = 0;
        self.batch_length = self.ring.completion().fill(&mut self.batch[..]).len();
        if self.batch_length == 0 && self.ring.submission().cq_overflow() {
            self.overflows += 1;
            // The kernel keeps what did not fit, and posts it at an enter that asks for completions.
            if self.enter_once(Wait::No).is_ok() {
                self.batch_length = self.ring.completion().fill(&mut self.batch[..]).len();
            }
        }
        self.batch_length > 0
    }
}

impl CompletionKernel for Uring {
    type Sockets = OsSockets;

    #[inline]
    fn sockets(&self) -> &OsSockets {
        &self.sockets
    }

    #[inline]
    fn sockets_mut(&mut self) -> &mut OsSockets {
        &mut self.sockets
    }

    #[inline(always)]
    fn push(&mut self, token: Token, op: Op<'_, OwnedFd>) -> u32 {
        let place = self.queued.wrapping_add(self.backlog.len() as u32);
        let entry = self.entry(token, op);
        self.queue(entry);
        place
    }

    #[inline]
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        // With a backlog, the queue is handed over as often as it is full; only the last enter waits.
        while !self.backlog.is_empty() && self.refill() {
            let before = self.consumed;
            self.enter_once(Wait::No)?;
            if self.consumed == before {
                // The kernel takes no more until completions are read.
                return Ok(());
            }
        }
        self.enter_once(wait)
    }

    #[inline]
    fn completion(&mut self) -> Option<Completion> {
        if self.batch_next == self.batch_length && !self.read_batch() {
            return None;
        }
        // SAFETY: `read_batch` has initialised the first `batch_length` entries.
        let entry = unsafe { self.batch[self.batch_next].assume_init_ref() };
        self.batch_next += 1;
        let flags = entry.flags();
        Some(Completion {
            token: Token(entry.user_data()),
            result: entry.result(),
            more: cqueue::more(flags),
            buffer: cqueue::buffer_select(flags),
            more_to_receive: cqueue::sock_nonempty(flags),
            notification: cqueue::notif(flags),
        })
    }

    fn ended(&mut self, completion: &Completion) {
        match completion.token.kind() {
            Some(Kind::Connect) => {
                self.addresses.remove(&completion.token.0);
            }
            // Messages of other rings end here too, but have never been armed: arming again is for the eventfd, whose
            // poll reports a mask.
            Some(Kind::Wake) if !completion.more && completion.result != 0 => self.arm_wake(),
            _ => {}
        }
    }

    #[inline]
    fn consumed(&self, place: u32) -> bool {
        self.consumed.wrapping_sub(place).cast_signed() > 0
    }

    fn needs_enter(&self) -> bool {
        // SAFETY: this thread alone uses the ring, and no other view of its queues is alive.
        let submission = unsafe { self.ring.submission_shared() };
        let always = !self.features.task_work_flag;
        // SAFETY: as above.
        always
            || !submission.is_empty()
            || submission.taskrun()
            || submission.cq_overflow()
            || !unsafe { self.ring.completion_shared() }.is_empty()
    }

    fn pools(&self) -> &Rc<Pools> {
        &self.pools
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            ring_receive: self.features.buffer_ring,
            sends_at_submission: self.features.sends_at_submission,
            zero_copy: self.features.zero_copy,
        }
    }

    fn accepted(&mut self, result: i32) -> OwnedFd {
        // SAFETY: a successful accept yields a new descriptor, which nobody else owns.
        unsafe { OwnedFd::from_raw_fd(result) }
    }

    fn attached(&mut self, key: Key, socket: &OwnedFd) {
        self.update_registered(key, raw(socket));
    }

    fn detached(&mut self, key: Key) {
        self.update_registered(key, -1);
    }

    fn zero_copy_pays(&self, socket: &OwnedFd) -> bool {
        use std::os::fd::AsFd;
        matches!(self.zero_copy, ZeroCopy::Always { .. }) || !is_loopback(socket.as_fd())
    }

    fn ring_receive_trusted(&self, socket: &OwnedFd) -> bool {
        is_internet(socket)
    }

    fn count(&self, metrics: &mut Metrics) {
        metrics.completion_overflows = self.overflows;
    }
}

impl Uring {
    fn update_registered(&mut self, key: Key, descriptor: RawFd) {
        if self.features.registered_files
            && key.index < REGISTERED_FILES
            && let Err(error) = self.ring.submitter().register_files_update(key.index, &[descriptor])
        {
            // Receives and sends of this slot would fail; the descriptors serve all the same.
            tracing::warn!(%error, "a file could not be registered: going on with descriptors");
            self.features.registered_files = false;
        }
    }
}
