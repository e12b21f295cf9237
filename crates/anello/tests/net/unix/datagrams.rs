//! Unix datagram sockets.

use std::fs;
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::rc::Rc;

use anello::io::Interest;
use anello::net::{UnixDatagram, raw_os_error};
use anello::{spawn, yield_now};

use super::socket_path::{SocketPath, path_of, unique};
use crate::common::{
    Rng, TURNS, both_drivers, join, on_each, on_every_driver, on_every_driver_and_sim, pattern, poll_at_most,
    poll_once, simulated_drivers,
};

fn abstract_name(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(unique(name)).unwrap()
}

#[test]
fn pair_exchanges_datagrams_both_ways() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            let mut buffer = vec![0; 100_000];
            for bytes in [0, 1, 1000, 60_000] {
                let sent = pattern(bytes as u64, bytes);
                for (from, to) in [(&one, &other), (&other, &one)] {
                    assert_eq!(from.send(&sent).await.unwrap(), bytes);
                    assert_eq!(to.recv(&mut buffer).await.unwrap(), bytes);
                    assert_eq!(buffer[..bytes], sent);
                }
            }
            one.send(b"truncated").await.unwrap();
            assert_eq!(other.recv(&mut buffer[..5]).await.unwrap(), 5);
            assert_eq!(one.peer_cred().unwrap().pid, Some(std::process::id()));
            assert!(one.take_error().unwrap().is_none());
            assert!(one.local_addr().unwrap().is_unnamed() && one.peer_addr().unwrap().is_unnamed());
        });
    });
}

#[test]
fn paths_and_abstract_names_are_reported() {
    on_every_driver_and_sim(|setup| {
        let (path, name) = (SocketPath::new("datagram"), abstract_name("datagram"));
        setup.run(async {
            let at_path = UnixDatagram::bind(&path.0).unwrap();
            let at_name = UnixDatagram::bind_addr(&name).unwrap();
            let unbound = UnixDatagram::unbound().unwrap();
            assert_eq!(at_path.local_addr().unwrap().as_pathname(), Some(&*path.0));
            let mut buffer = [0; 16];
            at_name.send_to(b"one", &path.0).await.unwrap();
            let (bytes, source) = at_path.recv_from(&mut buffer).await.unwrap();
            assert_eq!((bytes, source.as_abstract_name()), (3, name.as_abstract_name()));
            at_path.send_to_addr(b"two", &source).await.unwrap();
            let (bytes, source) = at_name.recv_from(&mut buffer).await.unwrap();
            assert_eq!((bytes, source.as_pathname()), (3, Some(&*path.0)));
            unbound.connect(&path.0).unwrap();
            unbound.send(b"three").await.unwrap();
            let (bytes, source) = at_path.peek_from(&mut buffer).await.unwrap();
            assert!(bytes == 5 && source.is_unnamed());
            let (bytes, source) = at_path.recv_from(&mut buffer).await.unwrap();
            assert!(bytes == 5 && source.is_unnamed());
            unbound.connect_addr(&name).unwrap();
            unbound.send(b"four").await.unwrap();
            assert_eq!(at_name.recv(&mut buffer).await.unwrap(), 4);
            assert_eq!(unbound.peer_addr().unwrap().as_abstract_name(), name.as_abstract_name());
            unbound.send_to(b"five", path_of(&name)).await.unwrap();
            assert_eq!(at_name.recv(&mut buffer).await.unwrap(), 4);
            let error = UnixDatagram::bind(&path.0).unwrap_err();
            assert_eq!((error.kind(), raw_os_error(&error)), (ErrorKind::AddrInUse, Some(libc::EADDRINUSE)));
            assert!(error.to_string().contains(&*path.0.to_string_lossy()), "{error}");
            let missing = SocketPath::new("missing");
            assert_eq!(unbound.connect(&missing.0).unwrap_err().kind(), ErrorKind::NotFound);
            let expected = format!("cannot send to {}: ", missing.0.display());
            let address = SocketAddr::from_pathname(&missing.0).unwrap();
            for sent in [
                unbound.send_to(b"x", &missing.0).await,
                unbound.try_send_to(b"x", &missing.0),
                unbound.send_with_fds_to(b"x", &[], &address).await,
            ] {
                let error = sent.unwrap_err();
                assert_eq!((error.kind(), raw_os_error(&error)), (ErrorKind::NotFound, Some(libc::ENOENT)));
                assert!(error.to_string().starts_with(&expected), "{error}");
            }
            let too_long = "x".repeat(200);
            assert_eq!(unbound.connect(too_long).unwrap_err().kind(), ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn connected_sender_waits_while_queue_is_full() {
    const COUNT: u32 = 500;
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            let send = async {
                for number in 0..COUNT {
                    one.send(&number.to_be_bytes()).await.unwrap();
                }
            };
            let receive = async {
                for number in 0..COUNT {
                    if number % 50 == 0 {
                        for _ in 0..5 {
                            yield_now().await;
                        }
                    }
                    let mut buffer = [0; 4];
                    assert_eq!(other.recv(&mut buffer).await.unwrap(), 4);
                    assert_eq!(u32::from_be_bytes(buffer), number);
                }
            };
            join(send, receive).await;
        });
    });
}

#[test]
fn sender_to_address_waits_while_queue_is_full() {
    // More datagrams than a queue holds (net.unix.max_dgram_qlen).
    let queue: u32 = fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap().trim().parse().unwrap();
    on_each(both_drivers().into_iter().chain(simulated_drivers()).collect(), move |setup| {
        let name = abstract_name("full");
        let count = 2 * queue.min(1000) + 5;
        setup.run(async {
            let receiver = UnixDatagram::bind_addr(&name).unwrap();
            let sender = UnixDatagram::unbound().unwrap();
            let send = async {
                for number in 0..count {
                    sender.send_to_addr(&number.to_be_bytes(), &name).await.unwrap();
                }
            };
            let receive = async {
                for _ in 0..TURNS {
                    yield_now().await;
                }
                for number in 0..count {
                    let mut buffer = [0; 4];
                    receiver.recv(&mut buffer).await.unwrap();
                    assert_eq!(u32::from_be_bytes(buffer), number);
                }
            };
            join(send, receive).await;
        });
    });
}

#[test]
fn descriptors_are_passed_with_datagrams() {
    on_every_driver_and_sim(|setup| {
        let name = abstract_name("fds");
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            let (mut reader, writer) = std::io::pipe().unwrap();
            let fds = [writer.as_fd(), writer.as_fd()];
            assert_eq!(one.send_with_fds(b"two", &fds).await.unwrap(), 3);
            one.send(b"none").await.unwrap();
            assert_eq!(one.try_send_with_fds(b"", &fds[..1]).unwrap(), 0);
            let (mut buffer, mut received) = ([0; 16], Vec::<OwnedFd>::new());
            let info = other.recv_with_fds(&mut buffer, &mut received).await.unwrap();
            assert_eq!((info.bytes, received.len()), (3, 2));
            assert!(!info.is_truncated && !info.are_fds_truncated && info.source.is_unnamed());
            let info = other.recv_with_fds(&mut buffer, &mut received).await.unwrap();
            assert_eq!((info.bytes, received.len()), (4, 2));
            let info = other.try_recv_with_fds(&mut buffer, &mut received).unwrap();
            assert_eq!((info.bytes, received.len()), (0, 3));
            drop(writer);
            for (number, fd) in received.drain(..).enumerate() {
                fs::File::from(fd).write_all(&[b'0' + number as u8]).unwrap();
            }
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text, "012");
            // Descriptors that are not taken are closed.
            let (mut reader, writer) = std::io::pipe().unwrap();
            one.send_with_fds(b"lost", &[writer.as_fd()]).await.unwrap();
            drop(writer);
            assert_eq!(other.recv(&mut buffer).await.unwrap(), 4);
            assert_eq!(reader.read(&mut buffer).unwrap(), 0);
            let server = UnixDatagram::bind_addr(&name).unwrap();
            one.send_with_fds_to(b"to a name", &[reader.as_fd()], &name).await.unwrap();
            server.set_passcred(true).unwrap();
            assert!(server.passcred().unwrap());
            let info = server.recv_with_fds(&mut buffer, &mut received).await.unwrap();
            assert_eq!((info.bytes, received.len()), (9, 1));
            let client = UnixDatagram::bind_addr(&abstract_name("from")).unwrap();
            client.send_to_addr(b"with credentials", &name).await.unwrap();
            let info = server.recv_with_fds(&mut buffer, &mut received).await.unwrap();
            let address = client.local_addr().unwrap();
            assert_eq!(info.source.as_abstract_name(), address.as_abstract_name());
            assert_eq!(info.credentials.unwrap().pid, Some(std::process::id()));
            let path = SocketPath::new("with-fds");
            let client = UnixDatagram::bind(&path.0).unwrap();
            client.send_to_addr(b"from a path", &name).await.unwrap();
            let info = server.recv_with_fds(&mut buffer, &mut received).await.unwrap();
            assert_eq!((info.source.as_pathname(), received.len()), (Some(&*path.0), 1));
        });
    });
}

#[test]
fn closed_peer_is_reported() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            other.send(b"last").await.unwrap();
            drop(other);
            let mut buffer = [0; 16];
            // The kernel reports the closed peer only to senders.
            assert_eq!(one.recv(&mut buffer).await.unwrap(), 4);
            let error = one.send(b"x").await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotConnected),
                "{error}"
            );
            let error = UnixDatagram::unbound().unwrap().send(b"x").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            let (one, other) = UnixDatagram::pair().unwrap();
            let waiting = async {
                let mut buffer = [0; 16];
                one.recv(&mut buffer).await
            };
            let (received, ()) = join(waiting, async {
                yield_now().await;
                one.shutdown(Shutdown::Both).unwrap();
            })
            .await;
            assert_eq!(received.unwrap(), 0);
            assert_eq!(other.send(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn waiting_send_ends_with_shutdown_or_new_peer() {
    on_every_driver_and_sim(|setup| {
        let names = ["old", "new"].map(abstract_name);
        setup.run(async {
            let (one, _other) = UnixDatagram::pair().unwrap();
            while one.try_send(b"x").is_ok() {}
            let (sent, ()) = join(one.send(b"y"), async {
                yield_now().await;
                one.shutdown(Shutdown::Both).unwrap();
            })
            .await;
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::BrokenPipe);
            let [_old, new] = names.each_ref().map(|name| UnixDatagram::bind_addr(name).unwrap());
            let sender = UnixDatagram::unbound().unwrap();
            sender.connect_addr(&names[0]).unwrap();
            while sender.try_send(b"x").is_ok() {}
            let (sent, ()) = join(sender.send(b"y"), async {
                yield_now().await;
                sender.connect_addr(&names[1]).unwrap();
            })
            .await;
            assert_eq!(sent.unwrap(), 1);
            assert_eq!(new.recv(&mut [0; 2]).await.unwrap(), 1);
        });
    });
}

#[test]
fn try_and_poll_functions_match_async_methods() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            let mut buffer = [0; 16];
            assert_eq!(other.try_recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(other.try_recv_from(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            one.writable().await.unwrap();
            assert_eq!(one.try_send(b"one").unwrap(), 3);
            poll_fn(|context| one.poll_send_ready(context)).await.unwrap();
            assert_eq!(poll_fn(|context| one.poll_send(context, b"two")).await.unwrap(), 3);
            one.send(b"three").await.unwrap();
            one.send(b"four").await.unwrap();
            other.readable().await.unwrap();
            assert!(other.ready(Interest::READABLE).await.unwrap().is_readable());
            poll_fn(|context| other.poll_recv_ready(context)).await.unwrap();
            assert_eq!(other.try_recv(&mut buffer).unwrap(), 3);
            assert_eq!(other.try_recv_from(&mut buffer).unwrap().0, 3);
            assert_eq!(poll_fn(|context| other.poll_recv(context, &mut buffer)).await.unwrap(), 5);
            assert_eq!(poll_fn(|context| other.poll_recv_from(context, &mut buffer)).await.unwrap().0, 4);
            // The send buffer is full at some point. A failed attempt does not prevent a later wait. The kernel reports
            // free space when three quarters are free.
            let mut count = 1;
            while one.try_send(b"x").is_ok() {
                count += 1;
            }
            let receive_all = async {
                for _ in 0..count {
                    assert_eq!(other.recv(&mut buffer).await.unwrap(), 1);
                }
            };
            assert_eq!(join(one.send(b"y"), receive_all).await.0.unwrap(), 1);
        });
    });
}

#[test]
fn standard_sockets_are_converted_both_ways() {
    on_every_driver(|setup| {
        setup.run(async {
            let (one, peer) = StdDatagram::pair().unwrap();
            let one = UnixDatagram::from_std(one).unwrap();
            assert!(poll_at_most(1, one.recv(&mut [0; 4])).await.is_none());
            let one = one.into_std().unwrap();
            peer.send(b"x").unwrap();
            assert_eq!(one.recv(&mut [0; 4]).unwrap(), 1);
            let one = UnixDatagram::try_from(OwnedFd::from(one)).unwrap();
            peer.send(b"xx").unwrap();
            assert_eq!(one.recv(&mut [0; 4]).await.unwrap(), 2);
            let one = UnixDatagram::try_from(one.into_std().unwrap()).unwrap();
            let duplicate = StdDatagram::from(one.as_fd().try_clone_to_owned().unwrap());
            duplicate.send(b"xxx").unwrap();
            peer.set_nonblocking(false).unwrap();
            assert_eq!(peer.recv(&mut [0; 4]).unwrap(), 3);
            let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let error = UnixDatagram::try_from(OwnedFd::from(udp)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
    });
}

/// Futures are dropped at random polls. Every datagram is received exactly once, in order.
#[test]
fn fault_10_dropped_futures_lose_no_datagram() {
    const COUNT: u32 = 2_000;
    on_every_driver_and_sim(|setup| {
        let seed = fastrand::u64(..);
        eprintln!("{}: seed {seed}", setup.name);
        setup.run(async {
            let (sender, receiver) = UnixDatagram::pair().unwrap();
            let send = spawn(async move {
                let mut random = Rng::with_seed(seed);
                let mut sent = 0_u32;
                while sent < COUNT {
                    let polls = random.usize(..3);
                    match poll_at_most(polls, sender.send(&sent.to_be_bytes())).await {
                        Some(result) => {
                            result.unwrap();
                            sent += 1;
                        }
                        None => yield_now().await,
                    }
                }
            });
            let mut random = Rng::with_seed(!seed);
            let mut next = 0;
            let receiver = Rc::new(receiver);
            while next < COUNT {
                let (polls, mut buffer) = (random.usize(..3), [0; 4]);
                match poll_at_most(polls, receiver.recv(&mut buffer)).await {
                    Some(received) => {
                        assert_eq!((received.unwrap(), buffer), (4, next.to_be_bytes()));
                        next += 1;
                    }
                    None => yield_now().await,
                }
            }
            send.await.unwrap();
        });
    });
}

#[test]
fn new_pair_is_writable() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = UnixDatagram::pair().unwrap();
            for socket in [&one, &other] {
                assert!(poll_once(poll_fn(|context| socket.poll_send_ready(context))).await.is_some());
                assert!(poll_once(socket.writable()).await.is_some());
                assert!(poll_once(socket.readable()).await.is_none());
            }
            // The readiness is cleared when the queue is full, and set again when there is room.
            while one.try_send(b"x").is_ok() {}
            assert!(poll_once(one.writable()).await.is_none());
            other.recv(&mut [0]).await.unwrap();
            while other.try_recv(&mut [0]).is_ok() {}
            one.writable().await.unwrap();
        });
    });
}
