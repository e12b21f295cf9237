//! Tests of the simulated network's TCP behaviour, through its non-blocking system calls.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::time::Duration;

use super::super::super::sockets::{End, ListenOptions, Sockets, StreamOption};
use super::super::SimOptions;
use super::super::network::chance;
use super::super::sockets::{SimNetwork, SimSocket};

const LISTEN: ListenOptions = ListenOptions { backlog: 0, reuse_port: false, nodelay: true };

fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn pair(bytes: usize) -> (SimNetwork, SimSocket, SimSocket) {
    let mut network = SimNetwork::new(&SimOptions::new(1).socket_buffer_bytes(bytes));
    let listener = network.listen(any_port(), &LISTEN).unwrap();
    let address = address_of(&network, &listener, End::Local);
    let near = network.open_stream(address, None).unwrap();
    network.connect(&near, address).unwrap();
    let far = network.accept(&listener).unwrap();
    (network, near, far)
}

fn address_of(network: &SimNetwork, socket: &SimSocket, end: End) -> SocketAddr {
    network.address(socket, end).unwrap().as_socket().unwrap()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn local_address_is_peer_address_of_other_side() {
    let (network, near, far) = pair(16);
    assert_eq!(address_of(&network, &near, End::Local), address_of(&network, &far, End::Peer));
    assert_eq!(address_of(&network, &near, End::Peer), address_of(&network, &far, End::Local));
}

#[test]
fn connection_uses_bound_source_address() {
    let mut network = SimNetwork::new(&SimOptions::new(1));
    let listener = network.listen(any_port(), &LISTEN).unwrap();
    let address = address_of(&network, &listener, End::Local);
    for source in [([127, 0, 0, 9], 0), ([127, 0, 0, 9], 7)].map(SocketAddr::from) {
        let near = network.open_stream(address, Some(source)).unwrap();
        network.connect(&near, address).unwrap();
        let local = address_of(&network, &near, End::Local);
        assert_eq!(local.ip(), source.ip());
        assert!(local.port() == source.port() || source.port() == 0 && local.port() != 0);
        let far = network.accept(&listener).unwrap();
        assert_eq!(address_of(&network, &far, End::Peer), local);
    }
}

#[test]
fn full_buffer_returns_eagain_until_a_third_is_free() {
    let (mut network, near, far) = pair(9);
    assert_eq!(network.send(&near, b"0123456789").unwrap(), 9);
    assert_eq!(errno(network.send(&near, b"x")), Some(libc::EAGAIN));
    let events = |network: &SimNetwork| network.lock().endpoint(near.id()).unwrap().events;
    let before = events(&network);
    let mut buffer = [0; 2];
    assert_eq!(network.receive(&far, &mut buffer).unwrap(), 2);
    assert_eq!(events(&network), before, "no wake-up below a third");
    assert_eq!(network.receive(&far, &mut buffer).unwrap(), 2);
    assert_eq!(events(&network), before + 1);
    assert_eq!(network.send(&near, b"abcdef").unwrap(), 4);
}

#[test]
fn half_close_ends_one_direction() {
    let (mut network, near, far) = pair(16);
    network.send(&near, b"last").unwrap();
    network.shutdown(&near, Shutdown::Write).unwrap();
    assert_eq!(errno(network.send(&near, b"more")), Some(libc::EPIPE));
    let mut buffer = [0; 16];
    assert_eq!(network.receive(&far, &mut buffer).unwrap(), 4);
    assert_eq!(network.receive(&far, &mut buffer).unwrap(), 0);
    assert_eq!(network.send(&far, b"second").unwrap(), 6);
    assert_eq!(network.receive(&near, &mut buffer).unwrap(), 6);
}

#[test]
fn close_with_unread_bytes_resets_after_received_bytes() {
    let (mut network, near, far) = pair(16);
    network.send(&near, b"unread").unwrap();
    network.send(&far, b"arrived").unwrap();
    drop(far);
    let mut buffer = [0; 16];
    assert_eq!(network.receive(&near, &mut buffer).unwrap(), 7);
    assert_eq!(errno(network.receive(&near, &mut buffer)), Some(libc::ECONNRESET));
    assert_eq!(network.receive(&near, &mut buffer).unwrap(), 0);
    assert_eq!(errno(network.send(&near, b"x")), Some(libc::EPIPE));
    assert_eq!(errno(network.address(&near, End::Peer)), Some(libc::ENOTCONN));
}

#[test]
fn close_with_zero_linger_resets() {
    let (mut network, near, far) = pair(16);
    network.set_option(&far, StreamOption::Linger(Some(Duration::ZERO))).unwrap();
    drop(far);
    assert_eq!(errno(network.receive(&near, &mut [0; 1])), Some(libc::ECONNRESET));
}

#[test]
fn first_send_to_closed_peer_is_lost_and_second_fails() {
    let (mut network, near, far) = pair(16);
    drop(far);
    assert_eq!(network.receive(&near, &mut [0; 1]).unwrap(), 0);
    assert_eq!(network.send(&near, b"lost").unwrap(), 4);
    assert_eq!(errno(network.send(&near, b"x")), Some(libc::EPIPE));
}

#[test]
fn connect_retries_while_accept_queue_is_full_then_times_out() {
    let mut network = SimNetwork::new(&SimOptions::new(1));
    let listener = network.listen(any_port(), &LISTEN).unwrap();
    let address = address_of(&network, &listener, End::Local);
    let sockets = [(); 3].map(|()| network.open_stream(address, None).unwrap());
    network.connect(&sockets[0], address).unwrap();
    assert_eq!(errno(network.connect(&sockets[1], address)), Some(libc::EAGAIN));
    drop(network.accept(&listener).unwrap());
    network.lock().advance_to(2_000_000_000);
    network.connect_result(&sockets[1]).unwrap();
    assert!(network.address(&sockets[1], End::Peer).is_ok());
    assert_eq!(errno(network.connect(&sockets[2], address)), Some(libc::EAGAIN));
    network.lock().advance_to(1_000_000_000_000);
    assert_eq!(errno(network.connect_result(&sockets[2])), Some(libc::ETIMEDOUT));
}

#[test]
fn closing_listener_resets_connections_in_accept_queue() {
    let mut network = SimNetwork::new(&SimOptions::new(1));
    let listener = network.listen(any_port(), &LISTEN).unwrap();
    let address = address_of(&network, &listener, End::Local);
    let near = network.open_stream(address, None).unwrap();
    network.connect(&near, address).unwrap();
    assert_eq!(network.lock().open(), 3);
    drop(listener);
    assert_eq!(errno(network.receive(&near, &mut [0; 1])), Some(libc::ECONNRESET));
    assert_eq!(network.lock().open(), 1);
    let retry = network.open_stream(address, None).unwrap();
    assert_eq!(errno(network.connect(&retry, address)), Some(libc::ECONNREFUSED));
}

#[test]
fn listeners_share_address_only_with_reuse_port() {
    let mut network = SimNetwork::new(&SimOptions::new(1));
    let one = network.listen(any_port(), &LISTEN).unwrap();
    let address = address_of(&network, &one, End::Local);
    assert_eq!(errno(network.listen(address, &LISTEN)), Some(libc::EADDRINUSE));
    let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    assert_eq!(errno(network.listen(unspecified, &LISTEN)), Some(libc::EADDRINUSE));
    drop(one);
    let shared = ListenOptions { reuse_port: true, backlog: 100, ..LISTEN };
    let listeners = [(); 2].map(|()| network.listen(address, &shared).unwrap());
    let sockets = [(); 20].map(|()| network.open_stream(address, None).unwrap());
    for socket in &sockets {
        network.connect(socket, address).unwrap();
    }
    let counts = listeners.each_ref().map(|listener| network.refuse(listener));
    assert!(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] == 20, "{counts:?}");
}

#[test]
fn chance_matches_given_rate() {
    let mut random = fastrand::Rng::with_seed(1);
    let hits = (0..100_000).filter(|_| chance(&mut random, 100)).count();
    assert!((9_000..11_000).contains(&hits), "{hits} of 100000 at 100 per mille");
    assert!(!chance(&mut random, 0));
    assert!(chance(&mut random, 1000));
}
