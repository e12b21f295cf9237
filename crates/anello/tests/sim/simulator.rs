//! TCP behaviour that applications' tests require from the simulated network.

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::{monotonic_now, timeout};
use anello::yield_now;

use crate::common::{ANY_PORT, join, on_each, pair, simulated_drivers};

fn on_simulators<F: Future<Output = ()>>(test: impl Fn() -> F + Send + Sync + 'static) {
    on_each(simulated_drivers(), move |setup| setup.run(test()));
}

#[test]
fn connection_uses_bound_source_address() {
    on_simulators(async || {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        for source in [([127, 0, 0, 9], 0), ([127, 0, 0, 9], 7)].map(SocketAddr::from) {
            let near = TcpStream::connect_from(source, address).await.unwrap();
            let far = listener.accept().await.unwrap();
            let local = near.local_addr().unwrap();
            assert_eq!(local.ip(), source.ip());
            assert!(local.port() == source.port() || source.port() == 0 && local.port() != 0);
            assert_eq!((near.peer_addr().unwrap(), far.peer_addr().unwrap()), (address, local));
            assert_eq!(far.local_addr().unwrap(), address);
        }
    });
}

#[test]
fn close_with_unread_bytes_resets_after_received_bytes() {
    on_simulators(async || {
        let (mut near, mut far) = pair().await.unwrap();
        near.send("unread").await.unwrap();
        near.flush().await.unwrap();
        far.send("arrived").await.unwrap();
        far.flush().await.unwrap();
        drop(far);
        assert_eq!(near.recv().await.unwrap().as_deref(), Some(&b"arrived"[..]));
        assert_eq!(near.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(near.peer_addr().is_ok() && near.shutdown_handle().is_broken());
        near.send("x").await.ok();
        assert!(near.flush().await.is_err());
    });
}

#[test]
fn close_with_zero_linger_resets() {
    on_simulators(async || {
        let (mut near, far) = pair().await.unwrap();
        far.set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        assert_eq!(near.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn first_send_to_closed_peer_is_lost_and_second_fails() {
    on_simulators(async || {
        let (mut near, far) = pair().await.unwrap();
        drop(far);
        assert!(near.recv().await.unwrap().is_none());
        near.send("lost").await.unwrap();
        near.flush().await.unwrap();
        let error = match near.send("x").await {
            Ok(()) => near.flush().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn connect_retries_while_accept_queue_is_full_then_times_out() {
    on_simulators(async || {
        let [accepting, stalled] =
            [(); 2].map(|()| TcpListener::builder().backlog(0).bind(ANY_PORT).unwrap());
        let address = accepting.local_addr().unwrap();
        let start = monotonic_now();
        let _first = TcpStream::connect(address).await.unwrap();
        let (second, accepted) = join(TcpStream::connect(address), accepting.accept()).await;
        assert!(second.is_ok() && accepted.is_ok());
        let elapsed = monotonic_now() - start;
        assert!((1.0..1.1).contains(&elapsed.as_secs_f64()), "retried after {elapsed:?}");
        let _first = TcpStream::connect(stalled.local_addr().unwrap()).await.unwrap();
        let error = TcpStream::connect(stalled.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn closing_listener_resets_connections_in_accept_queue() {
    on_simulators(async || {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let mut near = TcpStream::connect(address).await.unwrap();
        drop(listener);
        assert_eq!(near.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn listeners_share_address_only_with_reuse_port() {
    on_simulators(async || {
        let one = TcpListener::bind(ANY_PORT).unwrap();
        let address = one.local_addr().unwrap();
        for conflicting in [address, SocketAddr::from(([0; 4], address.port()))] {
            assert_eq!(TcpListener::bind(conflicting).unwrap_err().kind(), ErrorKind::AddrInUse);
        }
        drop(one);
        while TcpListener::bind(address).is_err() {
            yield_now().await;
        }
        let shared = TcpListener::builder().reuse_port(true);
        let listeners = [(); 2].map(|()| shared.bind(address).unwrap());
        let mut streams = Vec::new();
        for _ in 0..20 {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        let mut counts = [0, 0];
        for (listener, count) in listeners.iter().zip(&mut counts) {
            while timeout(Duration::from_millis(1), listener.accept()).await.is_ok() {
                *count += 1;
            }
        }
        assert!(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] == 20, "{counts:?}");
    });
}
