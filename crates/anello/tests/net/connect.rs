//! Connecting to hosts with several addresses (Happy Eyeballs, RFC 8305).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::{monotonic_now, sleep};
use anello::{current_driver_metrics, spawn, yield_now};

use crate::common::{Setup, on_both_drivers, on_each, simulated_drivers};

/// Delay before the next attempt starts if the previous one is still pending.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

fn address(text: &str) -> SocketAddr {
    text.parse().expect("valid address")
}

fn addresses<const COUNT: usize>(texts: [&str; COUNT]) -> Vec<SocketAddr> {
    texts.map(address).into()
}

/// Runs a test on the simulated kernels, with virtual time.
fn on_simulators<F: Future<Output = ()>>(test: impl Fn() -> F + Send + Sync + 'static) {
    on_each(simulated_drivers(), move |setup: &Setup| setup.run(test()));
}

/// Returns a listener, and the clients that fill its backlog so that further attempts to connect wait.
async fn full_listener(at: &str) -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::builder().backlog(0).bind(at).expect("a listener");
    let client = TcpStream::connect(at).await.expect("backlog has room");
    (listener, vec![client])
}

#[test]
fn refused_attempt_is_followed_immediately_by_next() {
    on_simulators(async || {
        let _listener = TcpListener::bind("[::9]:80").expect("a listener");
        let start = monotonic_now();
        let attempted = addresses(["10.0.0.1:80", "10.0.0.2:80", "[::8]:80", "[::9]:80"]);
        let stream = TcpStream::connect(attempted).await.expect("a connection");
        assert_eq!(stream.peer_addr().expect("valid address"), address("[::9]:80"));
        // The clock is virtual.
        assert!(monotonic_now() - start < ATTEMPT_DELAY);
    });
}

#[test]
fn silent_attempt_gets_parallel_attempt_after_delay_and_is_cancelled() {
    on_simulators(async || {
        let (_full, _clients) = full_listener("10.0.0.1:80").await;
        let _listener = TcpListener::bind("[::9]:80").expect("a listener");
        let (start, sockets) = (monotonic_now(), current_driver_metrics().expect("metrics").sockets);
        let attempted = addresses(["10.0.0.1:80", "10.0.0.2:80", "[::9]:80"]);
        let stream = TcpStream::connect(attempted).await.expect("a connection");
        assert_eq!(stream.peer_addr().expect("valid address"), address("[::9]:80"));
        // The clock is virtual.
        let elapsed = monotonic_now() - start;
        assert!((ATTEMPT_DELAY..ATTEMPT_DELAY * 2).contains(&elapsed), "{elapsed:?}");
        while current_driver_metrics().expect("metrics").sockets > sockets + 1 {
            yield_now().await;
        }
    });
}

#[test]
fn late_first_attempt_wins_when_other_attempts_fail() {
    on_simulators(async || {
        let (full, _clients) = full_listener("10.0.0.1:80").await;
        let connecting = spawn(TcpStream::connect(addresses(["10.0.0.1:80", "10.0.0.2:80"])));
        sleep(ATTEMPT_DELAY * 2).await;
        full.accept().await.expect("a connection");
        let stream = connecting.await.expect("no panic").expect("a connection");
        assert_eq!(stream.peer_addr().expect("valid address"), address("10.0.0.1:80"));
    });
}

#[test]
fn combined_error_contains_all_addresses() {
    on_simulators(async || {
        let (_full, _clients) = full_listener("10.0.0.1:80").await;
        let attempted = ["10.0.0.2:80", "10.0.0.1:80", "[::9]:80"];
        let error = TcpStream::connect(addresses(attempted)).await.expect_err("no listener has room");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        for address in attempted {
            assert!(error.to_string().contains(address), "{error}");
        }
    });
}

#[test]
fn silent_address_does_not_prevent_connecting_to_next_address() {
    on_both_drivers(|setup| {
        setup.run(async {
            let silent = TcpListener::builder().backlog(0).bind("127.0.0.1:0").expect("a listener");
            let at = silent.local_addr().expect("valid address");
            // The kernel drops further connection requests.
            let _client = std::net::TcpStream::connect(at).expect("backlog has room");
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let refusing = free.local_addr().expect("valid address");
            drop(free);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let good = listener.local_addr().expect("valid address");
            let sockets = current_driver_metrics().expect("metrics").sockets;
            let stream = TcpStream::connect(vec![at, refusing, good]).await.expect("a connection");
            assert_eq!(stream.peer_addr().expect("valid address"), good);
            while current_driver_metrics().expect("metrics").sockets > sockets + 1 {
                yield_now().await;
            }
        });
    });
}
