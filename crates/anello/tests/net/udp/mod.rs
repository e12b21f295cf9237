//! UDP sockets.

mod batches;
mod lifetime;
mod metadata;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use anello::io::Interest;
use anello::net::{
    DatagramInfo, Ecn, MtuDiscovery, OutgoingDatagram, RecvBatch, TcpListener, UdpSocket, raw_os_error,
};
use anello::time::sleep;
use anello::{spawn, yield_now};

use crate::common::{
    ANY_PORT, Rng, join, on_both_drivers, on_each, on_every_driver, on_every_driver_and_sim, pattern,
    poll_at_most, poll_once, simulated_drivers,
};

/// Largest payload of a datagram over IPv4.
const MAX_PAYLOAD: usize = 65_507;

/// Larger than any datagram.
const BUFFER_BYTES: usize = 65_536;

const NO_IPV6: &str = "skipped: IPv6 is unavailable";

fn bind() -> UdpSocket {
    UdpSocket::bind(ANY_PORT).unwrap()
}

fn address(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// Returns two sockets that are connected to each other.
async fn connected_pair() -> (UdpSocket, UdpSocket) {
    let (one, other) = (bind(), bind());
    one.connect(address(&other)).await.unwrap();
    other.connect(address(&one)).await.unwrap();
    (one, other)
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, DatagramInfo) {
    let mut buffer = vec![0; BUFFER_BYTES];
    let info = socket.recv_message(&mut buffer).await.unwrap();
    buffer.truncate(info.bytes);
    (buffer, info)
}

async fn send_all(socket: &UdpSocket, datagrams: &[OutgoingDatagram<'_>]) {
    let mut rest = datagrams;
    while !rest.is_empty() {
        let sent = socket.send_batch(rest).await.unwrap();
        assert!((1..=rest.len()).contains(&sent));
        rest = &rest[sent..];
    }
}

fn loopbacks() -> Vec<&'static str> {
    let mut addresses = vec![ANY_PORT];
    match StdSocket::bind("[::1]:0") {
        Ok(_) => addresses.push("[::1]:0"),
        Err(_) => eprintln!("{NO_IPV6}"),
    }
    addresses
}

#[track_caller]
fn assert_would_block<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn echo_returns_datagrams_to_their_senders() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = bind();
            let target = address(&server);
            let echo = spawn(async move {
                let mut buffer = [0; 2000];
                for _ in 0..30 {
                    let (bytes, peer) = server.recv_from(&mut buffer).await.unwrap();
                    assert_eq!(server.send_to(&buffer[..bytes], peer).await.unwrap(), bytes);
                }
            });
            let clients = (0..3).map(|number| {
                spawn(async move {
                    let client = bind();
                    client.connect(target).await.unwrap();
                    for round in 0..10 {
                        let sent = pattern(number * 100 + round, 1 + 190 * round as usize);
                        assert_eq!(client.send(&sent).await.unwrap(), sent.len());
                        let mut buffer = [0; 2000];
                        let bytes = client.recv(&mut buffer).await.unwrap();
                        assert_eq!(buffer[..bytes], sent);
                    }
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.await.unwrap();
            }
            echo.await.unwrap();
        });
    });
}

#[test]
fn datagrams_of_every_size_arrive_whole() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            for bytes in [0, 1, 1472, 1473, 9000, MAX_PAYLOAD] {
                let sent = pattern(bytes as u64, bytes);
                assert_eq!(one.send(&sent).await.unwrap(), bytes);
                let (received, info) = receive(&other).await;
                assert!(received == sent && info.bytes == bytes && !info.is_truncated);
                assert_eq!(info.source, address(&one));
            }
            let error = one.send(&[0; MAX_PAYLOAD + 1]).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            let (socket, to) = (bind(), address(&other));
            let too_long = [0; MAX_PAYLOAD + 1];
            for sent in [
                socket.send_to(&too_long, to).await,
                socket.try_send_to(&too_long, to),
                poll_fn(|context| socket.poll_send_to(context, &too_long, to)).await,
            ] {
                let error = sent.unwrap_err();
                assert_eq!(raw_os_error(&error), Some(libc::EMSGSIZE));
                assert!(error.to_string().starts_with(&format!("cannot send to {to}: ")), "{error}");
            }
        });
    });
}

#[test]
fn short_buffer_truncates_datagram() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            for text in ["truncated", "truncated", "truncated", "whole"] {
                one.send(text.as_bytes()).await.unwrap();
            }
            let mut buffer = [0; 5];
            assert_eq!(other.recv(&mut buffer).await.unwrap(), 5);
            assert_eq!(&buffer, b"trunc");
            let info = other.recv_message(&mut buffer).await.unwrap();
            assert!(info.is_truncated && info.bytes == 5);
            let mut batch = RecvBatch::new(8, 5);
            let mut flags = Vec::new();
            while flags.len() < 2 {
                other.recv_batch(&mut batch).await.unwrap();
                flags.extend(batch.iter().map(|datagram| datagram.info().is_truncated));
            }
            assert_eq!(flags, [true, false]);
            assert_eq!(batch.get(batch.len() - 1).unwrap().payload(), b"whole");
            assert!(batch.get(batch.len()).is_none());
        });
    });
}

/// Errors are reported without a registration for them, as in tokio.
#[test]
fn error_readiness_is_reported_alone() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            drop(other);
            let mut failed = Box::pin(one.ready(Interest::ERROR));
            assert!(poll_once(failed.as_mut()).await.is_none());
            one.send(b"refused").await.unwrap();
            assert!(failed.await.unwrap().is_error(), "{}", setup.name);
            let error = one.async_io(Interest::ERROR, || match one.take_error()? {
                Some(error) => Ok(error),
                None => Err(ErrorKind::WouldBlock.into()),
            });
            assert_eq!(error.await.unwrap().kind(), ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
fn refused_datagram_is_reported_once_and_none_is_lost() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            other.send(b"before").await.unwrap();
            let target = address(&other);
            drop(other);
            one.send(b"refused").await.unwrap();
            let mut buffer = [0; 16];
            let error = one.recv(&mut buffer).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(one.recv(&mut buffer).await.unwrap(), 6);
            assert_would_block(one.try_recv(&mut buffer));
            // Waiting tasks are woken by the error.
            let wait = async {
                let mut buffer = [0; 16];
                one.recv(&mut buffer).await
            };
            let (received, _) = join(wait, async {
                yield_now().await;
                one.send(b"refused").await.unwrap();
            })
            .await;
            assert_eq!(received.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            // The socket stays usable.
            let other = UdpSocket::bind(target).unwrap();
            one.send(b"accepted").await.unwrap();
            assert_eq!(other.recv(&mut buffer).await.unwrap(), 8);
            drop(other);
            one.send(b"refused").await.unwrap();
            let error = loop {
                // On a real kernel, the error has arrived before the call returns.
                if let Some(error) = one.take_error().unwrap() {
                    break error;
                }
                yield_now().await;
            };
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(one.take_error().unwrap().is_none());
        });
    });
}

#[test]
fn refused_batch_reports_error_and_skips_no_datagram() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            drop(other);
            let datagrams = [OutgoingDatagram::to_peer(b"refused"); 20];
            let (mut rest, mut errors) = (&datagrams[..], 0);
            while !rest.is_empty() {
                match one.send_batch(rest).await {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                        errors += 1;
                    }
                }
            }
            assert!(errors <= datagrams.len());
            let error = one.recv(&mut [0; 16]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
fn connected_socket_receives_only_from_its_peer() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            bind().send_to(b"stranger", address(&one)).await.unwrap();
            other.send(b"peer").await.unwrap();
            assert_eq!(receive(&one).await.0, b"peer");
            assert_eq!(one.peer_addr().unwrap(), address(&other));
            assert_eq!(bind().peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
            let error = bind().send(b"nowhere").await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ));
        });
    });
}

#[test]
fn address_in_use_is_reported_with_address_and_number() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let socket = bind();
            let error = UdpSocket::bind(address(&socket)).unwrap_err();
            assert_eq!((error.kind(), raw_os_error(&error)), (ErrorKind::AddrInUse, Some(libc::EADDRINUSE)));
            assert!(error.to_string().contains(&address(&socket).to_string()), "{error}");
            let shared = || UdpSocket::builder().reuse_port(true);
            let one = shared().bind(ANY_PORT).unwrap();
            shared().bind(address(&one)).unwrap();
            assert_eq!(UdpSocket::bind("localhost:0").unwrap_err().kind(), ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn peek_leaves_datagram() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            let mut buffer = [0; 16];
            assert_would_block(other.try_peek(&mut buffer));
            one.send(b"first").await.unwrap();
            one.send(b"second").await.unwrap();
            assert_eq!(other.peek_sender().await.unwrap(), address(&one));
            assert_eq!(other.peek(&mut buffer).await.unwrap(), 5);
            assert_eq!(other.peek_from(&mut buffer).await.unwrap(), (5, address(&one)));
            assert_eq!(other.try_peek_from(&mut buffer).unwrap(), (5, address(&one)));
            let polled = poll_fn(|context| other.poll_peek_from(context, &mut buffer)).await;
            assert_eq!(polled.unwrap(), (5, address(&one)));
            assert_eq!(other.recv(&mut buffer).await.unwrap(), 5);
            assert_eq!(other.recv(&mut buffer).await.unwrap(), 6);
        });
    });
}

#[test]
fn try_and_poll_functions_match_async_methods() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            let (mut buffer, mut batch) = ([0; 16], RecvBatch::new(4, 16));
            assert_would_block(other.try_recv(&mut buffer));
            assert_would_block(other.try_recv_from(&mut buffer));
            assert_would_block(other.try_recv_message(&mut buffer));
            assert_would_block(other.try_recv_batch(&mut batch));
            one.writable().await.unwrap();
            assert_eq!(one.try_send(b"one").unwrap(), 3);
            assert_eq!(bind().try_send_to(b"not from the peer", address(&other)).unwrap(), 17);
            one.try_send_message(&OutgoingDatagram::to_peer(b"two")).unwrap();
            assert_eq!(one.try_send_batch(&[OutgoingDatagram::to_peer(b"three")]).unwrap(), 1);
            assert!(other.ready(Interest::READABLE).await.unwrap().is_readable());
            assert_eq!(other.try_recv(&mut buffer).unwrap(), 3);
            assert_eq!(other.try_recv_from(&mut buffer).unwrap(), (3, address(&one)));
            assert_eq!(other.try_recv_message(&mut buffer).unwrap().bytes, 5);
            poll_fn(|context| one.poll_send_ready(context)).await.unwrap();
            poll_fn(|context| one.poll_send(context, b"one")).await.unwrap();
            let datagrams = [OutgoingDatagram::to_peer(b"two")];
            assert_eq!(poll_fn(|context| one.poll_send_batch(context, &datagrams)).await.unwrap(), 1);
            poll_fn(|context| one.poll_send_to(context, b"three", address(&other))).await.unwrap();
            poll_fn(|context| other.poll_recv_ready(context)).await.unwrap();
            assert_eq!(poll_fn(|context| other.poll_recv(context, &mut buffer)).await.unwrap(), 3);
            let polled = poll_fn(|context| other.poll_recv_from(context, &mut buffer)).await;
            assert_eq!(polled.unwrap(), (3, address(&one)));
            assert_eq!(poll_fn(|context| other.poll_recv_batch(context, &mut batch)).await.unwrap(), 1);
            assert_eq!(batch.get(0).unwrap().payload(), b"three");
        });
    });
}

#[test]
fn options_return_their_values() {
    on_every_driver_and_sim(|setup| {
        for loopback in loopbacks() {
            setup.run(async {
                let socket = UdpSocket::bind(loopback).unwrap();
                socket.set_ttl(8).unwrap();
                socket.set_tos_v4(0x40).unwrap();
                socket.set_recv_buffer_size(20_000).unwrap();
                socket.set_send_buffer_size(20_000).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.tos_v4().unwrap()), (8, 0x40));
                if address(&socket).is_ipv6() {
                    let values = || (socket.unicast_hops_v6().unwrap(), socket.tclass_v6().unwrap());
                    socket.set_unicast_hops_v6(6).unwrap();
                    socket.set_tclass_v6(0x28).unwrap();
                    assert_eq!(values(), (6, 0x28));
                    assert_eq!(socket.multicast_interface_v6().unwrap(), 0);
                    socket.set_multicast_interface_v6(1).unwrap();
                    assert_eq!(socket.multicast_interface_v6().unwrap(), 1);
                } else {
                    assert!(socket.set_unicast_hops_v6(6).is_err() && socket.tclass_v6().is_err());
                    assert!(socket.multicast_interface_v6().is_err());
                    assert_eq!(socket.multicast_interface_v4().unwrap(), Ipv4Addr::UNSPECIFIED);
                    socket.set_multicast_interface_v4(Ipv4Addr::LOCALHOST).unwrap();
                    assert_eq!(socket.multicast_interface_v4().unwrap(), Ipv4Addr::LOCALHOST);
                }
                let shared = UdpSocket::builder().reuse_port(true).bind(loopback).unwrap();
                assert!(shared.reuse_port().unwrap() && !shared.reuse_address().unwrap());
                let shared = UdpSocket::builder().reuse_address(true).bind(loopback).unwrap();
                assert!(shared.reuse_address().unwrap() && !shared.reuse_port().unwrap());
                assert_eq!(socket.recv_buffer_size().unwrap(), 40_000);
                assert_eq!(socket.send_buffer_size().unwrap(), 40_000);
                for mode in
                    [MtuDiscovery::Never, MtuDiscovery::PerRoute, MtuDiscovery::Always, MtuDiscovery::Probe]
                {
                    socket.set_mtu_discovery(mode).unwrap();
                    assert_eq!(socket.mtu_discovery().unwrap(), Some(mode));
                }
                assert_eq!(socket.mtu().unwrap_err().kind(), ErrorKind::NotConnected);
                socket.connect(address(&UdpSocket::bind(loopback).unwrap())).await.unwrap();
                assert!(socket.mtu().unwrap() >= 1280);
                assert_eq!(socket.device().unwrap(), None);
                assert!(format!("{socket:?}").contains(&address(&socket).to_string()));
            });
        }
    });
}

#[test]
fn socket_bound_to_loopback_device_receives() {
    on_both_drivers(|setup| {
        setup.run(async {
            let socket = match UdpSocket::builder().bind_device("lo").bind(ANY_PORT) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return eprintln!("skipped: no permission to bind to a device");
                }
                socket => socket.unwrap(),
            };
            assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..]));
            bind().send_to(b"x", address(&socket)).await.unwrap();
            assert_eq!(socket.recv(&mut [0; 4]).await.unwrap(), 1);
        });
    });
}

#[test]
fn standard_sockets_are_converted_both_ways() {
    on_every_driver(|setup| {
        setup.run(async {
            let peer = StdSocket::bind(ANY_PORT).unwrap();
            let socket = UdpSocket::from_std(StdSocket::bind(ANY_PORT).unwrap()).unwrap();
            peer.send_to(b"one", address(&socket)).unwrap();
            let waiting = {
                let mut buffer = [0; 16];
                let received = socket.recv(&mut buffer).await.unwrap();
                // A poll is armed while the socket is converted.
                assert!(poll_at_most(1, socket.recv(&mut buffer)).await.is_none());
                received
            };
            assert_eq!(waiting, 3);
            let at = address(&socket);
            let socket = socket.into_std().unwrap();
            peer.send_to(b"two", at).unwrap();
            // The socket is in blocking mode.
            assert_eq!(socket.recv(&mut [0; 16]).unwrap(), 3);
            let socket = UdpSocket::try_from(OwnedFd::from(socket)).unwrap();
            peer.send_to(b"three", at).unwrap();
            assert_eq!(socket.recv(&mut [0; 16]).await.unwrap(), 5);
            assert_eq!(rustix::net::sockopt::socket_domain(socket.as_fd()).unwrap().as_raw(), 2);
            let socket = UdpSocket::try_from(socket.into_std().unwrap()).unwrap();
            assert_eq!(address(&socket), at);
            let stream = std::net::TcpListener::bind(ANY_PORT).unwrap();
            assert_eq!(
                UdpSocket::try_from(OwnedFd::from(stream)).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        });
    });
}

#[test]
fn simulated_socket_has_no_descriptor() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            assert_eq!(bind().try_as_fd().unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(bind().as_raw_fd(), -1);
            assert_eq!(bind().into_std().unwrap_err().kind(), ErrorKind::Unsupported);
            let real = StdSocket::bind(ANY_PORT).unwrap();
            assert_eq!(UdpSocket::from_std(real).unwrap_err().kind(), ErrorKind::Unsupported);
        });
    });
}

#[test]
fn many_tasks_share_a_socket() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (sender, receiver) = connected_pair().await;
            let (receiver, received) = (Rc::new(receiver), Rc::new(RefCell::new(Vec::new())));
            let tasks: Vec<_> = (0..10)
                .map(|_| {
                    let (receiver, received) = (Rc::clone(&receiver), Rc::clone(&received));
                    spawn(async move {
                        for _ in 0..10 {
                            let mut buffer = [0; 4];
                            assert_eq!(receiver.recv(&mut buffer).await.unwrap(), 4);
                            received.borrow_mut().push(u32::from_be_bytes(buffer));
                        }
                    })
                })
                .collect();
            for number in 0..100_u32 {
                sender.send(&number.to_be_bytes()).await.unwrap();
                if number % 7 == 0 {
                    yield_now().await;
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
            received.borrow_mut().sort_unstable();
            assert!(received.borrow().iter().copied().eq(0..100));
        });
    });
}

/// Futures are dropped at random polls. Every datagram is received exactly once, in order.
#[test]
fn tcp_and_udp_ports_are_independent() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
            assert_eq!(address(&socket), listener.local_addr().unwrap());
        });
    });
}

#[test]
fn host_names_are_resolved() {
    on_both_drivers(|setup| {
        setup.run(async {
            let socket = UdpSocket::bind_host("localhost:0").await.unwrap();
            socket.send_to(b"x", ("localhost", address(&socket).port())).await.unwrap();
            assert_eq!(socket.recv(&mut [0; 4]).await.unwrap(), 1);
            assert!(socket.connect("no-such-host.invalid:1").await.is_err());
        });
    });
}
