//! Options of TCP sockets, and sockets that are configured before they are connected.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anello::net::{TcpKeepalive, TcpListener, TcpSocket, TcpStream, UdpSocket, UnixStream, raw_os_error};
use anello::server::DetachedStream;
use anello::time::sleep;
use anello::{current_driver_metrics, yield_now};
use socket2::SockRef;

use crate::common::{
    ANY_PORT, Rng, Setup, TURNS, on_both_drivers, on_every_driver, on_every_driver_and_sim, pair,
    poll_at_most, poll_once,
};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("valid address")
}

fn is_simulated(setup: &Setup) -> bool {
    setup.name.starts_with("sim")
}

/// Sets every option to a value that is not its default, and reads it back.
macro_rules! assert_options {
    ($socket:expr) => {
        let socket = $socket;
        assert!(socket.nodelay().unwrap(), "the default");
        socket.set_nodelay(false).unwrap();
        assert!(!socket.nodelay().unwrap());
        assert!(!socket.keepalive().unwrap());
        let keepalive = TcpKeepalive::new().with_time(Duration::from_millis(99_100)).with_retries(4);
        socket.set_tcp_keepalive(&keepalive).unwrap();
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_interval(Duration::from_secs(7))).unwrap();
        assert!(socket.keepalive().unwrap());
        let keepalive = socket.tcp_keepalive().unwrap();
        assert_eq!(keepalive.time(), Some(Duration::from_secs(100)), "rounded up");
        assert_eq!((keepalive.interval(), keepalive.retries()), (Some(Duration::from_secs(7)), Some(4)));
        let error = socket.set_tcp_keepalive(&TcpKeepalive::new().with_retries(1000)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        socket.set_keepalive(false).unwrap();
        assert!(!socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
        socket.set_tcp_user_timeout(Some(Duration::from_millis(1500))).unwrap();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_millis(1500)));
        socket.set_tcp_user_timeout(None).unwrap();
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
        assert_eq!(socket.linger().unwrap(), None);
        socket.set_linger(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(socket.linger().unwrap(), Some(Duration::from_secs(1)), "rounded up");
        socket.set_linger(None).unwrap();
        assert_eq!(socket.linger().unwrap(), None);
        socket.set_quickack(true).unwrap();
        socket.quickack().unwrap();
        assert!(socket.mss().unwrap() > 0);
        socket.set_ttl(33).unwrap();
        assert_eq!(socket.ttl().unwrap(), 33);
        assert_eq!(socket.set_ttl(256).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        socket.set_tos_v4(0xb8).unwrap();
        assert_eq!(socket.tos_v4().unwrap(), 0xb8);
        // An IPv4 socket has no IPv6 options.
        for result in [socket.unicast_hops_v6(), socket.tclass_v6()] {
            assert!(result.unwrap_err().raw_os_error().is_some());
        }
        assert!(socket.set_unicast_hops_v6(3).is_err());
        assert!(socket.set_tclass_v6(3).is_err());
        socket.set_recv_buffer_size(20_000).unwrap();
        socket.set_send_buffer_size(30_000).unwrap();
        assert!([20_000, 40_000].contains(&socket.recv_buffer_size().unwrap()));
        assert!([30_000, 60_000].contains(&socket.send_buffer_size().unwrap()));
        assert_eq!(socket.device().unwrap(), None);
        assert_eq!(socket.bind_device(Some(b"none0")).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        match socket.bind_device(Some(b"lo")) {
            Ok(()) => assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..])),
            // Before Linux 5.7, only processes with CAP_NET_RAW can bind to a device.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert!(socket.take_error().unwrap().is_none());
    };
}

#[test]
fn options_of_streams_listeners_and_sockets_return_values_that_were_set() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            assert_options!(&client);
            assert_options!(&server);
            let socket = TcpSocket::new_v4().unwrap();
            assert_options!(&socket);
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            assert_options!(&listener);
            assert!(listener.only_v6().is_err(), "an IPv4 socket");
            // Accepted connections inherit the options.
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let accepted = listener.accept().await.unwrap();
            assert!(!accepted.nodelay().unwrap() && client.nodelay().unwrap());
            assert_eq!(accepted.ttl().unwrap(), 33);
            assert_eq!(accepted.tcp_keepalive().unwrap().retries(), Some(4));
        });
    });
}

#[test]
fn builder_sets_options_before_listener_is_bound() {
    on_every_driver_and_sim(|setup| {
        let is_simulated = is_simulated(setup);
        setup.run(async move {
            let builder = TcpListener::builder()
                .backlog(3)
                .nodelay(false)
                .ttl(44)
                .recv_buffer_size(30_000)
                .send_buffer_size(20_000)
                .tcp_keepalive(&TcpKeepalive::new().with_retries(2))
                .tcp_user_timeout(Duration::from_secs(3))
                .bind_device("lo");
            let listener = builder.clone().bind(ANY_PORT).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let accepted = listener.accept().await.unwrap();
            assert!(!accepted.nodelay().unwrap() && accepted.keepalive().unwrap());
            assert_eq!((accepted.ttl().unwrap(), accepted.tcp_keepalive().unwrap().retries()), (44, Some(2)));
            assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Duration::from_secs(3)));
            assert_eq!(listener.fastopen().unwrap(), 0);
            let fast = builder.fastopen(16).bind(ANY_PORT).unwrap();
            assert_eq!(fast.fastopen().unwrap(), 16);
            fast.set_fastopen(0).unwrap();
            assert_eq!(fast.fastopen().unwrap(), 0);
            let error = TcpListener::builder().bind_device("none0").bind(ANY_PORT).unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::ENODEV));
            assert!(error.to_string().starts_with("cannot bind 127.0.0.1:0: "), "{error}");
            let six = |only_v6| TcpListener::builder().only_v6(only_v6).bind("[::]:0");
            match six(true) {
                Ok(six) => {
                    assert!(six.only_v6().unwrap());
                    six.set_unicast_hops_v6(9).unwrap();
                    assert_eq!(six.unicast_hops_v6().unwrap(), 9);
                    six.set_tclass_v6(0x20).unwrap();
                    assert_eq!(six.tclass_v6().unwrap(), 0x20);
                }
                Err(error) => {
                    eprintln!("skipped: IPv6 unavailable: {error}");
                    return;
                }
            }
            // Another program can have the IPv4 port, so several are tried.
            let is_four_free = |only_v6| {
                let six = six(only_v6).unwrap();
                let four = SocketAddr::from(([127, 0, 0, 1], six.local_addr().unwrap().port()));
                TcpListener::bind(four).is_ok()
            };
            if !is_simulated {
                assert!((0..100).any(|_| is_four_free(true)));
                assert!(!is_four_free(false));
            }
        });
    });
}

#[test]
fn configured_sockets_connect_and_share_address() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let base = current_driver_metrics().unwrap().sockets;
            let socket = TcpSocket::new_v4().unwrap();
            assert!(!socket.reuseaddr().unwrap() && !socket.reuseport().unwrap());
            socket.set_reuseaddr(true).unwrap();
            socket.set_reuseport(true).unwrap();
            assert!(socket.reuseaddr().unwrap() && socket.reuseport().unwrap());
            socket.set_fastopen_connect(true).unwrap();
            assert!(socket.fastopen_connect().unwrap());
            socket.set_fastopen_connect(false).unwrap();
            socket.bind(address(ANY_PORT)).unwrap();
            let at = socket.local_addr().unwrap();
            assert_ne!(at.port(), 0);
            let error = socket.bind(address(ANY_PORT)).unwrap_err();
            assert_eq!(
                (error.kind(), raw_os_error(&error)),
                (io::ErrorKind::InvalidInput, Some(libc::EINVAL))
            );
            // Listeners share the address, if they have the option, too.
            let listen = |shares| TcpListener::builder().reuse_port(shares).bind(at);
            let listener = listen(true).unwrap();
            assert_eq!(listener.local_addr().unwrap(), at);
            drop(listen(true).unwrap());
            for _ in 0..TURNS {
                yield_now().await;
            }
            let error = listen(false).unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::EADDRINUSE), "{error}");
            assert!(error.to_string().starts_with(&format!("cannot bind {at}: ")), "{error}");
            drop(socket);

            // `SO_REUSEADDR` shares an address with sockets that do not listen.
            let bound = TcpSocket::new_v4().unwrap();
            bound.set_reuseaddr(true).unwrap();
            bound.bind(address(ANY_PORT)).unwrap();
            let shared = bound.local_addr().unwrap();
            let first = TcpListener::bind(shared).unwrap();
            let error = TcpListener::bind(shared).unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::EADDRINUSE), "{error}");
            drop((first, bound));

            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(address("127.0.0.7:0")).unwrap();
            let source = socket.local_addr().unwrap();
            let mut client = socket.connect(at).await.unwrap();
            let mut server = listener.accept().await.unwrap();
            assert_eq!((client.local_addr().unwrap(), server.peer_addr().unwrap()), (source, source));
            client.write_all(b"ciao").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]));
            drop((client, server, listener));
            while current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }

            let refused = TcpSocket::new_v4().unwrap().connect(at).await.unwrap_err();
            assert_eq!(raw_os_error(&refused), Some(libc::ECONNREFUSED));
            assert!(refused.to_string().starts_with(&format!("cannot connect to {at}: ")), "{refused}");
            assert!(TcpSocket::new_v4().unwrap().connect(address("[::1]:1")).await.is_err());
            drop(TcpSocket::new_v6());
            while current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

#[test]
fn fault_11_abandoned_connects_of_configured_sockets_leave_no_descriptor() {
    on_every_driver_and_sim(|setup| {
        let seed = 0x50c_4e7;
        let mut random = Rng::with_seed(seed);
        setup.run(async move {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            let base = current_driver_metrics().unwrap().sockets;
            for _ in 0..100 {
                let socket = TcpSocket::new_v4().unwrap();
                if random.bool() {
                    socket.bind(address(ANY_PORT)).unwrap();
                }
                match random.usize(..4) {
                    0 => drop(socket),
                    polls => drop(poll_at_most(polls, socket.connect(at)).await),
                }
                while poll_at_most(1, listener.accept()).await.is_some() {}
            }
            while current_driver_metrics().unwrap().sockets > base {
                drop(poll_at_most(1, listener.accept()).await);
                yield_now().await;
            }
            assert_eq!(current_driver_metrics().unwrap().sockets, base, "seed {seed:#x}");
        });
    });
}

#[test]
fn error_of_reset_connection_is_taken_once_or_returned_by_receives() {
    on_every_driver(|setup| {
        setup.run(async {
            let (client, mut server) = pair().await.unwrap();
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            let error = loop {
                if let Some(error) = server.take_error().unwrap() {
                    break error;
                }
                yield_now().await;
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            // The driver has not received the error, so the kernel has cleared it.
            assert!(server.take_error().unwrap().is_none());
            assert!(server.recv().await.is_ok_and(|chunk| chunk.is_none()));

            let (client, mut server) = pair().await.unwrap();
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            assert_eq!(server.recv().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        });
    });
}

#[test]
fn unix_streams_have_buffer_sizes_and_errors() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (one, _other) = UnixStream::pair().unwrap();
            one.set_send_buffer_size(30_000).unwrap();
            assert_eq!(one.send_buffer_size().unwrap(), 60_000);
            assert!(one.take_error().unwrap().is_none());
        });
    });
}

#[test]
fn bind_host_waits_for_address_in_use() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let previous = TcpListener::bind(ANY_PORT).unwrap();
            let at = previous.local_addr().unwrap();
            let builder = TcpListener::builder().bind_timeout(Duration::MAX);
            let mut bound = Box::pin(builder.bind_host(at));
            for _ in 0..3 {
                assert!(poll_once(bound.as_mut()).await.is_none());
                sleep(Duration::from_millis(20)).await;
            }
            drop(previous);
            assert_eq!(bound.await.unwrap().local_addr().unwrap(), at);

            let previous = UdpSocket::bind(ANY_PORT).unwrap();
            let at = previous.local_addr().unwrap();
            let datagrams = UdpSocket::builder().bind_timeout(Duration::MAX);
            let mut bound = Box::pin(datagrams.bind_host(at));
            assert!(poll_once(bound.as_mut()).await.is_none());
            sleep(Duration::from_millis(20)).await;
            assert!(poll_once(bound.as_mut()).await.is_none());
            drop(previous);
            assert_eq!(bound.await.unwrap().local_addr().unwrap(), at);
            // Other errors are returned immediately.
            if !is_simulated(setup) {
                let error = builder.bind_host("198.51.100.1:80").await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
            }
        });
    });
}

/// A close with `SO_LINGER` would block the worker until the peer has acknowledged all bytes, which it does not read here.
#[test]
fn dropped_stream_with_linger_does_not_block() {
    const LENGTH: usize = 100_000;
    on_both_drivers(|setup| {
        setup.run(async {
            let linger = Some(Duration::from_secs(3600));
            let listener = TcpListener::builder().recv_buffer_size(4096).bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            let lingering = TcpListener::bind(ANY_PORT).unwrap();
            lingering.set_linger(linger).unwrap();
            for variant in 0..5 {
                let (stream, mut peer) = match variant {
                    // Set by the application, inherited from a listener, and imported.
                    0 | 1 => {
                        let stream = TcpStream::connect(at).await.unwrap();
                        stream.set_linger(linger).unwrap();
                        (stream, listener.accept().await.unwrap())
                    }
                    2 => {
                        let socket = TcpSocket::new_v4().unwrap();
                        socket.set_recv_buffer_size(4096).unwrap();
                        let peer = socket.connect(lingering.local_addr().unwrap()).await.unwrap();
                        (lingering.accept().await.unwrap(), peer)
                    }
                    3 => {
                        let socket = std::net::TcpStream::connect(at).unwrap();
                        SockRef::from(&socket).set_linger(linger).unwrap();
                        (TcpStream::from_std(socket).unwrap(), listener.accept().await.unwrap())
                    }
                    _ => {
                        // Not yet accepted by the application.
                        let client = TcpStream::connect(lingering.local_addr().unwrap()).await.unwrap();
                        drop(client);
                        continue;
                    }
                };
                let mut stream = stream;
                assert_eq!(stream.linger().unwrap(), linger);
                stream.write_all(&vec![7; LENGTH]).await.unwrap();
                stream.flush().await.unwrap();
                if variant == 0 {
                    drop(DetachedStream::detach(stream).await.unwrap());
                } else {
                    drop(stream);
                }
                yield_now().await;
                let mut received = 0;
                while let Some(chunk) = peer.recv().await.unwrap() {
                    received += chunk.len();
                }
                assert_eq!(received, LENGTH, "{} {variant}", setup.name);
            }
        });
    });
}
