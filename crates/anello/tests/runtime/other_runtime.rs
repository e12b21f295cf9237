//! Tasks that wait for objects of another runtime on the same thread, which is dropped in the meantime.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use anello::fs::File;
use anello::io::AsyncFd;
use anello::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream, pipe};
use anello::process::Command;
use anello::server::{DetachedStream, ListenerGroup};
use anello::signal::{SignalKind, signal};
use anello::{Runtime, spawn, time, yield_now};

use crate::common::*;

type Waiting = (&'static str, Pin<Box<dyn Future<Output = io::Result<()>>>>);

/// Adds futures with their names to a list.
macro_rules! waiting {
    ($into:ident, $($name:literal: $future:expr),* $(,)?) => {
        $($into.push(($name, Box::pin($future) as Pin<Box<dyn Future<Output = _>>>));)*
    };
}

/// Drops the inner runtime while tasks of the outer one wait for its objects. All of them must return an error.
fn assert_ended_by_shutdown(outer: &Runtime, inner: Runtime, futures: Vec<Waiting>) {
    outer.block_on(async {
        let tasks: Vec<_> = futures.into_iter().map(|(name, future)| (name, spawn(future))).collect();
        for _ in 0..10 {
            yield_now().await;
        }
        let finished = tasks.iter().filter(|(_, task)| task.is_finished());
        assert_eq!(Vec::from_iter(finished.map(|(name, _)| name)), [&""; 0]);
        inner.shutdown_background();
        for (name, task) in tasks {
            let error = task.await.unwrap().expect_err(name);
            let is_expected = matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted);
            assert!(is_expected, "{name}: {error:?}");
        }
    });
}

/// Sends more bytes than the kernel has room for to a peer that does not read, until the stream accepts no more.
async fn fill(stream: &mut TcpStream) {
    stream.send(vec![7; LARGE]).await.unwrap();
    while poll_once(stream.write(&[7; 100_000])).await.is_some() {
        yield_now().await;
    }
}

#[test]
fn tasks_that_wait_for_sockets_of_a_dropped_runtime_get_an_error() {
    on_every_driver_and_sim(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let mut futures = Vec::new();
        let peers = inner.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let unix_listener = UnixListener::bind(directory.path().join("socket")).unwrap();
            let udp = UdpSocket::bind(ANY_PORT).unwrap();
            let readable_udp = UdpSocket::bind(ANY_PORT).unwrap();
            let (datagrams, peer_of_datagrams) = UnixDatagram::pair().unwrap();
            let (mut one, peer) = pair().await.unwrap();
            let (two, peer_of_two) = UnixStream::pair().unwrap();
            let (three, peer_of_three) = pair().await.unwrap();
            let (mut four, peer_of_four): (TcpStream, TcpStream) = pair().await.unwrap();
            let (mut five, peer_of_five): (TcpStream, TcpStream) = pair().await.unwrap();
            for stream in [&mut four, &mut five] {
                fill(stream).await;
            }
            let full = TcpListener::builder().backlog(0).bind(ANY_PORT).unwrap();
            let address = full.local_addr().unwrap();
            let client = TcpStream::connect(address).await.unwrap();
            let mut connecting = Box::pin(TcpStream::connect(address));
            assert!(poll_once(&mut connecting).await.is_none());
            waiting!(futures,
                "accept": async move { listener.accept().await.map(drop) },
                "accept on Unix": async move { unix_listener.accept().await.map(drop) },
                "receive datagram": async move { udp.recv_from(&mut [0]).await.map(drop) },
                "readable datagram socket": async move { readable_udp.readable().await },
                "receive Unix datagram": async move { datagrams.recv(&mut [0]).await.map(drop) },
                "receive": async move { one.recv().await.map(drop) },
                "readable": async move { two.readable().await },
                "peek": async move { three.peek(&mut [0]).await.map(drop) },
                "send": async move { four.write_all(&vec![7; LARGE]).await },
                "flush": async move { five.flush().await },
                "connect": async move { connecting.await.map(drop) },
            );
            let streams = (peer, peer_of_two, peer_of_three, peer_of_four, peer_of_five, full, client);
            (streams, peer_of_datagrams, directory)
        });
        assert_ended_by_shutdown(&outer, inner, futures);
        drop(peers);
    });
}

#[test]
fn tasks_that_wait_for_descriptors_of_a_dropped_runtime_get_an_error() {
    on_every_driver(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let mut futures = Vec::new();
        let peers = inner.block_on(async {
            let (sender, receiver) = pipe::pipe().unwrap();
            let (full, peer_of_full) = pipe::pipe().unwrap();
            while full.try_write(&[7; 4096]).is_ok() {}
            let (source, peer_of_source) = std::io::pipe().unwrap();
            let source = AsyncFd::new(source).unwrap();
            let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // While it is open, the child does not exit.
            let (stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            waiting!(futures,
                "read from pipe": async move { receiver.read(&mut [0]).await.map(drop) },
                "write to pipe": async move { full.write(&[7]).await.map(drop) },
                "AsyncFd": async move { source.readable().await.map(drop) },
                "output of child": async move { stdout.read(&mut [0]).await.map(drop) },
                "exit of child": async move { child.wait().await.map(drop) },
            );
            (sender, peer_of_full, peer_of_source, stdin)
        });
        assert_ended_by_shutdown(&outer, inner, futures);
        drop(peers);
    });
}

/// On the simulated driver, streams have no descriptors.
#[test]
fn tasks_that_hand_over_sockets_of_a_dropped_runtime_get_an_error() {
    on_every_driver(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let mut futures = Vec::new();
        let target = outer.handle();
        let peers = inner.block_on(async {
            let group = ListenerGroup::<TcpListener>::new(vec![std::net::TcpListener::bind(ANY_PORT).unwrap()], 1);
            let member = group.join(0);
            let mut peers = Vec::new();
            let mut full_stream = async || {
                let (mut stream, peer): (TcpStream, TcpStream) = pair().await.unwrap();
                fill(&mut stream).await;
                peers.push(peer);
                stream
            };
            let (mut file_sender, converted) = (full_stream().await, full_stream().await);
            let (detached, moved) = (full_stream().await, full_stream().await);
            let file = File::open("/proc/self/exe").await.unwrap();
            let (mut unix, peer_of_unix) = UnixStream::pair().unwrap();
            waiting!(futures,
                "accept from group": async move { member.accept().await.map(drop) },
                "send file": async move { file_sender.send_file(&file, 0, 1000).await.map(drop) },
                "receive descriptors": async move { unix.recv_with_fds(&mut [0], &mut Vec::new()).await.map(drop) },
                "convert": async move { converted.into_std().await.map(drop).map_err(|error| error.into_parts().0) },
                "detach": async move {
                    DetachedStream::detach(detached).await.map(drop).map_err(|error| error.into_parts().0)
                },
                "move": async move {
                    let moving = moved.move_to(&target, |_| async {}).await;
                    moving.map(drop).map_err(|error| error.into_parts().0)
                },
            );
            (peers, peer_of_unix, group)
        });
        assert_ended_by_shutdown(&outer, inner, futures);
        drop(peers);
    });
}

/// The runtime that the member has joined on accepts for it, although another runtime has polled it first.
#[test]
fn member_accepts_on_the_runtime_on_which_it_has_joined() {
    on_every_driver(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let socket = std::net::TcpListener::bind(ANY_PORT).unwrap();
        let address = socket.local_addr().unwrap();
        let group = ListenerGroup::<TcpListener>::new(vec![socket], 1);
        let member = inner.block_on(async { group.join(0) });
        outer.block_on(async { assert!(poll_once(member.accept()).await.is_none()) });
        inner.block_on(async {
            let mut client = TcpStream::connect(address).await.unwrap();
            let mut server = member.accept().await.unwrap().unwrap();
            client.write_all(b"ciao").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]));
        });
        drop((member, inner, outer));
    });
}

#[test]
fn task_that_waits_for_a_signal_of_a_dropped_runtime_ends() {
    on_every_driver(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let mut signals = inner.block_on(async { signal(SignalKind::user_defined1()).unwrap() });
        outer.block_on(async {
            let task = spawn(async move { signals.recv().await });
            for _ in 0..10 {
                yield_now().await;
            }
            drop(inner);
            assert_eq!(task.await.unwrap(), None);
        });
    });
}

/// A timer cannot return an error, so the task panics.
#[test]
fn tasks_that_wait_for_timers_of_a_dropped_runtime_panic() {
    on_every_driver_and_sim(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let hour = Duration::from_secs(3600);
        let (sleep, timeout, mut interval, unpolled, elapsed) = inner.block_on(async {
            let mut interval = time::interval(hour);
            interval.tick().await;
            let (sleep, timeout) = (time::sleep(hour), time::timeout(hour, std::future::pending::<()>()));
            (sleep, timeout, interval, time::sleep(hour), time::sleep(Duration::ZERO))
        });
        outer.block_on(async {
            let tasks = [
                spawn(sleep),
                spawn(async { timeout.await.unwrap_or_default() }),
                spawn(async move {
                    interval.tick().await;
                }),
            ];
            for _ in 0..10 {
                yield_now().await;
            }
            assert!(tasks.iter().all(|task| !task.is_finished()));
            drop(inner);
            for task in tasks {
                assert!(task.await.unwrap_err().is_panic());
            }
            assert!(spawn(unpolled).await.unwrap_err().is_panic());
            elapsed.await;
        });
    });
}
