//! UDP sockets.

mod common;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

use anello::io::Interest;
use anello::net::{
    DatagramInfo, Ecn, MtuDiscovery, OutgoingDatagram, RecvBatch, TcpListener, UdpSocket, raw_os_error,
};
use anello::{spawn, yield_now};
use common::{
    ANY_PORT, Rng, TURNS, join, on_both_drivers, on_each, on_every_driver, on_every_driver_and_sim, pattern,
    poll_at_most, simulated_drivers,
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

#[test]
fn batches_preserve_order_and_contents() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = UdpSocket::builder().recv_buffer_size(1 << 20).bind(ANY_PORT).unwrap();
            let client = bind();
            let payloads: Vec<_> = (0..100).map(|n| pattern(n, 1 + 7 * n as usize)).collect();
            let datagrams: Vec<_> =
                payloads.iter().map(|payload| OutgoingDatagram::new(payload, address(&server))).collect();
            send_all(&client, &datagrams).await;
            let mut batch = RecvBatch::new(RecvBatch::MAX_DATAGRAMS, 1500);
            let mut received = Vec::new();
            while received.len() < payloads.len() {
                let count = server.recv_batch(&mut batch).await.unwrap();
                assert!(count == batch.len() && count > 0);
                let replies: Vec<_> =
                    batch.iter().map(|datagram| datagram.reply(datagram.payload())).collect();
                send_all(&server, &replies).await;
                assert!(batch.iter().all(|datagram| datagram.source() == address(&client)));
                received.extend(batch.iter().map(|datagram| datagram.payload().to_vec()));
            }
            assert_eq!(received, payloads);
            for payload in &payloads {
                assert_eq!(receive(&client).await.0, *payload);
            }
            assert_would_block(server.try_recv_batch(&mut batch));
            assert!(batch.is_empty());
            assert_eq!(client.send_batch(&[]).await.unwrap(), 0);
        });
    });
}

#[test]
fn batch_sizes_are_clamped() {
    let batch = RecvBatch::new(0, 0);
    assert_eq!((batch.max_datagrams(), batch.datagram_bytes()), (1, 1));
    let batch = RecvBatch::new(usize::MAX, 1);
    assert_eq!(batch.max_datagrams(), RecvBatch::MAX_DATAGRAMS);
    assert!(batch.is_empty() && batch.iter().next().is_none());
}

/// Sends a payload in segments, and returns the datagrams that arrive, and the number of messages that contain them.
async fn transfer_segments(
    server: &UdpSocket,
    client: &UdpSocket,
    payload: &[u8],
    segment: u16,
) -> (Vec<Vec<u8>>, usize) {
    let datagram = OutgoingDatagram::new(payload, address(server)).with_segment_size(segment);
    let expected = payload.len().div_ceil(segment.into());
    let (mut received, mut messages) = (Vec::new(), 0);
    let receive_all = async {
        while received.len() < expected {
            let (bytes, info) = receive(server).await;
            received.extend(info.segments(&bytes).map(<[u8]>::to_vec));
            messages += 1;
        }
    };
    join(client.send_message(&datagram), receive_all).await.0.unwrap();
    (received, messages)
}

#[test]
fn segmented_payload_arrives_as_datagrams() {
    on_every_driver_and_sim(|setup| {
        for gro in [false, true] {
            setup.run(async {
                let server = UdpSocket::builder().recv_buffer_size(1 << 20).gro(gro).bind(ANY_PORT).unwrap();
                let client = bind();
                // The kernel does not split the last payload, because there are too many segments.
                for (bytes, segment) in [(3_500, 1_000), (64_000, 1_000), (500, 1_000), (40_000, 100)] {
                    let payload = pattern(bytes, bytes as usize);
                    let (received, messages) = transfer_segments(&server, &client, &payload, segment).await;
                    let expected: Vec<_> = payload.chunks(segment.into()).map(<[u8]>::to_vec).collect();
                    assert_eq!(received, expected, "{bytes} bytes in segments of {segment}");
                    if !gro || matches!(setup.kind, anello::DriverKind::Sim(_)) {
                        assert_eq!(messages, expected.len());
                    } else if bytes == 64_000 {
                        assert!(messages < expected.len(), "GRO merges segments on loopback");
                    }
                }
            });
        }
    });
}

#[test]
fn batch_with_segmented_payloads_arrives_in_order() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = UdpSocket::builder().recv_buffer_size(1 << 20).gro(true).bind(ANY_PORT).unwrap();
            let client = bind();
            let payloads: Vec<_> = (0..6).map(|n| pattern(n, 3_000)).collect();
            let datagrams: Vec<_> = payloads
                .iter()
                .zip([0, 1_000, 10, 0, 999, 3])
                .map(|(payload, size)| {
                    OutgoingDatagram::new(payload, address(&server)).with_segment_size(size)
                })
                .collect();
            let sent: Vec<_> = payloads.iter().flatten().copied().collect();
            let mut received = Vec::new();
            let receive_all = async {
                while received.len() < sent.len() {
                    received.extend(receive(&server).await.0);
                }
            };
            join(send_all(&client, &datagrams), receive_all).await;
            assert_eq!(received, sent);
            // A failing datagram in the middle of a batch ends it. The next call returns the error.
            let too_long = vec![0; MAX_PAYLOAD + 1];
            let to = address(&server);
            let datagrams = [b"first" as &[u8], &too_long, b"third"].map(|it| OutgoingDatagram::new(it, to));
            let mut rest = &datagrams[..];
            let error = loop {
                match client.send_batch(rest).await {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) => break error,
                }
            };
            assert_eq!((error.raw_os_error(), rest.len()), (Some(libc::EMSGSIZE), 2));
        });
    });
}

fn loopbacks() -> Vec<&'static str> {
    let mut addresses = vec![ANY_PORT];
    match StdSocket::bind("[::1]:0") {
        Ok(_) => addresses.push("[::1]:0"),
        Err(_) => eprintln!("{NO_IPV6}"),
    }
    addresses
}

#[test]
fn ecn_is_reported_for_each_datagram() {
    on_every_driver_and_sim(|setup| {
        for loopback in loopbacks() {
            setup.run(async {
                let server = UdpSocket::builder().recv_ecn(true).bind(loopback).unwrap();
                let client = UdpSocket::bind(loopback).unwrap();
                client.connect(address(&server)).await.unwrap();
                let codepoints = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
                let marked = codepoints.map(|ecn| OutgoingDatagram::to_peer(b"marked").with_ecn(ecn));
                send_all(&client, &marked).await;
                for ecn in codepoints {
                    assert_eq!(receive(&server).await.1.ecn, Some(ecn), "{loopback}");
                }
                let datagram = OutgoingDatagram::new(b"marked", address(&server)).with_ecn(Ecn::Ce);
                UdpSocket::bind(loopback).unwrap().send_message(&datagram).await.unwrap();
                assert_eq!(receive(&server).await.1.ecn, Some(Ecn::Ce));
                client.send(b"unmarked").await.unwrap();
                assert_eq!(receive(&server).await.1.ecn, Some(Ecn::NotEct));
                // A socket that does not request it gets no notification.
                let plain = UdpSocket::bind(loopback).unwrap();
                let datagram = OutgoingDatagram::new(b"marked", address(&plain)).with_ecn(Ecn::Ce);
                UdpSocket::bind(loopback).unwrap().send_message(&datagram).await.unwrap();
                let info = receive(&plain).await.1;
                assert_eq!((info.ecn, info.destination, info.segment_size), (None, None, None));
            });
        }
    });
}

#[test]
fn response_is_sent_from_destination_of_request() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let server = UdpSocket::builder().pktinfo(true).bind("0.0.0.0:0").unwrap();
            let client = bind();
            for ip in [[127, 0, 0, 1], [127, 0, 0, 2], [127, 9, 8, 7]].map(IpAddr::from) {
                let request = SocketAddr::new(ip, address(&server).port());
                client.send_to(b"request", request).await.unwrap();
                let mut batch = RecvBatch::new(4, 100);
                server.recv_batch(&mut batch).await.unwrap();
                let datagram = batch.get(0).unwrap();
                assert_eq!(datagram.info().destination, Some(ip));
                assert!(datagram.info().interface_index.is_some_and(|index| index > 0));
                server.send_message(&datagram.reply(b"response")).await.unwrap();
                assert_eq!(receive(&client).await.1.source, request);
            }
            let wrong = OutgoingDatagram::new(b"x", address(&client)).with_source(Ipv6Addr::LOCALHOST.into());
            assert_eq!(server.send_message(&wrong).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn ipv6_socket_reports_metadata_of_ipv4_datagrams() {
    on_both_drivers(|setup| {
        if loopbacks().len() < 2 {
            return;
        }
        setup.run(async {
            let server = UdpSocket::builder().only_v6(false).pktinfo(true).recv_ecn(true);
            let server = server.bind("[::]:0").unwrap();
            assert!(!server.only_v6().unwrap());
            let port = address(&server).port();
            for (client, to) in [
                (bind(), SocketAddr::from(([127, 0, 0, 3], port))),
                (UdpSocket::bind("[::1]:0").unwrap(), SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
            ] {
                let datagram = OutgoingDatagram::new(b"request", to).with_ecn(Ecn::Ect0);
                client.send_message(&datagram).await.unwrap();
                let mut batch = RecvBatch::new(4, 100);
                server.recv_batch(&mut batch).await.unwrap();
                let request = batch.get(0).unwrap();
                let destination = request.info().destination.map(|address| address.to_canonical());
                assert_eq!((destination, request.info().ecn), (Some(to.ip()), Some(Ecn::Ect0)));
                server.send_message(&request.reply(b"response").with_ecn(Ecn::Ce)).await.unwrap();
                assert_eq!(receive(&client).await.1.source, to);
            }
        });
    });
}

#[test]
fn multicast_reaches_members_only() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (group, interface) = (Ipv4Addr::new(239, 77, 0, 1), Ipv4Addr::LOCALHOST);
            let member = UdpSocket::builder().reuse_address(true).bind("0.0.0.0:0").unwrap();
            let to = SocketAddr::from((group, address(&member).port()));
            let outsider = UdpSocket::builder().reuse_address(true);
            let outsider = outsider.bind(("127.0.0.1", to.port())).unwrap();
            let second = UdpSocket::builder().reuse_address(true).bind(("0.0.0.0", to.port())).unwrap();
            member.join_multicast_v4(group, interface).unwrap();
            second.join_multicast_v4(group, interface).unwrap();
            assert!(member.join_multicast_v4(group, interface).is_err());
            assert!(member.join_multicast_v4(Ipv4Addr::LOCALHOST, interface).is_err());
            let sender = bind();
            sender.set_multicast_interface_v4(interface).unwrap();
            sender.send_to(b"to the group", to).await.unwrap();
            for socket in [&member, &second] {
                assert_eq!(receive(socket).await.0, b"to the group");
            }
            assert_would_block(outsider.try_recv(&mut [0; 16]));
            second.leave_multicast_v4(group, interface).unwrap();
            assert!(second.leave_multicast_v4(group, interface).is_err());
            sender.set_multicast_loop_v4(false).unwrap();
            assert!(!sender.multicast_loop_v4().unwrap());
            if matches!(setup.kind, anello::DriverKind::Sim(_)) {
                // The loopback interface of Linux ignores the option.
                sender.send_to(b"not looped back", to).await.unwrap();
            }
            sender.set_multicast_loop_v4(true).unwrap();
            sender.set_multicast_ttl_v4(3).unwrap();
            assert_eq!(sender.multicast_ttl_v4().unwrap(), 3);
            sender.send_to(b"last", to).await.unwrap();
            assert_eq!(receive(&member).await.0, b"last");
        });
    });
}

#[test]
fn ipv6_multicast_reaches_member_on_loopback() {
    on_every_driver_and_sim(|setup| {
        if loopbacks().len() < 2 {
            return;
        }
        setup.run(async {
            // The scope of the group is this machine.
            let group: Ipv6Addr = "ff01::77:1".parse().unwrap();
            let member = UdpSocket::bind("[::]:0").unwrap();
            // The index of the loopback interface is always 1.
            member.join_multicast_v6(&group, 1).unwrap();
            let sender = UdpSocket::bind("[::]:0").unwrap();
            sender.set_multicast_interface_v6(1).unwrap();
            sender.set_multicast_hops_v6(2).unwrap();
            sender.set_multicast_loop_v6(true).unwrap();
            assert!(sender.multicast_loop_v6().unwrap());
            assert_eq!(sender.multicast_hops_v6().unwrap(), 2);
            match sender.send_to(b"to the group", (group, address(&member).port())).await {
                Err(error) if error.kind() == ErrorKind::NetworkUnreachable => {
                    eprintln!("skipped: no route to IPv6 multicast addresses on the loopback interface");
                }
                sent => {
                    sent.unwrap();
                    assert_eq!(receive(&member).await.0, b"to the group");
                }
            }
            member.leave_multicast_v6(&group, 1).unwrap();
            assert!(bind().join_multicast_v6(&group, 1).is_err());
        });
    });
}

#[test]
fn broadcast_needs_permission() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let error = socket.send_to(b"x", ("255.255.255.255", 9)).await.unwrap_err();
            // Without a default route, the address is unreachable.
            assert!(matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENETUNREACH)), "{error}");
            assert!(!socket.broadcast().unwrap());
            socket.set_broadcast(true).unwrap();
            assert!(socket.broadcast().unwrap());
            assert!(UdpSocket::builder().broadcast(true).bind(ANY_PORT).unwrap().broadcast().unwrap());
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
                let builder = UdpSocket::builder().ttl(7).tos(0x20).send_buffer_size(9000);
                let socket = builder.recv_buffer_size(10_000).bind(loopback).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.tos().unwrap()), (7, 0x20));
                assert_eq!(socket.recv_buffer_size().unwrap(), 20_000);
                assert_eq!(socket.send_buffer_size().unwrap(), 18_000);
                socket.set_ttl(8).unwrap();
                socket.set_tos(0x40).unwrap();
                socket.set_recv_buffer_size(20_000).unwrap();
                socket.set_send_buffer_size(20_000).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.tos().unwrap()), (8, 0x40));
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
            socket.bind_device(None).unwrap();
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
fn fault_10_dropped_receives_lose_no_datagram() {
    const COUNT: u32 = 2_000;
    on_every_driver_and_sim(|setup| {
        let seed = fastrand::u64(..);
        eprintln!("{}: seed {seed}", setup.name);
        setup.run(async {
            let mut random = Rng::with_seed(seed);
            let (sender, receiver) = connected_pair().await;
            let (mut next, mut batch) = (0, RecvBatch::new(8, 4));
            let (mut sent, mut buffer) = (0_u32, [0; 4]);
            while next < COUNT {
                while sent < COUNT && sent < next + 20 && random.bool() {
                    let polls = random.usize(..3);
                    if poll_at_most(polls, sender.send(&sent.to_be_bytes())).await.is_some() {
                        sent += 1;
                    }
                }
                yield_now().await;
                if sent == next {
                    // A receive would wait forever.
                    continue;
                }
                let polls = random.usize(..3);
                match random.u8(..3) {
                    0 => {
                        if let Some(received) = poll_at_most(polls, receiver.recv_batch(&mut batch)).await {
                            received.unwrap();
                            for datagram in batch.iter() {
                                assert_eq!(datagram.payload(), next.to_be_bytes());
                                next += 1;
                            }
                        }
                    }
                    1 => {
                        if let Some(received) = poll_at_most(polls, receiver.recv(&mut buffer)).await {
                            assert_eq!((received.unwrap(), buffer), (4, next.to_be_bytes()));
                            next += 1;
                        }
                    }
                    _ => {
                        poll_at_most(polls, receiver.readable()).await;
                    }
                }
            }
        });
    });
}

/// A dropped future that was to be woken next does not prevent others from being woken.
#[test]
fn fault_10_dropped_waiter_does_not_stop_others() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (sender, receiver) = connected_pair().await;
            for round in 0..50 {
                let (mut one, mut other) = ([0; 4], [0; 4]);
                let mut first = Box::pin(receiver.recv(&mut one));
                let mut second = Box::pin(receiver.recv(&mut other));
                poll_fn(|context| {
                    assert!(first.as_mut().poll(context).is_pending());
                    assert!(second.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                sender.send(b"ping").await.unwrap();
                if round % 2 == 0 {
                    yield_now().await;
                }
                drop(first);
                assert_eq!(second.await.unwrap(), 4);
            }
        });
    });
}

/// A task that never stops receiving yields to others.
#[test]
fn busy_socket_does_not_starve_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            let is_done = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_done);
            let other_task = spawn(async move {
                for _ in 0..5 {
                    yield_now().await;
                }
                done.set(true);
            });
            let mut rounds = 0;
            while !is_done.get() {
                one.send(b"x").await.unwrap();
                other.recv(&mut [0; 4]).await.unwrap();
                rounds += 1;
                assert!(rounds < 100_000, "the other task never runs");
            }
            other_task.await.unwrap();
        });
    });
}

#[test]
fn socket_outlives_runtime() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let (socket, peer) = runtime.block_on(async {
            let (one, other) = connected_pair().await;
            assert!(poll_at_most(1, one.recv(&mut [0; 4])).await.is_none());
            (one, other)
        });
        drop(runtime);
        setup.run(async {
            let error = socket.recv(&mut [0; 4]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(socket.readable().await.is_err());
            assert!(socket.send(b"x").await.is_err());
            assert!(peer.local_addr().is_ok());
        });
        drop((socket, peer));
    });
}

#[test]
fn waiting_task_is_dropped_with_its_socket() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            for _ in 0..20 {
                let socket = bind();
                let port = address(&socket);
                let task = spawn(async move { socket.recv(&mut [0; 4]).await });
                yield_now().await;
                task.abort();
                assert!(task.await.is_err());
                // The address is free again.
                let mut turns = 0;
                while UdpSocket::bind(port).is_err() {
                    turns += 1;
                    assert!(turns < TURNS, "the socket stays open");
                    yield_now().await;
                }
            }
        });
    });
}

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
