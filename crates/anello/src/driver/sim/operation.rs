//! Operations in flight: the condition that each one waits for, and its effect on the network.

use std::net::SocketAddr;

use super::network::{Id, Network};
use super::socket::SimSocket;
use crate::driver::kernel::op::{Completion, SINGLE_WAKE_UP, SendMode};
use crate::driver::kernel::token::Token;
use crate::driver::memory::buffer::BufferRing;

/// Event bits of a poll for receiving.
const RECEIVE_MASK: i32 = (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as i32;

/// Event bits that every poll reports, regardless of its mask.
const END_MASK: i32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as i32;

/// Event bits that a poll of a readiness source reports even if they were not requested.
const UNREQUESTED: i32 = (libc::POLLHUP | libc::POLLERR) as i32;

#[derive(Debug)]
pub(super) struct Operation {
    pub token: Token,
    /// Kept open until the operation has completed, as the kernel does with files.
    pub socket: SimSocket,
    pub request: Request,
    /// Earliest time at which the operation runs. Set by a delay fault.
    pub not_before_ns: u64,
    /// True if the delay of the next result has already been chosen.
    pub delay_decided: bool,
    /// True if the operation has been cancelled. The operation can still succeed if the cancellation races with it.
    pub cancelled: bool,
    /// True if the next result is the last one.
    pub last: bool,
    /// True if the operation was armed after its connection was reset. Such an operation does not miss the reset.
    pub armed_late: bool,
    /// True if the operation is a receive that has missed a reset of its connection.
    missed_reset: bool,
}

#[derive(Debug)]
pub(super) enum Request {
    Accept { multishot: bool },
    Connect { address: SocketAddr },
    Receive { multishot: bool },
    Readable { seen: Option<u64>, spurious_at_ns: Option<u64> },
    Writable,
    Hangup,
    Poll { events: i32, multishot: bool, seen: Option<u64>, spurious_at_ns: Option<u64> },
    Send { memory: Memory, mode: SendMode, done_bytes: usize },
}

/// Outcome of running an operation.
#[derive(Debug)]
pub(super) enum Step {
    Wait,
    /// A result, and the flags of its completion. With `Completion::MORE`, the operation stays in flight.
    Result {
        result: i32,
        flags: u32,
    },
}

impl Step {
    pub fn end(result: i32) -> Self {
        Self::Result { result, flags: 0 }
    }
}

/// Driver memory that contains the bytes to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub data: *const u8,
    pub length: usize,
}

impl Memory {
    /// Reads the memory when the operation runs, some time after the submission, as the kernel and the network adapter
    /// do.
    pub fn read(&self, from: usize, count: usize) -> Vec<u8> {
        assert!(from + count <= self.length, "simulated send reads beyond the end of its memory");
        // SAFETY: the driver keeps the memory of a send alive and in place until the send is confirmed: by its terminal
        // completion or, for an inline send, by its consumption at submission. A `Memory` exists only in an operation
        // or a notification that is still pending. The range is within the memory, as asserted above.
        unsafe { std::slice::from_raw_parts(self.data.add(from), count) }.to_vec()
    }
}

impl Operation {
    pub fn new(token: Token, socket: SimSocket, request: Request) -> Self {
        Self {
            token,
            socket,
            request,
            not_before_ns: 0,
            delay_decided: false,
            cancelled: false,
            last: false,
            armed_late: false,
            missed_reset: false,
        }
    }

    /// Returns whether running the operation would produce a result.
    pub fn is_ready(&self, network: &Network) -> bool {
        let id = self.socket.id();
        match &self.request {
            Request::Accept { .. } => network.mask(id) != 0,
            Request::Connect { .. } => !network.endpoint(id).is_connecting(),
            Request::Receive { .. } => !self.missed_reset && network.mask(id) & RECEIVE_MASK != 0,
            Request::Hangup => network.mask(id) & END_MASK != 0,
            Request::Readable { seen, spurious_at_ns } => {
                let changed =
                    *seen != Some(network.endpoint(id).events) && network.mask(id) & RECEIVE_MASK != 0;
                changed || spurious_at_ns.is_some_and(|at_ns| at_ns <= network.now_ns())
            }
            Request::Poll { events, seen, spurious_at_ns, .. } => {
                let changed = *seen != Some(network.endpoint(id).events)
                    && network.mask(id) & (events | UNREQUESTED) != 0;
                changed || spurious_at_ns.is_some_and(|at_ns| at_ns <= network.now_ns())
            }
            Request::Writable | Request::Send { .. } => network.can_send(id),
        }
    }

    /// Returns the time at which the operation can continue, if it is waiting for a point in time.
    pub fn wakes_at_ns(&self, network: &Network) -> Option<u64> {
        if self.cancelled || (self.delay_decided && self.is_ready(network)) {
            return Some(self.not_before_ns);
        }
        match self.request {
            Request::Readable { spurious_at_ns, .. } | Request::Poll { spurious_at_ns, .. } => spurious_at_ns,
            _ => None,
        }
    }

    /// Runs the operation as far as possible. Receives take buffers from `ring`, starting at `head`.
    pub fn run(&mut self, network: &mut Network, ring: Option<(&BufferRing, &mut u16)>) -> Step {
        let id = self.socket.id();
        match self.request {
            Request::Accept { multishot } => self.accept(multishot, network),
            Request::Connect { .. } => network
                .connected(id)
                .map_or(Step::Wait, |result| Step::end(result.map_or_else(|error| -error, |()| 0))),
            Request::Receive { multishot } => match ring {
                Some((ring, head)) => self.receive(multishot, network, ring, head),
                None => Step::end(-libc::ENOBUFS),
            },
            Request::Readable { .. } => self.readable(network),
            Request::Writable => Step::end(i32::from(libc::POLLOUT)),
            Request::Hangup => Step::end(network.mask(id) & END_MASK),
            Request::Poll { events, multishot, .. } => self.poll(events, multishot, network),
            Request::Send { memory, mode, done_bytes } => {
                let (step, done_bytes) = self.send(memory, mode, done_bytes, network);
                self.request = Request::Send { memory, mode, done_bytes };
                step
            }
        }
    }

    /// Returns the result of a cancelled operation. For a send, it is the number of bytes sent, if any.
    pub fn cancelled_result(&self) -> i32 {
        match self.request {
            Request::Send { done_bytes: done_bytes @ 1.., .. } => done_bytes as i32,
            _ => -libc::ECANCELED,
        }
    }

    /// Returns `Completion::MORE` if the operation stays in flight after a result.
    fn more_flag(&self, multishot: bool, network: &mut Network) -> u32 {
        let stays = multishot && !self.last && !network.fault(network.faults.multishot_terminations);
        if stays { Completion::MORE } else { 0 }
    }

    fn accept(&mut self, multishot: bool, network: &mut Network) -> Step {
        if network.fault(network.faults.interruptions) {
            return Step::end(-libc::EINTR);
        }
        if network.fault(network.faults.descriptor_exhaustion) {
            return Step::end(-libc::EMFILE);
        }
        match network.accept(self.socket.id()) {
            Ok(accepted) => {
                Step::Result { result: accepted as i32, flags: self.more_flag(multishot, network) }
            }
            Err(libc::EAGAIN) => Step::Wait,
            Err(error) => Step::end(-error),
        }
    }

    fn receive(&mut self, multishot: bool, network: &mut Network, ring: &BufferRing, head: &mut u16) -> Step {
        let id = self.socket.id();
        if network.fault(network.faults.resets) {
            network.reset(id);
        }
        if network.fault(network.faults.interruptions) {
            return Step::end(-libc::EINTR);
        }
        if network.fault(network.faults.buffer_exhaustion) {
            return Step::end(-libc::ENOBUFS);
        }
        let available = match network.available(id) {
            Ok(0) => return Step::end(0),
            Ok(available) => available,
            Err(libc::EAGAIN) => return Step::Wait,
            Err(error) => return Step::end(-error),
        };
        let count = network.cut(available.min(ring.buffer_bytes), network.faults.short_receives);
        let Some((buffer, count)) = ring.consume(head, network.peek(id, count)) else {
            return Step::end(-libc::ENOBUFS);
        };
        network.consume(id, count);
        let mut flags = self.more_flag(multishot, network);
        // After a half-close by the peer, a receive continues until EOF.
        let is_last = count == available && !network.endpoint(id).received_eof;
        let missable = flags != 0 && !self.armed_late && is_last && is_broken(network, id);
        self.missed_reset = missable && network.fault(network.faults.missed_resets);
        flags |= Completion::BUFFER | u32::from(buffer) << Completion::BUFFER_SHIFT;
        flags |= if count < available { Completion::SOCKET_NONEMPTY } else { 0 };
        Step::Result { result: count as i32, flags }
    }

    /// Reports the result of a poll. If the spurious readiness fault occurs, also schedules a spurious event.
    fn readable(&mut self, network: &mut Network) -> Step {
        let id = self.socket.id();
        let spurious = network.fault(network.faults.spurious_readiness);
        let spurious_at_ns = spurious.then(|| network.some_time_later_ns());
        let Request::Readable { seen, .. } = self.request else { unreachable!("the operation is a poll") };
        let endpoint = network.endpoint(id);
        let is_single_send = match (&endpoint.unix, seen) {
            (Some(unix), Some(seen)) => unix.is_single_send(endpoint.events, seen),
            _ => false,
        };
        self.request = Request::Readable { seen: Some(endpoint.events), spurious_at_ns };
        let mask = network.mask(id) & RECEIVE_MASK;
        let result = if mask == 0 { i32::from(libc::POLLIN) } else { mask };
        let result = if is_single_send { result | SINGLE_WAKE_UP } else { result };
        Step::Result { result, flags: self.more_flag(true, network) }
    }

    /// Reports the result of a poll of a readiness source. If the spurious readiness fault occurs, also schedules a
    /// spurious event.
    fn poll(&mut self, events: i32, multishot: bool, network: &mut Network) -> Step {
        let id = self.socket.id();
        let flags = self.more_flag(multishot, network);
        let spurious = flags != 0 && network.fault(network.faults.spurious_readiness);
        let spurious_at_ns = spurious.then(|| network.some_time_later_ns());
        let seen = Some(network.endpoint(id).events);
        self.request = Request::Poll { events, multishot, seen, spurious_at_ns };
        let mask = network.mask(id) & (events | UNREQUESTED);
        Step::Result { result: if mask == 0 { events } else { mask }, flags }
    }

    /// Sends as many bytes as the buffer has space for. A send that may wait continues until all bytes are sent
    /// (`MSG_WAITALL`). Returns the outcome and the number of bytes sent so far.
    fn send(
        &mut self,
        memory: Memory,
        mode: SendMode,
        mut done_bytes: usize,
        network: &mut Network,
    ) -> (Step, usize) {
        let id = self.socket.id();
        if network.fault(network.faults.resets) {
            network.reset(id);
        }
        if done_bytes == 0 && network.fault(network.faults.refused_sends) {
            let error = match mode {
                SendMode::Inline => libc::EAGAIN,
                SendMode::Async => libc::EINTR,
                // Zero-copy is not supported on this socket, or the limit on locked memory is reached.
                SendMode::ZeroCopy if network.random.bool() => libc::EOPNOTSUPP,
                SendMode::ZeroCopy => libc::ENOMEM,
            };
            return (Step::end(-error), 0);
        }
        let space = match network.send_space(id) {
            Ok(space) => space,
            Err(libc::EAGAIN) if mode != SendMode::Inline => return (Step::Wait, done_bytes),
            Err(error) if done_bytes == 0 => return (Step::end(-error), 0),
            Err(_) => return (Step::end(done_bytes as i32), done_bytes),
        };
        let possible = space.min(memory.length - done_bytes);
        let count = network.cut(possible, network.faults.short_sends);
        network.put(id, &memory.read(done_bytes, count));
        done_bytes += count;
        let is_complete =
            done_bytes == memory.length || count < possible || mode == SendMode::Inline || self.last;
        (if is_complete { Step::end(done_bytes as i32) } else { Step::Wait }, done_bytes)
    }
}

/// Returns whether a receive would report a reset, once all bytes have been received.
pub(super) fn is_broken(network: &Network, id: Id) -> bool {
    network.mask(id) & i32::from(libc::POLLERR) != 0
}
