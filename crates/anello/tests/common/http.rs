//! Hyper on the streams: HTTP/1 and HTTP/2, servers and clients, and services of tower by way of it.
//!
//! Written once for the streams of every family; a test program names its own as `crate::family`.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anello::compat::{HyperExecutor, HyperTimer};
use anello::net::echo;
use anello::time::sleep;
use anello::{DriverKind, JoinHandle, current_metrics, spawn, yield_now};
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

use crate::common::{LARGE, TURNS, assert_same_bytes, on_both_drivers, pattern};
use crate::family::{Stream, on_every_setup, pair};

type Answer = Result<Response<Either<Full<Bytes>, Incoming>>, Infallible>;

/// Sends the body of a request back, or its path when it has none.
async fn answer(request: Request<Incoming>) -> Answer {
    let path = format!("<{}>", request.uri().path());
    let body = request.into_body();
    let is_empty = body.is_end_stream();
    Ok(Response::new(if is_empty { Either::Left(Full::from(path)) } else { Either::Right(body) }))
}

fn serve(stream: Stream) -> JoinHandle<hyper::Result<()>> {
    let mut server = http1::Builder::new();
    spawn(server.timer(HyperTimer).serve_connection(stream, service_fn(answer)))
}

fn request(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(path).header("host", "anello.test").body(Full::from(body)).unwrap()
}

async fn body_of(response: Response<Incoming>) -> Vec<u8> {
    response.into_body().collect().await.unwrap().to_bytes().to_vec()
}

#[test]
fn http1_keeps_a_connection_for_many_requests() {
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
            let (written, answers) = crate::common::join(writer.write_all(requests.as_bytes()), async {
                let mut answers = Vec::new();
                while let Some(chunk) = reader.recv().await.unwrap() {
                    answers.extend_from_slice(&chunk);
                }
                String::from_utf8(answers).unwrap()
            })
            .await;
            written.unwrap();
            let mut left = &answers[..];
            for number in 0..count {
                let (head, rest) = left.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
                left = rest.strip_prefix(&format!("</{number}>")).unwrap_or_else(|| {
                    panic!("{}: the answer to request {number} is not there: {rest:.80}", setup.name)
                });
            }
            assert_eq!(left, "");
            serving.await.unwrap().unwrap();
        });
    });
}

#[test]
fn fault_23_a_client_that_ends_its_side_still_gets_the_whole_answer() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            let serving = builder.half_close(true).serve_connection(server, service_fn(answer));
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
                let mut found = Vec::new();
                while let Some(chunk) = reader.recv().await.unwrap() {
                    found.extend_from_slice(&chunk);
                }
                found
            };
            let ((), found) = crate::common::join(sending, receiving).await;
            assert_same_bytes(after_head(&found), &body);
            serving.await.unwrap().unwrap();
        });
    });
}

/// Where the first of these marks ends.
fn end_of(mark: &[u8], bytes: &[u8]) -> usize {
    bytes.windows(mark.len()).position(|window| window == mark).unwrap() + mark.len()
}

fn after_head(answer: &[u8]) -> &[u8] {
    &answer[end_of(b"\r\n\r\n", answer)..]
}

/// The body of an answer that came in chunks.
fn unchunked(answer: &[u8]) -> Vec<u8> {
    let (mut left, mut body) = (after_head(answer), Vec::new());
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

/// A body that says how much of it was asked for. Not `Send`, as the future of the connection is not, either.
struct Counted {
    left: Bytes,
    produced: Rc<Cell<usize>>,
}

impl Body for Counted {
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
        let body = Counted { left: body.clone(), produced: Rc::clone(&produced) };
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    spawn(http1::Builder::new().serve_connection(stream, service))
}

#[test]
fn fault_20_a_download_that_is_not_read_is_not_produced_either() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let (body, produced) = (Bytes::from(pattern(20, LARGE)), Rc::new(Cell::new(0)));
            let serving = serve_counted(server, &body, &produced);
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
            for _ in 0..TURNS {
                yield_now().await;
            }
            assert!(produced.get() > 0, "the answer is under way");
            assert!(produced.get() < LARGE, "more was produced than fits anywhere");
            let mut found = Vec::new();
            while let Some(chunk) = client.recv().await.unwrap() {
                found.extend_from_slice(&chunk);
            }
            assert_same_bytes(&unchunked(&found), &body);
            serving.await.unwrap().unwrap();
        });
    });
}

#[test]
fn fault_22_a_client_that_goes_in_the_middle_leaves_nothing_behind() {
    on_both_drivers(|setup| {
        setup.run(async {
            let base = current_metrics().unwrap().sockets;
            let (body, produced) = (Bytes::from(pattern(22, LARGE)), Rc::new(Cell::new(0)));
            for _ in 0..20 {
                let (mut client, server) = pair().await.unwrap();
                let serving = serve_counted(server, &body, &produced);
                client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                client.recv().await.unwrap().unwrap();
                drop(client);
                assert!(serving.await.unwrap().is_err(), "{}: a whole answer", setup.name);
            }
            // A connection that is dropped itself, in the middle of an answer.
            let (mut client, server) = pair().await.unwrap();
            let serving = serve_counted(server, &body, &produced);
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            client.recv().await.unwrap().unwrap();
            serving.abort();
            assert!(serving.await.is_err());
            drop(client);
            while current_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

#[test]
fn fault_18_a_head_that_does_not_end_is_given_up_in_time() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            builder.timer(HyperTimer).header_read_timeout(Duration::from_millis(20));
            let before = HyperTimer.now();
            let serving = spawn(builder.serve_connection(server, service_fn(answer)));
            client.send("GET / HTTP/1.1\r\nHo").await.unwrap();
            assert!(serving.await.unwrap().unwrap_err().is_timeout());
            assert!(HyperTimer.now() - before >= Duration::from_millis(20), "too early");
            while client.recv().await.is_ok_and(|chunk| chunk.is_some()) {}
        });
    });
}

/// On the virtual clock only, where nothing is late.
#[test]
fn each_head_has_its_own_time() {
    on_every_setup(|setup| {
        if !matches!(setup.kind, DriverKind::Sim(_)) {
            return;
        }
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http1::Builder::new();
            builder.timer(HyperTimer).header_read_timeout(Duration::from_millis(20));
            let serving = spawn(builder.serve_connection(server, service_fn(answer)));
            for _ in 0..10 {
                sleep(Duration::from_millis(15)).await;
                client.send("GET /in-time HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                let mut found = Vec::new();
                while !found.ends_with(b"</in-time>") {
                    found.extend_from_slice(&client.recv().await.unwrap().unwrap());
                }
            }
            assert!(serving.await.unwrap().unwrap_err().is_timeout(), "then it was silent for too long");
        });
    });
}

#[test]
fn http2_echoes_on_many_streams_at_once() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            let mut builder = http2::Builder::new(HyperExecutor);
            let serving = spawn(builder.timer(HyperTimer).serve_connection(server, service_fn(answer)));
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

/// The peer's greeting, then silence: pings are sent, and no answer comes.
#[test]
fn http2_gives_up_a_peer_that_answers_no_ping() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, server) = pair().await.unwrap();
            let mut builder = http2::Builder::new(HyperExecutor);
            builder.timer(HyperTimer).keep_alive_interval(Duration::from_millis(10));
            builder.keep_alive_timeout(Duration::from_millis(10));
            let serving = spawn(builder.serve_connection(server, service_fn(answer)));
            client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            client.send(vec![0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            assert!(serving.await.unwrap().unwrap_err().is_timeout());
        });
    });
}

/// Hyper's own upgrades want streams that are `Send`; the stream is to be had back instead.
#[test]
fn a_connection_is_upgraded_by_taking_the_stream_back() {
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
            let asking = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nand more";
            client.write_all(asking.as_bytes()).await.unwrap();
            let mut found = Vec::new();
            while !found.ends_with(b"and more") {
                found.extend_from_slice(&client.recv().await.unwrap().unwrap());
            }
            assert!(found.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
            crate::common::exchange(&mut client, &pattern(101, 10_000)).await;
            drop(client);
            assert!(serving.await.unwrap() >= 10_000);
        });
    });
}

/// A router as any server of axum has it: nothing in it knows where it runs.
fn router(requests: Arc<AtomicU64>) -> Router {
    let pieces = || {
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
    // What is not `Send` lives in a task of its own, which a handler can wait for.
    let inside = || async {
        let talk = spawn(async {
            let (mut one, mut other) = pair().await.unwrap();
            one.write_all(b"not Send").await.unwrap();
            other.recv().await.unwrap().map(|chunk| String::from_utf8_lossy(&chunk).into_owned())
        });
        talk.await.unwrap().unwrap()
    };
    Router::new()
        .route("/inside", get(inside))
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { format!("Ciao, {name}!") }))
        .route("/sum", post(sum))
        .route("/count", get(count))
        .route("/ticks", get(move || async move { pieces() }))
        .with_state(requests)
}

/// Whatever a client of one of the protocols is to the tests: sends a request, returns the answer.
async fn ask<F>(send: &mut impl FnMut(Request<Full<Bytes>>) -> F, request: Request<Full<Bytes>>) -> String
where
    F: Future<Output = hyper::Result<Response<Incoming>>>,
{
    let response = send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    String::from_utf8(body_of(response).await).unwrap()
}

async fn ask_the_router<F>(mut send: impl FnMut(Request<Full<Bytes>>) -> F, asked_before: u64)
where
    F: Future<Output = hyper::Result<Response<Incoming>>>,
{
    let get = |path: &str| {
        Request::get(format!("http://anello.test{path}"))
            .header("host", "anello.test")
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(ask(&mut send, get("/hello/Ada")).await, "Ciao, Ada!");
    let sum = Request::post("http://anello.test/sum").header("host", "anello.test");
    let sum = sum.header("content-type", "application/json").body(Full::from("[1, 20, 300]")).unwrap();
    assert_eq!(ask(&mut send, sum).await, "321");
    for number in asked_before..asked_before + 3 {
        assert_eq!(ask(&mut send, get("/count")).await, number.to_string());
    }
    assert_eq!(ask(&mut send, get("/ticks")).await, "tick 0\ntick 1\ntick 2\ntick 3\ntick 4\n");
    assert_eq!(ask(&mut send, get("/inside")).await, "not Send");
    assert_eq!(send(get("/nowhere")).await.unwrap().status(), StatusCode::NOT_FOUND);
}

#[test]
fn a_router_of_axum_is_served_unchanged_by_either_protocol() {
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
            ask_the_router(|request| sender.send_request(request), 0).await;
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();

            let (client, server) = pair().await.unwrap();
            let serving = spawn(builder.serve_connection(server, service).into_owned());
            let (mut sender, connection) =
                client::conn::http2::handshake(HyperExecutor, client).await.unwrap();
            let connection = spawn(connection);
            ask_the_router(|request| sender.send_request(request), 3).await;
            drop(sender);
            connection.await.unwrap().unwrap();
            serving.await.unwrap().unwrap();
            assert_eq!(requests.load(Ordering::Relaxed), 6);
        });
    });
}
