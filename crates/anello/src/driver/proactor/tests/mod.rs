//! Tests of single calls and completions on a simulated kernel, and of what the driver counts.

mod accept;
mod receive;
mod release;
mod send;
mod source;

use std::io::IoSlice;
use std::num::NonZero;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::{Completion, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::Key;
use crate::driver::proactor::stream::{Sending, Stream};
use crate::driver::proactor::{Proactor, ZeroCopySend};
use crate::driver::settings::options::{DriverOptions, ZeroCopy};
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sim::{SimCompletion, SimNetwork, SimSocket};
use crate::driver::sockets::{Family, Sockets};
use crate::driver::source::interest::Interest;
use crate::driver::stream::send_queue::SendBuf;
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

fn with_thresholds(direct: usize, zero_copy: usize) -> DriverOptions {
    DriverOptions {
        direct_send_threshold_bytes: direct,
        zero_copy: ZeroCopy::Always { threshold_bytes: zero_copy },
        ..options()
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
