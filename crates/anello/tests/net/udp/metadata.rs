//! Metadata of datagrams, multicast and broadcast.

use super::*;

#[test]
fn ecn_is_reported_for_each_datagram() {
    on_every_driver_and_sim(|setup| {
        for loopback in loopbacks() {
            setup.run(async {
                let server = UdpSocket::bind(loopback).unwrap();
                server.set_recv_ecn(true).unwrap();
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
            let server = UdpSocket::bind("0.0.0.0:0").unwrap();
            server.set_pktinfo(true).unwrap();
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
            let server = UdpSocket::builder().only_v6(false).bind("[::]:0").unwrap();
            server.set_pktinfo(true).unwrap();
            server.set_recv_ecn(true).unwrap();
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
            assert!(matches!(raw_os_error(&error), Some(libc::EACCES | libc::ENETUNREACH)), "{error}");
            assert!(!socket.broadcast().unwrap());
            socket.set_broadcast(true).unwrap();
            assert!(socket.broadcast().unwrap());
        });
    });
}

#[test]
fn metadata_can_be_enabled_after_binding() {
    on_every_driver_and_sim(|setup| {
        for loopback in loopbacks() {
            setup.run(async {
                let server = UdpSocket::bind(loopback).unwrap();
                assert!(!server.pktinfo().unwrap() && !server.recv_ecn().unwrap() && !server.gro().unwrap());
                server.set_pktinfo(true).unwrap();
                server.set_recv_ecn(true).unwrap();
                server.set_gro(true).unwrap();
                assert!(server.pktinfo().unwrap() && server.recv_ecn().unwrap() && server.gro().unwrap());
                let datagram = OutgoingDatagram::new(b"ciao", address(&server)).with_ecn(Ecn::Ect0);
                UdpSocket::bind(loopback).unwrap().send_message(&datagram).await.unwrap();
                let info = receive(&server).await.1;
                assert_eq!((info.destination, info.ecn), (Some(address(&server).ip()), Some(Ecn::Ect0)));
                server.set_pktinfo(false).unwrap();
                server.set_recv_ecn(false).unwrap();
                server.set_gro(false).unwrap();
                assert!(!server.pktinfo().unwrap() && !server.recv_ecn().unwrap() && !server.gro().unwrap());
            });
        }
    });
}
