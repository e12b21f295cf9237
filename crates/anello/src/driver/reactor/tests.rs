//! Tests of single calls on a simulated kernel, and of what the driver counts.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::Reactor;
use crate::driver::counters::DriverMetrics;
use crate::driver::epoll::Epoll;
use crate::driver::kernel::op::Wait;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Edge, Kernel};
use crate::driver::memory::key::Key;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::sim::{SimNetwork, SimReadiness};
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{End, Family, Sockets};
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::stream::send_queue::SendBuf;
use crate::driver::wake::queue::WakeQueue;

const SOCKET_BUFFER_BYTES: usize = 8;

/// A reactor with two streams that are connected to each other.
struct Pair {
    reactor: Reactor<SimReadiness>,
    near: Key,
    far: Key,
}

fn options(deferred_send_threshold_edges: usize) -> DriverOptions {
    let mut options = DriverOptions { max_send_queue_bytes: 16, ..DriverOptions::default() };
    options.testing.deferred_send_threshold_edges = deferred_send_threshold_edges;
    options
}

impl Pair {
    fn new(socket_buffer_bytes: usize, options: &DriverOptions) -> Self {
        let sim = SimOptions::new(1).socket_buffer_bytes(socket_buffer_bytes);
        let mut kernel = SimReadiness::new(SimNetwork::new(&sim));
        let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
        let mut reactor = Reactor::new(kernel, options);
        let near = reactor.attach(near, Family::Internet, false).unwrap();
        let far = reactor.attach(far, Family::Internet, false).unwrap();
        Self { reactor, near, far }
    }

    /// Returns streams that send immediately. Few bytes fit into the socket buffer.
    fn immediate() -> Self {
        Self::new(SOCKET_BUFFER_BYTES, &options(usize::MAX))
    }

    /// Returns streams that defer messages to the next turn.
    fn deferring(socket_buffer_bytes: usize) -> Self {
        Self::new(socket_buffer_bytes, &options(0))
    }

    fn turn(&mut self) {
        self.reactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        let mut outgoing = Some(SendBuf::Vec(bytes.to_vec()));
        let polled = self.reactor.poll_send(self.near, &mut outgoing, Waker::noop());
        assert_eq!(polled.is_ready(), outgoing.is_none());
        polled.map(Result::unwrap).is_ready()
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<usize> {
        let slices = [io::IoSlice::new(bytes)];
        self.reactor.poll_write(self.near, &slices, Waker::noop()).map(Result::unwrap)
    }

    /// Receives once: bytes, none at EOF, or the error number.
    fn receive(&mut self) -> Poll<Result<Vec<u8>, Option<i32>>> {
        let mut received = None;
        let polled = self.reactor.poll_receive(self.far, &mut received, Waker::noop());
        polled.map(|result| match result {
            Ok(()) => Ok(received.map_or(Vec::new(), |chunk| chunk.to_vec())),
            Err(error) => Err(error.raw_os_error()),
        })
    }

    /// Receives all bytes that arrive until the near end has nothing to send.
    fn receive_all(&mut self) -> Vec<u8> {
        let (mut all, mut idle_turns) = (Vec::new(), 0);
        while idle_turns < 3 {
            idle_turns += 1;
            while let Poll::Ready(received) = self.receive() {
                all.extend(received.unwrap());
                idle_turns = 0;
            }
            self.turn();
        }
        all
    }

    fn peek(&mut self, length: usize) -> Poll<Result<Vec<u8>, Option<i32>>> {
        let mut buffer = vec![0; length];
        let polled = self.reactor.poll_peek(self.far, &mut buffer, Waker::noop());
        polled.map(|result| match result {
            Ok(count) => Ok(buffer[..count].to_vec()),
            Err(error) => Err(error.raw_os_error()),
        })
    }

    /// Closes the near end in such a way that the connection is reset.
    fn reset(&mut self) {
        let near = self.reactor.streams.get(self.near).unwrap();
        self.reactor.kernel.sockets().set_option(&near.socket, SocketOption::Linger, 0).unwrap();
        self.reactor.abort(self.near);
    }

    fn metrics(&self) -> DriverMetrics {
        self.reactor.metrics()
    }

    /// Returns the numbers of complete and of short sends.
    fn sends(&self) -> (u64, u64) {
        (self.metrics().sends, self.metrics().short_sends)
    }
}

fn ready(bytes: &[u8]) -> Poll<Result<Vec<u8>, Option<i32>>> {
    Poll::Ready(Ok(bytes.to_vec()))
}

#[test]
fn calls_and_events_are_counted() {
    let mut pair = Pair::immediate();
    assert_eq!((pair.metrics().sockets, pair.reactor.stream_count()), (2, 2));
    assert!(pair.receive().is_pending());
    assert!(pair.send(b"abc") && pair.send(b"de"));
    assert_eq!(pair.sends(), (2, 0));
    (0..3).for_each(|_| pair.turn());
    assert!(pair.metrics().turns == 3 && pair.metrics().completions > 0);
    let mut buffer = [0; 2];
    let read = pair.reactor.poll_read(pair.far, &mut buffer, Waker::noop());
    assert!(matches!(read, Poll::Ready(Ok(2))) && pair.metrics().receives == 1);
    let mut received = None;
    assert!(pair.reactor.poll_receive(pair.far, &mut received, Waker::noop()).is_ready());
    assert_eq!((pair.metrics().receives, pair.metrics().buffers_leased), (2, 1));
    drop(received);
    assert_eq!(pair.metrics().buffers_leased, 0);
    assert!(pair.send(&[7; 9]));
    assert_eq!(pair.sends(), (2, 1));
    assert_eq!(pair.receive_all(), [7; 9]);
    assert_eq!(pair.sends(), (3, 1), "the rest of the short send");
    pair.reactor.release_all(&mut WakeQueue::default());
    assert_eq!((pair.metrics().sockets, pair.reactor.stream_count()), (0, 0));
}

#[test]
fn find_work_returns_whether_a_task_was_woken() {
    let mut pair = Pair::immediate();
    pair.turn();
    assert!(pair.receive().is_pending());
    let mut wakes = WakeQueue::default();
    assert!(!pair.reactor.find_work(&mut wakes).unwrap());
    assert!(pair.send(b"abc"));
    assert!(pair.reactor.find_work(&mut wakes).unwrap());
}

#[test]
fn messages_are_deferred_after_a_wait_with_many_events() {
    let mut pair = Pair::new(SOCKET_BUFFER_BYTES, &options(1));
    assert!(pair.send(b"ab") && !pair.reactor.needs_turn());
    assert_eq!(pair.sends(), (1, 0), "not deferred before the first wait");
    (0..3).for_each(|_| pair.turn());
    assert!(pair.send(b"cd"));
    assert_eq!(pair.sends(), (2, 0), "not deferred after a wait without events");
    assert!(pair.receive().is_ready());
    pair.turn();
    assert!(pair.send(b"ef") && pair.reactor.needs_turn());
    assert_eq!(pair.sends(), (2, 0), "deferred");
    pair.turn();
    assert!(!pair.reactor.needs_turn());
    assert_eq!(pair.sends(), (3, 0));
}

#[test]
fn bytes_are_sent_behind_deferred_messages() {
    let long = [7; 5000];
    let mut pair = Pair::deferring(16 * 1024);
    assert!(pair.send(b"abc"));
    assert!(matches!(pair.reactor.poll_submitted(pair.near, Waker::noop()), Poll::Ready(Ok(()))));
    assert_eq!(pair.sends(), (0, 0));
    assert!(pair.send(&long));
    pair.turn();
    assert_eq!(pair.sends(), (2, 0));
    assert_eq!(pair.receive_all(), [&b"abc"[..], &long].concat());

    assert!(matches!(pair.write(b"abc"), Poll::Ready(3)));
    assert_eq!(pair.sends(), (2, 0), "a write is deferred too");
    assert!(matches!(pair.write(b"defg"), Poll::Ready(4)));
    assert_eq!(pair.receive_all(), b"abcdefg");

    assert!(pair.send(b"abc"));
    assert!(matches!(pair.write(&long), Poll::Ready(13)), "the queue has room for 16 bytes");
    assert_eq!(pair.receive_all(), [&b"abc"[..], &long[..13]].concat());
}

#[test]
fn write_accepts_what_fits_into_the_socket_and_the_queue() {
    for mut pair in [Pair::immediate(), Pair::deferring(SOCKET_BUFFER_BYTES)] {
        let bytes = Vec::from_iter(0..100);
        assert!(matches!(pair.write(&bytes), Poll::Ready(24)));
        assert!(pair.write(&bytes[24..]).is_pending());
        pair.turn();
        assert!(pair.receive().is_ready());
        (0..3).for_each(|_| pair.turn());
        assert!(matches!(pair.write(&bytes[24..]), Poll::Ready(8)), "queued, although nothing is sent");
        assert_eq!(pair.receive_all(), bytes[8..32]);
    }
}

#[test]
fn bytes_that_the_socket_does_not_take_are_queued() {
    let mut pair = Pair::immediate();
    let Reactor { kernel, streams, .. } = &mut pair.reactor;
    let socket = &streams.get(pair.near).unwrap().socket;
    assert_eq!(kernel.sockets_mut().send(socket, b"12345678").unwrap(), 8);
    let written = pair.reactor.poll_write_more(pair.near, b"abc", Waker::noop());
    assert!(matches!(written, Poll::Ready(Ok(3))));
    assert!(pair.reactor.poll_submitted(pair.near, Waker::noop()).is_pending());
    assert_eq!(pair.receive_all(), b"12345678abc");
    assert!(pair.reactor.poll_submitted(pair.near, Waker::noop()).is_ready());
}

#[test]
fn stream_is_ready_for_writing_while_the_queue_has_room() {
    let mut pair = Pair::immediate();
    let is_ready = |pair: &mut Pair| pair.reactor.poll_write_ready(pair.near, Waker::noop()).is_ready();
    assert!(is_ready(&mut pair));
    assert!(pair.send(&[7; 8 + 15]) && is_ready(&mut pair));
    assert!(pair.send(&[7]) && !is_ready(&mut pair) && !pair.send(&[7]));
    pair.reactor.shutdown_write(pair.near).unwrap();
    assert!(is_ready(&mut pair), "a write fails");
}

#[test]
fn incoming_bytes_do_not_cause_sends() {
    let mut pair = Pair::immediate();
    assert!(pair.send(&[7; 20]));
    (0..3).for_each(|_| pair.turn());
    let sends = pair.sends();
    let mut outgoing = Some(SendBuf::Vec(b"abc".to_vec()));
    assert!(pair.reactor.poll_send(pair.far, &mut outgoing, Waker::noop()).is_ready());
    (0..3).for_each(|_| pair.turn());
    assert_eq!(pair.sends(), (sends.0 + 1, sends.1));
}

#[test]
fn buffers_are_sent_in_order() {
    for lengths in [&[2, 3][..], &[5000, 5000, 1], &[3; 1500]] {
        for mut pair in [Pair::immediate(), Pair::new(16 * 1024, &options(usize::MAX))] {
            let mut outgoing = Vec::new();
            for (index, &length) in lengths.iter().enumerate() {
                outgoing.push(SendBuf::Vec(vec![index as u8; length]));
            }
            let expected = outgoing.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<_>>();
            let polled = pair.reactor.poll_send_vectored(pair.near, &mut outgoing, Waker::noop());
            assert!(polled.is_ready());
            assert!(pair.receive_all() == expected);
        }
    }
    // One call sends what fits into the socket buffer.
    let mut pair = Pair::immediate();
    let mut outgoing = vec![SendBuf::Vec(vec![7; 5000]), SendBuf::Vec(vec![8; 10])];
    assert!(pair.reactor.poll_send_vectored(pair.near, &mut outgoing, Waker::noop()).is_ready());
    assert_eq!(pair.sends(), (0, 1));
    assert_eq!(pair.receive(), ready(&[7; 8]));
}

#[test]
fn interrupted_send_waits_for_no_event() {
    let mut pair = Pair::immediate();
    assert!(pair.send(&[7; SOCKET_BUFFER_BYTES + 1]));
    let Reactor { kernel, streams, .. } = &mut pair.reactor;
    let far = &streams.get(pair.far).unwrap().socket;
    kernel.sockets_mut().receive(far, &mut [0; SOCKET_BUFFER_BYTES]).unwrap();
    assert_eq!(pair.reactor.unsent_bytes(pair.near), 1);
    pair.reactor.send_again(pair.near, &mut WakeQueue::default());
    assert_eq!(pair.reactor.unsent_bytes(pair.near), 0);
}

#[test]
fn release_aborts_a_connect_only_if_bytes_wait_for_it() {
    let mut pair = Pair::immediate();
    let near = pair.reactor.streams.get_mut(pair.near).unwrap();
    (near.connecting, near.writable) = (true, false);
    assert!(pair.send(b"abc"));
    assert!(!pair.reactor.release(pair.near), "the bytes are dropped");
    assert!(pair.reactor.streams.get(pair.near).is_none());
}

#[test]
fn short_read_after_a_hangup_is_inconclusive() {
    let mut pair = Pair::immediate();
    let mut is_inconclusive = |hung_up| {
        let token = Token::new(Kind::Readable, pair.far);
        let edge = Edge { token, readable: true, writable: false, hung_up, events: 0 };
        pair.reactor.on_edge(pair.far, edge, &mut WakeQueue::default());
        pair.reactor.streams.get(pair.far).unwrap().reads.short_read_is_inconclusive
    };
    assert!(!is_inconclusive(false) && is_inconclusive(true));
    assert!(is_inconclusive(false), "no further event reports the hangup");
}

#[test]
fn peek_at_eof_returns_the_error_of_a_send() {
    let mut pair = Pair::immediate();
    pair.reactor.streams.get_mut(pair.far).unwrap().sends.error = NonZero::new(libc::ECONNRESET);
    pair.reactor.release(pair.near);
    pair.turn();
    assert_eq!(pair.peek(5), Poll::Ready(Err(Some(libc::ECONNRESET))));
}

/// Otherwise, the peer would take the bytes that were sent for all.
#[test]
fn shutdown_resets_only_streams_with_unsent_bytes() {
    for is_sending in [true, false] {
        let sim = SimOptions::new(1).socket_buffer_bytes(SOCKET_BUFFER_BYTES);
        let mut kernel = SimReadiness::new(SimNetwork::new(&sim));
        let (near, peer) = kernel.sockets_mut().pair_unix().unwrap();
        let mut reactor = Reactor::new(kernel, &options(usize::MAX));
        let near = reactor.attach(near, Family::Internet, false).unwrap();
        let mut pair = Pair { reactor, near, far: near };
        if is_sending {
            assert!(pair.send(&[7; SOCKET_BUFFER_BYTES + 1]));
            assert_eq!(pair.reactor.unsent_bytes(near), 1);
        }
        pair.reactor.shut_down(&mut WakeQueue::default()).unwrap();
        let network = pair.reactor.kernel.sockets_mut();
        let end = loop {
            match network.receive(&peer, &mut [0; SOCKET_BUFFER_BYTES]) {
                Ok(1..) => {}
                end => break end.map_err(|error| error.raw_os_error()),
            }
        };
        assert_eq!(end, if is_sending { Err(Some(libc::ECONNRESET)) } else { Ok(0) });
    }
}

#[test]
fn stored_bytes_are_received_before_those_in_the_socket() {
    let mut pair = Pair::immediate();
    pair.reactor.store_received(pair.far, b"abc");
    assert_eq!(pair.peek(2), ready(b"ab"));
    assert_eq!(pair.peek(5), ready(b"abc"));
    assert!(pair.send(b"de"));
    assert_eq!(pair.peek(4), ready(b"abcd"));
    let mut buffer = [0; 2];
    let read = pair.reactor.poll_read(pair.far, &mut buffer, Waker::noop());
    assert!(matches!(read, Poll::Ready(Ok(2))) && buffer == *b"ab");
    assert_eq!(pair.receive(), ready(b"c"));
    assert_eq!(pair.receive(), ready(b"de"));
    assert!(pair.receive().is_pending() && pair.peek(1).is_pending());
    pair.reactor.shutdown_write(pair.near).unwrap();
    pair.reactor.store_received(pair.far, b"fgh");
    assert_eq!(pair.peek(5), ready(b"fgh"));
    assert_eq!((pair.receive(), pair.receive(), pair.peek(5)), (ready(b"fgh"), ready(b""), ready(b"")));
    // Nothing remains of a stream that is aborted before the bytes are received.
    pair.reactor.store_received(pair.near, b"");
    assert!(pair.reactor.stored.is_empty());
    pair.reactor.store_received(pair.near, b"abc");
    pair.reactor.abort(pair.near);
    assert!(pair.reactor.stored.is_empty());
}

#[test]
fn error_that_a_peek_has_taken_is_received_after_stored_bytes() {
    let mut pair = Pair::immediate();
    pair.reset();
    assert_eq!(pair.peek(5), Poll::Ready(Err(Some(libc::ECONNRESET))));
    assert_eq!(pair.peek(5), Poll::Ready(Err(Some(libc::ECONNRESET))));
    assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNRESET))));

    let mut pair = Pair::immediate();
    pair.reactor.store_received(pair.far, b"abc");
    pair.reset();
    assert_eq!((pair.peek(5), pair.peek(5)), (ready(b"abc"), ready(b"abc")));
    assert_eq!(pair.receive(), ready(b"abc"));
    for _ in 0..2 {
        assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNRESET))));
    }
}

/// A reactor with a listener.
struct Listening {
    reactor: Reactor<SimReadiness>,
    key: Key,
    address: SocketAddr,
    clients: Vec<<SimNetwork as Sockets>::Socket>,
}

impl Listening {
    fn new(faults: SimFaults) -> Self {
        let mut kernel = SimReadiness::new(SimNetwork::new(&SimOptions::new(1).faults(faults)));
        let network = kernel.sockets_mut();
        let listener = network.open(false).unwrap();
        network.bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        network.start_listening(&listener, 1000).unwrap();
        let address = network.address(&listener, End::Local).unwrap().as_socket().unwrap();
        let mut reactor = Reactor::new(kernel, &DriverOptions::default());
        let key = reactor.attach_listener(listener, Family::Internet).unwrap();
        Self { reactor, key, address, clients: Vec::new() }
    }

    fn connect(&mut self, count: usize) {
        let network = self.reactor.kernel.sockets_mut();
        for _ in 0..count {
            let client = network.open_stream(self.address, None).unwrap();
            network.connect(&client, self.address).unwrap();
            self.clients.push(client);
        }
    }

    /// Accepts as many connections as the listener returns. Returns their number.
    fn accept(&mut self) -> usize {
        let accept = || self.reactor.poll_accepted(self.key, Waker::noop()).map(Result::unwrap).is_ready();
        std::iter::repeat_with(accept).take_while(|is_ready| *is_ready).count()
    }

    fn turn(&mut self) {
        self.reactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
    }

    fn batch(&self) -> u32 {
        self.reactor.listeners.get(self.key).unwrap().batch
    }
}

#[test]
fn batch_of_accepts_follows_the_number_of_pending_connections() {
    let mut listening = Listening::new(SimFaults::none());
    listening.connect(200);
    let mut accepted = vec![listening.accept()];
    for _ in 0..7 {
        listening.turn();
        accepted.push(listening.accept());
    }
    assert_eq!(accepted, [1, 2, 4, 8, 16, 32, 64, 64]);
    assert_eq!(listening.reactor.metrics().accepted, 191);
    // The backlog ends, so the next batch is smaller.
    listening.turn();
    assert_eq!((listening.accept(), listening.batch()), (9, 32));
    // A connection after a pause does not make it larger.
    for _ in 0..3 {
        listening.turn();
        listening.connect(1);
        listening.turn();
        assert_eq!(listening.accept(), 1);
    }
    assert_eq!(listening.batch(), 4);
}

#[test]
fn accept_that_fails_returns_the_error() {
    let faults = SimFaults { descriptor_exhaustion: 1000, ..SimFaults::none() };
    let mut listening = Listening::new(faults);
    listening.connect(1);
    let polled = listening.reactor.poll_accepted(listening.key, Waker::noop());
    assert!(matches!(polled, Poll::Ready(Err(error)) if error.raw_os_error() == Some(libc::EMFILE)));
}

#[test]
fn released_listener_is_removed() {
    let mut listening = Listening::new(SimFaults::none());
    listening.reactor.release_all(&mut WakeQueue::default());
    assert!(listening.reactor.listener(listening.key).is_none());
    assert_eq!(listening.reactor.metrics().sockets, 0);
}

#[test]
fn source_requests_events_for_writing_only_while_a_task_waits() {
    let mut kernel = SimReadiness::new(SimNetwork::new(&SimOptions::new(1)));
    let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
    let mut reactor = Reactor::new(kernel, &DriverOptions::default());
    let register = |socket, reactor: &mut Reactor<SimReadiness>| {
        reactor.register(Rc::new(socket), Interest::READABLE | Interest::WRITABLE).unwrap()
    };
    let (near, far) = (register(near, &mut reactor), register(far, &mut reactor));
    let write = Direction::Write.requested_events();
    let is_requested =
        |reactor: &Reactor<SimReadiness>, key| reactor.sources.get(key).unwrap().events & write == write;
    let poll = |reactor: &mut Reactor<SimReadiness>, key| {
        reactor.poll_ready(key, Direction::Write, Waker::noop(), None).map(Result::unwrap).is_ready()
    };
    assert!(!is_requested(&reactor, near) && reactor.source(near).is_some());
    assert!(!poll(&mut reactor, near) && is_requested(&reactor, near));
    reactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
    assert!(poll(&mut reactor, near));
    // A hangup is reported in any case.
    reactor.deregister(near);
    assert!(reactor.source(near).is_none() && reactor.source_count() == 1);
    reactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
    assert!(poll(&mut reactor, far) && !is_requested(&reactor, far));
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not support this use of epoll")]
fn regular_file_cannot_be_a_source() {
    let options = DriverOptions::default();
    let mut reactor = Reactor::new(Epoll::new(&options).unwrap(), &options);
    let file = Rc::new(std::fs::File::open("/proc/self/exe").unwrap().into());
    let error = reactor.register(file, Interest::READABLE).unwrap_err();
    assert!(error.to_string().contains("cannot poll"), "{error}");
}
