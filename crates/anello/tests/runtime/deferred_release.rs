//! Sockets that are released when the runtime runs no further turn, or while the driver is borrowed.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::Read;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::sleep;
use anello::{JoinHandle, Runtime, spawn, yield_now};

use crate::common::*;

/// Returns a runtime, a stream on it and the stream's peer.
fn connected(setup: &Setup) -> (Runtime, TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let runtime = setup.runtime();
    let stream = runtime.block_on(TcpStream::connect(listener.local_addr().unwrap())).unwrap();
    (runtime, stream, listener.accept().unwrap().0)
}

#[test]
fn stream_dropped_outside_block_on_is_closed() {
    on_both_drivers(|setup| {
        let (runtime, mut stream, mut peer) = connected(setup);
        runtime.block_on(async {
            poll_at_most(1, stream.recv()).await;
            yield_now().await;
            sleep(Duration::from_millis(5)).await;
        });
        drop(stream);
        peer.set_read_timeout(Some(hang_timeout())).unwrap();
        assert_eq!(peer.read(&mut [0; 10]).expect("EOF"), 0);
    });
}

#[test]
fn listener_dropped_outside_block_on_rejects_clients() {
    on_both_drivers(|setup| {
        let runtime = setup.runtime();
        let (listener, address) = runtime.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            poll_at_most(1, listener.accept()).await;
            sleep(Duration::from_millis(5)).await;
            (listener, address)
        });
        drop(listener);
        wait_until_refused(address);
    });
}

#[test]
fn listener_address_can_be_bound_again() {
    on_both_drivers(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let _client = TcpStream::connect(address).await.unwrap();
            let server = listener.accept().await.unwrap();
            drop((listener, server));
            // A process that another test starts has copies of the descriptors until it executes its program.
            wait_until(|| TcpListener::bind(address).is_ok());
        });
    });
}

#[test]
fn main_future_is_dropped_before_block_on_returns() {
    on_both_drivers(|setup| {
        let (runtime, mut stream, mut peer) = connected(setup);
        let mut polls = 0;
        runtime.block_on(poll_fn(move |context| {
            assert!(pin!(stream.recv()).poll(context).is_pending());
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 10 { Poll::Pending } else { Poll::Ready(()) }
        }));
        peer.set_read_timeout(Some(hang_timeout())).unwrap();
        assert_eq!(peer.read(&mut [0; 10]).expect("EOF"), 0);
    });
}

#[test]
fn stream_dropped_outside_block_on_lingers_with_timeout() {
    on_each(simulated_drivers(), |setup| {
        let runtime = setup.runtime();
        let (client, server) = runtime.block_on(async {
            let (mut client, server) = pair().await.unwrap();
            while poll_at_most(1, client.write(&[1; 10_000])).await.is_some() {}
            (client, server)
        });
        drop(client);
        runtime.block_on(async { sleep(Duration::from_secs(100)).await });
        // Only the server side is still open.
        assert_eq!(runtime.metrics().driver.sockets, 1);
        drop(server);
    });
}

thread_local! {
    static LATE: RefCell<Option<(Runtime, TcpStream, JoinHandle<()>)>> = const { RefCell::new(None) };
}

#[test]
fn runtime_in_thread_local() {
    on_both_drivers(|setup| {
        let setup = setup.clone();
        thread::spawn(move || {
            LATE.with(|_| ());
            let runtime = setup.runtime();
            let (stream, handle) = runtime.block_on(async {
                let (one, mut two) = pair().await.unwrap();
                let handle = spawn(async move {
                    loop {
                        two.recv().await.ok();
                        sleep(Duration::from_secs(1)).await;
                    }
                });
                yield_now().await;
                for _ in 0..100 {
                    spawn(async {}).await.unwrap();
                }
                (one, handle)
            });
            LATE.with(|late| *late.borrow_mut() = Some((runtime, stream, handle)));
        })
        .join()
        .unwrap();
    });
}

thread_local! {
    static STASH: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

struct DropsStreams;
impl Wake for DropsStreams {
    fn wake(self: Arc<Self>) {}
}
impl Drop for DropsStreams {
    fn drop(&mut self) {
        STASH.with(|stash| stash.take());
    }
}

/// Returns a stream with a registered waker whose destructor closes another stream.
async fn stream_with_closing_waker() -> TcpStream {
    let (mut one, two) = pair().await.unwrap();
    STASH.with(|stash| stash.borrow_mut().push(two));
    let waker = Waker::from(Arc::new(DropsStreams));
    assert!(pin!(one.recv()).poll(&mut Context::from_waker(&waker)).is_pending());
    one
}

#[test]
fn wakers_can_close_streams_when_dropped() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut stream = stream_with_closing_waker().await;
            // Replaces the waker.
            stream.recv().await.ok();
        });
    });
}

#[test]
fn stream_with_closing_waker_can_be_dropped() {
    on_both_drivers(|setup| setup.run(async { drop(stream_with_closing_waker().await) }));
}

struct Timed(Vec<u8>, Arc<AtomicUsize>);
impl AsRef<[u8]> for Timed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl Drop for Timed {
    fn drop(&mut self) {
        // Measures the time since the bytes were created, as an application might.
        let _now = anello::time::monotonic_now();
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn owners_of_sent_bytes_can_read_clock() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut one, mut two) = pair().await.unwrap();
            let dropped = Arc::new(AtomicUsize::new(0));
            for length in [10, 100_000] {
                one.send(bytes::Bytes::from_owner(Timed(vec![1; length], Arc::clone(&dropped))))
                    .await
                    .unwrap();
                let mut got = vec![0; length];
                two.read_exact(&mut got).await.unwrap();
            }
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
        });
    });
}
