//! Connecting to a host that has several addresses (Happy Eyeballs, RFC 8305).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::driver::with_text;
use crate::time::pause;

/// Delay before the next attempt starts if the previous one is still pending (RFC 8305, section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries to connect to the addresses, returns the first connection and cancels the other attempts. An attempt starts
/// when the previous one has failed, or has been pending for `ATTEMPT_DELAY`. If all attempts fail, the returned error
/// contains all their errors, so each error of `connect` must include the address.
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
        let mut delay = (waiting.len() > 0).then(|| pause(ATTEMPT_DELAY));
        // `None` if the next attempt should start.
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

/// Returns the addresses with alternating families, starting with that of the first address. Preserves the order within
/// each family.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut next, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == is_first_ipv6);
    let alternating = std::iter::from_fn(|| {
        let address = next.pop_front();
        if !other.is_empty() {
            std::mem::swap(&mut next, &mut other);
        }
        address
    });
    alternating.collect()
}

/// Combines the errors of all attempts into one. Its source is the first error that does not report a missing route or
/// address, because a machine without IPv6 reports such an error for every IPv6 address.
fn all_failed(mut errors: Vec<io::Error>) -> io::Error {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    match errors.len() {
        0 => io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses"),
        1 => errors.remove(0),
        _ => {
            let mut kinds = errors.iter().map(io::Error::kind);
            let has_route = |kind: &io::ErrorKind| {
                !matches!(kind, AddrNotAvailable | HostUnreachable | NetworkUnreachable)
            };
            let cause = kinds.position(|kind| has_route(&kind)).unwrap_or(0);
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let cause = errors.swap_remove(cause);
            with_text(cause.kind(), texts.join("; "), cause)
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
    use crate::net::resolve::RESOLVER;
    use crate::net::{TcpListener, TcpStream};
    use crate::{DriverKind, Runtime};

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("valid address")
    }

    fn addresses(texts: &str) -> Vec<SocketAddr> {
        texts.split(' ').filter(|text| !text.is_empty()).map(address).collect()
    }

    /// Runs a test on the available Linux drivers.
    fn on_drivers<F: Future<Output = ()>>(test: impl Fn() -> F) {
        for kind in [DriverKind::Uring, DriverKind::Epoll] {
            match Runtime::builder().driver(kind.clone()).driver_from_environment(false).build() {
                Ok(runtime) => runtime.block_on(test()),
                Err(error) if kind == DriverKind::Uring => eprintln!("skipped on io_uring: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn addresses_alternate_between_families_starting_with_first() {
        for (given, ordered) in [
            ("[::1]:1 [::2]:1 [::3]:1 1.0.0.1:1 1.0.0.2:1", "[::1]:1 1.0.0.1:1 [::2]:1 1.0.0.2:1 [::3]:1"),
            ("1.0.0.1:1 1.0.0.2:1 1.0.0.3:1 [::1]:1", "1.0.0.1:1 [::1]:1 1.0.0.2:1 1.0.0.3:1"),
            ("", ""),
        ] {
            assert_eq!(interleave(addresses(given)), addresses(ordered));
        }
    }

    #[test]
    fn combined_error_kind_ignores_missing_routes() {
        let unreachable = || io::Error::from(io::ErrorKind::NetworkUnreachable);
        let kind = |errors| all_failed(errors).kind();
        assert_eq!(kind(vec![unreachable(), io::ErrorKind::TimedOut.into()]), io::ErrorKind::TimedOut);
        assert_eq!(kind(vec![unreachable(), unreachable()]), io::ErrorKind::NetworkUnreachable);
    }

    #[test]
    fn name_resolution_does_not_block_worker() {
        on_drivers(async || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let at = listener.local_addr().expect("valid address");
            let worker = thread::current().id();
            for binds in [false, true] {
                let (release, released) = mpsc::channel();
                let released = Mutex::new(released);
                RESOLVER.set(Arc::new(move |name, port| {
                    assert_eq!((name, thread::current().id() == worker), ("host", false));
                    released.lock().expect("one at a time").recv().expect("a release");
                    Ok(vec![SocketAddr::new(at.ip(), if port == 0 { 0 } else { at.port() })])
                }));
                let resolving = async {
                    if binds {
                        TcpListener::bind_host("host:0").await.map(|listener| listener.local_addr())
                    } else {
                        TcpStream::connect(("host", 80)).await.map(|stream| stream.peer_addr())
                    }
                };
                let mut resolving = pin!(resolving);
                let first = poll_fn(|context| Poll::Ready(resolving.as_mut().poll(context).is_pending()));
                assert!(first.await);
                // This line would not be reached if the worker were blocked.
                release.send(()).expect("a resolver");
                let local_or_peer = resolving.await.expect("a socket").expect("valid address");
                assert_eq!((local_or_peer.ip(), local_or_peer == at), (at.ip(), !binds));
            }
            let error = TcpListener::bind("host:80").expect_err("a name");
            assert!(error.to_string().contains("bind_host"), "{error}");
        });
    }

    #[test]
    fn addresses_are_not_resolved() {
        on_drivers(async || {
            RESOLVER.set(Arc::new(|name, _| panic!("{name} was resolved")));
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
            let at = listener.local_addr().expect("valid address");
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
            for host in ["[::1]:7", "::1:7"] {
                let found = crate::net::lookup_host(host).await.expect("valid address");
                assert_eq!(found, [address("[::1]:7")], "{host}");
            }
            assert!(matches!(at.ip(), IpAddr::V4(_)));
            for wrong in ["", "host", "host:", ":80", "host:port", "host:65536"] {
                let error = TcpStream::connect(wrong).await.expect_err("an error");
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong}: {error}");
            }
        });
    }

    #[test]
    fn connect_to_name_without_addresses_fails() {
        on_drivers(async || {
            RESOLVER.set(Arc::new(|name, _| match name {
                "host" => Ok(Vec::new()),
                _ => Err(io::ErrorKind::NotFound.into()),
            }));
            let error = TcpStream::connect("host:80").await.expect_err("an error");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            assert!(TcpListener::bind_host("host:80").await.is_err());
            let error = TcpStream::connect("other:80").await.expect_err("no such name");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert!(error.to_string().contains("other"), "{error}");
        });
    }
}
