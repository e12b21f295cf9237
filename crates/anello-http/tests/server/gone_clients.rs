//! Clients that close or reset their connection, or shut down its write direction, while a handler or a response body is
//! pending.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anello::net::{TcpListener, UnixListener, UnixStream};
use anello::spawn;
use anello::sync::CancellationToken;
use anello::time::sleep;
use anello_http::server::TlsConfig;
use anello_http::{Request, Response, Server};
use anello_test::{main_drivers_and_sim, run_on_each, simulated_drivers};
use rustls::ClientConfig;

use crate::common::log::RecordedMessages;
use crate::common::stream_client::ByteStreamClient;
use crate::common::{boxed, tls, wait_until};
use crate::deadlines::{PENDING_REQUESTS, pending_handler, with_long_timeouts};

/// Plaintext that a session receives before the connection requests it.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Configurations of servers without and with TLS, and of their clients.
fn transports() -> [Option<(TlsConfig, Arc<ClientConfig>)>; 2] {
    [None, Some(tls::pair())]
}

/// A server and what its clients need to connect.
struct Served {
    server: Server,
    address: SocketAddr,
    client_tls: Option<Arc<ClientConfig>>,
}

impl Served {
    fn start<H>(transport: Option<(TlsConfig, Arc<ClientConfig>)>, half_close: bool, handler: H) -> Self
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let (server_tls, client_tls) = transport.unzip();
        let mut builder = Server::builder().options(with_long_timeouts().half_close(half_close));
        if let Some(config) = server_tls {
            builder = builder.tls(config);
        }
        let server = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        server.serve(listener, boxed(handler)).detach();
        Self { server, address, client_tls }
    }

    /// Connects, and completes the TLS handshake by sending a request.
    async fn connect(&self, request: &str) -> ByteStreamClient {
        let mut client = ByteStreamClient::connect(self.address, self.client_tls.as_ref()).await;
        client.send(request.as_bytes()).await;
        if self.client_tls.is_some() {
            client.complete_handshake().await;
        }
        client
    }
}

/// With TLS, a client that sends only close_notify keeps its socket open. The bytes of a further request precede it.
#[test]
fn fault_22_handler_and_body_are_dropped_when_client_closes() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for transport in transports() {
            let is_tls = transport.is_some();
            for request in PENDING_REQUESTS {
                let alive = Rc::new(Cell::new(0));
                let served = Served::start(transport.clone(), false, pending_handler(&alive));
                let pipelined = format!("{request}GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                let mut clients = Vec::new();
                for text in [request, &pipelined, request, request] {
                    clients.push(served.connect(text).await);
                }
                wait_until(|| alive.get() == 4).await;
                for (client, left) in clients.iter_mut().zip([3, 2]) {
                    client.end_writing().await;
                    let connections = || served.server.connections();
                    wait_until(|| (alive.get(), connections()) == (left, left)).await;
                }
                clients[2].end_writing().await;
                drop(clients);
                wait_until(|| served.server.connections() == 0).await;
                assert_eq!(alive.get(), 0, "{setup}: TLS {is_tls}: {request}");
            }
        }
    });
}

/// While a handler waits for the body, only the body reports EOF: bytes of the body may have arrived before it.
#[test]
fn fault_22_half_closed_client_with_whole_body_gets_response() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for transport in transports() {
            let is_waiting = Rc::new(Cell::new(false));
            let closed = CancellationToken::new();
            let handler = {
                let (is_waiting, closed) = (Rc::clone(&is_waiting), closed.clone());
                async move |mut request: Request| {
                    let mut body = pin!(request.body().collect());
                    let is_pending =
                        poll_fn(|context| Poll::Ready(body.as_mut().poll(context).is_pending())).await;
                    assert!(is_pending, "the rest of the body has not been sent");
                    is_waiting.set(true);
                    closed.cancelled().await;
                    Response::text(body.await.expect("body").escape_ascii().to_string())
                }
            };
            let served = Served::start(transport, false, handler);
            let mut client = served.connect(PENDING_REQUESTS[2]).await;
            wait_until(|| is_waiting.get()).await;
            client.send(b" body").await;
            client.end_writing().await;
            // Wait for several timer ticks.
            sleep(with_long_timeouts().timer_resolution * 10).await;
            closed.cancel();
            assert!(client.receive_all().await.ends_with(b"\r\n\r\nhalf body"), "{setup}");
        }
    });
}

#[test]
fn fault_22_half_closed_client_can_keep_its_handler() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for transport in transports() {
            let is_tls = transport.is_some();
            for request in PENDING_REQUESTS {
                let alive = Rc::new(Cell::new(0));
                let served = Served::start(transport.clone(), true, pending_handler(&alive));
                let mut half_closed = served.connect(request).await;
                half_closed.end_writing().await;
                let reset = served.connect(request).await;
                reset.stream.set_linger(Some(Duration::ZERO)).ok();
                wait_until(|| alive.get() == 2).await;
                reset.stream.abort();
                let connections = || served.server.connections();
                wait_until(|| connections() == 1).await;
                // Wait for several timer ticks.
                sleep(with_long_timeouts().timer_resolution * 10).await;
                assert_eq!((connections(), alive.get()), (1, 1), "{setup}: TLS {is_tls}: {request}");
                served.server.abort_connections();
                wait_until(|| connections() == 0).await;
                assert_eq!(alive.get(), 0, "{setup}: TLS {is_tls}: {request}");
            }
        }
    });
}

#[test]
fn fault_22_half_closed_client_gets_late_response() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for transport in transports() {
            let (has_request, respond) = (Rc::new(Cell::new(false)), CancellationToken::new());
            let handler = {
                let (has_request, respond) = (Rc::clone(&has_request), respond.clone());
                async move |_: Request| {
                    has_request.set(true);
                    respond.cancelled().await;
                    Response::text("late")
                }
            };
            let served = Served::start(transport, true, handler);
            let mut client = served.connect(PENDING_REQUESTS[0]).await;
            client.end_writing().await;
            wait_until(|| has_request.get()).await;
            // Wait for several timer ticks.
            sleep(with_long_timeouts().timer_resolution * 10).await;
            respond.cancel();
            assert!(client.receive_all().await.ends_with(b"\r\n\r\nlate"), "{setup}");
        }
    });
}

/// A Unix socket is closed in both directions, so that its client gets no response.
#[test]
fn fault_22_handler_is_dropped_when_unix_client_closes() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for half_close in [false, true] {
            let directory = tempfile::tempdir().expect("temporary directory");
            let path = directory.path().join("socket");
            let alive = Rc::new(Cell::new(0));
            let server = Server::builder().options(with_long_timeouts().half_close(half_close)).build();
            let listener = UnixListener::bind(&path).expect("bind");
            server.serve(listener, boxed(pending_handler(&alive))).detach();
            let mut client = UnixStream::connect(&path).await.expect("connect");
            client.write_all(PENDING_REQUESTS[0].as_bytes()).await.expect("send");
            wait_until(|| alive.get() == 1).await;
            drop(client);
            wait_until(|| server.connections() == 0).await;
            assert_eq!(alive.get(), 0, "{setup}: {half_close}");
        }
    });
}

/// A session receives ahead with the budget of a poll, which 128 receive operations spend. Those of other connections must
/// not prevent a close_notify from being noticed.
#[test]
fn close_notify_is_noticed_while_many_tls_clients_send() {
    run_on_each(simulated_drivers(), async |setup| {
        let alive = Rc::new(Cell::new(0));
        let served = Served::start(Some(tls::pair()), false, pending_handler(&alive));
        let mut clients = Vec::new();
        for _ in 0..150 {
            clients.push(served.connect(PENDING_REQUESTS[0]).await);
        }
        wait_until(|| alive.get() == 150).await;
        let mut closed = clients.pop().expect("a client");
        closed.end_writing().await;
        for _ in 0..10 {
            for client in &mut clients {
                client.send(b"x").await;
            }
            sleep(with_long_timeouts().timer_resolution).await;
        }
        assert_eq!(alive.get(), 149, "{setup}");
    });
}

/// The last bytes that are received ahead can contain a close_notify.
#[test]
fn close_notify_is_noticed_at_limit_of_receiving_ahead() {
    run_on_each(simulated_drivers(), async |setup| {
        let alive = Rc::new(Cell::new(0));
        let served = Served::start(Some(tls::pair()), false, pending_handler(&alive));
        let mut client = served.connect(PENDING_REQUESTS[0]).await;
        wait_until(|| alive.get() == 1).await;
        client.send(&[b'x'; READ_AHEAD_BYTES - 1]).await;
        sleep(with_long_timeouts().timer_resolution * 10).await;
        assert_eq!(alive.get(), 1, "{setup}");
        client.send_and_end(b"x").await;
        wait_until(|| alive.get() == 0).await;
    });
}

#[test]
fn invalid_tls_record_cancels_handler_and_is_logged() {
    run_on_each(simulated_drivers(), async |setup| {
        let (recorded, _guard) = RecordedMessages::start();
        let alive = Rc::new(Cell::new(0));
        let served = Served::start(Some(tls::pair()), false, pending_handler(&alive));
        let mut client = served.connect(PENDING_REQUESTS[0]).await;
        wait_until(|| alive.get() == 1).await;
        client.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("send");
        wait_until(|| served.server.connections() == 0).await;
        assert_eq!(alive.get(), 0, "{setup}");
        let messages = |text| recorded.containing(text).len();
        assert_eq!(messages("cannot receive while a handler or response body is pending"), 1, "{setup}");
        assert_eq!(messages("handler or response body cancelled: cannot receive from client"), 1, "{setup}");
        assert_eq!(messages("closed by client"), 0, "{setup}");
    });
}

/// Starts a server whose handlers wait for the token before they read the body. Returns the bodies, too.
fn serve_late_readers(
    transport: Option<(TlsConfig, Arc<ClientConfig>)>,
    read: &CancellationToken,
) -> (Served, Rc<RefCell<Vec<Vec<u8>>>>) {
    let bodies = Rc::<RefCell<Vec<_>>>::default();
    let (received, read) = (Rc::clone(&bodies), read.clone());
    let handler = async move |mut request: Request| {
        read.cancelled().await;
        let body = request.body().collect().await.expect("body");
        received.borrow_mut().push(body);
        Response::text("read")
    };
    (Served::start(transport, false, handler), bodies)
}

#[test]
fn requests_that_arrive_while_handler_waits_are_served() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for transport in transports() {
            let read = CancellationToken::new();
            let (served, bodies) = serve_late_readers(transport, &read);
            let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ";
            let mut client = served.connect(&format!("{head}5\r\n\r\nf")).await;
            for part in ["irs", &format!("t{head}6\r\nConnection: close\r\n"), "\r\nsec", "ond"] {
                sleep(with_long_timeouts().timer_resolution * 3).await;
                client.send(part.as_bytes()).await;
            }
            sleep(with_long_timeouts().timer_resolution * 3).await;
            assert!(bodies.borrow().is_empty(), "{setup}");
            read.cancel();
            let received = client.receive_all().await.escape_ascii().to_string();
            assert_eq!(received.matches(r"\r\n\r\nread").count(), 2, "{setup}: {received}");
            assert_eq!(*bodies.borrow(), [&b"first"[..], b"second"], "{setup}");
        }
    });
}

/// Simulated sockets buffer little, so the client can send little more than what is received ahead.
#[test]
fn bytes_received_ahead_are_bounded_and_complete() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let read = CancellationToken::new();
        let (served, bodies) = serve_late_readers(Some(tls::pair()), &read);
        let body: Vec<_> = (0..8 * READ_AHEAD_BYTES).map(|position| (position / 251) as u8).collect();
        let fields = format!("Content-Length: {}\r\nConnection: close", body.len());
        let mut client = served.connect(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n")).await;
        let sent = Rc::new(Cell::new(0));
        let (counted, parts) = (Rc::clone(&sent), body.clone());
        let sending = spawn(async move {
            for part in parts.chunks(4096) {
                client.send(part).await;
                counted.update(|sent| sent + part.len());
            }
            client.receive_all().await
        });
        wait_until(|| sent.get() > READ_AHEAD_BYTES).await;
        sleep(with_long_timeouts().timer_resolution * 10).await;
        assert!(!setup.is_simulated() || sent.get() < 3 * READ_AHEAD_BYTES, "{setup}: {}", sent.get());
        read.cancel();
        assert!(sending.await.expect("no panic").ends_with(b"\r\n\r\nread"), "{setup}");
        assert!(*bodies.borrow() == [body], "{setup}: other bytes");
    });
}
