//! The io_uring kernel, which translates operations into submission queue entries, and completion queue entries into
//! completions. Each worker has one ring. One `io_uring_enter(2)` per turn submits all entries and can also wait.
//!
//! # Invariants
//!
//! - Entries reach the kernel in the order of the calls to [`push`](CompletionKernel::push), through the backlog if the
//!   queue is full. The submission index of an entry therefore shows whether it was consumed.
//! - Memory that an entry refers to (the outgoing bytes of a stream, the address to connect to, the buffer ring) is
//!   owned by the driver and outlives the operation.

mod registered_buffers;
mod ring;
mod setup;
mod sqe;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::io_uring::{IoringRegisterOp, IoringSetupFlags, IoringSqFlags};
use socket2::SockAddr;

use crate::driver::errors::log::log_event;
use crate::driver::file::operation::{FileOperation, Memory, Transfer};
use crate::driver::kernel::op::{Completion, Op, SINGLE_WAKE_UP, SendMode, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Capabilities, CompletionKernel, Kernel, OperationCounts};
use crate::driver::memory::buffer::Pools;
use crate::driver::memory::table::Table;
use crate::driver::settings::options::{DriverOptions, ZeroCopy};
use crate::driver::sockets::{OsSockets, is_loopback};
use crate::driver::wake::notifier::{Descriptors, Notifier};
use registered_buffers::RegisteredBuffers;
use ring::Ring;
use setup::{BUFFER_GROUP, Features};
use sqe::Sqe;

#[derive(Debug)]
pub(crate) struct Uring {
    ring: Ring,
    pub features: Features,
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
    /// Created when the first buffer is registered.
    registered_buffers: Option<RegisteredBuffers>,
    overflows: u64,
    /// Set if completions in the kernel's overflow list could not be flushed to the completion queue.
    overflow_pending: bool,
}

/// A message to the ring of another worker.
#[derive(Debug)]
struct SentWake {
    target: Notifier,
    /// Keeps the target ring, to which the message refers by descriptor number, open until the kernel has processed it.
    _ring: Arc<OwnedFd>,
}

impl Uring {
    /// Opens a ring. An error states the cause (missing permission, old kernel or lack of memory) and the remedy.
    pub fn new(options: &DriverOptions) -> io::Result<Self> {
        let (ring, features, pools) = setup::ring(options)?;
        let wake = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
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
            registered_buffers: None,
            overflows: 0,
            overflow_pending: false,
        };
        uring.arm_wake();
        Ok(uring)
    }

    /// Sends a message to another ring (`MSG_RING`, Linux 5.18). Returns `true` if the target is open and has a ring. If
    /// the kernel does not take the entry now, the next turn submits it.
    pub fn send_wake(&mut self, target: &Notifier) -> bool {
        let Some(ring) = target.ring() else { return false };
        let descriptor = ring.as_raw_fd();
        let key = self.sent_wakes.insert(SentWake { target: target.clone(), _ring: ring });
        let message = Sqe::message(descriptor, Token::internal(Kind::Wake).0);
        // The completion is not suppressed: if the target has no room for the message, its eventfd is written to.
        self.queue(message.with_user_data(Token::new(Kind::Message, key).0));
        // The running task may continue for a long time. In the meantime, the other worker wakes up.
        if let Err(error) = self.enter(Wait::None) {
            log_event!(DEBUG, %error, "cannot wake worker immediately; retrying in the next turn");
        }
        true
    }

    /// Returns the descriptor of the ring, which polls readable while there are completions to read.
    ///
    /// # Errors
    /// Returns an error if task work is deferred: the kernel then does not wake a task that polls the ring (observed on
    /// Linux 6.18). It writes to a registered eventfd instead, but loses all events after the first one that are caused
    /// by another eventfd.
    pub fn pollable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.features.setup.contains(IoringSetupFlags::DEFER_TASKRUN) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot poll the ring: task work is deferred (set task_work to TaskWork::Cooperative)",
            ));
        }
        Ok(self.ring.descriptor.as_fd())
    }

    /// Arms a multishot poll of the eventfd. The eventfd is never read, because each write triggers the poll again.
    fn arm_wake(&mut self) {
        let poll = Sqe::poll(self.wake.as_raw_fd(), libc::POLLIN as u32);
        self.queue(poll.with_user_data(Token::internal(Kind::Wake).0));
    }

    /// Repeats wake-ups, because the completion of a wake-up or of a message to another worker may have been dropped.
    #[cold]
    #[inline(never)]
    fn renotify_after_drop(&mut self) {
        // The eventfd poll is armed again if it ends with an error, or if the cancellation does not find it.
        let token = Token::internal(Kind::Wake).0;
        self.queue(Sqe::cancel(token).with_user_data(token));
        // The entries and the rings that they refer to stay in the table, because a message may still be queued.
        self.sent_wakes.values().for_each(|wake| wake.target.notify());
    }

    /// Registers memory for operations on files. If that fails, the memory remains unregistered.
    pub fn register_memory(&mut self, memory: &mut Memory) {
        let registered = match &mut self.registered_buffers {
            Some(buffers) => buffers.register(&self.ring, memory),
            none => RegisteredBuffers::new(&self.ring)
                .and_then(|buffers| none.insert(buffers).register(&self.ring, memory)),
        };
        if let Err(error) = registered {
            log_event!(DEBUG, %error, "cannot register a buffer; using it unregistered");
        }
    }

    /// Queues an entry. The module's invariants ensure that the memory that the entry refers to outlives the operation.
    #[inline(always)]
    fn queue(&mut self, entry: Sqe) {
        if !self.backlog.is_empty() || !self.ring.push(entry) {
            self.push_backlog(entry);
        }
    }

    #[cold]
    fn push_backlog(&mut self, entry: Sqe) {
        self.backlog.push_back(entry);
    }

    #[cold]
    #[inline(never)]
    fn push_cold(&mut self, token: Token, op: Op<'_, OwnedFd>) -> u32 {
        self.push(token, op)
    }

    /// Moves entries from the backlog to the queue while there is room. Returns `true` if the backlog is not empty.
    fn drain_backlog(&mut self) -> bool {
        while let Some(entry) = self.backlog.front()
            && self.ring.push(*entry)
        {
            self.backlog.pop_front();
        }
        !self.backlog.is_empty()
    }

    /// Always inlined: each caller knows the operation, so most of the function is optimised away.
    #[inline(always)]
    fn entry(&mut self, token: Token, op: Op<'_, OwnedFd>) -> Sqe {
        let entry = match op {
            Op::Accept { listener, multishot } => {
                Sqe::accept(listener.as_raw_fd(), multishot && self.features.multishot_accept)
            }
            Op::Connect { socket, address } => {
                let address = Box::new(SockAddr::from(address));
                let entry = Sqe::connect(socket.as_raw_fd(), address.as_ptr().cast(), address.len());
                let replaced = self.addresses.insert(token.0, address);
                debug_assert!(
                    replaced.is_none(),
                    "invariant 1: the address of a connect in flight is dropped"
                );
                entry
            }
            Op::Receive { socket, multishot } => {
                let multishot = multishot && self.features.multishot_receive;
                Sqe::receive(socket.as_raw_fd(), BUFFER_GROUP, multishot)
            }
            Op::Send { socket, data, length_bytes, mode } => {
                let (socket, flags) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
                match mode {
                    SendMode::Inline => {
                        Sqe::send(socket, data, length_bytes, flags | libc::MSG_DONTWAIT).skip_success_cqe()
                    }
                    SendMode::Async => Sqe::send(socket, data, length_bytes, flags),
                    SendMode::ZeroCopy => Sqe::send_zero_copy(socket, data, length_bytes, flags),
                }
            }
            // Do not poll for POLLPRI: every wake-up would report urgent data, even if there is none. On a TCP socket,
            // the driver ignores `SINGLE_WAKE_UP`.
            Op::Readable { socket } => {
                // Before Linux 6.1, which introduced deferred task work, the result can contain only the bits of the
                // first of several wake-ups ("io_uring: fix tw losing poll events").
                let is_exact = self.features.setup.contains(IoringSetupFlags::DEFER_TASKRUN);
                let exact = if is_exact { SINGLE_WAKE_UP } else { 0 };
                Sqe::poll(socket.as_raw_fd(), (i32::from(libc::POLLIN | libc::POLLRDHUP) | exact) as u32)
            }
            Op::Writable { socket } => Sqe::poll_once(socket.as_raw_fd(), libc::POLLOUT as u32),
            // Hangups and errors are reported regardless of the mask.
            Op::Hangup { socket } => Sqe::poll_once(socket.as_raw_fd(), 0),
            Op::Poll { socket, events, multishot } => {
                // io_uring ignores `POLLPRI` when it filters wake-ups (`IO_ASYNC_POLL_COMMON`). A socket that wakes for
                // urgent data, or for any other data, also reports `POLLRDBAND`.
                let is_priority = events & libc::POLLPRI as u32 != 0;
                let events = if is_priority { events | libc::POLLRDBAND as u32 } else { events };
                let poll = if multishot { Sqe::poll } else { Sqe::poll_once };
                poll(socket.as_raw_fd(), events)
            }
            Op::Cancel { target } if self.features.cqe_skip => Sqe::cancel(target.0).skip_success_cqe(),
            Op::Cancel { target } => Sqe::cancel(target.0),
        };
        entry.with_user_data(token.0)
    }

    /// Submits each time the queue is full. Only the last call waits.
    #[cold]
    fn enter_with_backlog(&mut self, wait: Wait) -> io::Result<()> {
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

    /// Fetches completions that did not fit into the queue. The next system call that requests completions posts them.
    #[cold]
    fn fetch_overflow(&mut self) -> io::Result<()> {
        self.overflows += 1;
        self.ring.enter(Wait::None)
    }
}

/// With submission polling, the kernel's thread may not have read the last messages, and does not read them once the
/// ring is closed. Their targets are notified again; a second notification is harmless.
impl Drop for Uring {
    fn drop(&mut self) {
        self.sent_wakes.values().for_each(|wake| wake.target.notify());
    }
}

impl Kernel for Uring {
    type Sockets = OsSockets;

    #[inline]
    fn sockets(&self) -> &OsSockets {
        &self.sockets
    }

    #[inline]
    fn sockets_mut(&mut self) -> &mut OsSockets {
        &mut self.sockets
    }

    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        // Other rings send messages through a duplicate of this ring's descriptor.
        let duplicate = || self.ring.descriptor.try_clone().map(Arc::new);
        let ring = self.features.msg_ring.then(duplicate).transpose()?;
        Ok(Some(Descriptors { eventfd: Arc::clone(&self.wake), ring }))
    }
}

impl CompletionKernel for Uring {
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
        let op = Op::Send { socket, data, length_bytes, mode: SendMode::Inline };
        // Invariant 6: later entries wait behind the backlog.
        if !self.backlog.is_empty() || self.ring.is_full() {
            return self.push_cold(token, op);
        }
        // Write the entry directly to shared memory, without an intermediate copy.
        let submission_index = self.ring.submission_index();
        let entry = self.entry(token, op);
        // SAFETY: the queue is not full, as checked above.
        unsafe { self.ring.put(entry) };
        submission_index
    }

    fn push_file(&mut self, token: Token, operation: &mut FileOperation) -> bool {
        let (data, length_bytes) = operation.address();
        let (descriptor, offset) = (operation.descriptor().as_raw_fd(), operation.offset());
        let entry = match operation.transfer() {
            Transfer::Read => Sqe::read(descriptor, data, length_bytes, offset),
            Transfer::DirectWrite | Transfer::BufferedWrite => {
                Sqe::write(descriptor, data, length_bytes, offset)
            }
        };
        let slot = self.registered_buffers.as_mut().and_then(|buffers| {
            buffers.clear_released(&self.ring);
            buffers.slot(operation.memory())
        });
        let entry = slot.map_or(entry, |slot| entry.with_registered_buffer(slot));
        self.queue(entry.with_user_data(token.0));
        slot.is_some()
    }

    #[inline(always)]
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        if self.backlog.is_empty() { self.ring.enter_inline(wait) } else { self.enter_with_backlog(wait) }
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
                // If memory is short, the call can also return without fetching any completions.
                let has_more = entry.is_none() && self.ring.flags().contains(IoringSqFlags::CQ_OVERFLOW);
                self.overflow_pending = has_more || fetched.is_err();
                entry?
            }
            None => {
                self.overflow_pending = false;
                return None;
            }
        };
        Some(Completion { token: Token(entry.user_data), result: entry.result, flags: entry.flags })
    }

    fn ended(&mut self, completion: &Completion) {
        match completion.token.kind() {
            Some(Kind::Connect) => {
                let address = self.addresses.remove(&completion.token.0);
                debug_assert!(
                    address.is_some(),
                    "invariant 8: completion of a connect that is not in flight"
                );
            }
            Some(Kind::Message) => {
                let wake = self.sent_wakes.remove(completion.token.key());
                debug_assert!(wake.is_some(), "invariant 8: completion of a message that was not sent");
                wake.filter(|_| completion.result < 0).inspect(|wake| wake.target.notify());
            }
            // Messages from other rings also arrive here, with the result 0. The result of the eventfd poll is a mask.
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
        // Without the flag, the kernel does not signal pending task work in shared memory.
        !self.features.setup.contains(IoringSetupFlags::TASKRUN_FLAG)
            || self.has_unsubmitted()
            || self.has_pending_work()
    }

    fn has_unsubmitted(&self) -> bool {
        // Fetching completions submits the entries of the queue, but not those of the backlog.
        self.ring.unsubmitted() > 0 || !self.backlog.is_empty()
    }

    fn has_pending_work(&self) -> bool {
        self.ring.flags().intersects(IoringSqFlags::TASKRUN | IoringSqFlags::CQ_OVERFLOW)
            || self.ring.has_completion()
    }

    fn pools(&self) -> &Rc<Pools> {
        &self.pools
    }

    fn receive_ring_head(&self) -> Option<u16> {
        if !self.features.setup.contains(IoringSetupFlags::DEFER_TASKRUN) {
            return None;
        }
        // `struct io_uring_buf_status` (Linux 6.8): the group, the head, and reserved fields.
        let mut status = [u32::from(BUFFER_GROUP), 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the argument is one status, which the kernel reads and writes only during the call.
        unsafe { self.ring.register(IoringRegisterOp::RegisterPbufStatus, status.as_mut_ptr(), 1) }.ok()?;
        Some(status[1] as u16)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ring_receive: self.features.buffer_ring,
            misses_resets: self.features.multishot_receive,
            inline_sends: self.features.inline_sends,
            zero_copy: self.features.zero_copy,
            files: true,
        }
    }

    fn accepted(&mut self, result: i32) -> OwnedFd {
        // SAFETY: a successful accept returns a new descriptor that has no other owner.
        unsafe { OwnedFd::from_raw_fd(result) }
    }

    fn zero_copy_pays(&self, socket: &OwnedFd) -> bool {
        matches!(self.zero_copy, ZeroCopy::Always { .. }) || !is_loopback(socket.as_fd())
    }

    fn overflows(&self) -> u64 {
        self.overflows
    }

    fn operations(&self) -> OperationCounts {
        self.ring.operations
    }
}
