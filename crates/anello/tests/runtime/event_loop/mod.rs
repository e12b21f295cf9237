//! Tests of the driver without the executor.

mod files;
mod nested;
mod sockets;
mod udp;

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, ready};
use std::thread;
use std::time::Duration;

use anello::DriverKind;
use anello::event_loop::{
    Direction, Event, EventKind, EventLoop, Events, Interest, ListenerId, MAX_TOKEN, SendBuf, StreamId,
};
use anello::sim::{SimFaults, SimModel, SimOptions};

use crate::common::event_loops::{open, wait};
use crate::common::{Setup, on_every_driver, on_every_driver_and_sim, pattern};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

const LISTENER: usize = 100;
const CLIENT: usize = 1;
const SERVER: usize = 2;

fn listen(event_loop: &mut EventLoop) -> (ListenerId, SocketAddr) {
    let listener = event_loop.listen(ANY_PORT, LISTENER).unwrap();
    let address = event_loop.local_addr(listener).unwrap();
    (listener, address)
}

/// Runs turns until an event occurs, and returns the token and kind of all events of that turn.
fn next_events(event_loop: &mut EventLoop) -> Vec<(usize, EventKind)> {
    let mut events = Events::new();
    while events.is_empty() {
        event_loop.turn(&mut events, None).unwrap();
    }
    events.iter().map(|event| (event.token(), event.kind())).collect()
}

fn pair(event_loop: &mut EventLoop) -> (StreamId, StreamId) {
    let (listener, address) = listen(event_loop);
    let client = event_loop.connect(address, CLIENT).unwrap();
    let server = wait(event_loop, |event_loop| event_loop.accept(listener, SERVER)).unwrap();
    wait(event_loop, |event_loop| event_loop.poll_connect(client)).unwrap();
    event_loop.close_listener(listener);
    (client, server)
}

#[derive(Default)]
struct Progress {
    sent: usize,
    received: Vec<u8>,
    is_shut: bool,
    is_done: bool,
}

/// Sends the message and then EOF on a stream, and receives until EOF, reacting to events only.
fn advance(event_loop: &mut EventLoop, stream: StreamId, message: &[u8], progress: &mut Progress) {
    while progress.sent < message.len() {
        let end = message.len().min(progress.sent + 3000);
        let mut outgoing = Some(SendBuf::from(message[progress.sent..end].to_vec()));
        match event_loop.send(stream, &mut outgoing) {
            Poll::Ready(result) => result.unwrap(),
            Poll::Pending => break,
        }
        progress.sent = end;
    }
    if progress.sent == message.len() && !progress.is_shut {
        progress.is_shut = true;
        event_loop.shutdown_write(stream).unwrap();
    }
    while !progress.is_done {
        match event_loop.recv(stream) {
            Poll::Ready(Ok(Some(chunk))) => progress.received.extend(&chunk[..]),
            Poll::Ready(Ok(None)) => progress.is_done = true,
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => break,
        }
    }
}

fn exchange(event_loop: &mut EventLoop, bytes: usize) {
    let (client, server) = pair(event_loop);
    let (message, mut near, mut far) = (pattern(1, bytes), Progress::default(), Progress::default());
    advance(event_loop, client, &message, &mut near);
    advance(event_loop, server, &message, &mut far);
    let mut events = Events::with_capacity(64);
    while !(near.is_done && far.is_done) {
        event_loop.turn(&mut events, None).unwrap();
        for event in events.iter() {
            assert!(matches!(event.kind(), EventKind::Receive | EventKind::Send), "{event:?}");
            match event.token() {
                CLIENT => advance(event_loop, client, &message, &mut near),
                SERVER => advance(event_loop, server, &message, &mut far),
                token => panic!("event for token {token}"),
            }
        }
    }
    assert!(near.received == message && far.received == message, "bytes were lost or reordered");
    wait(event_loop, |event_loop| event_loop.flush(client)).unwrap();
    event_loop.close(client);
    event_loop.close(server);
}

#[test]
fn events_drive_streams_in_both_directions() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        for bytes in [0, 1, 300_000] {
            exchange(&mut event_loop, bytes);
        }
        event_loop.shutdown(Duration::from_secs(1)).unwrap();
    });
}

/// Returns a simulated kernel of the model that the seed selects.
fn simulator(seed: u64, mut faults: SimFaults) -> Setup {
    let model = if seed.is_multiple_of(2) { SimModel::Completion } else { SimModel::Readiness };
    faults.descriptor_exhaustion = 0;
    let options = SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(700);
    Setup::new("sim", DriverKind::Sim(options), |_| {})
}

/// Runs a test for each seed, and prints the seed if it fails.
fn for_seeds(count: u64, test: impl Fn(u64)) {
    for seed in 0..count {
        assert!(catch_unwind(AssertUnwindSafe(|| test(seed))).is_ok(), "failed with seed {seed}");
    }
}

fn exchange_on(setup: &Setup) {
    let mut event_loop = open(setup);
    exchange(&mut event_loop, 20_000);
    event_loop.shutdown(Duration::from_secs(1)).unwrap();
}

#[test]
fn fault_42_events_drive_streams_under_simulated_faults() {
    for_seeds(200, |seed| {
        exchange_on(&simulator(seed, SimFaults::lossless([0, 30, 300][seed as usize % 3])));
    });
}

#[test]
fn fault_13_terminated_multishot_operations_are_rearmed() {
    for_seeds(50, |seed| {
        exchange_on(&simulator(seed, SimFaults::none().multishot_terminations(900).short_receives(300)));
    });
}

#[test]
fn fault_12_late_completion_after_slot_reuse_reports_no_event() {
    let late_completions = Cell::new(0);
    for_seeds(50, |seed| {
        let mut event_loop = open(&simulator(seed, SimFaults::none().late_completions(900)));
        let (listener, address) = listen(&mut event_loop);
        let mut events = Events::new();
        for round in 0..20 {
            // The streams of each round reuse the slots of the previous one, for which completions still arrive.
            let tokens = [2 * round, 2 * round + 1];
            let client = event_loop.connect(address, tokens[0]).unwrap();
            let server = wait(&mut event_loop, |event_loop| event_loop.accept(listener, tokens[1])).unwrap();
            wait(&mut event_loop, |event_loop| event_loop.poll_connect(client)).unwrap();
            assert!(event_loop.recv(client).is_pending() && event_loop.recv(server).is_pending());
            for _ in 0..10 {
                event_loop.turn(&mut events, Some(Duration::from_micros(10))).unwrap();
                let is_live = |event: Event| tokens.contains(&event.token());
                assert!(events.iter().all(is_live), "{events:?} in round {round}");
            }
            event_loop.abort(client);
            event_loop.abort(server);
        }
        late_completions.set(late_completions.get() + event_loop.metrics().late_completions);
    });
    assert!(late_completions.get() > 100, "{} late completions", late_completions.get());
}

#[test]
fn no_event_follows_before_a_call_returned_pending() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        assert!(event_loop.write(client, b"unasked").map(Result::unwrap).is_ready());
        let mut events = Events::new();
        for _ in 0..10 {
            event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
            assert!(events.is_empty(), "{events:?}");
        }
        let mut buffer = [0; 16];
        let count = wait(&mut event_loop, |event_loop| event_loop.read(server, &mut buffer)).unwrap();
        assert_eq!(&buffer[..count], b"unasked");
    });
}

#[test]
fn timers_fire_in_order_and_can_be_cancelled() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        // The earliest and the latest possible deadline of each timer. The thread may be suspended between two calls.
        let mut deadlines = HashMap::new();
        for delay in [3, 1, 2] {
            let before = event_loop.monotonic_now();
            event_loop.add_timer(Duration::from_millis(delay), delay as usize);
            let deadline = |start| start + Duration::from_millis(delay);
            deadlines.insert(delay as usize, (deadline(before), deadline(event_loop.monotonic_now())));
        }
        let cancelled = event_loop.add_timer(Duration::from_micros(500), 9);
        assert!(event_loop.cancel_timer(cancelled));
        assert!(!event_loop.cancel_timer(cancelled));
        let mut fired = Vec::new();
        while fired.len() < deadlines.len() {
            for (token, kind) in next_events(&mut event_loop) {
                assert_eq!(kind, EventKind::Timer);
                assert!(event_loop.monotonic_now() >= deadlines[&token].0, "fired early");
                fired.push(token);
            }
        }
        let are_ordered = |pair: &[usize]| deadlines[&pair[0]].0 <= deadlines[&pair[1]].1;
        assert!(fired.windows(2).all(are_ordered), "{fired:?} with {deadlines:?}");
        fired.sort_unstable();
        assert_eq!(fired, [1, 2, 3], "each timer once");
        event_loop.add_timer(Duration::MAX, 4);
        let mut events = Events::new();
        event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        assert!(events.is_empty());
    });
}

#[test]
fn deadline_cancels_waiting_operation_only() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        let short = Duration::from_millis(2);
        // A receive that waits.
        assert!(event_loop.recv(server).is_pending());
        event_loop.set_deadline(server, Direction::Receive, short).unwrap();
        assert_eq!(next_events(&mut event_loop), [(SERVER, EventKind::ReceiveDeadline)]);
        // The stream stays usable, and the cancelled operation reports no event.
        assert!(event_loop.write(client, b"late").map(Result::unwrap).is_ready());
        let mut events = Events::new();
        event_loop.turn(&mut events, Some(short)).unwrap();
        assert!(events.is_empty(), "{events:?}");
        let chunk = wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap().unwrap();
        assert_eq!(&chunk[..], b"late");
        // A receive that completes in time removes its deadline.
        assert!(event_loop.recv(server).is_pending());
        event_loop.set_deadline(server, Direction::Receive, Duration::from_millis(100)).unwrap();
        assert!(event_loop.write(client, b"in time").map(Result::unwrap).is_ready());
        assert_eq!(next_events(&mut event_loop), [(SERVER, EventKind::Receive)]);
        // An event can be spurious.
        wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap();
        event_loop.add_timer(Duration::from_millis(200), 7);
        assert_eq!(next_events(&mut event_loop), [(7, EventKind::Timer)]);
        // A send that waits for room.
        let mut outgoing = None;
        loop {
            outgoing.get_or_insert_with(|| SendBuf::from(vec![0; 100_000]));
            if event_loop.send(client, &mut outgoing).map(Result::unwrap).is_pending() {
                break;
            }
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        }
        event_loop.set_deadline(client, Direction::Send, short).unwrap();
        let deadline = loop {
            let events = next_events(&mut event_loop);
            if events != [(CLIENT, EventKind::Send)] {
                break events;
            }
            // The kernel has taken more bytes in the meantime.
            while event_loop.send(client, &mut outgoing).map(Result::unwrap).is_ready() {
                outgoing = Some(SendBuf::from(vec![0; 100_000]));
            }
            event_loop.set_deadline(client, Direction::Send, short).unwrap();
        };
        assert_eq!(deadline, [(CLIENT, EventKind::SendDeadline)]);
        event_loop.abort(client);
        event_loop.set_deadline(server, Direction::Receive, short).unwrap();
        event_loop.close(server);
        event_loop.turn(&mut events, Some(Duration::from_millis(5))).unwrap();
        assert!(events.is_empty(), "{events:?}");
        assert!(event_loop.set_deadline(server, Direction::Receive, short).is_err());
    });
}

#[test]
fn bytes_sent_while_connecting_arrive() {
    on_every_driver_and_sim(|setup| {
        let message = pattern(1, 20_000);
        for call in 0..3 {
            let mut event_loop = open(setup);
            let (listener, address) = listen(&mut event_loop);
            let client = event_loop.connect(address, CLIENT).unwrap();
            let (mut sent, mut server, mut received) = (0, None, Vec::new());
            // The first call precedes the turn that submits the connect operation.
            wait(&mut event_loop, |event_loop| {
                while sent < message.len() {
                    let part = &message[sent..];
                    let (head, tail) = part.split_at(part.len() / 2);
                    let polled = match call {
                        0 => event_loop.write(client, part),
                        1 => event_loop.send(client, &mut Some(part.to_vec().into())).map_ok(|()| part.len()),
                        _ => {
                            let mut pieces = vec![head.to_vec().into(), tail.to_vec().into()];
                            event_loop.send_vectored(client, &mut pieces).map_ok(|()| part.len())
                        }
                    };
                    let Poll::Ready(count) = polled else { break };
                    sent += count.unwrap();
                }
                let stream = match server {
                    Some(stream) => stream,
                    None => ready!(event_loop.accept(listener, SERVER)).unwrap(),
                };
                server = Some(stream);
                while received.len() < message.len() {
                    received.extend_from_slice(&ready!(event_loop.recv(stream)).unwrap().unwrap());
                }
                Poll::Ready(())
            });
            assert!(received == message, "bytes were lost or reordered");
            wait(&mut event_loop, |event_loop| event_loop.poll_connect(client)).unwrap();
        }
    });
}

#[test]
fn fault_10_cancelled_operations_report_no_event_and_lose_nothing() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        assert!(event_loop.recv(server).is_pending());
        assert!(event_loop.cancel(server, Direction::Receive));
        assert!(!event_loop.cancel(server, Direction::Receive));
        assert!(event_loop.write(client, b"kept").map(Result::unwrap).is_ready());
        let mut events = Events::new();
        event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        assert!(events.is_empty());
        let chunk = wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap().unwrap();
        assert_eq!(&chunk[..], b"kept");

        let (listener, address) = listen(&mut event_loop);
        assert!(event_loop.accept(listener, 3).is_pending());
        assert!(event_loop.cancel(listener, Direction::Receive));
        let third = event_loop.connect(address, 4).unwrap();
        wait(&mut event_loop, |event_loop| event_loop.poll_connect(third)).unwrap();
        assert_eq!(event_loop.peer_addr(third).unwrap(), address);
        let accepted = wait(&mut event_loop, |event_loop| event_loop.accept(listener, 5)).unwrap();
        assert_eq!(accepted.token(), 5);
    });
}

#[test]
fn fault_12_stale_identifiers_are_errors_even_if_the_slot_is_reused() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        event_loop.close(client);
        assert!(wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap().is_none());
        event_loop.close(server);
        let (client, _server) = pair(&mut event_loop);
        let Poll::Ready(Err(error)) = event_loop.recv(server) else { panic!("no error") };
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        assert!(matches!(event_loop.send(server, &mut Some("x".into())), Poll::Ready(Err(_))));
        assert!(!event_loop.cancel(server, Direction::Receive));
        event_loop.close(server);
        event_loop.abort(server);
        assert!(event_loop.write(client, b"unaffected").map(Result::unwrap).is_ready());
    });
}

#[test]
fn refused_connection_is_reported() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (listener, address) = listen(&mut event_loop);
        event_loop.close_listener(listener);
        let mut events = Events::new();
        event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        // On epoll, the attempt can fail immediately.
        let error = event_loop.connect(address, CLIENT).and_then(|client| {
            let result = wait(&mut event_loop, |event_loop| event_loop.poll_connect(client));
            event_loop.close(client);
            result
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().starts_with(&format!("cannot connect to {address}: ")), "{error}");
    });
}

#[test]
fn fault_14_wakes_from_other_threads_are_not_lost() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let waker = event_loop.waker();
        let (answer, answers) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            for _ in 0..1000 {
                waker.wake();
                answers.recv().unwrap();
            }
            waker
        });
        let mut wakes = 0;
        while wakes < 1000 {
            for event in next_events(&mut event_loop) {
                assert_eq!(event, (0, EventKind::Wake));
                wakes += 1;
                answer.send(()).unwrap();
            }
        }
        let waker = thread.join().unwrap();
        waker.wake();
        drop(event_loop);
        waker.wake();
    });
}

#[test]
fn wake_on_the_same_thread_ends_the_next_turn() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let waker = event_loop.waker();
        waker.wake();
        waker.wake();
        assert_eq!(next_events(&mut event_loop), [(0, EventKind::Wake)]);
    });
}

#[test]
fn loops_on_one_thread_are_independent() {
    on_every_driver(|setup| {
        let (mut one, mut two) = (open(setup), open(setup));
        let (listener, address) = listen(&mut one);
        let client = two.connect(address, CLIENT).unwrap();
        let (mut events, mut server) = (Events::new(), None);
        let short = Some(Duration::from_micros(100));
        let mut is_connected = false;
        while server.is_none() || !is_connected {
            if server.is_none()
                && let Poll::Ready(stream) = one.accept(listener, SERVER)
            {
                server = Some(stream.unwrap());
            }
            is_connected = two.poll_connect(client).map(Result::unwrap).is_ready();
            one.turn(&mut events, short).unwrap();
            assert!(events.iter().all(|event| event.kind() == EventKind::Accept));
            two.turn(&mut events, short).unwrap();
            assert!(events.iter().all(|event| event.kind() == EventKind::Connect));
        }
        let server = server.unwrap();
        for round in 0..10u8 {
            assert!(one.write(server, &[round]).map(Result::unwrap).is_ready());
            let mut byte = [0];
            while two.read(client, &mut byte).map(Result::unwrap).is_pending() {
                one.turn(&mut events, Some(Duration::ZERO)).unwrap();
                two.turn(&mut events, short).unwrap();
            }
            assert_eq!(byte, [round]);
        }
    });
}

#[test]
fn dropped_buffer_may_run_another_loop() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        let inner_setup = setup.clone();
        let inner = move || {
            let mut inner = open(&inner_setup);
            inner.add_timer(Duration::from_micros(1), 77);
            assert_eq!(next_events(&mut inner), [(77, EventKind::Timer)]);
            // Dropping the inner loop cancels a call, which the outer loop must not report.
            let socket = inner.bind_udp(ANY_PORT, 78).unwrap();
            assert!(inner.recv_from(socket, &mut [0; 9]).is_pending());
        };
        let mut outgoing = Some(SendBuf::from(crate::common::bytes_of_owner(inner)));
        assert!(event_loop.recv(server).is_pending());
        assert!(event_loop.send(client, &mut outgoing).map(Result::unwrap).is_ready());
        // The buffer is dropped during a turn, while the driver is in use.
        assert_eq!(next_events(&mut event_loop), [(SERVER, EventKind::Receive)]);
        assert_eq!(
            &event_loop.recv(server).map(|chunk| chunk.unwrap().unwrap().to_vec()),
            &Poll::Ready(b"owned bytes".to_vec())
        );
    });
}

#[test]
fn fault_17_panic_of_dropped_buffer_does_not_reach_the_loop() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        for send_vectored in [false, true] {
            let hostile = SendBuf::from(crate::common::bytes_of_owner(|| panic!("panic of a buffer")));
            let sent = if send_vectored {
                event_loop.send_vectored(client, &mut vec![SendBuf::from(""), hostile])
            } else {
                event_loop.send(client, &mut Some(hostile))
            };
            assert!(matches!(sent, Poll::Ready(Ok(()))));
            let mut received = Vec::new();
            while received.len() < b"owned bytes".len() {
                let chunk = wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap();
                received.extend_from_slice(&chunk.expect("more bytes"));
            }
            assert_eq!(received, b"owned bytes");
        }
        // This buffer is dropped with the loop.
        let hostile = crate::common::bytes_of_owner(|| panic!("panic of a buffer"));
        assert!(event_loop.send(client, &mut Some(hostile.into())).map(Result::unwrap).is_ready());
    });
}

#[test]
fn closed_sources_report_no_event() {
    on_every_driver_and_sim(|setup| {
        let (mut event_loop, mut events) = (open(setup), Events::new());
        let turn = |event_loop: &mut EventLoop, events: &mut Events| {
            event_loop.turn(events, Some(Duration::from_millis(1))).unwrap();
            assert!(events.is_empty(), "{events:?}");
        };
        let socket = event_loop.bind_udp(ANY_PORT, 1).unwrap();
        assert!(event_loop.recv_from(socket, &mut [0; 9]).is_pending());
        turn(&mut event_loop, &mut events);
        event_loop.close_udp(socket);
        turn(&mut event_loop, &mut events);
        if !matches!(setup.kind, DriverKind::Sim(_)) {
            let (near, _far) = UnixStream::pair().unwrap();
            let source = event_loop.register(&near, Interest::READABLE, 2).unwrap();
            assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
            turn(&mut event_loop, &mut events);
            event_loop.deregister(source);
            turn(&mut event_loop, &mut events);
        }
    });
}

#[test]
fn shut_down_sends_accepted_bytes_and_closes_everything() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = event_loop.import_stream(near, 1).unwrap();
        let reader = thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).unwrap();
            received
        });
        let mut outgoing = Some(SendBuf::from(pattern(1, 60_000)));
        assert!(event_loop.send(stream, &mut outgoing).map(Result::unwrap).is_ready());
        event_loop.shutdown(Duration::from_secs(10)).unwrap();
        assert!(reader.join().unwrap() == pattern(1, 60_000)[..]);
    });
}

#[test]
fn fault_10_dropped_loop_cancels_operations_in_flight() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        let (listener, _) = listen(&mut event_loop);
        assert!(event_loop.accept(listener, 8).is_pending());
        assert!(event_loop.recv(server).is_pending());
        assert!(event_loop.recv(client).is_pending());
        let mut events = Events::new();
        // The listener of `pair` may still be closing.
        while event_loop.metrics().sockets > 3 {
            event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        }
        event_loop.add_timer(Duration::from_secs(1), 1);
        event_loop.set_deadline(client, Direction::Receive, Duration::from_secs(1)).unwrap();
    });
}

#[test]
fn registered_descriptor_reports_readiness() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let source = event_loop.register(&near, Interest::READABLE | Interest::WRITABLE, 6).unwrap();
        assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
        far.write_all(b"x").unwrap();
        assert_eq!(next_events(&mut event_loop), [(6, EventKind::Readable)]);
        let ready = event_loop.poll_ready(source, Interest::READABLE).map(Result::unwrap);
        assert!(matches!(ready, Poll::Ready(ready) if ready.is_readable()));
        assert_eq!(near.read(&mut [0; 4]).unwrap(), 1);
        assert!(near.read(&mut [0; 4]).is_err());
        event_loop.clear_ready(source, Interest::READABLE);
        assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
        assert!(matches!(event_loop.poll_ready(source, Interest::PRIORITY), Poll::Ready(Err(_))));
        let both = Interest::READABLE | Interest::WRITABLE;
        let ready = wait(&mut event_loop, |event_loop| event_loop.poll_ready(source, both)).unwrap();
        assert!(ready.is_writable());
        event_loop.deregister(source);
        assert!(matches!(event_loop.poll_ready(source, both), Poll::Ready(Err(_))));
    });
}

#[test]
fn deadlines_and_cancellation_apply_to_listeners_and_datagrams() {
    on_every_driver_and_sim(|setup| {
        let (mut event_loop, mut events) = (open(setup), Events::new());
        let short = Duration::from_millis(2);
        let (listener, address) = listen(&mut event_loop);
        assert!(event_loop.accept(listener, SERVER).is_pending());
        event_loop.set_deadline(listener, Direction::Receive, short).unwrap();
        assert_eq!(next_events(&mut event_loop), [(LISTENER, EventKind::ReceiveDeadline)]);
        // The listener stays usable, and a call that completes removes the deadline.
        assert!(event_loop.accept(listener, SERVER).is_pending());
        event_loop.set_deadline(listener, Direction::Receive, Duration::from_secs(5)).unwrap();
        event_loop.connect(address, CLIENT).unwrap();
        wait(&mut event_loop, |event_loop| event_loop.accept(listener, SERVER)).unwrap();
        event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(event_loop.max_wait(), None);

        let socket = event_loop.bind_udp(ANY_PORT, 9).unwrap();
        let address = event_loop.udp_local_addr(socket).unwrap();
        let mut buffer = [0; 16];
        assert!(event_loop.recv_from(socket, &mut buffer).is_pending());
        event_loop.set_deadline(socket, Direction::Receive, short).unwrap();
        assert_eq!(next_events(&mut event_loop), [(9, EventKind::ReceiveDeadline)]);
        assert!(event_loop.recv_from(socket, &mut buffer).is_pending());
        assert!(event_loop.cancel(socket, Direction::Receive));
        assert!(
            !event_loop.cancel(socket, Direction::Receive) && !event_loop.cancel(socket, Direction::Send)
        );
        assert!(event_loop.send_to(socket, b"kept", address).map(Result::unwrap).is_ready());
        event_loop.turn(&mut events, Some(short)).unwrap();
        assert!(events.is_empty(), "{events:?}");
        let received = wait(&mut event_loop, |event_loop| event_loop.recv_from(socket, &mut buffer)).unwrap();
        assert_eq!((&buffer[..received.0], received.1), (&b"kept"[..], address));

        // Objects in the same slot of different tables have different deadlines, which end with the objects.
        event_loop.set_deadline(socket, Direction::Receive, short).unwrap();
        event_loop.set_deadline(listener, Direction::Receive, short).unwrap();
        event_loop.close_udp(socket);
        event_loop.close_listener(listener);
        assert!(event_loop.set_deadline(socket, Direction::Receive, short).is_err());
        assert!(event_loop.set_deadline(listener, Direction::Receive, short).is_err());
        event_loop.turn(&mut events, Some(Duration::from_millis(5))).unwrap();
        assert!(events.is_empty(), "{events:?}");
    });
}

#[test]
fn deadlines_and_cancellation_apply_to_registered_descriptors() {
    on_every_driver(|setup| {
        let (mut event_loop, mut events) = (open(setup), Events::new());
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let source = event_loop.register(&near, Interest::READABLE | Interest::WRITABLE, 6).unwrap();
        assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
        event_loop.set_deadline(source, Direction::Receive, Duration::from_millis(2)).unwrap();
        assert_eq!(next_events(&mut event_loop), [(6, EventKind::ReceiveDeadline)]);
        assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
        assert!(event_loop.cancel(source, Direction::Receive));
        assert!(!event_loop.cancel(source, Direction::Receive));
        far.write_all(b"x").unwrap();
        let readable = |event_loop: &mut EventLoop| event_loop.poll_ready(source, Interest::READABLE);
        event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        assert!(events.is_empty(), "{events:?}");
        // Readiness is recorded nevertheless.
        assert!(wait(&mut event_loop, readable).unwrap().is_readable());
        assert_eq!(near.read(&mut [0; 4]).unwrap(), 1);
        event_loop.clear_ready(source, Interest::READABLE);
        // A call that completes removes the deadline.
        assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
        event_loop.set_deadline(source, Direction::Receive, Duration::from_secs(5)).unwrap();
        far.write_all(b"y").unwrap();
        assert!(wait(&mut event_loop, readable).unwrap().is_readable());
        assert_eq!(event_loop.max_wait(), None);
        event_loop.deregister(source);
        assert!(event_loop.set_deadline(source, Direction::Send, Duration::ZERO).is_err());
    });
}

#[test]
#[should_panic(expected = "token")]
fn token_beyond_the_maximum_panics() {
    let mut event_loop = EventLoop::builder().driver(DriverKind::Epoll).build().unwrap();
    event_loop.add_timer(Duration::ZERO, MAX_TOKEN + 1);
}
