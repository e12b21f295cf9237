//! Tests of the sockets of an event loop: errors, Unix sockets, socket options, peeking and vectored sends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::task::Poll;
use std::time::Duration;

use anello::event_loop::{Direction, EventKind, EventLoop, Events, SendBuf, StreamId};
use anello::net::raw_os_error;
use socket2::SockRef;

use crate::common::event_loops::{ANY_PORT, open, pair, wait};
use crate::common::{on_each, on_every_driver, on_every_driver_and_sim, pattern, simulated_drivers};

fn receive(event_loop: &mut EventLoop, stream: StreamId, length: usize) -> Vec<u8> {
    let mut received = Vec::new();
    while received.len() < length {
        let chunk = wait(event_loop, |event_loop| event_loop.recv(stream)).unwrap();
        received.extend_from_slice(&chunk.expect("there is more"));
    }
    received
}

#[test]
fn errors_contain_the_address() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let listener = event_loop.listen(ANY_PORT, 0).unwrap();
        let address = event_loop.local_addr(listener).unwrap();
        let error = event_loop.listen(address, 1).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot bind {address}: ")), "{error}");
        assert_eq!(raw_os_error(&error), Some(libc::EADDRINUSE));
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    });
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        // TCP has no broadcast addresses. The attempt fails immediately, in `connect` or in `poll_connect`.
        let peer = SocketAddr::new(Ipv4Addr::BROADCAST.into(), 9);
        let connected = event_loop.connect(peer, 1).and_then(|stream| {
            let connected = wait(&mut event_loop, |event_loop| event_loop.poll_connect(stream));
            event_loop.close(stream);
            connected
        });
        let error = connected.unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot connect to {peer}: ")), "{error}");
        assert!(raw_os_error(&error).is_some());
        let socket = event_loop.bind_udp(ANY_PORT, 1).unwrap();
        let peer = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 9);
        let error = event_loop.connect_udp(socket, peer).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot connect UDP socket to {peer}: ")), "{error}");
    });
}

#[test]
fn aborted_attempt_is_forgotten() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let listener = event_loop.listen(ANY_PORT, 0).unwrap();
        let address = event_loop.local_addr(listener).unwrap();
        // Closed before the result of the attempt is polled.
        let stream = event_loop.connect(address, 1).unwrap();
        event_loop.abort(stream);
        let error = wait(&mut event_loop, |event_loop| event_loop.poll_connect(stream)).unwrap_err();
        assert!(!error.to_string().contains("cannot connect to"), "{error}");
    });
}

#[test]
fn fault_11_cancelled_connects_and_accepts_leave_no_socket_open() {
    on_every_driver_and_sim(|setup| {
        let (mut event_loop, mut events) = (open(setup), Events::new());
        for turns in (0..20).map(|round| round % 4) {
            let listener = event_loop.listen(ANY_PORT, 0).unwrap();
            let address = event_loop.local_addr(listener).unwrap();
            assert!(event_loop.accept(listener, 2).is_pending());
            assert!(event_loop.cancel(listener, Direction::Receive));
            let (aborted, closed) =
                (event_loop.connect(address, 1).unwrap(), event_loop.connect(address, 1).unwrap());
            for _ in 0..turns {
                event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
            }
            event_loop.abort(aborted);
            event_loop.close(closed);
            event_loop.close_listener(listener);
        }
        while event_loop.metrics().sockets > 0 {
            event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
        }
    });
}

#[test]
fn unix_sockets_connect_by_path_and_by_name() {
    on_every_driver_and_sim(|setup| {
        let directory = tempfile::tempdir().unwrap();
        let path = UnixAddress::from_pathname(directory.path().join("socket")).unwrap();
        let name = format!("anello-event-loop-{}-{}", std::process::id(), setup.name.replace(' ', "-"));
        let name = UnixAddress::from_abstract_name(name).unwrap();
        let mut event_loop = open(setup);
        let error = event_loop.connect_unix(&path, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = format!("cannot connect to {}: ", directory.path().join("socket").display());
        assert!(error.to_string().starts_with(&text), "{error}");
        for address in [path, name] {
            let listener = event_loop.listen_unix(&address, 0).unwrap();
            let error = event_loop.listen_unix(&address, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            assert!(error.to_string().starts_with("cannot bind "), "{error}");
            let client = event_loop.connect_unix(&address, 1).unwrap();
            assert!(matches!(event_loop.poll_connect(client), Poll::Ready(Ok(()))));
            let server = wait(&mut event_loop, |event_loop| event_loop.accept(listener, 2)).unwrap();
            assert!(event_loop.write(client, b"ping").map(Result::unwrap).is_ready());
            assert_eq!(receive(&mut event_loop, server, 4), b"ping");
        }
    });
}

#[test]
fn full_backlog_of_unix_listener_is_would_block() {
    on_every_driver(|setup| {
        let name = format!("anello-backlog-{}-{}", std::process::id(), setup.name.replace(' ', "-"));
        let address = UnixAddress::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        SockRef::from(&listener).listen(0).unwrap();
        let mut event_loop = open(setup);
        let error = loop {
            if let Err(error) = event_loop.connect_unix(&address, 1) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn simulated_driver_has_no_descriptors() {
    on_each(simulated_drivers(), |setup| {
        let mut event_loop = open(setup);
        let (client, _server) = pair(&mut event_loop);
        assert_eq!(event_loop.stream_fd(client).unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn descriptors_give_access_to_socket_options() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let listener = event_loop.listen(ANY_PORT, 0).unwrap();
        SockRef::from(&event_loop.listener_fd(listener).unwrap()).set_keepalive(true).unwrap();
        let address = event_loop.local_addr(listener).unwrap();
        let client = event_loop.connect(address, 1).unwrap();
        let server = wait(&mut event_loop, |event_loop| event_loop.accept(listener, 2)).unwrap();
        for (stream, is_keepalive) in [(client, false), (server, true)] {
            let descriptor = event_loop.stream_fd(stream).unwrap();
            assert_eq!(SockRef::from(&descriptor).keepalive().unwrap(), is_keepalive);
            assert!(SockRef::from(&descriptor).tcp_nodelay().unwrap());
        }
        let socket = event_loop.bind_udp(ANY_PORT, 3).unwrap();
        SockRef::from(&event_loop.udp_fd(socket).unwrap()).set_broadcast(true).unwrap();
        event_loop.abort(client);
        event_loop.close_listener(listener);
        event_loop.close_udp(socket);
        assert_eq!(event_loop.stream_fd(client).unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(event_loop.listener_fd(listener).unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(event_loop.udp_fd(socket).unwrap_err().kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn peeked_bytes_are_received_again() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        let mut start = [0; 3];
        assert_eq!(event_loop.peek(server, &mut []).map(Result::unwrap), Poll::Ready(0));
        assert!(event_loop.peek(server, &mut start).is_pending());
        assert!(event_loop.write(client, b"peeked").map(Result::unwrap).is_ready());
        let mut events = Events::new();
        while events.is_empty() {
            event_loop.turn(&mut events, None).unwrap();
        }
        assert!(events.iter().all(|event| (event.token(), event.kind()) == (2, EventKind::Receive)));
        for _ in 0..3 {
            let mut peeked = 0;
            while peeked < start.len() {
                peeked = wait(&mut event_loop, |event_loop| event_loop.peek(server, &mut start)).unwrap();
            }
            assert_eq!(&start, b"pee");
        }
        assert_eq!(receive(&mut event_loop, server, 6), b"peeked");
        event_loop.shutdown_write(client).unwrap();
        assert_eq!(wait(&mut event_loop, |event_loop| event_loop.peek(server, &mut start)).unwrap(), 0);
    });
}

#[test]
fn vectored_sends_arrive_in_order() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        for lengths in [vec![], vec![5], vec![1, 2, 3], vec![100, 40_000, 7, 90_000]] {
            let parts: Vec<_> = lengths.iter().map(|length| pattern(*length as u64, *length)).collect();
            let mut outgoing: Vec<_> = parts.iter().cloned().map(SendBuf::from).collect();
            wait(&mut event_loop, |event_loop| event_loop.send_vectored(client, &mut outgoing)).unwrap();
            assert!(outgoing.is_empty());
            let message = parts.concat();
            assert!(receive(&mut event_loop, server, message.len()) == message, "{lengths:?}");
        }
        // A full queue leaves the buffers.
        loop {
            let mut outgoing = vec![vec![0; 50_000].into(), vec![1; 50_000].into()];
            if event_loop.send_vectored(client, &mut outgoing).map(Result::unwrap).is_pending() {
                assert_eq!(outgoing.len(), 2);
                break;
            }
        }
        event_loop.abort(client);
        let error = event_loop.send_vectored(client, &mut vec!["x".into()]);
        assert!(matches!(error, Poll::Ready(Err(_))));
    });
}

#[test]
fn closed_stream_accepts_no_more_bytes() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (client, server) = pair(&mut event_loop);
        let (message, mut sent) = (pattern(7, 10_000), Vec::new());
        while event_loop.send(client, &mut Some(message.clone().into())).map(Result::unwrap).is_ready() {
            sent.extend_from_slice(&message);
        }
        event_loop.close(client);
        assert!(event_loop.set_deadline(client, Direction::Send, Duration::ZERO).is_err());
        assert!(matches!(event_loop.send(client, &mut Some("late".into())), Poll::Ready(Err(_))));
        assert!(matches!(event_loop.write(client, b"late"), Poll::Ready(Err(_))));
        assert!(matches!(
            event_loop.send_vectored(client, &mut vec!["la".into(), "te".into()]),
            Poll::Ready(Err(_))
        ));
        assert!(receive(&mut event_loop, server, sent.len()) == sent);
        assert!(wait(&mut event_loop, |event_loop| event_loop.recv(server)).unwrap().is_none());
    });
}

#[test]
fn imported_unix_stream_is_peeked_and_sent_to() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = event_loop.import_stream(near, 1).unwrap();
        far.write_all(b"hello").unwrap();
        let mut start = [0; 2];
        wait(&mut event_loop, |event_loop| event_loop.peek(stream, &mut start)).unwrap();
        assert_eq!(&start, b"he");
        let mut outgoing = vec!["head ".into(), pattern(1, 10_000).into()];
        wait(&mut event_loop, |event_loop| event_loop.send_vectored(stream, &mut outgoing)).unwrap();
        wait(&mut event_loop, |event_loop| event_loop.flush(stream)).unwrap();
        let mut received = vec![0; 10_005];
        far.read_exact(&mut received).unwrap();
        assert!(received[..5] == *b"head " && received[5..] == pattern(1, 10_000));
    });
}
