//! The io_uring kernel, which translates operations to submission queue entries and completion queue entries to
//! completions.
//!
//! Each worker has one ring, which [`setup`] opens with the best flags that the kernel supports. Submission queue
//! entries are written to shared memory and submitted by one `io_uring_enter(2)` per turn, which can also wait.
//!
//! # Invariants
//!
//! - Entries reach the kernel in the order of [`push`](CompletionKernel::push), through the backlog if the queue is
//!   full. The submission index of an entry therefore shows whether it was consumed.
//! - Memory that an entry refers to (the outgoing bytes of a stream, the address of a connect, the buffer ring) is
//!   owned by the driver and outlives the operation.

mod ring;
mod setup;
mod sqe;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::io_uring::{IoringRegisterOp, IoringSqFlags};
use socket2::SockAddr;

use super::buffer::Pools;
use super::catch_panic::log;
use super::completion_kernel::{Capabilities, CompletionKernel};
use super::counters::DriverMetrics;
use super::notifier::{Descriptors, Notifier};
use super::op::{Completion, Op, SendMode, Wait};
use super::options::DriverOptions;
use super::options::ZeroCopy;
use super::sockets::{OsSockets, is_loopback, raw};
use super::table::Table;
use super::token::{Key, Kind, Token};
use ring::Ring;
use setup::{BUFFER_GROUP, REGISTERED_FILES};
use sqe::{File, Sqe};

pub use setup::Features;

pub(crate) struct Uring {
    ring: Ring,
    features: Features,
    sockets: OsSockets,
    pools: Rc<Pools>,
    /// Entries for which the submission queue had no room, in submission order.
    backlog: VecDeque<Sqe>,
    /// Addresses of connects in flight. The kernel may read them until the connect completes.
    addresses: HashMap<u64, Box<SockAddr>>,
    wake: Arc<OwnedFd>,
    /// Messages to other workers whose completions have not yet arrived.
    sent_wakes: Table<SentWake>,
    zero_copy: ZeroCopy,
    /// Streams in slots below this number are registered under their slot index. Zero if files are not registered.
    registered_files: u32,
    overflows: u64,
    /// Set if the completions that the kernel has kept could not be fetched.
    overflow_pending: bool,
}

/// A message to the ring of another worker.
#[derive(Debug)]
struct SentWake {
    target: Notifier,
    /// Keeps the target ring open until the kernel has processed the message, which refers to the ring by descriptor
    /// number.
    _ring: Arc<OwnedFd>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Uring").field("features", &self.features).finish_non_exhaustive()
    }
}

impl Uring {
    /// Opens a ring.
    ///
    /// # Errors
    /// Returns an error that states the cause (not permitted, too old, out of memory) and the remedy.
    pub fn new(options: &DriverOptions) -> io::Result<Self> {
        let (ring, features, pools) = setup::ring(options)?;
        let wake = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
        let registered_files = if features.registered_files { REGISTERED_FILES } else { 0 };
        let mut uring = Self {
            ring,
            features,
            sockets: OsSockets::new(false),
            pools,
            backlog: VecDeque::new(),
            addresses: HashMap::new(),
            wake,
            sent_wakes: Table::new(),
            zero_copy: options.zero_copy,
            registered_files,
            overflows: 0,
            overflow_pending: false,
        };
        uring.arm_wake();
        Ok(uring)
    }

    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Queues a wake-up for the owner of another ring, which the next enter submits through `MSG_RING` (Linux 5.18).
    /// Returns `true` if the target has a ring and has not exited.
    pub fn queue_wake(&mut self, target: &Notifier) -> bool {
        let Some(ring) = target.ring() else { return false };
        let descriptor = raw(&ring);
        let key = self.sent_wakes.insert(SentWake { target: target.clone(), _ring: ring });
        let message = Sqe::message(descriptor, Token::internal(Kind::Wake).0);
        // The completion is not suppressed: if the target has no room for the message, the eventfd is written to
        // instead.
        self.queue(message.with_user_data(Token::new(Kind::Message, key).0));
        true
    }

    fn on_message_sent(&mut self, completion: &Completion) {
        if let Some(wake) = self.sent_wakes.remove(completion.token.key())
            && completion.result < 0
        {
            wake.target.notify();
        }
    }

    /// Arms a multishot poll that reports every write to the eventfd. The eventfd is never read, because each write
    /// triggers the poll again.
    fn arm_wake(&mut self) {
        let poll = Sqe::poll(raw(&self.wake), libc::POLLIN as u32);
        self.queue(poll.with_user_data(Token::internal(Kind::Wake).0));
    }

    /// Repeats wake-ups after the kernel has dropped completions, because the completion of a wake-up or of a message
    /// to another worker may have been lost.
    #[cold]
    #[inline(never)]
    fn renotify_after_drop(&mut self) {
        // The eventfd poll is armed again if it ends with an error, or if the cancellation does not find it.
        let token = Token::internal(Kind::Wake).0;
        self.queue(Sqe::cancel(token).with_user_data(token));
        // The entries and the rings that they refer to stay in the table, because a message may still be queued.
        for key in self.sent_wakes.keys() {
            if let Some(wake) = self.sent_wakes.get(key) {
                wake.target.notify();
            }
        }
    }

    /// Suppresses the completion of a successful operation if the kernel supports that.
    fn skip_success_cqe(&self, entry: Sqe) -> Sqe {
        if self.features.cqe_skip { entry.skip_success_cqe() } else { entry }
    }

    /// Queues an entry. The module's invariants ensure that the memory that it refers to outlives the operation.
    #[inline(always)]
    fn queue(&mut self, entry: Sqe) {
        if !self.backlog.is_empty() || !self.ring.push(entry) {
            self.push_backlog(entry);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_in_backlog(&mut self, token: Token, socket: &OwnedFd, data: *const u8, length_bytes: u32) -> u32 {
        self.push(token, Op::Send { socket, data, length_bytes, mode: SendMode::Inline })
    }

    #[cold]
    fn push_backlog(&mut self, entry: Sqe) {
        self.backlog.push_back(entry);
    }

    /// Moves entries from the backlog to the queue while there is room. Returns `true` if the backlog is not empty.
    fn drain_backlog(&mut self) -> bool {
        while let Some(entry) = self.backlog.front() {
            if !self.ring.push(*entry) {
                return true;
            }
            self.backlog.pop_front();
        }
        false
    }

    /// Creates the submission queue entry of an operation. Always inlined: the operation is known in each caller, so
    /// most of the function is optimised away.
    #[inline(always)]
    fn entry(&mut self, token: Token, op: Op<'_, OwnedFd>) -> Sqe {
        let index = token.key().index;
        let file = |socket: &OwnedFd| {
            if index < self.registered_files {
                File::Registered(index)
            } else {
                File::Descriptor(raw(socket))
            }
        };
        let entry = match op {
            Op::Accept { listener, multishot } => {
                Sqe::accept(raw(listener), multishot && self.features.multishot_accept)
            }
            Op::Connect { socket, address } => {
                let address = Box::new(SockAddr::from(address));
                let entry = Sqe::connect(raw(socket), address.as_ptr().cast(), address.len());
                self.addresses.insert(token.0, address);
                entry
            }
            Op::Receive { socket } => {
                Sqe::receive(file(socket), BUFFER_GROUP, self.features.multishot_receive)
            }
            Op::Send { socket, data, length_bytes, mode } => {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                match mode {
                    SendMode::Inline => {
                        Sqe::send(file(socket), data, length_bytes, flags | libc::MSG_DONTWAIT)
                            .skip_success_cqe()
                    }
                    SendMode::Async => Sqe::send(file(socket), data, length_bytes, flags),
                    // Use the descriptor: the index of this token selects a zero-copy send, not the slot of the stream.
                    SendMode::ZeroCopy => {
                        Sqe::send_zero_copy(File::Descriptor(raw(socket)), data, length_bytes, flags)
                    }
                }
            }
            // Do not poll for urgent data: every wake-up would report urgent data, even if there is none.
            Op::Readable { socket } => Sqe::poll(raw(socket), (libc::POLLIN | libc::POLLRDHUP) as u32),
            Op::Writable { socket } => Sqe::poll_once(raw(socket), libc::POLLOUT as u32),
            // Hangups and errors are reported regardless of the mask.
            Op::Hangup { socket } => Sqe::poll_once(raw(socket), 0),
            Op::Cancel { target } => self.skip_success_cqe(Sqe::cancel(target.0)),
        };
        entry.with_user_data(token.0)
    }

    /// Fetches the completions for which the queue had no room. The kernel keeps them and posts them on the next enter
    /// that requests completions.
    #[cold]
    fn fetch_overflow(&mut self) -> io::Result<()> {
        self.overflows += 1;
        self.ring.enter(Wait::None)
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
        let submission_index = self.ring.submission_index().wrapping_add(self.backlog.len() as u32);
        let entry = self.entry(token, op);
        self.queue(entry);
        submission_index
    }

    #[inline(always)]
    fn push_inline_send(
        &mut self,
        token: Token,
        socket: &OwnedFd,
        data: *const u8,
        length_bytes: u32,
    ) -> u32 {
        if !self.backlog.is_empty() || self.ring.is_full() {
            return self.push_in_backlog(token, socket, data, length_bytes);
        }
        // Write the entry directly to shared memory, without an intermediate copy.
        let submission_index = self.ring.submission_index();
        let op = Op::Send { socket, data, length_bytes, mode: SendMode::Inline };
        let entry = self.entry(token, op);
        // SAFETY: the queue is not full, as checked above.
        unsafe { self.ring.put(entry) };
        submission_index
    }

    #[inline]
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        // With a backlog, submit each time the queue is full. Only the last enter waits.
        while !self.backlog.is_empty() && self.drain_backlog() {
            let unsubmitted = self.ring.unsubmitted();
            self.ring.enter(Wait::None)?;
            if self.ring.unsubmitted() == unsubmitted {
                // The kernel consumes no more entries until completions are read.
                return Ok(());
            }
        }
        self.ring.enter(wait)
    }

    #[inline]
    fn completion(&mut self) -> Option<Completion> {
        let entry = match self.ring.completion() {
            Some(entry) => entry,
            None if self.ring.flags().contains(IoringSqFlags::CQ_OVERFLOW) => {
                let fetched = self.fetch_overflow();
                if self.ring.is_drop_unreported() {
                    return None;
                }
                let entry = self.ring.completion();
                // For lack of memory, the call can also return without fetching them.
                let has_more = entry.is_none() && self.ring.flags().contains(IoringSqFlags::CQ_OVERFLOW);
                self.overflow_pending = has_more || fetched.is_err();
                entry?
            }
            None => {
                self.overflow_pending = false;
                return None;
            }
        };
        Some(Completion::new(Token(entry.user_data), entry.result, entry.flags))
    }

    fn ended(&mut self, completion: &Completion) {
        match completion.token.kind() {
            Some(Kind::Connect) => {
                self.addresses.remove(&completion.token.0);
            }
            Some(Kind::Message) => self.on_message_sent(completion),
            // The completions posted by messages from other rings also arrive here, but there is no poll to arm again
            // for them. Only the eventfd poll has a mask as its result.
            Some(Kind::Wake) if !completion.has_more() && completion.result != 0 => self.arm_wake(),
            _ => {}
        }
    }

    #[inline]
    fn has_dropped(&mut self) -> bool {
        let dropped = self.ring.has_dropped();
        if dropped {
            self.renotify_after_drop();
        }
        dropped
    }

    #[inline]
    fn consumed(&self, submission_index: u32) -> bool {
        // As long as some completions are unread, a missing completion does not mean success.
        self.ring.has_consumed(submission_index) && !self.overflow_pending
    }

    fn needs_enter(&self) -> bool {
        !self.features.task_work_flag || self.ring.unsubmitted() > 0 || self.has_pending_work()
    }

    fn has_pending_work(&self) -> bool {
        self.ring.flags().intersects(IoringSqFlags::TASKRUN | IoringSqFlags::CQ_OVERFLOW)
            || self.ring.has_completion()
    }

    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        // Other rings send messages to a second descriptor of this one.
        let duplicate = || self.ring.descriptor().try_clone_to_owned().map(Arc::new);
        let ring = self.features.msg_ring.then(duplicate).transpose()?;
        Ok(Some(Descriptors { eventfd: Arc::clone(&self.wake), ring }))
    }

    fn pools(&self) -> &Rc<Pools> {
        &self.pools
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ring_receive: self.features.buffer_ring,
            misses_resets: self.features.multishot_receive,
            inline_sends: self.features.inline_sends,
            zero_copy: self.features.zero_copy,
        }
    }

    fn accepted(&mut self, result: i32) -> OwnedFd {
        // SAFETY: a successful accept returns a new descriptor that has no other owner.
        unsafe { OwnedFd::from_raw_fd(result) }
    }

    fn attached(&mut self, key: Key, socket: &OwnedFd) {
        if key.index < self.registered_files {
            self.update_registered(key, raw(socket));
        }
    }

    fn detached(&mut self, key: Key) {
        // Also required if registration of further files is disabled, because a file in the table keeps its socket
        // open.
        if self.features.registered_files && key.index < REGISTERED_FILES {
            self.update_registered(key, -1);
        }
    }

    fn zero_copy_pays(&self, socket: &OwnedFd) -> bool {
        use std::os::fd::AsFd;
        matches!(self.zero_copy, ZeroCopy::Always { .. }) || !is_loopback(socket.as_fd())
    }

    fn count(&self, metrics: &mut DriverMetrics) {
        metrics.completion_overflows = self.overflows;
    }
}

impl Uring {
    fn update_registered(&mut self, key: Key, descriptor: RawFd) {
        let update = setup::FilesUpdate::new(key.index, &descriptor);
        // SAFETY: the argument is one update of one descriptor, which the kernel reads only during the call.
        let updated =
            unsafe { self.ring.register(IoringRegisterOp::RegisterFilesUpdate, &raw const update, 1) };
        if let Err(error) = updated {
            // Receives and sends in this slot would fail with the registered file, but work with the descriptor.
            log(|| tracing::warn!(%error, "cannot register a file; using plain descriptors"));
            self.registered_files = 0;
        }
    }
}
