//! Answers in pieces under TLS, where what is sent waits in the session when the socket has no room, on simulated kernels,
//! whose clock is virtual.

mod common;

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
use anello::time::{sleep, timeout};
use anello::{DriverKind, SimModel, SimOptions, spawn};
use anello_http::{Body, Request, Response, Server, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;
use rustls::ClientConfig;

use common::stream_client::ByteStreamClient;
use common::{for_each_driver, tls, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Far beyond everything here.
const LONG: Duration = Duration::from_secs(100_000);

/// More than the sockets of both sides hold.
const BURST_BYTES: usize = 1 << 20;

fn simulated() -> Vec<DriverKind> {
    [SimModel::Completion, SimModel::Readiness]
        .map(|model| SimOptions::new(1).model(model))
        .map(DriverKind::Sim)
        .into()
}

/// What opens once, and wakes who waits for it.
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

/// A burst, and the end when the gate is open.
struct Burst {
    piece: Bytes,
    left_bytes: usize,
    gate: Rc<Gate>,
}

impl Stream for Burst {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left_bytes > 0 {
            self.left_bytes -= self.piece.len();
            return Poll::Ready(Some(Ok(self.piece.clone())));
        }
        self.gate.poll_open(context).map(|()| None)
    }
}

fn burst(piece_bytes: usize, bytes: usize, gate: &Rc<Gate>) -> Burst {
    Burst { piece: Bytes::from(vec![b'#'; piece_bytes]), left_bytes: bytes, gate: Rc::clone(gate) }
}

/// Starts a server under TLS that has time.
fn serve<H>(handler: H) -> (SocketAddr, Arc<ClientConfig>)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (LONG, LONG, LONG);
    (options.send_timeout, options.linger_timeout) = (LONG, LONG);
    let (server_tls, client_tls) = tls::pair();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    Server::builder().options(options).tls(server_tls).build().serve(listener, handler).detach();
    (address, client_tls)
}

/// Reads the end of an answer in chunks.
async fn read_to_eof(stream_client: &mut ByteStreamClient) {
    let mut received = Vec::new();
    while !received.ends_with(b"0\r\n\r\n") {
        let bytes = stream_client.receive().await;
        assert!(!bytes.is_empty(), "the answer has no end");
        received.extend(bytes);
    }
}

#[test]
fn all_of_a_burst_is_with_its_client_before_the_next_piece_is() {
    for_each_driver(simulated(), async |kind| {
        let gate = Rc::new(Gate::default());
        let shown = Rc::clone(&gate);
        let asked = Rc::new(Cell::new((0, 0)));
        let asks = Rc::clone(&asked);
        let (address, client_tls) = serve(async move |request: Request| {
            let (piece_bytes, bytes) = asked.get();
            let pieces = burst(piece_bytes, bytes, &shown);
            Response::new(200).with_body(match request.path() {
                "/whole" => Body::stream_with_length(bytes as u64, pieces),
                _ => Body::stream(pieces),
            })
        });
        // However much of the last piece the socket has room for.
        for piece_bytes in [4 << 10, 16 << 10, 32 << 10] {
            for less in [0, 32 << 10, 64 << 10, 96 << 10] {
                for path in ["/whole", "/chunks"] {
                    gate.is_open.set(false);
                    let bytes = BURST_BYTES - less;
                    asks.set((piece_bytes, bytes));
                    let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
                    stream_client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await;
                    let progress = Cell::new(0);
                    let read = timeout(LONG, stream_client.read_slowly(bytes, &progress)).await;
                    assert!(read.is_ok(), "{kind}: {path}: {} of {bytes} bytes came", progress.get());
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
fn an_answer_goes_on_though_its_body_is_received_in_a_task_of_its_own() {
    for_each_driver(simulated(), async |kind| {
        let gate = Rc::new(Gate::default());
        gate.open();
        let received = Rc::new(RefCell::new(Vec::new()));
        let taken = Rc::clone(&received);
        let (address, client_tls) = serve(async move |request: Request| {
            let (taken, mut body) = (Rc::clone(&taken), request.into_parts().1);
            spawn(async move {
                while let Ok(Some(piece)) = body.next().await {
                    taken.borrow_mut().extend_from_slice(&piece);
                }
            })
            .detach();
            Response::new(200).with_body(Body::stream(burst(32 << 10, BURST_BYTES, &gate)))
        });
        let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
        stream_client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n").await;
        let first = stream_client.receive().await;
        let progress = Cell::new(first.iter().filter(|byte| **byte == b'#').count());
        // The server has no room to send any more, and receives.
        for (piece, so_far) in [("one", "one"), ("two", "onetwo")] {
            sleep(SECOND * 5).await;
            stream_client.send(piece.as_bytes()).await;
            wait_until(|| *received.borrow() == so_far.as_bytes()).await;
        }
        let read = timeout(LONG, stream_client.read_slowly(BURST_BYTES, &progress)).await;
        assert!(read.is_ok(), "{kind}: {} of {BURST_BYTES} bytes came", progress.get());
        stream_client.send(b"end").await;
        read_to_eof(&mut stream_client).await;
    });
}

#[test]
fn all_that_another_protocol_has_written_is_with_its_client_while_it_waits_for_something_else() {
    for_each_driver(simulated(), async |kind| {
        for less in [0, 32 << 10, 64 << 10, 96 << 10] {
            let bytes = BURST_BYTES - less;
            let gate = Rc::new(Gate::default());
            let shown = Rc::clone(&gate);
            let (address, client_tls) = serve(async move |_: Request| {
                let gate = Rc::clone(&shown);
                Response::upgrade("burst", async move |mut upgraded| {
                    for piece in vec![b'#'; bytes].chunks(32 << 10) {
                        upgraded.write_all(piece).await.expect("sends");
                    }
                    poll_fn(|context| gate.poll_open(context)).await;
                    upgraded.shutdown().await.expect("ends");
                })
            });
            let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
            stream_client
                .send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: burst\r\n\r\n")
                .await;
            let progress = Cell::new(0);
            let read = timeout(LONG, stream_client.read_slowly(bytes, &progress)).await;
            assert!(read.is_ok(), "{kind}: {} of {bytes} bytes came", progress.get());
            gate.open();
            assert!(stream_client.receive().await.is_empty(), "{kind}");
        }
    });
}

/// Makes an answer that fails before its first piece.
struct Failing;

impl Stream for Failing {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(Err(io::Error::other("no piece"))))
    }
}

#[test]
fn answers_are_with_their_client_whatever_comes_behind_them() {
    for_each_driver(simulated(), async |kind| {
        // Sent together with what comes behind it.
        const GATHERED_BYTES: usize = 16 << 10;
        for (path, less) in
            [0, 32 << 10, 64 << 10, 96 << 10].map(|less| [("/upgrade", less), ("/fails", less)]).concat()
        {
            let bytes = BURST_BYTES - less;
            let gate = Rc::new(Gate::default());
            let shown = Rc::clone(&gate);
            let (address, client_tls) = serve(async move |request: Request| match request.path() {
                "/burst" => Response::text(vec![b'#'; bytes]),
                "/gathered" => Response::text(vec![b'#'; GATHERED_BYTES]),
                "/fails" => Response::new(200).with_body(Body::stream(Failing)),
                _ => {
                    let gate = Rc::clone(&shown);
                    Response::upgrade("waits", async move |upgraded| {
                        poll_fn(|context| gate.poll_open(context)).await;
                        drop(upgraded);
                    })
                }
            });
            let mut stream_client = ByteStreamClient::connect(address, Some(&client_tls)).await;
            let fields = "Host: h\r\nConnection: upgrade\r\nUpgrade: waits";
            let requests =
                ["/burst", "/gathered", path].map(|path| format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n"));
            stream_client.send(requests.concat().as_bytes()).await;
            let progress = Cell::new(0);
            let read = timeout(LONG, async {
                let mut rest = stream_client.read_slowly(bytes + GATHERED_BYTES, &progress).await;
                while path == "/upgrade" && !rest.windows(8).any(|eight| eight == b"1.1 101 ") {
                    rest.extend(stream_client.receive().await);
                }
            });
            assert!(read.await.is_ok(), "{kind}: {path}: {} of {bytes} bytes came", progress.get());
            gate.open();
        }
    });
}
