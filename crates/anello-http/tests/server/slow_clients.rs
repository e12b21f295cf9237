//! Slow clients and handlers, on simulated kernels. The clocks of these kernels are virtual, so timeouts of several
//! seconds expire exactly on time and do not slow down the tests.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::net::TcpListener;
use anello::sim::{SimFaults, SimModel, SimOptions};
use anello::time::{Sleep, monotonic_now, sleep, timeout};
use anello::{DriverKind, spawn};
use anello_http::server::TlsConfig;
use anello_http::{Body, Request, RequestBody, Response, Server, ServerOptions};
use anello_test::{Setup, run_on_each, simulated_drivers};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::stream_client::ByteStreamClient;
use crate::common::{Client, boxed, serve, tls, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(100_000);

/// A body of this size takes more than a minute at the rate of the slow client: longer than all timeouts together, and
/// longer than the driver keeps a dropped stream open.
const BODY_BYTES: usize = 4 << 20;

/// Returns options with timeouts of a few seconds.
fn short_timeouts() -> ServerOptions {
    let mut options = ServerOptions::default();
    (options.header_timeout, options.body_timeout) = (SECOND * 2, SECOND * 2);
    // The client's stream reads ahead: it reads a quarter of a megabyte from the socket every four seconds.
    (options.keep_alive_timeout, options.send_timeout) = (SECOND * 8, SECOND * 8);
    (options.drain_timeout, options.timer_resolution) = (LONG, SECOND / 20);
    options
}

/// Starts a server that responds with a large body from memory.
fn serve_large(options: ServerOptions, tls: Option<TlsConfig>) -> (Server, SocketAddr) {
    let builder = Server::builder().options(options);
    let server = if let Some(tls) = tls { builder.tls(tls) } else { builder }.build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    let large = Bytes::from(vec![b'#'; BODY_BYTES]);
    server.serve(listener, boxed(async move |_: Request| Response::text(large.clone()))).detach();
    (server, address)
}

#[test]
fn slow_client_receives_complete_large_body() {
    run_on_each(simulated_drivers(), async |setup| {
        for secured in [false, true] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            for request in [
                "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                "GET / HTTP/1.0\r\n\r\n",
            ] {
                let (server, address) = serve_large(short_timeouts(), server_tls.clone());
                let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
                stream_client.send(request.as_bytes()).await;
                let (started, progress) = (monotonic_now(), Cell::new(0));
                stream_client.read_slowly(BODY_BYTES, &progress).await;
                let elapsed = monotonic_now() - started;
                assert!(
                    elapsed > 7 * short_timeouts().send_timeout,
                    "{setup}: {elapsed:?} is too short for this test"
                );
                // Depending on the request, the connection is closed or accepts another request.
                if request.contains("1.0") || request.contains("close") {
                    assert!(stream_client.receive().await.is_empty(), "{setup}: {request}");
                } else {
                    stream_client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
                    assert!(stream_client.receive().await.starts_with(b"HTTP/1.1 200 OK"), "{setup}");
                }
                drop(stream_client);
                wait_until(|| server.connections() == 0).await;
            }
        }
    });
}

#[test]
fn fault_37_drain_waits_for_slow_download() {
    run_on_each(simulated_drivers(), async |setup| {
        for (secured, request) in [
            (false, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
            (false, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
            (true, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
        ] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            let (server, address) = serve_large(short_timeouts(), server_tls);
            let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
            stream_client.send(request.as_bytes()).await;
            let progress = Rc::new(Cell::new(0));
            let reading = anello::spawn({
                let progress = Rc::clone(&progress);
                async move { stream_client.read_slowly(BODY_BYTES, &progress).await }
            });
            sleep(SECOND * 5).await;
            assert_eq!(server.drain().await, 0, "{setup}");
            // All bytes have been sent, except those in the buffers of the kernel and the client's stream.
            assert!(
                progress.get() > BODY_BYTES - (512 << 10),
                "{setup}, {secured}, {request:?}: drained at {} bytes",
                progress.get()
            );
            reading.await.expect("complete body");
        }
    });
}

#[test]
fn client_that_reads_nothing_times_out() {
    run_on_each(simulated_drivers(), async |setup| {
        for request in
            ["GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"]
        {
            let (server, address) = serve_large(short_timeouts(), None);
            let mut stream_client = ByteStreamClient::connect(address, None).await;
            stream_client.send(request.as_bytes()).await;
            let started = monotonic_now();
            wait_until(|| server.connections() == 1).await;
            wait_until(|| server.connections() == 0).await;
            let elapsed = monotonic_now() - started;
            let limit = short_timeouts().send_timeout;
            assert!(elapsed >= limit && elapsed < limit + SECOND, "{setup}: {elapsed:?}");
        }
    });
}

/// The client reads 64 KiB per second.
#[test]
fn fault_20_client_below_minimum_rate_is_reset() {
    run_on_each(simulated_drivers(), async |setup| {
        for secured in [false, true] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            let (server, address) =
                serve_large(short_timeouts().min_send_bytes_per_second(1 << 20), server_tls);
            let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
            stream_client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            let progress = Rc::new(Cell::new(0));
            let reading = anello::spawn({
                let progress = Rc::clone(&progress);
                async move { stream_client.read_slowly(BODY_BYTES, &progress).await }
            });
            let started = monotonic_now();
            wait_until(|| server.connections() == 1).await;
            wait_until(|| server.connections() == 0).await;
            let elapsed = monotonic_now() - started;
            let limit = short_timeouts().send_timeout;
            assert!(elapsed >= limit && elapsed < limit * 3, "{setup}, {secured}: {elapsed:?}");
            assert!((1..BODY_BYTES).contains(&progress.get()), "{setup}, {secured}");
            reading.abort();
        }
    });
}

/// A body stream that waits before each chunk.
struct SlowStream {
    remaining_chunks: usize,
    pause: Pin<Box<Sleep>>,
}

impl Stream for SlowStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining_chunks == 0 {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(context));
        self.remaining_chunks -= 1;
        self.pause.as_mut().reset_after(SECOND);
        Poll::Ready(Some(Ok(Bytes::from_static(b"chunk;"))))
    }
}

#[test]
fn body_timeout_is_paused_while_handler_does_not_read() {
    run_on_each(simulated_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |mut request: Request| match request.path() {
            // The handler pauses before it reads the body, and again after the first part.
            "/late" => {
                sleep(SECOND * 5).await;
                let first = request.body().next().await.expect("body is valid").expect("first part");
                sleep(SECOND * 5).await;
                match request.body().collect().await {
                    Ok(rest) => Response::text([&first[..], &rest].concat()),
                    Err(error) => Response::text(error.to_string()).with_status(500),
                }
            }
            // The handler responds without reading the body.
            _ => Response::new(200)
                .with_body(Body::stream(SlowStream { remaining_chunks: 6, pause: Box::pin(sleep(SECOND)) })),
        });
        for (path, pause, expected) in [
            ("/late", SECOND * 6, "body"),
            ("/never", SECOND * 5 / 2, "chunk;chunk;chunk;chunk;chunk;chunk;"),
        ] {
            let mut client = Client::connect(address).await;
            client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")).await;
            for bytes in ["bo", "dy"] {
                sleep(pause).await;
                client.send(bytes).await;
            }
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.text()), (200, expected), "{setup}");
            assert_eq!(client.get("/next").await.status, 200, "{setup}");
        }
    });
}

/// Polls a body once, and checks that it is pending.
async fn poll_once(body: &mut RequestBody) {
    poll_fn(|context| {
        assert!(body.poll_next(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// A body stream that polls a request body once, drops it, and yields the chunks of another stream.
struct BodyDroppingStream {
    body: Option<RequestBody>,
    slow: SlowStream,
}

impl Stream for BodyDroppingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let Some(mut body) = self.body.take() {
            assert!(body.poll_next(context).is_pending());
        }
        Pin::new(&mut self.slow).poll_next(context)
    }
}

#[test]
fn body_timeout_stops_when_body_is_no_longer_read() {
    run_on_each(simulated_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |mut request: Request| {
            match request.path() {
                // The handler waits only one second for the next part.
                "/timeout" => {
                    let part = timeout(SECOND, request.body().next()).await;
                    assert!(part.is_err(), "received a part in time");
                    sleep(SECOND * 60).await;
                }
                "/dropped" => {
                    poll_once(request.body()).await;
                    drop(request);
                    sleep(SECOND * 60).await;
                }
                "/streamed" => {
                    let (_, body) = request.into_parts();
                    let slow = SlowStream { remaining_chunks: 1, pause: Box::pin(sleep(SECOND * 60)) };
                    return Response::new(200)
                        .with_body(Body::stream(BodyDroppingStream { body: Some(body), slow }));
                }
                _ => {}
            }
            Response::text("chunk;")
        });
        for path in ["/timeout", "/dropped", "/streamed"] {
            let mut client = Client::connect(address).await;
            client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n")).await;
            sleep(SECOND * 30).await;
            client.send("body").await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.text()), (200, "chunk;"), "{setup}: {path}");
            assert_eq!(response.field("Connection"), None, "{setup}: {path}");
            assert_eq!(client.get("/next").await.status, 200, "{setup}: {path}");
        }
    });
}

#[test]
fn fault_18_header_timeout_of_first_request_starts_at_accept() {
    run_on_each(simulated_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |_: Request| Response::text("served"));
        let limit = short_timeouts().header_timeout;
        for (sent, status) in [("", None), ("GET /half", Some(408))] {
            let (started, mut client) = (monotonic_now(), Client::connect(address).await);
            // The timeout of the first head starts when the connection is accepted, not at the first byte.
            sleep(limit * 3 / 4).await;
            client.send(sent).await;
            let response_status = client.response().await.map(|response| response.status);
            let elapsed = monotonic_now() - started;
            assert_eq!(response_status, status, "{setup}");
            assert!(elapsed >= limit && elapsed < limit + SECOND / 5, "{setup}: {elapsed:?}");
        }
        // The timeout of a later head starts at its first byte.
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
        sleep(limit).await;
        let started = monotonic_now();
        client.send("GET /half").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(408), "{setup}");
        let elapsed = monotonic_now() - started;
        assert!(elapsed >= limit && elapsed < limit + SECOND / 5, "{setup}: {elapsed:?}");
        assert!(client.is_eof().await);
    });
}

#[test]
fn fault_18_split_empty_lines_do_not_extend_timeout() {
    run_on_each(simulated_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |_: Request| Response::text("served"));
        for (before, limit) in [
            ("", short_timeouts().header_timeout),
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", short_timeouts().keep_alive_timeout),
            // The first half of an empty line arrives together with a request.
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n\r", short_timeouts().keep_alive_timeout),
        ] {
            let mut client = Client::connect(address).await;
            let mut started = monotonic_now();
            client.send(before).await;
            if !before.is_empty() {
                assert_eq!(client.response().await.expect("response").status, 200, "{setup}");
                started = monotonic_now();
            }
            let (mut reader, mut writer) = client.stream.into_split();
            let sending = spawn(async move {
                let halves =
                    [b"\r", b"\n"].into_iter().cycle().take(8).skip(usize::from(before.ends_with("\n\r")));
                for half in halves {
                    sleep(limit * 19 / 80).await;
                    if writer.write_all(half).await.is_err() {
                        break;
                    }
                }
            });
            let is_eof = reader.recv().await.map(|chunk| chunk.is_none());
            let elapsed = monotonic_now() - started;
            sending.abort();
            assert!(is_eof.unwrap_or(true), "{setup}: response after {before:?}");
            // If part of a head has been received when the timeout expires, the header timeout applies in addition.
            assert!(
                elapsed >= limit && elapsed < limit + short_timeouts().header_timeout,
                "{setup}: after {before:?}: {elapsed:?}"
            );
        }
        // A request after an empty line has the usual timeout.
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
        for part in ["\r", "\n", "GET / HTTP/1.1\r\n", "Host: h\r\n\r\n"] {
            sleep(short_timeouts().header_timeout * 3 / 4).await;
            client.send(part).await;
        }
        assert_eq!(client.response().await.expect("response").status, 200, "{setup}");
    });
}

/// Returns simulated kernels that delay completions, so that a timeout can expire before the arrival of bytes is reported.
fn delayed_drivers() -> Vec<Setup> {
    let setup = |name, model| {
        let mut faults = SimFaults::none();
        (faults.delays, faults.max_delay_ns) = (500, 100_000_000);
        Setup::new(name, DriverKind::Sim(SimOptions::new(1).model(model).faults(faults)), |_| {})
    };
    vec![setup("sim-completion", SimModel::Completion), setup("sim-readiness", SimModel::Readiness)]
}

#[test]
fn head_started_at_timeout_is_not_a_malformed_request() {
    run_on_each(delayed_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |_: Request| Response::text("served"));
        let mut answered = 0;
        for early in 0..200 {
            let mut client = Client::connect(address).await;
            sleep(short_timeouts().header_timeout + SECOND / 10 - early * SECOND / 1000).await;
            // Fails if the server has already closed the connection.
            client.stream.write_all(b"GET /half").await.ok();
            let status = client.response().await.map(|response| response.status);
            assert!(matches!(status, None | Some(408)), "{setup}: {status:?}, {early} ms early");
            answered += usize::from(status.is_some());
        }
        assert!(answered > 0, "{setup}");
    });
}

#[test]
fn head_completed_at_timeout_gets_one_response() {
    run_on_each(delayed_drivers(), async |setup| {
        let (_server, address) = serve(short_timeouts(), async |_: Request| Response::text("served"));
        let mut last_moments = 0;
        for early in 0..200 {
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\n").await;
            sleep(short_timeouts().header_timeout + SECOND / 10 - early * SECOND / 1000).await;
            // Fails if the server has already closed the connection.
            client.stream.write_all(b"Host: h\r\n\r\n").await.ok();
            let Some(response) = client.response().await.filter(|response| response.status == 200) else {
                continue;
            };
            if response.field("Connection") == Some("close") {
                last_moments += 1;
                assert_eq!(client.response().await, None, "{setup}: data after the last response");
            } else {
                assert_eq!(client.get("/").await.status, 200, "{setup}: keep-alive connection was closed");
            }
        }
        assert!(last_moments > 0, "{setup}: no head was completed at the timeout");
    });
}

#[test]
fn response_is_sent_before_next_pipelined_request_completes() {
    run_on_each(simulated_drivers(), async |setup| {
        for secured in [false, true] {
            let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
            let mut options = short_timeouts();
            (options.body_timeout, options.keep_alive_timeout) = (LONG, LONG);
            let builder = Server::builder().options(options);
            let server = if let Some(tls) = server_tls { builder.tls(tls) } else { builder }.build();
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let address = listener.local_addr().expect("local address");
            let has_response = Rc::new(Cell::new(false));
            let handler = {
                let has_response = Rc::clone(&has_response);
                async move |mut request: Request| match request.path() {
                    "/fast" => Response::text("#".repeat(10)),
                    "/large" => Response::text("#".repeat(1 << 20)),
                    "/upload" => Response::text(request.body().collect().await.expect("complete body")),
                    _ => {
                        while !has_response.get() {
                            sleep(SECOND).await;
                        }
                        Response::text("slow")
                    }
                }
            };
            server.serve(listener, boxed(handler)).detach();
            for (first, first_bytes, next) in [
                ("/fast", 10, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"),
                ("/large", 1 << 20, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"),
                ("/fast", 10, "PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"),
            ] {
                has_response.set(false);
                let mut stream_client = ByteStreamClient::connect(address, client_tls.as_ref()).await;
                stream_client.send(format!("GET {first} HTTP/1.1\r\nHost: h\r\n\r\n{next}").as_bytes()).await;
                let progress = Cell::new(0);
                let reading = stream_client.read_slowly(first_bytes, &progress);
                let result = timeout(Duration::from_secs(1000), reading).await;
                assert!(result.is_ok(), "{setup}: no response to {first} before {next:?}");
                has_response.set(true);
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
fn pipelined_requests_with_self_waking_handlers_are_served() {
    run_on_each(simulated_drivers(), async |_| {
        let (_server, address) = serve(short_timeouts(), async |request: Request| {
            // The handler wakes itself. The previous response must be sent without waiting for another event.
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
            assert_eq!(client.response().await.expect("response").text(), path);
        }
    });
}
