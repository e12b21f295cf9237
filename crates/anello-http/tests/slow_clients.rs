//! Clients and handlers that take their time, on simulated kernels, whose clock is virtual: deadlines of seconds are exact
//! there, and cost nothing.

mod common;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::net::TcpListener;
use anello::time::{Sleep, monotonic_now, sleep, timeout};
use anello::{DriverKind, SimFaults, SimModel, SimOptions, spawn};
use anello_http::server::TlsConfig;
use anello_http::{Body, Request, RequestBody, Response, Server, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;

use common::stream_client::ByteStreamClient;
use common::{Client, for_each_driver, serve, tls, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Far beyond everything here.
const LONG: Duration = Duration::from_secs(100_000);

/// It takes more than two minutes: longer than all deadlines together, and than a stream that was dropped is kept.
const BODY_BYTES: usize = 8 << 20;

fn simulated() -> Vec<DriverKind> {
    [SimModel::Completion, SimModel::Readiness]
        .map(|model| SimOptions::new(1).model(model))
        .map(DriverKind::Sim)
        .into()
}

/// Deadlines of seconds.
fn brisk() -> ServerOptions {
    let mut options = ServerOptions::default();
    (options.header_timeout, options.body_timeout) = (SECOND * 2, SECOND * 2);
    // The client takes a quarter of a megabyte every four seconds: its stream receives that much ahead.
    (options.keep_alive_timeout, options.send_timeout) = (SECOND * 8, SECOND * 8);
    (options.drain_timeout, options.timer_resolution) = (LONG, SECOND / 20);
    options
}

/// A server of large bodies in memory.
fn serve_large(tls: Option<TlsConfig>) -> (Server, SocketAddr) {
    let builder = Server::builder().options(brisk());
    let server = if let Some(tls) = tls { builder.tls(tls) } else { builder }.build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let large = Bytes::from(vec![b'#'; BODY_BYTES]);
    server.serve(listener, async move |_: Request| Response::text(large.clone())).detach();
    (server, address)
}

#[test]
fn large_bodies_reach_clients_that_read_steadily_and_slowly() {
    for_each_driver(simulated(), async |kind| {
        for secured in [false, true] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            for request in [
                "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                "GET / HTTP/1.0\r\n\r\n",
            ] {
                let (server, address) = serve_large(server_tls.clone());
                let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
                stream_client.send(request.as_bytes()).await;
                let (started, progress) = (monotonic_now(), Cell::new(0));
                stream_client.read_slowly(BODY_BYTES, &progress).await;
                let took = monotonic_now() - started;
                assert!(took > 15 * brisk().send_timeout, "{kind}: {took:?} are no test");
                // The connection has its end, or its next request.
                if request.contains("1.0") || request.contains("close") {
                    assert!(stream_client.receive().await.is_empty(), "{kind}: {request}");
                } else {
                    stream_client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
                    assert!(stream_client.receive().await.starts_with(b"HTTP/1.1 200 OK"), "{kind}");
                }
                drop(stream_client);
                wait_until(|| server.connections() == 0).await;
            }
        }
    });
}

#[test]
fn fault_37_draining_waits_for_a_slow_download() {
    for_each_driver(simulated(), async |kind| {
        for (secured, request) in [
            (false, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
            (false, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
            (true, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
        ] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            let (server, address) = serve_large(server_tls);
            let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
            stream_client.send(request.as_bytes()).await;
            let progress = Rc::new(Cell::new(0));
            let reading = anello::spawn({
                let progress = Rc::clone(&progress);
                async move { stream_client.read_slowly(BODY_BYTES, &progress).await }
            });
            sleep(SECOND * 5).await;
            assert_eq!(server.drain().await, 0, "{kind}");
            // All but what the kernels and the client's own stream hold.
            assert!(
                progress.get() > BODY_BYTES - (512 << 10),
                "{kind}, {secured}, {request:?}: drained at {} bytes",
                progress.get()
            );
            reading.await.expect("the whole body");
        }
    });
}

#[test]
fn a_client_that_reads_nothing_is_given_up_in_time() {
    for_each_driver(simulated(), async |kind| {
        for request in
            ["GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"]
        {
            let (server, address) = serve_large(None);
            let mut stream_client = ByteStreamClient::connect(address, None).await;
            stream_client.send(request.as_bytes()).await;
            let started = monotonic_now();
            wait_until(|| server.connections() == 1).await;
            wait_until(|| server.connections() == 0).await;
            let took = monotonic_now() - started;
            let limit = brisk().send_timeout;
            assert!(took >= limit && took < limit + SECOND, "{kind}: {took:?}");
        }
    });
}

/// Waits before each of its pieces.
struct Slow {
    left: usize,
    pause: Pin<Box<Sleep>>,
}

impl Stream for Slow {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(context));
        self.left -= 1;
        self.pause.as_mut().reset(SECOND);
        Poll::Ready(Some(Ok(Bytes::from_static(b"piece;"))))
    }
}

#[test]
fn the_deadline_of_a_body_does_not_run_while_the_handler_does_something_else() {
    for_each_driver(simulated(), async |kind| {
        let (_server, address) = serve(brisk(), async |mut request: Request| match request.path() {
            // Before it has looked at the body, and in the middle of it.
            "/late" => {
                sleep(SECOND * 5).await;
                let first = request.body().next().await.expect("a piece").expect("a piece");
                sleep(SECOND * 5).await;
                match request.body().collect().await {
                    Ok(rest) => Response::text([&first[..], &rest].concat()),
                    Err(error) => Response::text(error.to_string()).with_status(500),
                }
            }
            // And while it answers without having looked.
            _ => Response::new(200).with_body(Body::stream(Slow { left: 6, pause: Box::pin(sleep(SECOND)) })),
        });
        for (path, pause, expected) in [
            ("/late", SECOND * 6, "body"),
            ("/never", SECOND * 5 / 2, "piece;piece;piece;piece;piece;piece;"),
        ] {
            let mut client = Client::connect(address).await;
            client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")).await;
            for bytes in ["bo", "dy"] {
                sleep(pause).await;
                client.send(bytes).await;
            }
            let response = client.response().await.expect("an answer");
            assert_eq!((response.status, response.text()), (200, expected), "{kind}");
            assert_eq!(client.get("/next").await.status, 200, "{kind}");
        }
    });
}

/// Looks for a piece of a body once, and does not wait for it.
async fn poll_once(body: &mut RequestBody) {
    poll_fn(|context| {
        assert!(body.poll_next(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Looks once for a piece of a body, drops that, and has one of its own to send long behind that.
struct IgnoresBody {
    body: Option<RequestBody>,
    slow: Slow,
}

impl Stream for IgnoresBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let Some(mut body) = self.body.take() {
            assert!(body.poll_next(context).is_pending());
        }
        Pin::new(&mut self.slow).poll_next(context)
    }
}

#[test]
fn the_deadline_of_a_body_does_not_run_when_nobody_waits_for_it_any_more() {
    for_each_driver(simulated(), async |kind| {
        let (_server, address) = serve(brisk(), async |mut request: Request| {
            match request.path() {
                // Its next piece, but not for long.
                "/impatient" => {
                    let piece = timeout(SECOND, request.body().next()).await;
                    assert!(piece.is_err(), "no piece comes in time");
                    sleep(SECOND * 60).await;
                }
                "/dropped" => {
                    poll_once(request.body()).await;
                    drop(request);
                    sleep(SECOND * 60).await;
                }
                "/streamed" => {
                    let (_, body) = request.into_parts();
                    let slow = Slow { left: 1, pause: Box::pin(sleep(SECOND * 60)) };
                    return Response::new(200)
                        .with_body(Body::stream(IgnoresBody { body: Some(body), slow }));
                }
                _ => {}
            }
            Response::text("piece;")
        });
        for path in ["/impatient", "/dropped", "/streamed"] {
            let mut client = Client::connect(address).await;
            client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")).await;
            sleep(SECOND * 30).await;
            client.send("body").await;
            let response = client.response().await.expect("an answer");
            assert_eq!((response.status, response.text()), (200, "piece;"), "{kind}: {path}");
            assert_eq!(response.field("Connection"), None, "{kind}: {path}");
            assert_eq!(client.get("/next").await.status, 200, "{kind}: {path}");
        }
    });
}

#[test]
fn fault_18_the_first_head_has_one_deadline() {
    for_each_driver(simulated(), async |kind| {
        let (_server, address) = serve(brisk(), async |_: Request| Response::text("answered"));
        let limit = brisk().header_timeout;
        for (said, status) in [("", None), ("GET /half", Some(408))] {
            let (started, mut client) = (monotonic_now(), Client::connect(address).await);
            // Not from the first byte: silence counts, too.
            sleep(limit * 3 / 4).await;
            client.send(said).await;
            let told = client.response().await.map(|response| response.status);
            let took = monotonic_now() - started;
            assert_eq!(told, status, "{kind}");
            assert!(took >= limit && took < limit + SECOND / 5, "{kind}: {took:?}");
        }
        // A later one has it from its first byte.
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
        sleep(limit).await;
        let started = monotonic_now();
        client.send("GET /half").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(408), "{kind}");
        let took = monotonic_now() - started;
        assert!(took >= limit && took < limit + SECOND / 5, "{kind}: {took:?}");
        assert!(client.is_eof().await);
    });
}

#[test]
fn fault_18_empty_lines_in_halves_give_no_more_time() {
    for_each_driver(simulated(), async |kind| {
        let (_server, address) = serve(brisk(), async |_: Request| Response::text("answered"));
        for (before, limit) in [
            ("", brisk().header_timeout),
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", brisk().keep_alive_timeout),
            // The first half together with a request.
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n\r", brisk().keep_alive_timeout),
        ] {
            let mut client = Client::connect(address).await;
            let mut started = monotonic_now();
            client.send(before).await;
            if !before.is_empty() {
                assert_eq!(client.response().await.expect("an answer").status, 200, "{kind}");
                started = monotonic_now();
            }
            let (mut reader, mut writer) = client.stream.into_split();
            let dripping = spawn(async move {
                let halves =
                    [b"\r", b"\n"].into_iter().cycle().take(8).skip(usize::from(before.ends_with("\n\r")));
                for half in halves {
                    sleep(limit * 19 / 80).await;
                    if writer.write_all(half).await.is_err() {
                        break;
                    }
                }
            });
            let told = reader.recv().await.map(|chunk| chunk.is_none());
            let took = monotonic_now() - started;
            dripping.abort();
            assert!(told.unwrap_or(true), "{kind}: {before:?} is not followed by an answer");
            // It may be in the middle of a head, whose time it has then.
            assert!(
                took >= limit && took < limit + brisk().header_timeout,
                "{kind}: behind {before:?}: {took:?}"
            );
        }
        // A request behind an empty line has the time of any.
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
        for part in ["\r", "\n", "GET / HTTP/1.1\r\n", "Host: h\r\n\r\n"] {
            sleep(brisk().header_timeout * 3 / 4).await;
            client.send(part).await;
        }
        assert_eq!(client.response().await.expect("an answer").status, 200, "{kind}");
    });
}

#[test]
fn a_head_that_comes_whole_at_the_last_moment_is_answered_once() {
    // Bytes have come that nobody has been told of when the deadline strikes.
    let mut faults = SimFaults::none();
    (faults.delays, faults.max_delay_ns) = (500, 100_000_000);
    let kinds = [SimModel::Completion, SimModel::Readiness]
        .map(|model| DriverKind::Sim(SimOptions::new(1).model(model).faults(faults.clone())));
    for_each_driver(kinds.into(), async |kind| {
        let (_server, address) = serve(brisk(), async |_: Request| Response::text("answered"));
        let mut last_moments = 0;
        for early in 0..200 {
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\n").await;
            sleep(brisk().header_timeout + SECOND / 10 - early * SECOND / 1000).await;
            // It may be too late for that.
            client.stream.write_all(b"Host: h\r\n\r\n").await.ok();
            let Some(response) = client.response().await.filter(|response| response.status == 200) else {
                continue;
            };
            if response.field("Connection") == Some("close") {
                last_moments += 1;
                assert_eq!(client.response().await, None, "{kind}: more behind the last answer");
            } else {
                assert_eq!(client.get("/").await.status, 200, "{kind}: the connection was to go on");
            }
        }
        assert!(last_moments > 0, "{kind}: no head came at the last moment");
    });
}

#[test]
fn an_answer_does_not_wait_for_the_next_request_to_be_handled() {
    for_each_driver(simulated(), async |kind| {
        for secured in [false, true] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            let mut options = brisk();
            (options.body_timeout, options.keep_alive_timeout) = (LONG, LONG);
            let builder = Server::builder().options(options);
            let server = if let Some(tls) = server_tls { builder.tls(tls) } else { builder }.build();
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let is_answered = Rc::new(Cell::new(false));
            let handler = {
                let is_answered = Rc::clone(&is_answered);
                async move |mut request: Request| match request.path() {
                    "/fast" => Response::text("#".repeat(10)),
                    "/large" => Response::text("#".repeat(1 << 20)),
                    "/upload" => Response::text(request.body().collect().await.expect("a body")),
                    _ => {
                        while !is_answered.get() {
                            sleep(SECOND).await;
                        }
                        Response::text("slow")
                    }
                }
            };
            server.serve(listener, handler).detach();
            for (first, first_bytes, next) in [
                ("/fast", 10, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"),
                ("/large", 1 << 20, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"),
                ("/fast", 10, "PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"),
            ] {
                is_answered.set(false);
                let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
                stream_client.send(format!("GET {first} HTTP/1.1\r\nHost: h\r\n\r\n{next}").as_bytes()).await;
                let reading = Cell::new(0);
                let reading = stream_client.read_slowly(first_bytes, &reading);
                let read = timeout(Duration::from_secs(1000), reading).await;
                assert!(read.is_ok(), "{kind}: {first} was not answered before {next:?}");
                is_answered.set(true);
                if next.starts_with("PUT") {
                    stream_client.send(b"slow").await;
                }
                let mut received = Vec::new();
                while !received.ends_with(b"slow") {
                    received.extend(stream_client.receive().await);
                }
            }
        }
    });
}

#[test]
fn handlers_that_are_done_at_once_are_answered_together() {
    for_each_driver(simulated(), async |_| {
        let (_server, address) = serve(brisk(), async |request: Request| {
            // Woken by itself: the answer before this one need not wait for more.
            let mut is_woken = false;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Response::text(request.path().to_owned())
        });
        let mut client = Client::connect(address).await;
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n").await;
        for path in ["/a", "/b"] {
            assert_eq!(client.response().await.expect("an answer").text(), path);
        }
    });
}
