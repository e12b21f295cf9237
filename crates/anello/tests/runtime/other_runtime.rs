//! Tasks that wait for objects of another runtime on the same thread, which is dropped in the meantime.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anello::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use anello::signal::{SignalKind, signal};
use anello::{JoinHandle, spawn, time, yield_now};

use crate::common::*;

type Waiting = (&'static str, JoinHandle<io::Result<()>>);

/// Adds futures with their names to a list.
macro_rules! waiting {
    ($into:ident, $($name:literal: $future:expr),* $(,)?) => {
        $($into.push(($name, Box::pin($future) as std::pin::Pin<Box<dyn Future<Output = io::Result<()>>>>));)*
    };
}

#[test]
fn tasks_that_wait_for_sockets_of_a_dropped_runtime_get_an_error() {
    on_every_driver(|setup| {
        let (outer, inner) = (setup.runtime(), setup.runtime());
        let mut futures = Vec::new();
        let peers = inner.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let unix_listener = UnixListener::bind(directory.path().join("socket")).unwrap();
            let udp = UdpSocket::bind(ANY_PORT).unwrap();
            let (mut one, peer) = pair().await.unwrap();
            let (two, peer_of_two) = UnixStream::pair().unwrap();
            let (three, peer_of_three) = pair().await.unwrap();
            let (mut four, peer_of_four): (TcpStream, TcpStream) = pair().await.unwrap();
            while poll_once(four.write(&[7; 100_000])).await.is_some() {
                yield_now().await;
            }
            waiting!(futures,
                "accept": async move { listener.accept().await.map(drop) },
                "accept on Unix": async move { unix_listener.accept().await.map(drop) },
                "receive datagram": async move { udp.recv_from(&mut [0]).await.map(drop) },
                "receive": async move { one.recv().await.map(drop) },
                "readable": async move { two.readable().await },
                "peek": async move { three.peek(&mut [0]).await.map(drop) },
                "send": async move { four.write_all(&vec![7; LARGE]).await },
            );
            (peer, peer_of_two, peer_of_three, peer_of_four, directory)
        });
        outer.block_on(async {
            let tasks: Vec<Waiting> =
                futures.into_iter().map(|(name, future)| (name, spawn(future))).collect();
            for _ in 0..10 {
                yield_now().await;
            }
            assert!(tasks.iter().all(|(_, task)| !task.is_finished()));
            inner.shutdown_background();
            for (name, task) in tasks {
                let error = task.await.unwrap().expect_err(name);
                let is_expected =
                    matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted);
                assert!(is_expected, "{name}: {error:?}");
            }
        });
        drop(peers);
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
