//! Features specific to Linux sockets: options, addresses, peers that use the standard library, and descriptor
//! conversion.

mod conversions;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::net::{TcpKeepalive, TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, raw_os_error};
use anello::time::timeout;
use anello::{spawn, yield_now};
use bytes::Bytes;
use socket2::SockRef;

use crate::common::{
    ANY_PORT, TURNS, assert_same_bytes, hang_timeout, on_both_drivers, on_every_driver,
    on_every_driver_and_sim, pair, pattern, poll_at_most, with_long_ack_timeout,
};

/// Returns a runtime stream and the standard-library stream connected to it. The latter has read and write timeouts.
async fn with_std() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(hang_timeout())).unwrap();
    peer.set_write_timeout(Some(hang_timeout())).unwrap();
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
        let setup = &with_long_ack_timeout(setup);
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
            let builder = TcpListener::builder().bind_timeout(Duration::from_millis(30));
            let error = builder.bind_host(address).await.unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::EADDRINUSE));
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
            let base = anello::current_driver_metrics().unwrap().sockets;
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
            while anello::current_driver_metrics().unwrap().sockets > base {
                anello::yield_now().await;
            }
        });
    });
}

#[test]
fn connect_from_local_address() {
    on_every_driver(|setup| {
        setup.run(async {
            let base = anello::current_driver_metrics().unwrap().sockets;
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
            while anello::current_driver_metrics().unwrap().sockets > base {
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
        let is_multishot = setup.is_uring() && !setup.options.testing.disabled_features.multishot_receive;
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
fn reset_that_a_send_has_reported_is_not_received_as_eof() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            // The peer stops receiving, so that a send is waiting when the connection is reset: one that has sent nothing,
            // or a part of its bytes.
            for received_bytes in [0, 4 << 20] {
                let (mut stream, mut peer) = pair().await.unwrap();
                peer.set_linger(Some(Duration::ZERO)).unwrap();
                stream.send(vec![0; 32 << 20]).await.unwrap();
                peer.read_exact(&mut vec![0; received_bytes]).await.unwrap();
                drop(peer);
                assert!(stream.flush().await.is_err());
                for _ in 0..3 {
                    let error = stream.recv().await.expect_err("not EOF");
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{received_bytes}");
                    assert_eq!(stream.peek(&mut [0]).await.unwrap_err().kind(), error.kind());
                }
            }
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
