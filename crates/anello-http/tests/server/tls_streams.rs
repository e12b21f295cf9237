//! Streamed responses over TLS, where the TLS session buffers data while the socket is not writable. Runs on simulated
//! kernels, whose clocks are virtual.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anello::net::TcpListener;
use anello::spawn;
use anello::time::{sleep, timeout};
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{run_on_each, simulated_drivers};
use bytes::Bytes;
use futures_core::Stream;
use rustls::ClientConfig;

use crate::common::stream_client::ByteStreamClient;
use crate::common::{boxed, tls, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than the run time of any test.
const LONG: Duration = Duration::from_secs(100_000);

/// More than the socket buffers of both sides can hold.
const BURST_BYTES: usize = 1 << 20;

/// A one-shot event that wakes the waiting task.
#[derive(Default)]
struct Gate {
    is_open: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    fn open(&self) {
        self.is_open.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll_open(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_open.get() {
            return Poll::Ready(());
        }
        self.waker.replace(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// A body stream that yields its chunks without waiting, and ends when the gate is open.
struct Burst {
    chunk: Bytes,
    remaining_bytes: usize,
    gate: Rc<Gate>,
}

impl Stream for Burst {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining_bytes > 0 {
            self.remaining_bytes -= self.chunk.len();
            return Poll::Ready(Some(Ok(self.chunk.clone())));
        }
        self.gate.poll_open(context).map(|()| None)
    }
}

fn burst(chunk_bytes: usize, bytes: usize, gate: &Rc<Gate>) -> Burst {
    Burst { chunk: Bytes::from(vec![b'#'; chunk_bytes]), remaining_bytes: bytes, gate: Rc::clone(gate) }
}

/// Starts a TLS server with long timeouts.
fn serve<H>(handler: H) -> (SocketAddr, Arc<ClientConfig>)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (LONG, LONG, LONG);
    (options.send_timeout, options.linger_timeout) = (LONG, LONG);
    let (server_tls, client_tls) = tls::pair();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    Server::builder().options(options).tls(server_tls).build().serve(listener, boxed(handler)).detach();
    (address, client_tls)
}

/// Reads a chunked response up to its last chunk.
async fn read_to_eof(stream_client: &mut ByteStreamClient) {
    let mut received = Vec::new();
    while !received.ends_with(b"0\r\n\r\n") {
        let bytes = stream_client.receive().await;
        assert!(!bytes.is_empty(), "EOF before the last chunk");
        received.extend(bytes);
    }
}

#[test]
fn burst_is_sent_completely_while_stream_is_pending() {
    run_on_each(simulated_drivers(), async |setup| {
        let gate = Rc::new(Gate::default());
        let handler_gate = Rc::clone(&gate);
        let sizes = Rc::new(Cell::new((0, 0)));
        let handler_sizes = Rc::clone(&sizes);
        let (address, client_tls) = serve(async move |request: Request| {
            let (chunk_bytes, bytes) = handler_sizes.get();
            let stream = burst(chunk_bytes, bytes, &handler_gate);
            Response::new(200).with_body(match request.path() {
                "/length" => Body::stream_with_length(bytes as u64, stream),
                _ => Body::stream(stream),
            })
        });
        // The sizes determine how much of the last chunk fits into the socket buffer.
        for chunk_bytes in [4 << 10, 16 << 10, 32 << 10] {
            for less in [0, 32 << 10, 64 << 10, 96 << 10] {
                for path in ["/length", "/chunks"] {
                    gate.is_open.set(false);
                    let bytes = BURST_BYTES - less;
                    sizes.set((chunk_bytes, bytes));
                    let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
                    stream_client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await;
                    let progress = Cell::new(0);
                    let result = timeout(LONG, stream_client.read_slowly(bytes, &progress)).await;
                    assert!(result.is_ok(), "{setup}: {path}: {} of {bytes} bytes received", progress.get());
                    gate.open();
                    if path == "/chunks" {
                        read_to_eof(&mut stream_client).await;
                    }
                }
            }
        }
    });
}

#[test]
fn response_continues_while_body_is_received_in_task() {
    run_on_each(simulated_drivers(), async |setup| {
        let gate = Rc::new(Gate::default());
        gate.open();
        let received = Rc::new(RefCell::new(Vec::new()));
        let handler_received = Rc::clone(&received);
        let (address, client_tls) = serve(async move |request: Request| {
            let (received, mut body) = (Rc::clone(&handler_received), request.into_parts().1);
            spawn(async move {
                while let Ok(Some(part)) = body.next().await {
                    received.borrow_mut().extend_from_slice(&part);
                }
            })
            .detach();
            Response::new(200).with_body(Body::stream(burst(32 << 10, BURST_BYTES, &gate)))
        });
        let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
        stream_client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n").await;
        let first = stream_client.receive().await;
        let progress = Cell::new(first.iter().filter(|byte| **byte == b'#').count());
        // The server's send buffers are full, but the server must still receive data.
        for (part, expected) in [("one", "one"), ("two", "onetwo")] {
            sleep(SECOND * 5).await;
            stream_client.send(part.as_bytes()).await;
            wait_until(|| *received.borrow() == expected.as_bytes()).await;
        }
        let result = timeout(LONG, stream_client.read_slowly(BURST_BYTES, &progress)).await;
        assert!(result.is_ok(), "{setup}: {} of {BURST_BYTES} bytes received", progress.get());
        stream_client.send(b"end").await;
        read_to_eof(&mut stream_client).await;
    });
}

#[test]
fn upgraded_handler_output_is_sent_while_handler_waits() {
    run_on_each(simulated_drivers(), async |setup| {
        for less in [0, 32 << 10, 64 << 10, 96 << 10] {
            let bytes = BURST_BYTES - less;
            let gate = Rc::new(Gate::default());
            let handler_gate = Rc::clone(&gate);
            let (address, client_tls) = serve(async move |_: Request| {
                let gate = Rc::clone(&handler_gate);
                Response::upgrade("burst", async move |mut upgraded| {
                    for chunk in vec![b'#'; bytes].chunks(32 << 10) {
                        upgraded.write_all(chunk).await.expect("send");
                    }
                    poll_fn(|context| gate.poll_open(context)).await;
                    upgraded.shutdown().await.expect("shut down");
                })
            });
            let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
            stream_client
                .send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: burst\r\n\r\n")
                .await;
            let progress = Cell::new(0);
            let result = timeout(LONG, stream_client.read_slowly(bytes, &progress)).await;
            assert!(result.is_ok(), "{setup}: {} of {bytes} bytes received", progress.get());
            gate.open();
            assert!(stream_client.receive().await.is_empty(), "{setup}");
        }
    });
}

/// A body stream that fails before its first chunk.
struct FailingStream;

impl Stream for FailingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(Err(io::Error::other("on purpose"))))
    }
}

#[test]
fn responses_are_sent_before_upgrade_or_failure() {
    run_on_each(simulated_drivers(), async |setup| {
        // Small enough to be sent together with the next response.
        const SMALL_BYTES: usize = 16 << 10;
        for (path, less) in
            [0, 32 << 10, 64 << 10, 96 << 10].map(|less| [("/upgrade", less), ("/fails", less)]).concat()
        {
            let bytes = BURST_BYTES - less;
            let gate = Rc::new(Gate::default());
            let handler_gate = Rc::clone(&gate);
            let (address, client_tls) = serve(async move |request: Request| match request.path() {
                "/burst" => Response::text(vec![b'#'; bytes]),
                "/small" => Response::text(vec![b'#'; SMALL_BYTES]),
                "/fails" => Response::new(200).with_body(Body::stream(FailingStream)),
                _ => {
                    let gate = Rc::clone(&handler_gate);
                    Response::upgrade("waits", async move |upgraded| {
                        poll_fn(|context| gate.poll_open(context)).await;
                        drop(upgraded);
                    })
                }
            });
            let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
            let fields = "Host: h\r\nConnection: upgrade\r\nUpgrade: waits";
            let requests =
                ["/burst", "/small", path].map(|path| format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n"));
            stream_client.send(requests.concat().as_bytes()).await;
            let progress = Cell::new(0);
            let result = timeout(LONG, async {
                let mut rest = stream_client.read_slowly(bytes + SMALL_BYTES, &progress).await;
                while path == "/upgrade" && !rest.windows(8).any(|window| window == b"1.1 101 ") {
                    rest.extend(stream_client.receive().await);
                }
            });
            assert!(result.await.is_ok(), "{setup}: {path}: {} of {bytes} bytes received", progress.get());
            gate.open();
        }
    });
}
