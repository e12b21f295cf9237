//! A simulated completion-based kernel, which handles submissions, operations in flight and completions like io_uring.
//!
//! A call to [`enter`](CompletionKernel::enter) consumes the submissions in order and runs every operation that is
//! ready (in a different order if the reordering fault occurs). If the caller asked to wait and there are no
//! completions, it advances the clock to the next event.
//!
//! The kernel behaves like io_uring wherever a driver could notice a difference:
//!
//! - An inline send that sends all its bytes does not post a completion or end a wait.
//! - An operation keeps its socket open.
//! - A successful cancellation does not post a completion of its own.
//! - A receive completes immediately if the receive ring is empty.
//! - Completions that do not fit into the completion queue are kept until the next `enter`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use super::network::{Network, deadlock_error};
use super::operation::{Memory, Operation, Request, Step, is_broken};
use super::socket::SimSocket;
use super::sockets::SimNetwork;
#[cfg(debug_assertions)]
use crate::driver::kernel::InFlight;
use crate::driver::kernel::op::{Completion, Op, SendMode, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Capabilities, CompletionKernel, Kernel, OperationCounts};
use crate::driver::memory::buffer::{BufferRing, Pools};
use crate::driver::memory::key::Key;
use crate::driver::settings::options::{DriverOptions, TaskWork, ZeroCopy};
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::source::interest::Direction;

#[derive(Debug)]
pub(in super::super) struct SimCompletion {
    network: SimNetwork,
    pools: Rc<Pools>,
    /// Head of the receive ring, owned by the kernel.
    head: u16,
    capabilities: Capabilities,
    options: DriverOptions,
    submissions: VecDeque<Submission>,
    /// Number of submissions queued and consumed so far. Both counters wrap.
    queued: u32,
    consumed: u32,
    /// Operations in flight, in submission order.
    in_flight: BTreeMap<u64, Operation>,
    /// Completions to be posted later, ordered by time and then by serial number.
    later: BTreeMap<(u64, u64), Later>,
    order: u64,
    posted: VecDeque<Completion>,
    /// Completions that did not fit into the completion queue.
    overflow: VecDeque<Completion>,
    overflows: u64,
    operations: OperationCounts,
    /// True if completions have been dropped since the driver's last check.
    dropped: bool,
    /// A contract violation by the driver, reported by the next `enter`.
    violation: Option<String>,
}

#[derive(Debug)]
enum Submission {
    Operation(Operation),
    Cancel { token: Token, target: Token },
}

#[derive(Debug)]
enum Later {
    /// Notification that the memory of a zero-copy send is no longer in use. Until then, it must contain the sent
    /// bytes.
    Notification { token: Token, _socket: SimSocket, memory: Memory, sent: Vec<u8> },
    /// A completion for an operation that ended long ago.
    Stray(Token),
}

impl SimCompletion {
    pub fn new(network: SimNetwork, sim: &SimOptions, options: &DriverOptions) -> Self {
        let disabled = &options.testing.disabled_features;
        let (initial, limit) = (options.testing.initial_receive_buffers, options.max_receive_buffers);
        let ring = (!disabled.buffer_ring)
            .then(|| BufferRing::new(initial, limit, options.receive_buffer_bytes))
            .flatten();
        Self {
            network,
            head: 0,
            capabilities: Capabilities {
                ring_receive: ring.is_some(),
                misses_resets: sim.faults.missed_resets > 0,
                inline_sends: !disabled.cqe_skip && options.submission_polling.is_none(),
                zero_copy: !disabled.zero_copy,
                files: false,
            },
            options: options.clone(),
            pools: Pools::new(ring),
            submissions: VecDeque::new(),
            queued: 0,
            consumed: 0,
            in_flight: BTreeMap::new(),
            later: BTreeMap::new(),
            order: 0,
            posted: VecDeque::new(),
            overflow: VecDeque::new(),
            overflows: 0,
            operations: OperationCounts::default(),
            dropped: false,
            violation: None,
        }
    }

    fn operation(&self, token: Token, op: Op<'_, SimSocket>) -> Submission {
        let (disabled, has_ring) = (&self.options.testing.disabled_features, self.capabilities.ring_receive);
        let multishot_receive = has_ring && !disabled.multishot_receive;
        let (socket, request) = match op {
            Op::Accept { listener, multishot } => {
                let multishot = multishot && has_ring && !disabled.multishot_accept;
                (listener, Request::Accept { multishot })
            }
            Op::Connect { socket, address } => (socket, Request::Connect { address }),
            Op::Receive { socket, multishot } => {
                (socket, Request::Receive { multishot: multishot && multishot_receive })
            }
            Op::Readable { socket } => (socket, Request::Readable { seen: None, spurious_at_ns: None }),
            Op::Writable { socket } => (socket, Request::Writable),
            Op::Hangup { socket } => (socket, Request::Hangup),
            Op::Poll { socket, events, multishot } => {
                let events = events.cast_signed();
                (socket, Request::Poll { events, multishot, seen: None, spurious_at_ns: None })
            }
            Op::Send { socket, data, length_bytes, mode } => {
                let memory = Memory { data, length: length_bytes as usize };
                (socket, Request::Send { memory, mode, done_bytes: 0 })
            }
            Op::Cancel { target } => return Submission::Cancel { token, target },
        };
        Submission::Operation(Operation::new(token, socket.clone(), request))
    }

    /// Consumes all submissions or, if the partial submission fault occurs, only some of them (at least one). Returns
    /// whether all of them were consumed.
    fn submit(&mut self) -> bool {
        while let Some(submission) = self.submissions.pop_front() {
            self.consumed = self.consumed.wrapping_add(1);
            match submission {
                Submission::Operation(operation) => self.issue(operation),
                Submission::Cancel { token, target } => self.cancel(token, target),
            }
            if !self.submissions.is_empty() && self.fault(|faults| faults.partial_submissions) {
                return false;
            }
        }
        true
    }

    fn issue(&mut self, mut operation: Operation) {
        let result = match &operation.request {
            Request::Send { mode: SendMode::Inline, memory, .. } => {
                let length = memory.length as i32;
                match operation.run(&mut self.network.lock(), None) {
                    Step::Result { result, .. } if result == length => return,
                    Step::Result { result, .. } => Some(result),
                    Step::Wait => Some(-libc::EAGAIN),
                }
            }
            Request::Receive { .. } if self.ring_is_empty() => Some(-libc::ENOBUFS),
            Request::Connect { address } => {
                let started = self.network.lock().connect(operation.socket.id(), *address);
                started.err().map(|error| -error)
            }
            _ => None,
        };
        match result {
            Some(result) => self.post(operation.token, result, 0),
            None => {
                operation.armed_late = is_broken(&self.network.lock(), operation.socket.id());
                let order = self.next_order();
                self.in_flight.insert(order, operation);
            }
        }
    }

    fn cancel(&mut self, token: Token, target: Token) {
        let races = self.fault(|faults| faults.cancel_races);
        let found = self.in_flight.iter_mut().find(|(_, operation)| operation.token == target);
        let Some((&order, operation)) = found else { return self.post(token, -libc::ENOENT, 0) };
        if operation.cancelled {
            return self.post(token, -libc::EALREADY, 0);
        }
        let mut network = self.network.lock();
        let ready = operation.is_ready(&network);
        (operation.cancelled, operation.last) = (true, races);
        operation.not_before_ns =
            if races && !ready { network.some_time_later_ns() } else { network.now_ns() };
        drop(network);
        if races && !ready {
            return self.post(token, -libc::EALREADY, 0);
        }
        self.run(order);
        // If the cancellation is too late, the operation has completed with its result, and the cancellation finds no
        // target.
        if races {
            self.post(token, -libc::ENOENT, 0);
        } else if self.options.testing.disabled_features.cqe_skip {
            self.post(token, 0, 0);
        }
    }

    // ---- Running -------------------------------------------------------------------------------------------------

    /// Runs operations until none are ready.
    fn run_ready(&mut self) {
        self.run_later();
        loop {
            let mut ready = self.due();
            if ready.is_empty() {
                return;
            }
            if self.fault(|faults| faults.reordering) {
                self.network.lock().random.shuffle(&mut ready);
            }
            for order in ready {
                self.run(order);
            }
        }
    }

    /// Runs a random subset of the ready operations, including delayed ones. Each produces one result.
    fn run_some(&mut self) {
        let mut network = self.network.lock();
        let ready = self.in_flight.iter().filter(|(_, operation)| operation.is_ready(&network));
        let mut some: Vec<u64> = ready.map(|(order, _)| *order).collect();
        some.retain(|_| network.random.bool());
        drop(network);
        for order in some {
            self.run(order);
        }
    }

    /// Returns the operations that can produce a result now. May delay operations that have just become ready.
    fn due(&mut self) -> Vec<u64> {
        let (mut network, mut due) = (self.network.lock(), Vec::new());
        for (order, operation) in &mut self.in_flight {
            if operation.not_before_ns > network.now_ns() {
                continue;
            }
            if !operation.cancelled && !operation.is_ready(&network) {
                continue;
            }
            if !operation.cancelled && !operation.delay_decided {
                operation.delay_decided = true;
                operation.not_before_ns = network.maybe_later_ns();
                if operation.not_before_ns > network.now_ns() {
                    continue;
                }
            }
            due.push(*order);
        }
        due
    }

    fn run(&mut self, order: u64) {
        let Some(mut operation) = self.in_flight.remove(&order) else { return };
        let mut network = self.network.lock();
        let ready = operation.is_ready(&network);
        let step = match (operation.cancelled, operation.last && ready) {
            (true, false) => Step::end(operation.cancelled_result()),
            _ if !ready => Step::Wait,
            _ => {
                (operation.delay_decided, operation.not_before_ns) = (false, 0);
                operation.run(&mut network, self.pools.ring.as_ref().map(|ring| (ring, &mut self.head)))
            }
        };
        drop(network);
        match step {
            // A cancelled operation completes here, even if it has become ready in the meantime.
            Step::Wait if operation.cancelled => {
                let result = operation.cancelled_result();
                self.end(operation, result);
            }
            Step::Wait => {
                self.in_flight.insert(order, operation);
            }
            Step::Result { result, flags: 0 } => self.end(operation, result),
            Step::Result { result, flags } => {
                self.post(operation.token, result, flags);
                if flags & Completion::MORE != 0 {
                    self.in_flight.insert(order, operation);
                }
            }
        }
    }

    /// Posts the last result of an operation, and schedules the notification of a zero-copy send.
    fn end(&mut self, operation: Operation, result: i32) {
        let Operation { token, socket, request, .. } = operation;
        let Request::Send { mode: SendMode::ZeroCopy, memory, .. } = request else {
            return self.post(token, result, 0);
        };
        // A notification may follow a failed send, too.
        let mut network = self.network.lock();
        let has_notification = result >= 0 || network.random.bool();
        drop(network);
        self.post(token, result, if has_notification { Completion::MORE } else { 0 });
        if has_notification {
            let sent = memory.read(0, memory.length);
            self.post_later(Later::Notification { token, _socket: socket, memory, sent });
        }
    }

    fn post_later(&mut self, later: Later) {
        let at_ns = self.network.lock().some_time_later_ns();
        let order = self.next_order();
        self.later.insert((at_ns, order), later);
    }

    fn run_later(&mut self) {
        let now_ns = self.network.lock().now_ns();
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now_ns
        {
            match entry.remove() {
                Later::Notification { token, memory, sent, .. } => {
                    if memory.read(0, memory.length) != sent {
                        self.violation =
                            Some(format!("memory of a zero-copy send changed too early: {token:?}"));
                    }
                    self.post(token, 0, Completion::NOTIFICATION);
                }
                Later::Stray(token) => self.post_stray(token),
            }
        }
    }

    fn post_stray(&mut self, token: Token) {
        let ring = self.pools.ring.as_ref().filter(|_| token.kind() == Some(Kind::Receive));
        match ring.and_then(|ring| ring.consume(&mut self.head, b"stray")) {
            Some((id, count)) => {
                let buffer = Completion::BUFFER | u32::from(id) << Completion::BUFFER_SHIFT;
                self.post(token, count as i32, buffer);
            }
            None => self.post(token, -libc::ECANCELED, 0),
        }
    }

    // ---- Helpers -------------------------------------------------------------------------------------------------

    fn post(&mut self, token: Token, result: i32, flags: u32) {
        // Never drop the completion of an accept: it is the only reference to the connection, which would otherwise
        // never be closed.
        let is_accepted = token.kind() == Some(Kind::Accept) && result >= 0;
        if !is_accepted && self.fault(|faults| faults.dropped_completions) {
            self.dropped = true;
            return;
        }
        let full = !self.overflow.is_empty() || self.posted.len() >= self.completion_entries();
        let is_kept = full || self.fault(|faults| faults.completion_overflows);
        let queue = if is_kept { &mut self.overflow } else { &mut self.posted };
        queue.push_back(Completion { token, result, flags });
    }

    fn flush_overflow(&mut self) {
        while self.posted.len() < self.completion_entries()
            && let Some(completion) = self.overflow.pop_front()
        {
            self.posted.push_back(completion);
        }
    }

    fn fault(&self, rate: impl Fn(&SimFaults) -> u16) -> bool {
        let mut network = self.network.lock();
        let rate = rate(&network.faults);
        network.fault(rate)
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn ring_is_empty(&self) -> bool {
        // Uses a copy of the head, so that no buffer is consumed.
        self.pools.ring.as_ref().is_none_or(|ring| ring.consume(&mut self.head.clone(), &[]).is_none())
    }

    /// Returns the time of the next possible event.
    fn next_due_ns(&self) -> Option<u64> {
        let network = self.network.lock();
        let delayed = self.in_flight.values().map(|operation| operation.wakes_at_ns(&network));
        let later = self.later.first_key_value().map(|((at_ns, _), _)| *at_ns);
        delayed.flatten().chain(later).chain(network.next_timer_ns()).min()
    }

    fn completion_entries(&self) -> usize {
        self.options.testing.cq_entries.max(1) as usize
    }

    fn has_completions(&self) -> bool {
        !self.posted.is_empty() || !self.overflow.is_empty()
    }

    /// Returns whether a wait can end. A dropped completion also ends it (`EBADR`).
    fn ends_wait(&self) -> bool {
        self.dropped || self.has_completions()
    }

    fn advance_to(&mut self, to_ns: u64) {
        self.network.lock().advance_to(to_ns);
        self.run_ready();
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        if wait == Wait::None || self.ends_wait() || self.fault(|faults| faults.interruptions) {
            return Ok(());
        }
        let until_ns = match wait {
            Wait::For(nanoseconds) => Some(self.network.lock().now_ns().saturating_add(nanoseconds)),
            _ => None,
        };
        while !self.ends_wait() {
            let next = self.next_due_ns().into_iter().chain(until_ns).min();
            self.advance_to(next.ok_or_else(deadlock_error)?);
            if next == until_ns {
                break;
            }
        }
        Ok(())
    }
}

impl Kernel for SimCompletion {
    type Sockets = SimNetwork;
    #[cfg(debug_assertions)]
    const IS_SIMULATED: bool = true;

    fn next_event_ns(&self) -> Option<u64> {
        let is_busy = !self.submissions.is_empty() || self.ends_wait();
        if is_busy { Some(0) } else { self.next_due_ns() }
    }

    fn sockets(&self) -> &SimNetwork {
        &self.network
    }

    fn sockets_mut(&mut self) -> &mut SimNetwork {
        // With deferred task work, operations run only during `enter`.
        let is_deferred = self.options.task_work == TaskWork::Deferred
            && !self.options.testing.disabled_features.defer_taskrun;
        if !is_deferred && self.fault(|faults| faults.reordering) {
            self.run_some();
        }
        &mut self.network
    }
}

impl CompletionKernel for SimCompletion {
    fn push(&mut self, token: Token, op: Op<'_, SimSocket>) -> u32 {
        let (submission_index, submission) = (self.queued, self.operation(token, op));
        self.submissions.push_back(submission);
        self.queued = self.queued.wrapping_add(1);
        self.operations.submissions += 1;
        submission_index
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.flush_overflow();
        self.network.lock().advance_by_turn();
        if self.fault(|faults| faults.reordering) {
            self.run_ready();
        }
        let consumed_all = self.submit();
        self.run_ready();
        // The kernel does not wait if it has not consumed all submissions.
        self.wait(if consumed_all { wait } else { Wait::None })?;
        match self.violation.take() {
            Some(violation) => Err(io::Error::other(violation)),
            None => Ok(()),
        }
    }

    fn completion(&mut self) -> Option<Completion> {
        if self.posted.is_empty() && !self.overflow.is_empty() {
            self.overflows += 1;
            // A further system call posts the completions that were kept, and can have all other effects of `enter`.
            if let Err(error) = self.enter(Wait::None) {
                self.violation = Some(error.to_string());
            }
            if self.dropped {
                return None;
            }
        }
        let completion = self.posted.pop_front();
        self.operations.completions += u64::from(completion.is_some());
        completion
    }

    fn has_dropped(&mut self) -> bool {
        std::mem::take(&mut self.dropped)
    }

    fn consumed(&self, submission_index: u32) -> bool {
        self.consumed.wrapping_sub(submission_index).cast_signed() > 0
    }

    fn needs_enter(&self) -> bool {
        let ready = |network: &Network| self.in_flight.values().any(|operation| operation.is_ready(network));
        // Delayed events count as well, because they occur only if the clock advances.
        !self.submissions.is_empty()
            || self.has_completions()
            || self.next_due_ns().is_some()
            || ready(&self.network.lock())
    }

    fn pools(&self) -> &Rc<Pools> {
        &self.pools
    }

    fn receive_ring_head(&self) -> Option<u16> {
        Some(self.head)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn accepted(&mut self, result: i32) -> SimSocket {
        self.network.socket(result as u32)
    }

    fn detached(&mut self, key: Key) {
        if self.fault(|faults| faults.late_completions) {
            let kinds =
                [Kind::Receive, Kind::Send, Kind::Readable, Kind::Writable, Kind::Connect, Kind::Hangup];
            let kind = kinds[self.network.lock().random.usize(..kinds.len())];
            self.post_later(Later::Stray(Token::new(kind, key)));
        }
    }

    fn source_removed(&mut self, key: Key) {
        if self.fault(|faults| faults.late_completions) {
            self.post_later(Later::Stray(Token::source(key, Direction::Read)));
        }
    }

    fn zero_copy_pays(&self, socket: &SimSocket) -> bool {
        let remote = self.network.lock().endpoint(socket.id()).remote;
        matches!(self.options.zero_copy, ZeroCopy::Always { .. })
            || remote.is_some_and(|remote| !remote.ip().to_canonical().is_loopback())
    }

    fn overflows(&self) -> u64 {
        self.overflows
    }

    fn operations(&self) -> OperationCounts {
        self.operations
    }

    #[cfg(debug_assertions)]
    fn in_flight(&self) -> Option<InFlight> {
        let submitted = self.submissions.iter().filter_map(|submission| match submission {
            Submission::Operation(operation) => Some(operation),
            Submission::Cancel { .. } => None,
        });
        let operations = submitted.chain(self.in_flight.values()).map(|operation| match &operation.request {
            Request::Send { memory, .. } => (operation.token, Some(memory.data)),
            _ => (operation.token, None),
        });
        let notifications = self.later.values().filter_map(|later| match later {
            Later::Notification { token, .. } => Some(*token),
            Later::Stray(_) => None,
        });
        let unread = self.posted.iter().chain(&self.overflow).map(|completion| completion.token);
        Some(InFlight {
            operations: operations.collect(),
            completions: unread.chain(notifications).collect(),
            has_dropped: self.dropped,
        })
    }
}
