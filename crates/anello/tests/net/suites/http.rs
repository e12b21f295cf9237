//! Hyper on anello streams: HTTP/1 and HTTP/2, clients and servers, and tower services.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::echo;
use anello::compat::{HyperExecutor, HyperTimer};
use anello::time::sleep;
use anello::{DriverKind, JoinHandle, current_driver_metrics, spawn, yield_now};
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::rt::Timer;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, client};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;

use super::family::{Stream, on_every_setup, pair};
use crate::common::{LARGE, TURNS, assert_same_bytes, on_both_drivers, pattern};

type EchoResponse = Result<Response<Either<Full<Bytes>, Incoming>>, Infallible>;

/// Echoes the request body, or returns the path if the body is empty.
async fn echo_or_path(request: Request<Incoming>) -> EchoResponse {
    let path = format!("<{}>", request.uri().path());
    let body = request.into_body();
    let is_empty = body.is_end_stream();
    Ok(Response::new(if is_empty { Either::Left(Full::from(path)) } else { Either::Right(body) }))
}

fn serve(stream: Stream) -> JoinHandle<hyper::Result<()>> {
    let mut server = http1::Builder::new();
    spawn(server.timer(HyperTimer).serve_connection(stream, service_fn(echo_or_path)))
}

fn request(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(path).header("host", "anello.test").body(Full::from(body)).unwrap()
}

async fn body_of(response: Response<Incoming>) -> Vec<u8> {
    response.into_body().collect().await.unwrap().to_bytes().to_vec()
}

#[test]
fn http1_connection_serves_many_requests() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            let serving = serve(server);
            let (mut sender, connection) = client::conn::http1::handshake(client).await.unwrap();
            let connection = spawn(connection);
            for round in 0..3 {
                for size in [1, 1000, 4097, 16_385, 200_000] {
                    let body = pattern(round, size);
                    let response = sender.send_request(request("/", body.clone())).await.unwrap();
                    assert_same_bytes(&body_of(response).await, &body);
                }
                let response = sender.send_request(request("/empty", Vec::new())).await.unwrap();
                assert_eq!(body_of(response).await, b"</empty>");
            }
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
        });
    });
}

#[test]
fn fault_24_pipelined_requests_are_answered_in_order() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let serving = serve(server);
            let count = 1000;
            let last = |number| if number + 1 == count { "Connection: close\r\n" } else { "" };
            let requests: String = (0..count)
                .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n{}\r\n", last(number)))
                .collect();
            let (mut reader, mut writer) = client.split();
            let (written, responses) = crate::common::join(writer.write_all(requests.as_bytes()), async {
                let mut responses = Vec::new();
                while let Some(chunk) = reader.recv().await.unwrap() {
                    responses.extend_from_slice(&chunk);
                }
                String::from_utf8(responses).unwrap()
            })
            .await;
            written.unwrap();
            let mut left = &responses[..];
            for number in 0..count {
                let (head, rest) = left.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
                left = rest
                    .strip_prefix(&format!("</{number}>"))
                    .unwrap_or_else(|| panic!("{}: no response to request {number}: {rest:.80}", setup.name));
            }
            assert_eq!(left, "");
            serving.await.unwrap().unwrap();
        });
    });
}

#[test]
fn fault_23_half_closed_client_receives_whole_response() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            let serving = builder.half_close(true).serve_connection(server, service_fn(echo_or_path));
            let serving = spawn(serving);
            let body = pattern(23, 1 << 20);
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
            let (mut reader, mut writer) = client.split();
            let sending = async {
                writer.write_all(head.as_bytes()).await.unwrap();
                writer.write_all(&body).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let receiving = async {
                let mut received = Vec::new();
                while let Some(chunk) = reader.recv().await.unwrap() {
                    received.extend_from_slice(&chunk);
                }
                received
            };
            let ((), received) = crate::common::join(sending, receiving).await;
            assert_same_bytes(after_head(&received), &body);
            serving.await.unwrap().unwrap();
        });
    });
}

/// Returns the offset after the first occurrence of the marker.
fn end_of(marker: &[u8], bytes: &[u8]) -> usize {
    bytes.windows(marker.len()).position(|window| window == marker).unwrap() + marker.len()
}

fn after_head(response: &[u8]) -> &[u8] {
    &response[end_of(
        b"\r
\r
", response,
    )..]
}

/// Decodes the body of a chunked response.
fn unchunked(response: &[u8]) -> Vec<u8> {
    let (mut left, mut body) = (after_head(response), Vec::new());
    loop {
        let (line, rest) = left.split_at(end_of(b"\r\n", left));
        let size = usize::from_str_radix(std::str::from_utf8(line).unwrap().trim(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[..size]);
        left = &rest[size + 2..];
    }
}

/// Body that counts the bytes produced. It is not `Send`, so the connection's future is not `Send` either.
struct CountingBody {
    left: Bytes,
    produced: Rc<Cell<usize>>,
}

impl Body for CountingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let count = self.left.len().min(30_000);
        if count == 0 {
            return Poll::Ready(None);
        }
        self.produced.set(self.produced.get() + count);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(count)))))
    }
}

fn serve_counted(stream: Stream, body: &Bytes, produced: &Rc<Cell<usize>>) -> JoinHandle<hyper::Result<()>> {
    let (body, produced) = (body.clone(), Rc::clone(produced));
    let service = service_fn(move |_: Request<Incoming>| {
        let body = CountingBody { left: body.clone(), produced: Rc::clone(&produced) };
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    spawn(http1::Builder::new().serve_connection(stream, service))
}

#[test]
fn fault_20_response_body_is_not_produced_while_client_does_not_read() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let (body, produced) = (Bytes::from(pattern(20, LARGE)), Rc::new(Cell::new(0)));
            let serving = serve_counted(server, &body, &produced);
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
            for _ in 0..TURNS {
                yield_now().await;
            }
            assert!(produced.get() > 0, "no part of the response was produced");
            assert!(produced.get() < LARGE, "more bytes were produced than the buffers hold");
            let mut received = Vec::new();
            while let Some(chunk) = client.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
            }
            assert_same_bytes(&unchunked(&received), &body);
            serving.await.unwrap().unwrap();
        });
    });
}

#[test]
fn fault_22_client_disconnect_during_response_frees_sockets() {
    on_both_drivers(|setup| {
        setup.run(async {
            let base = current_driver_metrics().unwrap().sockets;
            let (body, produced) = (Bytes::from(pattern(22, LARGE)), Rc::new(Cell::new(0)));
            for _ in 0..20 {
                let (mut client, server) = pair().await.unwrap();
                let serving = serve_counted(server, &body, &produced);
                client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                client.recv().await.unwrap().unwrap();
                drop(client);
                assert!(serving.await.unwrap().is_err(), "{}: the whole response was sent", setup.name);
            }
            // Now the server drops its connection in the middle of a response.
            let (mut client, server) = pair().await.unwrap();
            let serving = serve_counted(server, &body, &produced);
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            client.recv().await.unwrap().unwrap();
            serving.abort();
            assert!(serving.await.is_err());
            drop(client);
            while current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

#[test]
fn fault_18_incomplete_head_times_out() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            builder.timer(HyperTimer).header_read_timeout(Duration::from_millis(20));
            let start = HyperTimer.now();
            let serving = spawn(builder.serve_connection(server, service_fn(echo_or_path)));
            client.send("GET / HTTP/1.1\r\nHo").await.unwrap();
            assert!(serving.await.unwrap().unwrap_err().is_timeout());
            assert!(HyperTimer.now() - start >= Duration::from_millis(20), "timed out too early");
            while client.recv().await.is_ok_and(|chunk| chunk.is_some()) {}
        });
    });
}

/// Runs only on the virtual clock, on which no timer is late.
#[test]
fn header_timeout_restarts_for_each_request() {
    on_every_setup(|setup| {
        if !matches!(setup.kind, DriverKind::Sim(_)) {
            return;
        }
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            builder.timer(HyperTimer).header_read_timeout(Duration::from_millis(20));
            let serving = spawn(builder.serve_connection(server, service_fn(echo_or_path)));
            for _ in 0..10 {
                sleep(Duration::from_millis(15)).await;
                client.send("GET /in-time HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                let mut received = Vec::new();
                while !received.ends_with(b"</in-time>") {
                    received.extend_from_slice(&client.recv().await.unwrap().unwrap());
                }
            }
            assert!(serving.await.unwrap().unwrap_err().is_timeout(), "the last request must time out");
        });
    });
}

#[test]
fn http2_echoes_on_concurrent_streams() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            let mut builder = http2::Builder::new(HyperExecutor);
            let serving = spawn(builder.timer(HyperTimer).serve_connection(server, service_fn(echo_or_path)));
            let (sender, connection) = client::conn::http2::handshake(HyperExecutor, client).await.unwrap();
            let connection = spawn(connection);
            let streams: Vec<_> = (0..40)
                .map(|number| {
                    let (mut sender, size) = (sender.clone(), 1 + number as usize * 997);
                    spawn(async move {
                        let body = pattern(number, size);
                        let response = sender.send_request(request("/", body.clone())).await.unwrap();
                        assert_same_bytes(&body_of(response).await, &body);
                    })
                })
                .collect();
            for stream in streams {
                stream.await.unwrap();
            }
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
        });
    });
}

/// The peer sends the connection preface and then nothing, so pings remain unanswered.
#[test]
fn http2_connection_without_ping_response_times_out() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http2::Builder::new(HyperExecutor);
            builder.timer(HyperTimer).keep_alive_interval(Duration::from_millis(10));
            builder.keep_alive_timeout(Duration::from_millis(10));
            let serving = spawn(builder.serve_connection(server, service_fn(echo_or_path)));
            client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            client.send(vec![0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            assert!(serving.await.unwrap().unwrap_err().is_timeout());
        });
    });
}

/// Hyper's own upgrades require `Send` streams. Instead, the stream is recovered from the connection.
#[test]
fn stream_is_recovered_for_upgrade() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let switch = service_fn(|_: Request<Incoming>| async {
                let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
                response.header(CONNECTION, "upgrade").header(UPGRADE, "echo").body(Full::<Bytes>::default())
            });
            let serving = spawn(async move {
                let connection = http1::Builder::new().serve_connection(server, switch);
                let mut parts = connection.without_shutdown().await.unwrap();
                parts.io.send(parts.read_buf).await.unwrap();
                echo(&mut parts.io).await.unwrap()
            });
            let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nand more";
            client.write_all(request.as_bytes()).await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"and more") {
                received.extend_from_slice(&client.recv().await.unwrap().unwrap());
            }
            assert!(received.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
            crate::common::exchange(&mut client, &pattern(101, 10_000)).await;
            drop(client);
            assert!(serving.await.unwrap() >= 10_000);
        });
    });
}

/// Router of a typical axum server, independent of the runtime.
fn router(requests: Arc<AtomicU64>) -> Router {
    let tick_body = || {
        let ticks = stream::unfold(0, |number| async move {
            HyperTimer.sleep(Duration::from_micros(100)).await;
            (number < 5).then(|| (Ok::<_, Infallible>(format!("tick {number}\n")), number + 1))
        });
        axum::body::Body::from_stream(ticks)
    };
    let sum = |Json(numbers): Json<Vec<i64>>| async move { Json(numbers.iter().sum::<i64>()) };
    let count = |State(requests): State<Arc<AtomicU64>>| async move {
        requests.fetch_add(1, Ordering::Relaxed).to_string()
    };
    // A task can own values that are not `Send`, and a handler can wait for the task.
    let inside = || async {
        let local_task = spawn(async {
            let (mut one, mut other) = pair().await.unwrap();
            one.write_all(b"not Send").await.unwrap();
            other.recv().await.unwrap().map(|chunk| String::from_utf8_lossy(&chunk).into_owned())
        });
        local_task.await.unwrap().unwrap()
    };
    Router::new()
        .route("/inside", get(inside))
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { format!("Ciao, {name}!") }))
        .route("/sum", post(sum))
        .route("/count", get(count))
        .route("/ticks", get(move || async move { tick_body() }))
        .with_state(requests)
}

/// Sends a request through a client of either protocol and returns the response body.
async fn response_text<F>(
    send: &mut impl FnMut(Request<Full<Bytes>>) -> F,
    request: Request<Full<Bytes>>,
) -> String
where
    F: Future<Output = hyper::Result<Response<Incoming>>>,
{
    let response = send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    String::from_utf8(body_of(response).await).unwrap()
}

async fn test_router<F>(mut send: impl FnMut(Request<Full<Bytes>>) -> F, count_before: u64)
where
    F: Future<Output = hyper::Result<Response<Incoming>>>,
{
    let get = |path: &str| {
        Request::get(format!("http://anello.test{path}"))
            .header("host", "anello.test")
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(response_text(&mut send, get("/hello/Ada")).await, "Ciao, Ada!");
    let sum = Request::post("http://anello.test/sum").header("host", "anello.test");
    let sum = sum.header("content-type", "application/json").body(Full::from("[1, 20, 300]")).unwrap();
    assert_eq!(response_text(&mut send, sum).await, "321");
    for number in count_before..count_before + 3 {
        assert_eq!(response_text(&mut send, get("/count")).await, number.to_string());
    }
    assert_eq!(response_text(&mut send, get("/ticks")).await, "tick 0\ntick 1\ntick 2\ntick 3\ntick 4\n");
    assert_eq!(response_text(&mut send, get("/inside")).await, "not Send");
    assert_eq!(send(get("/nowhere")).await.unwrap().status(), StatusCode::NOT_FOUND);
}

#[test]
fn axum_router_works_with_both_protocols() {
    on_every_setup(|setup| {
        setup.run(async {
            let requests = Arc::new(AtomicU64::new(0));
            let service = TowerToHyperService::new(router(Arc::clone(&requests)));
            let mut builder = auto::Builder::new(HyperExecutor);
            builder.http1().timer(HyperTimer);
            builder.http2().timer(HyperTimer);
            let (client, server) = pair().await.unwrap();
            let serving = spawn(builder.serve_connection(server, service.clone()).into_owned());
            let (mut sender, connection) = client::conn::http1::handshake(client).await.unwrap();
            let connection = spawn(connection);
            test_router(|request| sender.send_request(request), 0).await;
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();

            let (client, server) = pair().await.unwrap();
            let serving = spawn(builder.serve_connection(server, service).into_owned());
            let (mut sender, connection) =
                client::conn::http2::handshake(HyperExecutor, client).await.unwrap();
            let connection = spawn(connection);
            test_router(|request| sender.send_request(request), 3).await;
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
            assert_eq!(requests.load(Ordering::Relaxed), 6);
        });
    });
}
