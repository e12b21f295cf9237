//! Tests of the UDP sockets of an event loop.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use anello::event_loop::{EventKind, EventLoop, Events, OutgoingDatagram, RecvBatch, UdpId};

use crate::common::event_loops::{open, wait};
use crate::common::{on_every_driver, on_every_driver_and_sim, pattern};

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn bind(event_loop: &mut EventLoop, token: usize) -> (UdpId, SocketAddr) {
    let socket = event_loop.bind_udp(ANY_PORT, token).unwrap();
    (socket, event_loop.udp_local_addr(socket).unwrap())
}

#[test]
fn event_follows_each_pending_receive() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let ((server, address), (client, _)) = (bind(&mut event_loop, 1), bind(&mut event_loop, 2));
        let (mut buffer, mut events) = ([0; 64], Events::new());
        for round in 0..20 {
            assert!(event_loop.recv_from(server, &mut buffer).is_pending());
            let message = pattern(round, 1 + round as usize);
            let sent = wait(&mut event_loop, |event_loop| event_loop.send_to(client, &message, address));
            assert_eq!(sent.unwrap(), message.len());
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
            while events.is_empty() {
                event_loop.turn(&mut events, None).unwrap();
            }
            let event = events.iter().next().unwrap();
            assert_eq!((event.token(), event.kind()), (1, EventKind::Readable));
            let received = wait(&mut event_loop, |event_loop| event_loop.recv_from(server, &mut buffer));
            assert_eq!(buffer[..received.unwrap().0], message);
        }
    });
}

#[test]
fn batches_arrive_completely_on_connected_sockets() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let ((one, one_address), (other, other_address)) =
            (bind(&mut event_loop, 1), bind(&mut event_loop, 2));
        event_loop.connect_udp(one, other_address).unwrap();
        event_loop.connect_udp(other, one_address).unwrap();
        assert_eq!(event_loop.send_batch(one, &[]).map(Result::unwrap), Poll::Ready(0));
        let messages: Vec<_> = (0..50u8).map(|number| vec![number; 40]).collect();
        let (mut sent, mut received) = (0, BTreeSet::new());
        let mut batch = RecvBatch::new(8, 100);
        while received.len() < messages.len() {
            if sent < messages.len() {
                let datagrams: Vec<_> = messages[sent..]
                    .iter()
                    .take(10)
                    .map(|message| OutgoingDatagram::to_peer(message))
                    .collect();
                sent += wait(&mut event_loop, |event_loop| event_loop.send_batch(one, &datagrams)).unwrap();
            }
            let count = wait(&mut event_loop, |event_loop| event_loop.recv_batch(other, &mut batch)).unwrap();
            assert!(count > 0 && count == batch.len());
            for datagram in batch.iter() {
                assert_eq!((datagram.payload().len(), datagram.source()), (40, one_address));
                assert!(received.insert(datagram.payload()[0]), "received twice");
            }
        }
    });
}

#[test]
fn errors_leave_socket_usable() {
    on_every_driver(|setup| {
        let mut event_loop = open(setup);
        let (socket, address) = bind(&mut event_loop, 1);
        let error = event_loop.bind_udp(address, 2).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        let too_long = vec![0; 70_000];
        let sent = wait(&mut event_loop, |event_loop| event_loop.send_to(socket, &too_long, address));
        assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        // Nothing is bound to the port of a socket that has been closed.
        let closed = std::net::UdpSocket::bind(ANY_PORT).unwrap().local_addr().unwrap();
        event_loop.connect_udp(socket, closed).unwrap();
        wait(&mut event_loop, |event_loop| event_loop.send_batch(socket, &[OutgoingDatagram::to_peer(b"x")]))
            .unwrap();
        let received = wait(&mut event_loop, |event_loop| event_loop.recv_from(socket, &mut [0; 9]));
        assert_eq!(received.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(event_loop.recv_from(socket, &mut [0; 9]).is_pending());
    });
}

#[test]
fn fault_12_stale_identifier_is_error_and_never_another_socket() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (first, address) = bind(&mut event_loop, 1);
        assert!(event_loop.recv_from(first, &mut [0; 9]).is_pending());
        event_loop.close_udp(first);
        event_loop.close_udp(first);
        // The address is free once the poll of the closed socket has been cancelled, usually after one turn.
        let second = loop {
            match event_loop.bind_udp(address, 2) {
                Ok(socket) => break socket,
                Err(_) => event_loop.turn(&mut Events::new(), Some(Duration::ZERO)).unwrap(),
            }
        };
        assert_eq!((first.token(), second.token()), (1, 2));
        let stale = [
            event_loop.recv_from(first, &mut [0; 9]).map_ok(drop),
            event_loop.recv_batch(first, &mut RecvBatch::new(1, 9)).map_ok(drop),
            event_loop.send_to(first, b"x", address).map_ok(drop),
            Poll::Ready(event_loop.udp_local_addr(first).map(drop)),
            Poll::Ready(event_loop.connect_udp(first, address)),
        ];
        for result in stale {
            let Poll::Ready(Err(error)) = result else { panic!("a stale identifier is accepted") };
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        }
    });
}
