//! Features specific to Linux sockets: options, addresses, peers that use the standard library, and descriptor
//! conversion.

mod common;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anello::net::{TcpKeepalive, TcpListener, TcpStream, UnixListener, UnixStream, echo, raw_os_error};
use anello::time::timeout;
use anello::{spawn, yield_now};
use bytes::Bytes;
use common::{
    ANY_PORT, TURNS, assert_same_bytes, on_both_drivers, on_every_driver, pair, pattern, poll_at_most,
};
use socket2::SockRef;

/// Returns a runtime stream and the standard-library stream connected to it. The latter has read and write timeouts.
async fn with_std() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    peer.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    (listener.accept().await.unwrap(), peer)
}

#[test]
fn accepted_bytes_are_sent_when_block_on_returns() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (mut stream, mut peer) = runtime.block_on(with_std());
        for size in [1, 90, 3000, 50_000] {
            let message = pattern(1, size);
            runtime.block_on(stream.write_all(&message)).unwrap();
            // The runtime is not running here, so the kernel must already have all bytes that fit in its buffers. If
            // the send queue is limited to 100 bytes, the last bytes may be sent in the next turn.
            let mut received = vec![0; size.saturating_sub(setup.options.max_send_queue_bytes).max(1)];
            peer.read_exact(&mut received).unwrap();
            assert_same_bytes(&received, &message[..received.len()]);
            runtime.block_on(stream.flush()).unwrap();
            let mut rest = vec![0; size - received.len()];
            peer.read_exact(&mut rest).unwrap();
            assert_same_bytes(&rest, &message[received.len()..]);
        }
    });
}

#[test]
fn dropping_runtime_delivers_accepted_bytes() {
    on_every_driver(|setup| {
        let runtime = setup.builder().drain_timeout(Duration::from_secs(30)).build().unwrap();
        let message = pattern(2, 8 << 20);
        let (held, peer) = runtime.block_on(async {
            let (mut held, peer) = with_std().await;
            held.send(message.clone()).await.unwrap();
            (held, peer)
        });
        let reading = thread::spawn(move || {
            let (mut peer, mut received) = (peer, Vec::new());
            peer.read_to_end(&mut received).map(|_| received)
        });
        drop(runtime);
        assert_same_bytes(&reading.join().unwrap().unwrap(), &message);
        drop(held);
    });
}

#[test]
fn dropping_runtime_does_not_wait_for_stalled_reader() {
    on_every_driver(|setup| {
        let runtime = setup.builder().drain_timeout(Duration::from_millis(50)).build().unwrap();
        let message = Counted(Arc::new(vec![0; 32 << 20]));
        let (stream, peer) = runtime.block_on(async {
            let (mut stream, peer) = with_std().await;
            stream.send(message.bytes()).await.unwrap();
            (stream, peer)
        });
        // A task and a timer are also pending at shutdown.
        runtime.block_on(async {
            spawn(async {
                anello::time::sleep(Duration::from_secs(1000)).await;
            })
            .detach();
            anello::yield_now().await;
        });
        drop(runtime);
        assert_eq!(Arc::strong_count(&message.0), 1, "{}: the memory was not released", setup.name);
        drop((stream, peer));
    });
}

/// Bytes whose reference count can be checked.
#[derive(Clone)]
struct Counted(Arc<Vec<u8>>);

impl Counted {
    fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn streams_convert_to_and_from_standard_library() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            peer.write_all(b"taken, left over").unwrap();
            let mut first = [0; 6];
            stream.read_exact(&mut first).await.unwrap();
            // All accepted bytes are sent before the conversion, regardless of their number.
            let message = pattern(3, 500_000);
            stream.send(message.clone()).await.unwrap();
            let reading = thread::spawn(move || {
                let mut received = vec![0; 500_000];
                peer.read_exact(&mut received).map(|()| (peer, received))
            });
            let (mut stream, left) = stream.into_std().await.unwrap();
            let (mut peer, received) = reading.join().unwrap().unwrap();
            assert_same_bytes(&received, &message);
            // The stream is in blocking mode, and `read_exact` calls `read` as often as needed.
            let mut rest = vec![0; 10 - left.len()];
            stream.read_exact(&mut rest).unwrap();
            assert_eq!([left, rest].concat(), b" left over");
            stream.write_all(b"blocking").unwrap();
            let mut answer = [0; 8];
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"blocking");
            let mut again = TcpStream::from_std(stream).unwrap();
            peer.write_all(b"back").unwrap();
            let mut received = [0; 4];
            again.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"back");
            again.write_all(b"here").await.unwrap();
            again.flush().await.unwrap();
            peer.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"here");
        });
    });
}

#[test]
fn leftover_bytes_are_carried_to_and_from_standard_library() {
    on_every_driver(|setup| {
        setup.run(async {
            for size in [0, 1, 5000, 300_000] {
                let (stream, mut peer) = with_std().await;
                let (std_stream, received) = stream.into_std().await.unwrap();
                assert!(received.is_empty());
                let message = pattern(size as u64, size + 1000);
                peer.write_all(&message[size..]).unwrap();
                let mut stream = TcpStream::from_std_with(std_stream, &message[..size]).unwrap();
                // The bytes in the socket follow the leftover bytes.
                let mut peeked = vec![0; size + 1000];
                while stream.peek(&mut peeked).await.unwrap() < peeked.len() {
                    yield_now().await;
                }
                assert_same_bytes(&peeked, &message);
                stream.readable().await.unwrap();
                let mut first = vec![0; size / 3];
                stream.read_exact(&mut first).await.unwrap();
                assert_same_bytes(&first, &message[..size / 3]);
                // Leftover bytes that were not taken are returned again.
                let (mut std_stream, left) = stream.into_std().await.unwrap();
                let mut rest = vec![0; size + 1000 - size / 3 - left.len()];
                std_stream.read_exact(&mut rest).unwrap();
                assert_same_bytes(&[left, rest].concat(), &message[size / 3..]);
                let mut stream = TcpStream::from_std_with(std_stream, b"abc").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"abc"[..]));
                peer.write_all(b"d").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"d"[..]));
                stream.write_all(b"e").await.unwrap();
                stream.flush().await.unwrap();
                // A stream that is dropped with leftover bytes releases them.
                let (std_stream, _) = stream.into_std().await.unwrap();
                drop(TcpStream::from_std_with(std_stream, &message).unwrap());
                let mut answer = [0];
                peer.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"e");
            }
            while anello::current_metrics().unwrap().sockets > 0 {
                yield_now().await;
            }
        });
    });
}

#[test]
fn received_bytes_outlive_stream_and_runtime_without_copy() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (kept, expected) = runtime.block_on(async {
            let (mut stream, mut peer) = with_std().await;
            let (mut kept, mut expected) = (Vec::new(), Vec::new());
            for round in 0..300 {
                let message = pattern(round, 50);
                peer.write_all(&message).unwrap();
                let mut received = 0;
                while received < message.len() {
                    let chunk = stream.recv().await.unwrap().expect("bytes");
                    let address = chunk.as_ptr();
                    let bytes = Bytes::from(chunk);
                    assert_eq!(bytes.as_ptr(), address);
                    received += bytes.len();
                    // Most buffers are returned, some of them by another thread.
                    match round % 10 {
                        0 => kept.push(bytes),
                        1 => drop(thread::spawn(move || drop(bytes)).join()),
                        _ => drop(bytes),
                    }
                }
                if round % 10 == 0 {
                    expected.extend(message);
                }
            }
            (kept, expected)
        });
        drop(runtime);
        let joined = thread::spawn(move || kept.concat()).join().unwrap();
        assert_same_bytes(&joined, &expected);
    });
}

#[test]
fn pending_reset_is_returned_by_conversion_with_received_bytes() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            // Arms the receive operation.
            assert!(poll_at_most(1, stream.recv()).await.is_none());
            yield_now().await;
            peer.write_all(b"last").unwrap();
            SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
            drop(peer);
            for _ in 0..TURNS {
                yield_now().await;
            }
            // The error is either in the kernel, where the new owner finds it, or returned with the stream.
            let mut received = Vec::new();
            let error = match stream.into_std().await {
                Ok((mut stream, left)) => {
                    received.extend(left);
                    stream.read_to_end(&mut received).unwrap_err()
                }
                Err(error) => {
                    let (error, mut stream) = error.into_parts();
                    while let Ok(Some(chunk)) = stream.recv().await {
                        received.extend_from_slice(&chunk);
                    }
                    error
                }
            };
            assert_eq!((error.kind(), &received[..]), (io::ErrorKind::ConnectionReset, &b"last"[..]));
        });
    });
}

/// If many sockets become readable in one turn, a driver may send the responses together after receiving from all of
/// them.
#[test]
fn batched_responses_are_sent_before_connection_ends() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut peers, mut tasks) = (Vec::new(), Vec::new());
            for number in 0..40 {
                let (mut stream, peer) = with_std().await;
                peers.push(peer);
                tasks.push(spawn(async move {
                    let mut request = vec![0; 90];
                    stream.read_exact(&mut request).await.unwrap();
                    stream.send(request).await.unwrap();
                    stream.send(pattern(number, 300)).await.unwrap();
                    match number % 4 {
                        0 => drop(stream),
                        1 => stream.flush().await.unwrap(),
                        2 => stream.shutdown().await.unwrap(),
                        _ => drop(stream.into_std().await.unwrap()),
                    }
                }));
            }
            // Runs until all servers are waiting for their requests.
            anello::time::sleep(Duration::from_millis(10)).await;
            for (number, peer) in (0..).zip(&mut peers) {
                peer.write_all(&pattern(100 + number, 90)).unwrap();
            }
            let read = |mut peer: std::net::TcpStream| {
                thread::spawn(move || {
                    let mut received = Vec::new();
                    peer.read_to_end(&mut received).map(|_| received)
                })
            };
            let readers: Vec<_> = peers.into_iter().map(read).collect();
            for task in tasks {
                task.await.unwrap();
            }
            for (number, reader) in (0..).zip(readers) {
                while !reader.is_finished() {
                    anello::time::sleep(Duration::from_millis(1)).await;
                }
                let expected = [pattern(100 + number, 90), pattern(number, 300)].concat();
                assert_same_bytes(&reader.join().unwrap().unwrap(), &expected);
            }
        });
    });
}

#[test]
fn duplicated_descriptor_does_not_affect_other_connections() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().await.unwrap();
            let (stream, _) = stream.into_std().await.unwrap();
            let duplicate = stream.try_clone().unwrap();
            let mut first = TcpStream::from_std(stream).unwrap();
            peer.write_all(b"1").unwrap();
            assert_eq!(first.recv().await.unwrap().as_deref(), Some(&b"1"[..]));
            drop(first);
            while anello::current_metrics().unwrap().sockets > 1 {
                anello::yield_now().await;
            }
            // The duplicate keeps the connection open, but the connection's slot may have been reused.
            let mut second = TcpStream::from_std(duplicate).unwrap();
            peer.write_all(b"2").unwrap();
            assert_eq!(second.recv().await.unwrap().as_deref(), Some(&b"2"[..]));
            second.write_all(b"3").await.unwrap();
            second.shutdown().await.unwrap();
            // The blocking read below also blocks the driver, so all bytes must be sent first.
            second.flush().await.unwrap();
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"3");
        });
    });
}

#[test]
fn duplicate_outlives_stream_and_runtime() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (stream, listener, duplicate, mut peer) = runtime.block_on(async {
            let (mut stream, mut peer) = with_std().await;
            // A receive is armed when the duplicate is created.
            assert!(poll_at_most(1, stream.recv()).await.is_none());
            let duplicate = std::net::TcpStream::from(stream.try_clone_to_owned().unwrap());
            assert_ne!(stream.as_raw_fd(), duplicate.as_raw_fd());
            assert_eq!(stream.local_addr().unwrap(), duplicate.local_addr().unwrap());
            // Options are shared.
            SockRef::from(&duplicate).set_ttl_v4(77).unwrap();
            assert_eq!(stream.ttl().unwrap(), 77);
            drop(stream);
            while anello::current_metrics().unwrap().sockets > 0 {
                yield_now().await;
            }
            // Neither the connection nor the driver is affected by the closed stream.
            for _ in 0..3 {
                peer.write_all(b"x").unwrap();
                for _ in 0..TURNS {
                    yield_now().await;
                }
            }
            assert_eq!(anello::current_metrics().unwrap().late_completions, 0);
            let mut again = TcpStream::from_std(duplicate.try_clone().unwrap()).unwrap();
            let mut received = [0; 3];
            again.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"xxx");
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            let other = std::net::TcpListener::from(listener.try_clone_to_owned().unwrap());
            assert_eq!(other.local_addr().unwrap(), at);
            (again, listener, duplicate, peer)
        });
        drop(runtime);
        // The runtime has closed its descriptors.
        assert_eq!((stream.as_raw_fd(), listener.as_raw_fd()), (-1, -1));
        assert!(stream.try_clone_to_owned().is_err() && listener.try_clone_to_owned().is_err());
        duplicate.set_nonblocking(false).unwrap();
        (&duplicate).write_all(b"end").unwrap();
        drop((stream, duplicate));
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"end");
    });
}

#[test]
fn descriptors_of_wrong_kind_are_rejected() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let error = TcpStream::try_from(OwnedFd::from(unix.try_clone().unwrap())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("not a TCP stream"), "{error}");
            assert!(UnixListener::try_from(OwnedFd::from(unix.try_clone().unwrap())).is_err());
            UnixStream::try_from(OwnedFd::from(unix.try_clone().unwrap())).unwrap();
            UnixStream::try_from(unix).unwrap();
            let udp = std::net::UdpSocket::bind(ANY_PORT).unwrap();
            assert!(TcpStream::try_from(OwnedFd::from(udp)).is_err());
            let file = std::fs::File::open("/dev/null").unwrap();
            let error = TcpStream::try_from(OwnedFd::from(file)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
            let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            assert!(TcpStream::try_from(OwnedFd::from(listener.try_clone().unwrap())).is_err());
            let listener = TcpListener::try_from(OwnedFd::from(listener)).unwrap();
            let client = std::net::TcpStream::connect(at).unwrap();
            assert!(TcpListener::try_from(OwnedFd::from(client.try_clone().unwrap())).is_err());
            let mut client = TcpStream::try_from(client).unwrap();
            client.write_all(b"x").await.unwrap();
            assert_eq!(listener.accept().await.unwrap().recv().await.unwrap().as_deref(), Some(&b"x"[..]));
        });
    });
}

#[test]
fn duplicates_of_descriptor_are_imported_in_sequence() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (kept, _) = listener.accept().await.unwrap().into_std().await.unwrap();
            for round in 0..3 {
                // Each duplicate reuses the descriptor number of the previous one.
                let mut stream = TcpStream::from_std(kept.try_clone().unwrap()).unwrap();
                peer.write_all(b"question").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"question"[..]), "{round}");
                stream.write_all(b"answer").await.unwrap();
                drop(stream);
                while anello::current_metrics().unwrap().sockets > 1 {
                    anello::yield_now().await;
                }
                let mut answer = [0; 6];
                peer.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"answer");
            }
        });
    });
}

#[test]
fn standard_library_listener_is_imported() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let mut early = std::net::TcpStream::connect(address).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            assert_eq!(listener.local_addr().unwrap(), address);
            let mut stream = listener.accept().await.unwrap();
            early.write_all(b"early").unwrap();
            let mut received = [0; 5];
            stream.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"early");
        });
    });
}

#[test]
fn addresses_and_options() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            assert_ne!(address.port(), 0, "a port was assigned");
            let client = TcpStream::connect(address).await.unwrap();
            let server = listener.accept().await.unwrap();
            assert_eq!(client.peer_addr().unwrap(), address);
            assert_eq!(server.local_addr().unwrap(), address);
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            client.set_nodelay(false).unwrap();
            client.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(100))).unwrap();
            client.set_linger(Some(Duration::from_secs(3))).unwrap();
            client.set_recv_buffer_size(20_000).unwrap();
            client.set_send_buffer_size(20_000).unwrap();
            server.set_keepalive(false).unwrap();
            let (client, server) = (client.into_std().await.unwrap().0, server.into_std().await.unwrap().0);
            let socket = SockRef::from(&client);
            assert!(!socket.tcp_nodelay().unwrap());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(100));
            assert_eq!(socket.linger().unwrap(), Some(Duration::from_secs(3)));
            assert_eq!(
                (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap()),
                (40_000, 40_000)
            );
            let socket = SockRef::from(&server);
            assert!(socket.tcp_nodelay().unwrap(), "must be inherited from the listener");
            assert!(!socket.keepalive().unwrap());
            let listener = TcpListener::builder().nodelay(false).backlog(1).bind(ANY_PORT).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let server = listener.accept().await.unwrap().into_std().await.unwrap().0;
            assert!(!SockRef::from(&server).tcp_nodelay().unwrap());
        });
    });
}

#[test]
fn error_contains_address_in_use() {
    on_both_drivers(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let error = TcpListener::bind(address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.to_string().starts_with(&format!("cannot bind {address}: ")), "{error}");
            assert_eq!(raw_os_error(&error), Some(libc::EADDRINUSE));
            assert!(
                TcpListener::bind("198.51.100.1:80").is_err(),
                "binding to a non-local address must fail"
            );
            assert!(TcpListener::bind(&[][..] as &[SocketAddr]).is_err());
            drop(listener);
            // The kernel releases the address in the next turn at the latest.
            while TcpListener::bind(address).is_err() {
                anello::yield_now().await;
            }
        });
    });
}

#[test]
fn listeners_share_a_port() {
    on_every_driver(|setup| {
        setup.run(async {
            let shared = TcpListener::builder().reuse_port(true);
            let one = shared.bind(ANY_PORT).unwrap();
            let address = one.local_addr().unwrap();
            let other = shared.bind(address).unwrap();
            let mut accepting = Vec::new();
            for listener in [one, other] {
                accepting.push(spawn(async move {
                    loop {
                        let mut stream = listener.accept().await.unwrap();
                        spawn(async move { echo(&mut stream).await }).detach();
                    }
                }));
            }
            for number in 0..40u8 {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(&[number]).await.unwrap();
                assert_eq!(client.recv().await.unwrap().as_deref(), Some(&[number][..]));
            }
            accepting.iter().for_each(anello::JoinHandle::<()>::abort);
        });
    });
}

#[test]
fn connect_error_contains_peer_address() {
    on_every_driver(|setup| {
        setup.run(async {
            let base = anello::current_metrics().unwrap().sockets;
            let free = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
            let error = TcpStream::connect(free).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(error.to_string().starts_with(&format!("cannot connect to {free}: ")), "{error}");
            assert_eq!(raw_os_error(&error), Some(libc::ECONNREFUSED));
            let other_free = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
            let error = TcpStream::connect(vec![free, other_free]).await.unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::ECONNREFUSED));
            assert!(TcpStream::connect(&[][..] as &[SocketAddr]).await.is_err());
            // Connecting to the first address fails, and connecting to the second succeeds.
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let both = [free, listener.local_addr().unwrap()];
            let client = TcpStream::connect(&both[..]).await.unwrap();
            assert_eq!(client.peer_addr().unwrap(), both[1]);
            drop((client, listener));
            while anello::current_metrics().unwrap().sockets > base {
                anello::yield_now().await;
            }
        });
    });
}

#[test]
fn connect_from_local_address() {
    on_every_driver(|setup| {
        setup.run(async {
            let base = anello::current_metrics().unwrap().sockets;
            let listeners = [TcpListener::bind(ANY_PORT).unwrap(), TcpListener::bind(ANY_PORT).unwrap()];
            let source = SocketAddr::from(([127, 0, 0, 9], 0));
            for listener in &listeners {
                let address = listener.local_addr().unwrap();
                let mut client = TcpStream::connect_from(source, address).await.unwrap();
                let mut server = listener.accept().await.unwrap();
                assert_eq!(client.local_addr().unwrap().ip(), source.ip());
                assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
                client.write_all(b"from").await.unwrap();
                assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"from"[..]));
            }
            let address = listeners[0].local_addr().unwrap();
            let error = TcpStream::connect_from("192.0.2.1:0".parse().unwrap(), address).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("cannot connect from 192.0.2.1"), "{error}");
            assert_eq!(raw_os_error(&error), Some(libc::EADDRNOTAVAIL));
            let closed_address = std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
            let error = TcpStream::connect_from(source, closed_address).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("cannot connect to {closed_address} from 127.0.0.9: ")),
                "{error}"
            );
            let six: SocketAddr = "[::1]:0".parse().unwrap();
            assert!(TcpStream::connect_from(six, address).await.is_err(), "an address of another family");
            // The application chooses the port.
            let free = std::net::TcpListener::bind((source.ip(), 0)).unwrap().local_addr().unwrap();
            let client = TcpStream::connect_from(free, address).await.unwrap();
            assert_eq!(client.local_addr().unwrap(), free);
            drop((client, listeners));
            while anello::current_metrics().unwrap().sockets > base {
                anello::yield_now().await;
            }
        });
    });
}

#[test]
fn ipv6_connection() {
    on_both_drivers(|setup| {
        setup.run(async {
            let listener = match TcpListener::bind("[::1]:0") {
                Ok(listener) => listener,
                Err(error) => return eprintln!("skipped: IPv6 unavailable: {error}"),
            };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut server = listener.accept().await.unwrap();
            client.write_all(b"six").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"six"[..]));
            let source: SocketAddr = "[::1]:0".parse().unwrap();
            let client = TcpStream::connect_from(source, listener.local_addr().unwrap()).await.unwrap();
            assert_eq!(client.local_addr().unwrap().ip(), source.ip());
        });
    });
}

/// Urgent bytes are treated as ordinary data (RFC 6093). A read stops before an urgent byte, so a short read does not
/// mean that the socket is empty. A multishot receive can leave the byte unread until more bytes arrive, even if all
/// bytes were available from the start. The peer therefore sends more bytes until a multishot receive continues.
#[test]
fn urgent_byte_and_later_bytes_arrive_in_order() {
    on_every_driver(|setup| {
        let options = &setup.options;
        let is_multishot =
            setup.is_uring() && !options.one_shot_receive && !options.disabled_features.multishot_receive;
        let limit = if is_multishot { Duration::from_millis(100) } else { Duration::MAX };
        setup.run(async move {
            let (mut stream, mut peer) = with_std().await;
            let send = |peer: &mut std::net::TcpStream| {
                peer.write_all(b"before").unwrap();
                SockRef::from(&*peer).send_out_of_band(b"!").unwrap();
                peer.write_all(b"behind").unwrap();
            };
            for early in [true, false] {
                if early {
                    send(&mut peer);
                }
                let mut received = [0; 13];
                let mut reading = spawn(async move {
                    stream.read_exact(&mut received).await.unwrap();
                    (stream, received)
                });
                yield_now().await;
                if !early {
                    send(&mut peer);
                }
                let mut extra = 0;
                (stream, received) = loop {
                    if let Ok(result) = timeout(limit, &mut reading).await {
                        break result.unwrap();
                    }
                    peer.write_all(b".").unwrap();
                    extra += 1;
                };
                assert_eq!(&received, b"before!behind");
                let mut rest = vec![0; extra];
                stream.read_exact(&mut rest).await.unwrap();
                assert_eq!(rest, b".".repeat(extra));
            }
        });
    });
}

#[test]
fn bytes_of_peer_that_sends_and_closes_are_received() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let message = pattern(6, 30_000);
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peer.write_all(&message).unwrap();
            drop(peer);
            let mut stream = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while let Some(chunk) = stream.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
            }
            assert_same_bytes(&received, &message);
        });
    });
}

#[test]
fn reset_immediately_after_bytes_is_detected() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for _ in 0..10 {
                let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let mut stream = listener.accept().await.unwrap();
                peer.write_all(b"1").unwrap();
                let mut first = [0];
                stream.read_exact(&mut first).await.unwrap();
                let receiving = spawn(async move {
                    let mut count = 0;
                    loop {
                        match stream.recv().await {
                            Ok(Some(chunk)) => count += chunk.len(),
                            ended => return (count, ended.map(|_| ()).map_err(|error| error.kind())),
                        }
                    }
                });
                // Runs until the receive operation is pending.
                for _ in 0..TURNS {
                    yield_now().await;
                }
                // The bytes and the reset arrive in one turn: the kernel may signal both with one wake-up.
                peer.write_all(b"last").unwrap();
                SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
                drop(peer);
                let (count, ended) = receiving.await.unwrap();
                assert_eq!((count, ended), (4, Err(io::ErrorKind::ConnectionReset)));
            }
        });
    });
}

#[test]
fn reset_returns_error_instead_of_eof() {
    on_every_driver(|setup| {
        setup.run(async {
            let (client, mut server) = pair().await.unwrap();
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            let error = server.recv().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            let sent = match server.write(b"x").await {
                Ok(_) => server.flush().await,
                Err(error) => Err(error),
            };
            assert!(sent.is_err());
        });
    });
}
