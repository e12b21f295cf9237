//! Tests of single calls and completions on a simulated kernel, and of what the driver counts.

use std::io::IoSlice;
use std::mem::discriminant;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::receive_window::ReceiveWindow;
use super::stream::{Connect, HangupPoll, Received, Receiving, Sending, SourcePoll, Stream};
use super::{Proactor, RecoveryCancels, ZERO_COPY_ACK_TIMEOUT_NS, ZeroCopySend, cancellation_of};
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::{Completion, SINGLE_WAKE_UP, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::buffer::RingUsage;
use crate::driver::memory::key::Key;
use crate::driver::settings::options::{DriverOptions, ZeroCopy};
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::sim::{SimCompletion, SimNetwork, SimSocket};
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{End, Family, FileRange, Sockets};
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::stream::send_queue::{Queued, SendBuf};
use crate::driver::wake::queue::WakeQueue;

const RING_BUFFER_BYTES: usize = 64;

/// A proactor with two streams that are connected to each other.
struct Pair {
    proactor: Proactor<SimCompletion>,
    near: Key,
    far: Key,
}

fn options() -> DriverOptions {
    DriverOptions {
        max_send_queue_bytes: 16,
        receive_buffer_bytes: RING_BUFFER_BYTES,
        ..DriverOptions::default()
    }
}

impl Pair {
    fn with(family: Family, sim: &SimOptions, options: &DriverOptions) -> Self {
        let mut kernel = SimCompletion::new(SimNetwork::new(sim), sim, options);
        let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
        let mut proactor = Proactor::new(kernel, options);
        let near = proactor.attach(near, family, false).unwrap();
        let far = proactor.attach(far, family, false).unwrap();
        Self { proactor, near, far }
    }

    /// Returns streams that receive through the ring.
    fn new() -> Self {
        Self::with(Family::Internet, &SimOptions::new(1), &options())
    }

    /// Returns streams that receive by system calls.
    fn direct() -> Self {
        Self::with(Family::Unix, &SimOptions::new(1), &options())
    }

    fn far(&mut self) -> &mut Stream<SimSocket> {
        self.proactor.streams.get_mut(self.far).unwrap()
    }

    fn turns(&mut self) {
        (0..3).for_each(|_| self.proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut outgoing = Some(SendBuf::Vec(bytes.to_vec()));
        let polled = self.proactor.poll_send(self.near, &mut outgoing, Waker::noop());
        assert!(matches!(polled, Poll::Ready(Ok(()))));
    }

    /// Sends with a system call, without a turn.
    fn send_now(&mut self, bytes: &[u8]) {
        let Proactor { kernel, streams, .. } = &mut self.proactor;
        let sent = kernel.sockets_mut().send(&streams.get(self.near).unwrap().socket, bytes);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    /// Receives once: bytes, none at EOF, or the error number.
    fn receive(&mut self) -> Poll<Result<Vec<u8>, Option<i32>>> {
        let mut received = None;
        let polled = self.proactor.poll_receive(self.far, &mut received, Waker::noop());
        polled.map(|result| match result {
            Ok(()) => Ok(received.map_or(Vec::new(), |chunk| chunk.to_vec())),
            Err(error) => Err(error.raw_os_error()),
        })
    }

    /// Sends a message that arrives while a receive waits for it.
    fn pass(&mut self, bytes: &[u8]) {
        for _ in 0..2 {
            // The first turn may end an earlier receive.
            assert!(self.receive().is_pending());
            self.turns();
        }
        self.send_now(bytes);
        self.turns();
        assert_eq!(self.receive(), ready(bytes));
    }

    fn peek(&mut self, length: usize) -> Poll<Result<Vec<u8>, Option<i32>>> {
        let mut buffer = vec![0; length];
        let polled = self.proactor.poll_peek(self.far, &mut buffer, Waker::noop());
        polled.map(|result| match result {
            Ok(count) => Ok(buffer[..count].to_vec()),
            Err(error) => Err(error.raw_os_error()),
        })
    }

    fn complete(&mut self, kind: Kind, result: i32, flags: u32) {
        let completion = Completion { token: Token::new(kind, self.far), result, flags };
        self.proactor.dispatch(&completion, &mut WakeQueue::default());
    }
}

fn ready(bytes: &[u8]) -> Poll<Result<Vec<u8>, Option<i32>>> {
    Poll::Ready(Ok(bytes.to_vec()))
}

#[test]
fn calls_and_completions_are_counted() {
    let mut pair = Pair::new();
    let metrics = |pair: &Pair| pair.proactor.metrics();
    assert_eq!((metrics(&pair).sockets, pair.proactor.stream_count()), (2, 2));
    for count in 1..=4 {
        pair.pass(b"abc");
        assert_eq!(metrics(&pair).receives, count);
    }
    assert!(metrics(&pair).turns > 0 && metrics(&pair).submissions > 0 && metrics(&pair).completions > 0);
    assert!(metrics(&pair).ring_buffers > 0 && metrics(&pair).completion_overflows == 0);
    pair.send(b"de");
    pair.turns();
    assert_eq!((metrics(&pair).sends, metrics(&pair).buffers_leased), (1, 1));
    assert_eq!(pair.receive(), ready(b"de"));
    assert_eq!(metrics(&pair).buffers_leased, 0);

    let mut pair = Pair::direct();
    pair.send_now(b"abc");
    assert_eq!(pair.receive(), ready(b"abc"));
    assert_eq!(metrics(&pair).receives, 1);
}

#[test]
fn completions_that_do_not_fit_into_the_queue_are_counted() {
    let mut options = options();
    options.testing.cq_entries = 1;
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    for key in [pair.near, pair.far] {
        assert!(pair.proactor.poll_receive(key, &mut None, Waker::noop()).is_pending());
    }
    pair.turns();
    assert_eq!(pair.proactor.metrics().completion_overflows, 0);
    for key in [pair.near, pair.far] {
        pair.proactor.shutdown_write(key).unwrap();
    }
    pair.turns();
    assert!(pair.proactor.metrics().completion_overflows > 0);
}

#[test]
fn driver_is_quiescent_only_without_entries() {
    let mut proactor = Pair::new().proactor;
    assert!(!proactor.is_quiescent());
    proactor.release_all(&mut WakeQueue::default());
    let turn = |proactor: &mut Proactor<SimCompletion>| {
        (0..3).for_each(|_| proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    };
    turn(&mut proactor);
    assert!(proactor.is_quiescent() && proactor.stream_count() == 0);
    let network = proactor.kernel.sockets_mut();
    let sockets = [(); 3].map(|()| network.open(false).unwrap());
    let [stream, listener, source] = sockets;
    let listener = proactor.attach_listener(listener, Family::Internet).unwrap();
    assert!(!proactor.is_quiescent());
    let stream = proactor.attach(stream, Family::Internet, false).unwrap();
    assert!(!proactor.is_quiescent() && proactor.metrics().sockets == 2);
    proactor.release_listener(listener);
    let source = proactor.register(Rc::new(source), Interest::READABLE).unwrap();
    assert!(!proactor.is_quiescent());
    proactor.release(stream);
    assert!(!proactor.is_quiescent() && proactor.stream_count() == 0);
    proactor.deregister(source);
    let send = ZeroCopySend { stream, short_result: None, memory: None };
    let send = proactor.zero_copy_sends.insert(send);
    assert!(!proactor.is_quiescent());
    proactor.zero_copy_sends.remove(send);
    turn(&mut proactor);
    assert!(proactor.is_quiescent());
}

#[test]
fn unsubmitted_send_needs_a_turn() {
    let mut pair = Pair::new();
    assert!(!pair.proactor.needs_turn());
    assert!(!pair.proactor.find_work(&mut WakeQueue::default()).unwrap());
    pair.send(b"abc");
    assert!(pair.proactor.needs_turn());
    pair.turns();
    assert!(!pair.proactor.needs_turn());
}

#[test]
fn error_of_a_receive_lasts() {
    let mut pair = Pair::new();
    assert!(pair.receive().is_pending() && pair.proactor.receive_error(pair.far).is_none());
    pair.turns();
    let near = pair.proactor.streams.get(pair.near).unwrap();
    pair.proactor.kernel.sockets().set_option(&near.socket, SocketOption::Linger, 0).unwrap();
    pair.proactor.abort(pair.near);
    pair.turns();
    for _ in 0..2 {
        assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNRESET))));
        let error = pair.proactor.receive_error(pair.far).and_then(|error| error.raw_os_error());
        assert_eq!(error, Some(libc::ECONNRESET));
    }
}

#[test]
fn first_receives_are_not_multishot() {
    for (missed_resets, hangup_poll) in [(0, HangupPoll::Idle), (1, HangupPoll::Armed)] {
        let faults = SimFaults { missed_resets, ..SimFaults::none() };
        let sim = SimOptions::new(1).faults(faults);
        let mut pair = Pair::with(Family::Internet, &sim, &options());
        for one_shot_receives in [1, 0] {
            pair.pass(b"abc");
            let far = pair.far();
            assert_eq!((far.one_shot_receives, far.receiving), (one_shot_receives, Receiving::Idle));
            assert_eq!(far.hangup_poll, HangupPoll::Idle);
        }
        for _ in 0..2 {
            pair.pass(b"abc");
            let far = pair.far();
            assert_eq!((far.one_shot_receives, far.receiving), (0, Receiving::Ring));
            assert_eq!(far.hangup_poll, hangup_poll);
        }
    }
}

#[test]
fn hangup_cancels_the_receive_of_a_broken_connection() {
    let (hup, err, rdhup) = (i32::from(libc::POLLHUP), i32::from(libc::POLLERR), i32::from(libc::POLLRDHUP));
    for (result, is_cancelled) in
        [(0, false), (-libc::ECANCELED, false), (rdhup, false), (hup, true), (err, true), (rdhup | hup, true)]
    {
        let faults = SimFaults { missed_resets: 1, ..SimFaults::none() };
        let sim = SimOptions::new(1).faults(faults);
        let mut pair = Pair::with(Family::Internet, &sim, &options());
        (0..3).for_each(|_| pair.pass(b"abc"));
        assert_eq!(pair.far().hangup_poll, HangupPoll::Armed);
        pair.complete(Kind::Hangup, result, 0);
        let expected = if is_cancelled { Receiving::Cancelling(Kind::Receive) } else { Receiving::Ring };
        assert_eq!(pair.far().receiving, expected, "{result}");
        let expected = if result < 0 { HangupPoll::Idle } else { HangupPoll::Fired };
        assert_eq!(pair.far().hangup_poll, expected, "{result}");
    }
}

#[test]
fn messages_that_do_not_fit_into_a_ring_buffer_are_received_directly() {
    for (length, is_direct) in [(1, false), (RING_BUFFER_BYTES, false), (3 * RING_BUFFER_BYTES, true)] {
        let mut pair = Pair::new();
        assert!(pair.receive().is_pending());
        pair.turns();
        pair.send_now(&vec![7; length]);
        pair.turns();
        assert_eq!(pair.far().direct, is_direct, "{length} bytes");
    }
}

#[test]
fn stream_returns_to_the_ring_after_small_messages() {
    for family in [Family::Internet, Family::Unix] {
        let mut pair = Pair::with(family, &SimOptions::new(1), &options());
        pair.far().direct = true;
        (0..63).for_each(|_| pair.pass(&[7; RING_BUFFER_BYTES]));
        pair.pass(&[7; RING_BUFFER_BYTES + 1]);
        (0..63).for_each(|_| pair.pass(b"a"));
        assert!(pair.far().direct);
        pair.pass(b"a");
        assert_eq!(pair.far().direct, family == Family::Unix);
        (0..3).for_each(|_| pair.pass(b"a"));
    }
}

#[test]
fn stream_is_direct_while_no_ring_buffer_is_left() {
    let mut options = options();
    (options.max_receive_buffers, options.testing.initial_receive_buffers) = (1, 1);
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    let mut leased = Vec::new();
    for _ in 0..4 {
        let mut received = None;
        assert!(pair.proactor.poll_receive(pair.far, &mut received, Waker::noop()).is_pending());
        pair.turns();
        if pair.far().direct {
            break;
        }
        pair.send_now(b"abc");
        pair.turns();
        assert!(pair.proactor.poll_receive(pair.far, &mut received, Waker::noop()).is_ready());
        leased.push(received);
    }
    assert!(!leased.is_empty() && pair.far().direct && pair.proactor.metrics().buffer_exhaustions > 0);
}

#[test]
fn event_of_a_direct_stream_determines_what_a_short_read_means() {
    let input = i32::from(libc::POLLIN);
    for (family, mask, was_readable, may_hold_messages) in [
        (Family::Unix, input, false, true),
        (Family::Unix, input | SINGLE_WAKE_UP, false, false),
        (Family::Unix, input | SINGLE_WAKE_UP, true, true),
        (Family::Internet, input, false, false),
        (Family::Internet, input | SINGLE_WAKE_UP, false, false),
    ] {
        let mut pair = Pair::with(family, &SimOptions::new(1), &options());
        pair.far().direct = true;
        assert!(pair.receive().is_pending());
        pair.far().reads.readable = was_readable;
        pair.complete(Kind::Readable, mask, Completion::MORE);
        let reads = pair.far().reads;
        assert!(reads.readable && !reads.short_read_is_inconclusive);
        assert_eq!(reads.may_hold_messages, may_hold_messages, "{family:?} {mask} {was_readable}");
    }
    for bit in [libc::POLLHUP, libc::POLLRDHUP, libc::POLLERR] {
        let mut pair = Pair::direct();
        assert!(pair.receive().is_pending());
        pair.complete(Kind::Readable, input | i32::from(bit), Completion::MORE);
        assert!(pair.far().reads.short_read_is_inconclusive, "{bit}");
        pair.complete(Kind::Readable, input, Completion::MORE);
        assert!(pair.far().reads.short_read_is_inconclusive, "{bit}");
    }
}

#[test]
fn socket_is_read_only_after_received_chunks() {
    let mut pair = Pair::new();
    pair.send_now(b"de");
    assert_eq!(pair.peek(5), ready(b"de"), "no receive is in flight");
    pair.proactor.store_received(pair.far, b"abc");
    assert_eq!((pair.peek(2), pair.peek(4), pair.peek(9)), (ready(b"ab"), ready(b"abcd"), ready(b"abcde")));
    assert_eq!(pair.receive(), ready(b"abc"));
    assert!(pair.receive().is_pending() && pair.peek(5).is_pending(), "a receive is in flight");
    pair.turns();
    assert_eq!(pair.peek(5), ready(b"de"));

    let mut pair = Pair::direct();
    assert!(pair.peek(1).is_pending() && !pair.far().reads.readable);
    pair.proactor.store_received(pair.far, b"abc");
    pair.turns();
    assert_eq!(pair.peek(5), ready(b"abc"));
    pair.proactor.shutdown_write(pair.near).unwrap();
    pair.turns();
    assert_eq!((pair.peek(5), pair.receive()), (ready(b"abc"), ready(b"abc")));
    assert_eq!((pair.peek(5), pair.receive()), (ready(b""), ready(b"")));
}

#[test]
fn stream_is_ready_for_writing_while_the_queue_has_room() {
    let mut pair = Pair::new();
    let is_ready = |pair: &mut Pair| pair.proactor.poll_write_ready(pair.near, Waker::noop()).is_ready();
    pair.send(&[7; 15]);
    assert!(is_ready(&mut pair) && !pair.proactor.confirm_without_sleeping);
    pair.send(&[7]);
    pair.proactor.confirm_without_sleeping = false;
    assert!(!is_ready(&mut pair) && pair.proactor.confirm_without_sleeping);
    pair.proactor.shutdown_write(pair.near).unwrap();
    assert!(is_ready(&mut pair), "a write fails");
}

/// A proactor with a listener.
struct Listening {
    proactor: Proactor<SimCompletion>,
    key: Key,
    address: SocketAddr,
    clients: Vec<SimSocket>,
}

impl Listening {
    fn new(options: &DriverOptions) -> Self {
        let sim = SimOptions::new(1);
        let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, options);
        let network = kernel.sockets_mut();
        let listener = network.open(false).unwrap();
        network.bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        network.start_listening(&listener, 1000).unwrap();
        let address = network.address(&listener, End::Local).unwrap().as_socket().unwrap();
        let mut proactor = Proactor::new(kernel, options);
        let key = proactor.attach_listener(listener, Family::Internet).unwrap();
        Self { proactor, key, address, clients: Vec::new() }
    }

    fn poll(&mut self) -> Poll<Result<(), Option<i32>>> {
        let polled = self.proactor.poll_accepted(self.key, Waker::noop());
        polled.map(|accepted| accepted.map(drop).map_err(|error| error.raw_os_error()))
    }

    fn connect(&mut self, count: usize) {
        let network = self.proactor.kernel.sockets_mut();
        for _ in 0..count {
            let client = network.open_stream(self.address, None).unwrap();
            network.connect(&client, self.address).unwrap();
            self.clients.push(client);
        }
        (0..3).for_each(|_| self.proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    }

    /// Returns whether an accept is armed, whether it is being cancelled, and the number of accepted connections.
    fn state(&self) -> (bool, bool, usize) {
        let listener = self.proactor.listeners.get(self.key).unwrap();
        (listener.armed, listener.cancelling, listener.queue.len())
    }
}

#[test]
fn connections_are_accepted_ahead_unless_the_listener_is_shared() {
    for (accepts_ahead, is_shared) in [(true, false), (true, true), (false, false)] {
        let mut listening = Listening::new(&options());
        listening.proactor.set_accept_ahead(listening.key, true);
        listening.proactor.set_accept_ahead(listening.key, accepts_ahead);
        assert_eq!(listening.state(), (false, false, 0), "nothing to cancel");
        if is_shared {
            listening.proactor.share_listener(listening.key);
        }
        assert!(listening.poll().is_pending());
        listening.connect(3);
        let is_multishot = accepts_ahead && !is_shared;
        assert_eq!(listening.state(), (is_multishot, false, if is_multishot { 3 } else { 1 }));
        listening.proactor.set_accept_ahead(listening.key, accepts_ahead);
        assert!(!listening.state().1, "not changed");
        listening.proactor.set_accept_ahead(listening.key, false);
        assert_eq!(listening.state().1, is_multishot);
        assert_eq!(listening.poll(), Poll::Ready(Ok(())));
    }
}

#[test]
fn full_queue_stops_accepting() {
    let mut listening = Listening::new(&DriverOptions { max_accept_queue: 2, ..options() });
    assert!(listening.poll().is_pending());
    listening.connect(1);
    assert_eq!(listening.state(), (true, false, 1));
    listening.connect(1);
    assert_eq!(listening.state(), (false, false, 2));
    listening.connect(1);
    assert_eq!(listening.state(), (false, false, 2));
    assert_eq!((listening.poll(), listening.poll()), (Poll::Ready(Ok(())), Poll::Ready(Ok(()))));
    assert!(listening.poll().is_pending() && listening.state().0);
    listening.proactor.release_all(&mut WakeQueue::default());
    assert!(listening.proactor.listener(listening.key).is_none());
}

#[test]
fn accept_fails_only_if_further_ones_would() {
    for (errno, is_returned) in [
        (libc::EMFILE, true),
        (libc::ECONNABORTED, false),
        (libc::EPROTO, false),
        (libc::ECANCELED, false),
        (libc::EAGAIN, false),
    ] {
        let mut listening = Listening::new(&options());
        assert!(listening.poll().is_pending());
        let token = Token::new(Kind::Accept, listening.key);
        let completion = Completion { token, result: -errno, flags: 0 };
        listening.proactor.dispatch(&completion, &mut WakeQueue::default());
        let expected = if is_returned { Poll::Ready(Err(Some(errno))) } else { Poll::Pending };
        assert_eq!(listening.poll(), expected, "{errno}");
    }
}

#[test]
fn use_of_the_ring_is_observed_in_windows() {
    const WINDOW_NS: u64 = super::receive_window::WINDOW_NS;
    let usage = |in_use, filled| RingUsage { in_use, filled };
    let mut window = ReceiveWindow::new(100, usage(3, u16::MAX));
    assert!(!window.has_ended(100 + WINDOW_NS - 1) && window.has_ended(100 + WINDOW_NS));
    let remaining_ns = WINDOW_NS - 50;
    for (wait, limited) in [
        (Wait::Forever, Wait::For(remaining_ns)),
        (Wait::For(7), Wait::For(7)),
        (Wait::For(u64::MAX), Wait::For(remaining_ns)),
        (Wait::None, Wait::None),
    ] {
        assert_eq!(window.limit(wait, 150), limited);
    }
    assert_eq!(window.limit(Wait::Forever, u64::MAX), Wait::For(0));
    // Nothing has changed: the window that follows would have the same result, and ends no wait.
    window.record(usage(3, u16::MAX));
    assert_eq!((window.peak, window.next(0).limit(Wait::Forever, 0)), (3, Wait::Forever));
    assert_eq!(window.next(0).limit(Wait::For(u64::MAX), 0), Wait::For(u64::MAX));
    // The number of filled buffers wraps.
    window.record(usage(1, 4));
    window.record(usage(2, 4));
    assert_eq!((window.peak, window.next(0).limit(Wait::Forever, 0)), (8, Wait::For(WINDOW_NS)));
    let mut next = window.next(7);
    assert_eq!(next.peak, 0);
    next.record(usage(2, 5));
    assert_eq!(next.peak, 3);
}

fn with_thresholds(direct: usize, zero_copy: usize) -> DriverOptions {
    DriverOptions {
        direct_send_threshold_bytes: direct,
        zero_copy: ZeroCopy::Always { threshold_bytes: zero_copy },
        ..options()
    }
}

impl Pair {
    /// Returns streams whose socket buffers hold few bytes.
    fn small(direct: usize) -> Self {
        let sim = SimOptions::new(1).socket_buffer_bytes(8);
        Self::with(Family::Internet, &sim, &with_thresholds(direct, usize::MAX))
    }

    /// Returns a pair whose near end waits for room in the socket buffer, with 12 bytes in the queue.
    fn sending() -> Self {
        let mut pair = Self::small(1000);
        pair.send(&[7; 20]);
        pair.turns();
        assert_eq!((pair.near().sending, pair.near().sends.queue.queued_bytes()), (Sending::Async, 12));
        pair
    }

    /// Returns a pair whose near end has started a zero-copy send of 40 bytes, and the key of the send.
    fn sending_zero_copy() -> (Self, Key) {
        let options = with_thresholds(1000, 32);
        let mut pair = Self::with(Family::Internet, &SimOptions::new(1), &options);
        pair.send(&[7; 40]);
        let Sending::ZeroCopy(send_key) = pair.near().sending else { panic!("{:?}", pair.near().sending) };
        (pair, send_key)
    }

    fn near(&mut self) -> &mut Stream<SimSocket> {
        self.proactor.streams.get_mut(self.near).unwrap()
    }

    fn complete_token(&mut self, token: Token, result: i32, flags: u32) {
        let completion = Completion { token, result, flags };
        self.proactor.dispatch(&completion, &mut WakeQueue::default());
    }

    fn complete_send(&mut self, result: i32) {
        self.complete_token(Token::new(Kind::Send, self.near), result, 0);
    }

    fn write(&mut self, length: usize) -> Poll<usize> {
        let bytes = vec![7; length];
        let slices = [IoSlice::new(&bytes)];
        self.proactor.poll_write(self.near, &slices, Waker::noop()).map(Result::unwrap)
    }

    fn send_vectored(&mut self, lengths: &[usize]) -> bool {
        let mut outgoing = Vec::from_iter(lengths.iter().map(|&length| SendBuf::Vec(vec![7; length])));
        self.proactor.poll_send_vectored(self.near, &mut outgoing, Waker::noop()).is_ready()
    }

    /// Returns the numbers of complete and of short sends.
    fn sends(&self) -> (u64, u64) {
        let metrics = self.proactor.metrics();
        (metrics.sends, metrics.short_sends)
    }

    fn error(&mut self) -> Option<i32> {
        self.near().sends.error.map(NonZero::get)
    }

    /// Returns whether the next turn must confirm sends before it waits, and resets that.
    fn must_confirm(&mut self) -> bool {
        std::mem::take(&mut self.proactor.confirm_without_sleeping)
    }
}

#[test]
fn sends_for_which_a_task_waits_are_confirmed_before_the_next_wait() {
    let mut pair = Pair::new();
    assert!(matches!(pair.proactor.poll_flush(pair.near, Waker::noop()), Poll::Ready(Ok(()))));
    pair.send(b"abc");
    assert!(pair.near().is_unconfirmed() && !pair.must_confirm());
    assert!(pair.proactor.poll_submitted(pair.near, Waker::noop()).is_ready() && !pair.must_confirm());
    pair.send(b"de");
    assert!(pair.must_confirm(), "more is to be sent");
    assert!(pair.write(1).is_ready() && pair.must_confirm());
    assert!(pair.send_vectored(&[1, 1]) && pair.must_confirm());
    assert!(pair.proactor.poll_flush(pair.near, Waker::noop()).is_pending() && pair.must_confirm());
    pair.send(&[7; 8]);
    assert!(pair.must_confirm(), "the queue is full");
    let mut outgoing = Some(SendBuf::Vec(b"x".to_vec()));
    assert!(pair.proactor.poll_send(pair.near, &mut outgoing, Waker::noop()).is_pending());
    assert!(pair.must_confirm());
    assert!(pair.write(1).is_pending() && pair.must_confirm());
    assert!(!pair.send_vectored(&[1, 1]) && pair.must_confirm());
    assert!(pair.proactor.release(pair.near) && pair.must_confirm());

    // The completion of this send ends a wait.
    let mut pair = Pair::sending();
    pair.must_confirm();
    assert!(pair.proactor.poll_flush(pair.near, Waker::noop()).is_pending());
    assert!(pair.proactor.poll_submitted(pair.near, Waker::noop()).is_pending());
    assert!(pair.write(1).is_ready() && !pair.must_confirm());
}

#[test]
fn inline_send_is_confirmed_early_if_something_depends_on_it() {
    for (is_followed, is_awaited, is_released) in
        [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
    {
        let mut pair = Pair::new();
        let near = pair.near();
        near.sends.queue.push(Queued(SendBuf::Vec(vec![7; 600])));
        if is_followed {
            near.sends.queue.push(Queued(SendBuf::Vec(vec![7; 600])));
        }
        if is_awaited {
            near.sends.waker.wait(Waker::noop());
        }
        near.released = is_released;
        pair.proactor.after_send(pair.near, false, &mut WakeQueue::default());
        assert!(pair.near().is_unconfirmed());
        assert_eq!(pair.must_confirm(), is_followed || is_awaited || is_released);
    }
}

#[test]
fn long_writes_are_sent_directly() {
    for (threshold, length, is_direct) in
        [(64, 63, false), (64, 64, true), (usize::MAX, 4096, false), (usize::MAX, 4097, true)]
    {
        let options =
            DriverOptions { max_send_queue_bytes: 10_000, ..with_thresholds(threshold, usize::MAX) };
        let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
        assert!(matches!(pair.write(length), Poll::Ready(count) if count == length));
        assert_eq!((pair.near().sending == Sending::Idle, pair.sends()), (is_direct, (is_direct.into(), 0)));
    }
    for (length, is_direct) in [(63, false), (64, true)] {
        let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &with_thresholds(64, usize::MAX));
        pair.send(&vec![7; length]);
        assert_eq!((pair.near().sending == Sending::Idle, pair.sends()), (is_direct, (is_direct.into(), 0)));
        pair.turns();
        assert!(pair.send_vectored(&[length - 32, 32]));
        assert_eq!(
            (pair.near().sending == Sending::Idle, pair.sends().0),
            (is_direct, 1 + u64::from(is_direct))
        );
    }
}

#[test]
fn write_accepts_what_fits_into_the_socket_and_the_queue() {
    let mut pair = Pair::new();
    assert!(matches!(pair.write(20), Poll::Ready(16)), "only the queue, because nothing is sent directly");
    let mut pair = Pair::new();
    pair.send(&[7; 10]);
    assert!(matches!(pair.write(10), Poll::Ready(6)));
    let mut pair = Pair::small(64);
    assert!(matches!(pair.write(64), Poll::Ready(24)));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    let mut pair = Pair::small(64);
    assert!(pair.send_vectored(&[32, 32]));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    // More buffers than one call takes.
    let options = with_thresholds(64, usize::MAX);
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    assert!(pair.send_vectored(&[1; 1500]));
    assert!(pair.near().is_unconfirmed() && pair.sends() == (1, 0));
}

#[test]
fn bytes_that_the_socket_does_not_take_are_queued() {
    let mut pair = Pair::small(64);
    let write_more = |pair: &mut Pair, data: &[u8]| {
        pair.proactor.poll_write_more(pair.near, data, Waker::noop()).map(Result::unwrap)
    };
    assert!(matches!(write_more(&mut pair, b"12345678"), Poll::Ready(8)));
    assert_eq!(pair.sends(), (1, 0));
    assert!(matches!(write_more(&mut pair, b"abc"), Poll::Ready(3)));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (1, 1)));

    let mut pair = Pair::small(64);
    pair.send_now(b"12345678");
    pair.send(&[7; 64]);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 0)));
}

#[test]
fn result_of_a_send_decides_what_follows() {
    let inline = || {
        let mut pair = Pair::new();
        pair.send(b"abcdef");
        assert!(pair.near().is_unconfirmed());
        pair
    };
    let mut pair = inline();
    pair.complete_send(2);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    assert!(!pair.near().sends.may_have_lost_error);
    for errno in [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM] {
        let mut pair = inline();
        pair.complete_send(-errno);
        assert_eq!((pair.near().sending, pair.sends(), pair.error()), (Sending::Async, (0, 1), None));
    }
    let before = Pair::sending().sends();
    let mut pair = Pair::sending();
    pair.complete_send(12);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Idle, (before.0 + 1, before.1)));
    assert!(!pair.near().sends.may_have_lost_error);
    let mut pair = Pair::sending();
    pair.complete_send(5);
    assert_eq!((pair.near().sends.queue.queued_bytes(), pair.sends()), (7, (before.0, before.1 + 1)));
    assert!(pair.near().sends.may_have_lost_error);
    // The first send has lost the error of the connection.
    pair.complete_send(-libc::EPIPE);
    assert_eq!(pair.error(), Some(libc::ECONNRESET));
    for errno in [libc::EPIPE, libc::ENOBUFS, libc::EOPNOTSUPP, libc::ECONNRESET] {
        let mut pair = Pair::sending();
        pair.complete_send(-errno);
        assert_eq!((pair.error(), pair.near().sending), (Some(errno), Sending::Idle));
    }
}

#[test]
fn only_long_messages_on_internet_sockets_are_sent_without_a_copy() {
    for (family, lengths, count) in
        [(Family::Internet, [1500, 1], 1), (Family::Unix, [1500, 1], 0), (Family::Internet, [15, 15], 0)]
    {
        let mut pair = Pair::with(family, &SimOptions::new(1), &with_thresholds(1000, 32));
        assert!(pair.send_vectored(&lengths));
        assert_eq!(pair.proactor.metrics().zero_copy_sends, count);
        let mut pair = Pair::with(family, &SimOptions::new(1), &with_thresholds(1000, 32));
        pair.send(&vec![7; lengths[0]]);
        assert_eq!(pair.proactor.metrics().zero_copy_sends, count);
    }
    let mut options = with_thresholds(1000, 32);
    options.testing.disabled_features.zero_copy = true;
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    assert!(pair.send_vectored(&[40, 1]));
    assert_eq!(pair.proactor.metrics().zero_copy_sends, 0);
}

#[test]
fn memory_of_a_zero_copy_send_is_kept_until_the_notification() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 40, Completion::MORE);
    assert_eq!((pair.near().sending, pair.sends(), pair.error()), (Sending::Idle, (1, 0), None));
    assert!(pair.proactor.zero_copy_sends.get(send_key).unwrap().memory.is_some());
    pair.complete_token(token, 0, Completion::NOTIFICATION);
    assert_eq!((pair.proactor.zero_copy_sends.len(), pair.sends(), pair.error()), (0, (1, 0), None));

    // After a short send, the rest is sent once the memory is no longer in use.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 10, Completion::MORE);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::ZeroCopy(send_key), (0, 0)));
    pair.complete_token(token, 0, Completion::NOTIFICATION);
    assert_eq!((pair.near().sends.queue.queued_bytes(), pair.sends(), pair.error()), (30, (0, 1), None));

    // The result was dropped.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 0, Completion::NOTIFICATION);
    assert_eq!(pair.error(), Some(libc::ECONNABORTED));

    for (errno, sending, zero_copy_bytes) in
        [(libc::ENOBUFS, Sending::Async, 32), (libc::EOPNOTSUPP, Sending::Inline(1), usize::MAX)]
    {
        let (mut pair, send_key) = Pair::sending_zero_copy();
        pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), -errno, 0);
        assert_eq!((pair.error(), pair.proactor.zero_copy_bytes), (None, zero_copy_bytes));
        assert_eq!(discriminant(&pair.near().sending), discriminant(&sending));
        assert_eq!(pair.sends().1, u64::from(errno == libc::ENOBUFS));
    }

    // An aborted stream does not wait for the notification of a short send.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 10, Completion::MORE);
    pair.proactor.abort(pair.near);
    assert!(pair.proactor.streams.get(pair.near).is_none());
    assert!(pair.proactor.zero_copy_sends.get(send_key).unwrap().memory.is_some());
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "invariant 8"))]
fn second_result_of_a_zero_copy_send_fails_the_stream() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 40, Completion::MORE);
    pair.complete_token(token, 40, Completion::MORE);
    assert!(pair.error().is_some());
}

#[test]
fn only_aborted_stream_is_reset() {
    for is_aborted in [true, false] {
        let mut pair = Pair::new();
        assert!(pair.receive().is_pending());
        pair.turns();
        if is_aborted {
            pair.proactor.abort(pair.near);
        } else {
            pair.proactor.release(pair.near);
        }
        pair.turns();
        let expected = if is_aborted { Poll::Ready(Err(Some(libc::ECONNRESET))) } else { ready(b"") };
        assert_eq!(pair.receive(), expected);
    }
}

/// Otherwise, a peer that does not read would delay the shutdown, and one that reads would take the bytes for all.
#[test]
fn shutdown_resets_only_streams_with_unsent_bytes() {
    for is_sending in [true, false] {
        let (sim, options) = (SimOptions::new(1).socket_buffer_bytes(8), options());
        let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, &options);
        let (near, peer) = kernel.sockets_mut().pair_unix().unwrap();
        let mut proactor = Proactor::new(kernel, &options);
        let near = proactor.attach(near, Family::Internet, false).unwrap();
        let mut pair = Pair { proactor, near, far: near };
        if is_sending {
            pair.send(&[7; 20]);
            pair.turns();
            assert!(pair.proactor.unsent_bytes(near) > 0);
        }
        let start_ns = pair.proactor.kernel.sockets().now_ns();
        pair.proactor.shut_down(&mut WakeQueue::default()).unwrap();
        let network = pair.proactor.kernel.sockets_mut();
        assert!(network.now_ns() - start_ns < ZERO_COPY_ACK_TIMEOUT_NS, "no zero-copy send is in flight");
        let end = loop {
            match network.receive(&peer, &mut [0; 8]) {
                Ok(1..) => {}
                end => break end.map_err(|error| error.raw_os_error()),
            }
        };
        assert_eq!(end, if is_sending { Err(Some(libc::ECONNRESET)) } else { Ok(0) });
    }
}

/// The kernel does not find an operation that moves between its queues. The streams are in the state after such a
/// cancellation: released, with an operation in flight.
#[test]
fn operation_that_a_cancellation_has_not_found_is_cancelled_again() {
    let mut receiving = Pair::new();
    assert!(receiving.receive().is_pending());
    receiving.turns();
    receiving.far().receiving = Receiving::Cancelling(Kind::Receive);
    receiving.far().released = true;
    // A send that waits for room in the socket buffer.
    let mut sending = Pair::small(64);
    sending.send(&[7; 40]);
    sending.turns();
    assert_eq!(sending.far().sending, Sending::Idle);
    let near = sending.near;
    let stream = sending.proactor.streams.get_mut(near).unwrap();
    assert_eq!(stream.sending, Sending::Async);
    (stream.sends.error, stream.released) = (NonZero::new(libc::ECONNABORTED), true);
    for (mut pair, key) in [(receiving, None), (sending, Some(near))] {
        let key = key.unwrap_or(pair.far);
        pair.turns();
        assert!(pair.proactor.streams.get(key).is_some(), "the operation is in flight");
        let not_found = Completion { token: cancellation_of(key), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        pair.turns();
        assert!(pair.proactor.streams.get(key).is_none());
        // Nothing is left to cancel.
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert!(!pair.proactor.needs_turn());
    }
}

/// The recovery only finds receives that are in flight after all completions have been read.
#[test]
fn receive_that_ends_after_dropped_completions_has_failed() {
    let mut pair = Pair::new();
    pair.far().receiving = Receiving::Ring;
    pair.proactor.abort_receives(&mut WakeQueue::default());
    pair.complete(Kind::Receive, 0, 0);
    assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNABORTED))));
}

#[test]
fn poll_that_a_recovery_does_not_find_has_ended() {
    // The second one was armed after completions had been dropped.
    for (sending, expected) in [(Sending::PollInDoubt, Sending::Idle), (Sending::Polling, Sending::Polling)] {
        let mut pair = Pair::new();
        pair.near().sending = sending;
        pair.proactor.recovery =
            RecoveryCancels { round: 1, targets: vec![Token::new(Kind::Writable, pair.near)] };
        pair.proactor.on_cancel_not_found(Key { index: 0, generation: 1 }, &mut WakeQueue::default());
        assert_eq!(pair.near().sending, expected);
    }
}

#[test]
fn only_cancelled_operations_are_cancelled_again() {
    type Change = fn(&mut Stream<SimSocket>);
    let cases: [(Change, bool); 8] = [
        (|stream| stream.hangup_poll = HangupPoll::Armed, false),
        (|stream| stream.hangup_poll = HangupPoll::Cancelling, true),
        (|_| {}, false),
        (|stream| stream.sends.error = NonZero::new(libc::ECONNABORTED), true),
        // The poll waits for room for the queued bytes.
        (|stream| stream.sending = Sending::Polling, false),
        (
            |stream| {
                stream.sends.queue.clear();
                stream.sending = Sending::Polling;
            },
            true,
        ),
        (|stream| stream.connect = Connect::InFlight, false),
        (|stream| (stream.connect, stream.released) = (Connect::InFlight, true), true),
    ];
    for (index, (change, is_cancelled)) in cases.into_iter().enumerate() {
        let mut pair = Pair::sending();
        assert!(!pair.proactor.needs_turn());
        change(pair.near());
        let not_found = Completion { token: cancellation_of(pair.near), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(pair.proactor.needs_turn(), is_cancelled, "case {index}");
    }
}

#[test]
fn only_cancelled_polls_of_a_source_are_cancelled_again() {
    for (poll, is_cancelled) in [(SourcePoll::Armed, false), (SourcePoll::Cancelling, true)] {
        let mut proactor = Pair::new().proactor;
        proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
        let socket = proactor.kernel.sockets_mut().open(false).unwrap();
        let source = proactor.register(Rc::new(socket), Interest::READABLE).unwrap();
        proactor.sources.get_mut(source).unwrap().polls[Direction::Read as usize] = poll;
        assert!(!proactor.needs_turn());
        let not_found = Completion { token: cancellation_of(source), result: -libc::ENOENT, flags: 0 };
        proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(proactor.needs_turn(), is_cancelled);
    }
}

#[test]
fn zero_copy_send_is_interrupted() {
    let sim = SimOptions::new(1).socket_buffer_bytes(8);
    let mut pair = Pair::with(Family::Internet, &sim, &with_thresholds(1000, 32));
    pair.send(&[7; 40]);
    pair.turns();
    assert!(matches!(pair.near().sending, Sending::ZeroCopy(_)) && !pair.proactor.needs_turn());
    pair.proactor.send_again(pair.near);
    assert!(pair.proactor.needs_turn());
}

#[test]
fn only_failed_zero_copy_send_is_cancelled_again() {
    for is_failed in [false, true] {
        let sim = SimOptions::new(1).socket_buffer_bytes(8);
        let mut pair = Pair::with(Family::Internet, &sim, &with_thresholds(1000, 32));
        pair.send(&[7; 40]);
        pair.turns();
        let Sending::ZeroCopy(send_key) = pair.near().sending else { panic!("{:?}", pair.near().sending) };
        pair.near().sends.error = NonZero::new(libc::ECONNABORTED).filter(|_| is_failed);
        let not_found = Completion { token: cancellation_of(send_key), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(pair.proactor.needs_turn(), is_failed);
    }
}

#[test]
fn bytes_of_a_short_zero_copy_send_are_sent() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    assert_eq!(pair.proactor.unsent_bytes(pair.near), 40);
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 10, Completion::MORE);
    assert_eq!(pair.proactor.unsent_bytes(pair.near), 30);
}

#[test]
fn peek_at_eof_returns_the_error_of_a_send() {
    let mut pair = Pair::direct();
    pair.far().sends.error = NonZero::new(libc::ECONNRESET);
    pair.proactor.release(pair.near);
    pair.turns();
    assert_eq!(pair.peek(5), Poll::Ready(Err(Some(libc::ECONNRESET))));
}

#[test]
fn release_cancels_only_what_is_in_flight() {
    let mut pair = Pair::new();
    assert!(!pair.proactor.release(pair.near), "nothing is unsent");
    assert!(pair.proactor.streams.get(pair.near).is_none() && !pair.proactor.needs_turn());
    // A poll for writability would never complete.
    let mut pair = Pair::small(64);
    pair.send_now(b"12345678");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let range = FileRange { file: file.as_fd(), offset: 0, length: 10 };
    assert!(pair.proactor.poll_send_file(pair.near, range, Waker::noop()).is_pending());
    assert!(pair.near().sending == Sending::Polling && pair.near().sends_files);
    pair.turns();
    assert!(!pair.proactor.release(pair.near));
    pair.turns();
    assert!(pair.proactor.streams.get(pair.near).is_none());
}

#[test]
fn stream_takes_no_bytes_until_it_is_connected() {
    let mut listening = Listening::new(&options());
    let key = listening.proactor.connect(listening.address, None).unwrap();
    let is_connected = |listening: &Listening| listening.proactor.streams.get(key).unwrap().is_connected();
    assert!(!is_connected(&listening));
    listening.connect(0);
    assert!(is_connected(&listening));
}

#[test]
fn receive_in_flight_has_one_kind() {
    for (receiving, kind) in [
        (Receiving::Idle, None),
        (Receiving::Ring, Some(Kind::Receive)),
        (Receiving::Polling, Some(Kind::Readable)),
        (Receiving::Cancelling(Kind::Receive), Some(Kind::Receive)),
        (Receiving::InDoubt(Kind::Readable), Some(Kind::Readable)),
    ] {
        for other in [Kind::Receive, Kind::Readable] {
            assert_eq!(receiving.is_in_flight(other), kind == Some(other), "{receiving:?}");
        }
    }
}

#[test]
fn received_chunks_are_counted() {
    let (pair, mut received) = (Pair::new(), Received::default());
    for count in 1..=4 {
        let chunk = pair.proactor.pools.copy(b"a").next().unwrap();
        assert_eq!(received.push(chunk), count);
    }
}

#[test]
fn failed_poll_fails_the_receive_unless_it_was_cancelled() {
    for (errno, is_returned) in [(libc::EIO, true), (libc::ECANCELED, false)] {
        let mut pair = Pair::direct();
        assert!(pair.receive().is_pending());
        pair.complete(Kind::Readable, -errno, 0);
        let expected = if is_returned { Poll::Ready(Err(Some(errno))) } else { Poll::Pending };
        assert_eq!(pair.receive(), expected);
    }
}

#[test]
fn urgent_data_is_reported_only_if_there_is_some() {
    let mut proactor = Pair::new().proactor;
    let socket = proactor.kernel.sockets_mut().open(false).unwrap();
    let key = proactor.register(Rc::new(socket), Interest::READABLE | Interest::PRIORITY).unwrap();
    let poll = |proactor: &mut Proactor<SimCompletion>, direction| {
        proactor.poll_ready(key, direction, Waker::noop(), None).map(Result::unwrap).is_ready()
    };
    let complete = |proactor: &mut Proactor<SimCompletion>, direction, events: i16| {
        let token = Token::source(key, direction);
        let completion = Completion { token, result: events.into(), flags: Completion::MORE };
        proactor.dispatch(&completion, &mut WakeQueue::default());
    };
    assert!(!poll(&mut proactor, Direction::Read) && !poll(&mut proactor, Direction::Priority));
    complete(&mut proactor, Direction::Priority, libc::POLLPRI);
    assert!(!poll(&mut proactor, Direction::Priority), "every wake-up reports urgent data");
    assert!(!poll(&mut proactor, Direction::Read));
    complete(&mut proactor, Direction::Read, libc::POLLIN | libc::POLLPRI);
    assert!(poll(&mut proactor, Direction::Read) && poll(&mut proactor, Direction::Priority));
    assert!(proactor.source(key).is_some() && proactor.deregister(key) && proactor.source(key).is_none());
}

#[test]
fn poll_of_a_source_lasts_except_for_writing() {
    let sim = SimOptions::new(1);
    let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, &options());
    let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
    let mut proactor = Proactor::new(kernel, &options());
    let key = proactor.register(Rc::new(near), Interest::READABLE | Interest::WRITABLE).unwrap();
    for direction in [Direction::Read, Direction::Write] {
        assert!(proactor.poll_ready(key, direction, Waker::noop(), None).is_pending());
    }
    proactor.kernel.sockets_mut().send(&far, b"abc").unwrap();
    (0..3).for_each(|_| proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    for direction in [Direction::Read, Direction::Write] {
        assert!(proactor.poll_ready(key, direction, Waker::noop(), None).is_ready());
    }
    let polls = &proactor.sources.get(key).unwrap().polls;
    assert_eq!(polls[Direction::Read as usize], SourcePoll::Armed);
    assert_eq!(polls[Direction::Write as usize], SourcePoll::Idle);
}

#[test]
fn descriptors_are_received_only_by_open_direct_streams() {
    let receive = |pair: &mut Pair| {
        let (mut buffer, mut descriptors) = ([0; 8], ReceivedFds::default());
        let (far, waker) = (pair.far, Waker::noop());
        let polled = pair.proactor.poll_receive_with_fds(far, &mut buffer, &mut descriptors, waker);
        polled.map_err(|error| error.raw_os_error())
    };
    let mut pair = Pair::direct();
    pair.send_now(b"abc");
    assert_eq!(receive(&mut pair), Poll::Ready(Ok(3)));
    let mut pair = Pair::new();
    pair.send_now(b"abc");
    assert!(receive(&mut pair).is_pending(), "receives through the ring");
    let mut pair = Pair::direct();
    assert!(receive(&mut pair).is_pending());
    pair.complete(Kind::Readable, -libc::EIO, 0);
    assert_eq!(receive(&mut pair), Poll::Ready(Err(Some(libc::EIO))));
}
