//! Connecting to a host that has several addresses (Happy Eyeballs, RFC 8305).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::time::sleep;

/// How long one attempt is waited for before the next one starts beside it (RFC 8305, section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to the address at which this succeeds first; the other attempts are cancelled. An attempt starts when the one
/// before has failed, or has taken `ATTEMPT_DELAY`.
///
/// # Errors
/// When all attempts fail: the errors of all, which `connect` has to give the names of their addresses.
pub(super) async fn connect_to_first<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut waiting = interleave(addresses).into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    let mut failed = Vec::new();
    loop {
        match waiting.next() {
            Some(address) => running.push(Box::pin(connect(address))),
            None if running.is_empty() => return Err(all_failed(failed)),
            None => {}
        }
        let mut delay = (waiting.len() > 0).then(|| sleep(ATTEMPT_DELAY));
        // `None` when it is time for the next attempt.
        let ended = poll_fn(|context| {
            for index in 0..running.len() {
                if let Poll::Ready(result) = running[index].as_mut().poll(context) {
                    drop(running.remove(index));
                    return Poll::Ready(Some(result));
                }
            }
            delay.as_mut().map_or(Poll::Pending, |delay| Pin::new(delay).poll(context).map(|()| None))
        });
        match ended.await {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(error)) => failed.push(error),
            None => {}
        }
    }
}

/// The addresses with their families in turn, beginning with that of the first; otherwise in the order given.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let count = addresses.len();
    let is_first_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut next, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == is_first_ipv6);
    let mut ordered = Vec::with_capacity(count);
    while let Some(address) = next.pop_front() {
        ordered.push(address);
        if !other.is_empty() {
            std::mem::swap(&mut next, &mut other);
        }
    }
    ordered
}

/// One error of all attempts. Its kind is that of the first that says more than that there is no route, as attempts of a
/// family do that this machine does not have.
fn all_failed(mut errors: Vec<io::Error>) -> io::Error {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    match errors.len() {
        0 => io::Error::new(io::ErrorKind::InvalidInput, "the host has no address"),
        1 => errors.remove(0),
        _ => {
            let mut kinds = errors.iter().map(io::Error::kind);
            let has_route = |kind: &io::ErrorKind| {
                !matches!(kind, AddrNotAvailable | HostUnreachable | NetworkUnreachable)
            };
            let kind = kinds.clone().find(has_route).or_else(|| kinds.next()).unwrap_or(io::ErrorKind::Other);
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            io::Error::new(kind, texts.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::net::IpAddr;
    use std::pin::pin;
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;

    use super::*;
    use crate::net::resolve::resolver;
    use crate::net::{TcpListener, TcpStream};
    use crate::time::monotonic_now;
    use crate::{DriverKind, Runtime, SimModel, SimOptions, current_metrics, spawn, yield_now};

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn addresses<const COUNT: usize>(texts: [&str; COUNT]) -> Vec<SocketAddr> {
        texts.map(address).into()
    }

    /// Runs a test on simulated kernels, whose time is virtual.
    fn on_simulators<F: Future<Output = ()>>(test: impl Fn() -> F) {
        for model in [SimModel::Completion, SimModel::Readiness] {
            let kind = DriverKind::Sim(SimOptions::new(17).model(model));
            Runtime::builder().driver(kind).build().expect("a runtime").block_on(test());
        }
    }

    /// Runs a test on the drivers of Linux that are available.
    fn on_drivers<F: Future<Output = ()>>(test: impl Fn() -> F) {
        for kind in [DriverKind::Uring, DriverKind::Epoll] {
            match Runtime::builder().driver(kind.clone()).driver_from_environment(false).build() {
                Ok(runtime) => runtime.block_on(test()),
                Err(error) if kind == DriverKind::Uring => eprintln!("skipped on io_uring: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Has names resolved to these, on this thread.
    fn resolve_to(addresses: Vec<SocketAddr>) {
        resolver::set(Arc::new(move |name, _port| match name {
            "host" => Ok(addresses.clone()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }));
    }

    /// A listener whose backlog is full: further connects wait. With the clients that fill it.
    async fn full_listener(at: &str) -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::builder().backlog(0).bind(at).expect("a listener");
        let client = TcpStream::connect(at).await.expect("room for one");
        (listener, vec![client])
    }

    #[test]
    fn addresses_alternate_between_families_from_the_first() {
        let given = addresses(["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"]);
        let ordered = addresses(["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"]);
        assert_eq!(interleave(given), ordered);
        let given = addresses(["1.0.0.1:1", "1.0.0.2:1", "1.0.0.3:1", "[::1]:1"]);
        let ordered = addresses(["1.0.0.1:1", "[::1]:1", "1.0.0.2:1", "1.0.0.3:1"]);
        assert_eq!(interleave(given), ordered);
        assert_eq!(interleave(Vec::new()), []);
    }

    #[test]
    fn refused_attempt_is_followed_at_once_by_the_next() {
        on_simulators(async || {
            let _listener = TcpListener::bind("[::9]:80").expect("a listener");
            let start = monotonic_now();
            let tried = addresses(["10.0.0.1:80", "10.0.0.2:80", "[::8]:80", "[::9]:80"]);
            let stream = TcpStream::connect(tried).await.expect("a connection");
            assert_eq!(stream.peer_addr().expect("an address"), address("[::9]:80"));
            // Of virtual time.
            assert!(monotonic_now() - start < ATTEMPT_DELAY);
        });
    }

    #[test]
    fn silent_attempt_is_joined_after_the_delay_and_cancelled() {
        on_simulators(async || {
            let (_full, _clients) = full_listener("10.0.0.1:80").await;
            let _listener = TcpListener::bind("[::9]:80").expect("a listener");
            let (start, sockets) = (monotonic_now(), current_metrics().expect("metrics").sockets);
            let tried = addresses(["10.0.0.1:80", "10.0.0.2:80", "[::9]:80"]);
            let stream = TcpStream::connect(tried).await.expect("a connection");
            assert_eq!(stream.peer_addr().expect("an address"), address("[::9]:80"));
            // Of virtual time.
            let taken = monotonic_now() - start;
            assert!((ATTEMPT_DELAY..ATTEMPT_DELAY * 2).contains(&taken), "{taken:?}");
            while current_metrics().expect("metrics").sockets > sockets + 1 {
                yield_now().await;
            }
        });
    }

    #[test]
    fn first_attempt_wins_late_when_the_others_fail() {
        on_simulators(async || {
            let (full, _clients) = full_listener("10.0.0.1:80").await;
            let connecting = spawn(TcpStream::connect(addresses(["10.0.0.1:80", "10.0.0.2:80"])));
            sleep(ATTEMPT_DELAY * 2).await;
            full.accept().await.expect("room for one more");
            let stream = connecting.await.expect("no panic").expect("a connection");
            assert_eq!(stream.peer_addr().expect("an address"), address("10.0.0.1:80"));
        });
    }

    #[test]
    fn error_of_all_attempts_names_all_addresses() {
        on_simulators(async || {
            let (_full, _clients) = full_listener("10.0.0.1:80").await;
            let tried = ["10.0.0.2:80", "10.0.0.1:80", "[::9]:80"];
            let error = TcpStream::connect(addresses(tried)).await.expect_err("no listener has room");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            for address in tried {
                assert!(error.to_string().contains(address), "{error}");
            }
        });
        let unreachable = || io::Error::from(io::ErrorKind::NetworkUnreachable);
        let kind = |errors| all_failed(errors).kind();
        assert_eq!(kind(vec![unreachable(), io::ErrorKind::TimedOut.into()]), io::ErrorKind::TimedOut);
        assert_eq!(kind(vec![unreachable(), unreachable()]), io::ErrorKind::NetworkUnreachable);
    }

    #[test]
    fn silent_address_does_not_keep_a_client_from_the_next_one() {
        on_drivers(async || {
            let silent = TcpListener::builder().backlog(0).bind("127.0.0.1:0").expect("a listener");
            let at = silent.local_addr().expect("an address");
            // The kernel drops what asks for more.
            let _client = std::net::TcpStream::connect(at).expect("room for one");
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let refusing = free.local_addr().expect("an address");
            drop(free);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let good = listener.local_addr().expect("an address");
            let sockets = current_metrics().expect("metrics").sockets;
            resolve_to(vec![at, refusing, good]);
            let stream = TcpStream::connect("host:80").await.expect("a connection");
            assert_eq!(stream.peer_addr().expect("an address"), good);
            while current_metrics().expect("metrics").sockets > sockets + 1 {
                yield_now().await;
            }
        });
    }

    #[test]
    fn worker_goes_on_while_names_are_resolved() {
        on_drivers(async || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let at = listener.local_addr().expect("an address");
            let worker = thread::current().id();
            for by_listener in [false, true] {
                let (release, released) = mpsc::channel();
                let released = Mutex::new(released);
                resolver::set(Arc::new(move |name, port| {
                    assert_eq!((name, thread::current().id() == worker), ("host", false));
                    released.lock().expect("one at a time").recv().expect("a release");
                    Ok(vec![SocketAddr::new(at.ip(), if port == 0 { 0 } else { at.port() })])
                }));
                let resolving = async {
                    if by_listener {
                        TcpListener::bind_host("host:0").await.map(|listener| listener.local_addr())
                    } else {
                        TcpStream::connect(("host", 80)).await.map(|stream| stream.peer_addr())
                    }
                };
                let mut resolving = pin!(resolving);
                let first = poll_fn(|context| Poll::Ready(resolving.as_mut().poll(context).is_pending()));
                assert!(first.await);
                // It would never get here if the worker waited.
                release.send(()).expect("a resolver");
                let found = resolving.await.expect("a socket").expect("an address");
                assert_eq!((found.ip(), found == at), (at.ip(), !by_listener));
            }
            let error = TcpListener::bind("host:80").expect_err("a name");
            assert!(error.to_string().contains("bind_host"), "{error}");
        });
    }

    #[test]
    fn addresses_are_not_resolved() {
        on_drivers(async || {
            resolver::set(Arc::new(|name, _| panic!("{name} was resolved")));
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
            let at = listener.local_addr().expect("an address");
            let text = at.to_string();
            TcpStream::connect(at).await.expect("connected");
            TcpStream::connect(&at).await.expect("connected");
            TcpStream::connect(&*text).await.expect("connected");
            TcpStream::connect(&text).await.expect("connected");
            TcpStream::connect((at.ip(), at.port())).await.expect("connected");
            TcpStream::connect(("127.0.0.1", at.port())).await.expect("connected");
            TcpStream::connect(("127.0.0.1".to_owned(), at.port())).await.expect("connected");
            TcpStream::connect(&[at][..]).await.expect("connected");
            TcpStream::connect_from(SocketAddr::new(at.ip(), 0), &text).await.expect("connected");
            assert_eq!(crate::net::lookup_host("[::1]:7").await.expect("an address"), [address("[::1]:7")]);
            assert_eq!(crate::net::lookup_host("::1:7").await.expect("an address"), [address("[::1]:7")]);
            assert!(matches!(at.ip(), IpAddr::V4(_)));
            for wrong in ["", "host", "host:", ":80", "host:port", "host:65536"] {
                let error = TcpStream::connect(wrong).await.expect_err("no address");
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong}: {error}");
            }
        });
    }

    #[test]
    fn names_without_addresses_are_errors() {
        on_drivers(async || {
            resolve_to(Vec::new());
            let error = TcpStream::connect("host:80").await.expect_err("no address");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            assert!(TcpListener::bind_host("host:80").await.is_err());
            let error = TcpStream::connect("other:80").await.expect_err("no such name");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert!(error.to_string().contains("other"), "{error}");
        });
    }
}
