//! The same service on several servers: anello-http over HTTP/1.1 and HTTP/2, axum on anello-http, and axum on hyper.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anello::compat::HyperTimer;
use anello::net::{TcpListener, TcpStream};
use anello::signal::{SignalKind, signal};
use anello::time::{Instant, sleep, timeout};
use anello::{JoinHandle, RuntimeMetrics, spawn};
use anello_http::files::{FileOptions, Files};
use anello_http::h1::FieldName;
use anello_http::server::Http2Mode;
use anello_http::{Body, Request, RequestBodyError, Response, Server, ServerOptions, service};
use axum::Router;
use axum::body::Body as AxumBody;
use axum::extract::Path as PathParameters;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response as AxumResponse};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::rt::Timer;
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;

use super::client::digest;
use super::pattern;

pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The server waits for up to this time for handlers to react to an abort, and checks deadlines at this interval.
const DRAIN_TOLERANCE: Duration = Duration::from_millis(1500);

/// Time after which everything has been released: a closed stream sends its bytes until its peer has read none for 30 s,
/// and no client reads for longer than its time limit.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(120);

const NUMBER: FieldName<'static> = FieldName::constant("X-Number");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// A handler of anello-http.
    Handler,
    /// An axum application on anello-http.
    Axum,
    /// The same application on hyper.
    Hyper,
    /// The handler of anello-http, over HTTP/2.
    Http2,
}

impl Stack {
    pub const ALL: [Self; 4] = [Self::Handler, Self::Axum, Self::Hyper, Self::Http2];
}

/// Returns options with short timeouts, or with such that only a drain aborts connections.
pub fn options(is_patient: bool) -> ServerOptions {
    let seconds = Duration::from_secs;
    let factor = if is_patient { 10 } else { 1 };
    ServerOptions::default()
        .header_timeout(seconds(2) * factor)
        .keep_alive_timeout(seconds(2) * factor)
        .body_timeout(seconds(2) * factor)
        .send_timeout(seconds(3) * factor)
        .request_timeout(Some(seconds(15) * factor))
        .linger_timeout(seconds(1))
        // Connections are suspended between some requests.
        .suspend_after(Duration::from_millis(50))
        .drain_timeout(DRAIN_TIMEOUT)
}

/// The program of a host: serves until a signal arrives, checks that nothing is left, and serves again. Counts the
/// drains that have completed.
pub async fn run(
    stack: Stack,
    is_patient: bool,
    drains: Rc<Cell<u64>>,
    files: impl AsRef<Path>,
) -> io::Result<()> {
    let mut signals = signal(SignalKind::terminate())?;
    let mut drain_requested = async || {
        signals.recv().await;
        Instant::now()
    };
    loop {
        let listener = TcpListener::bind("0.0.0.0:80")?;
        let drain_started = match stack {
            Stack::Hyper => serve_with_hyper(listener, &mut drain_requested).await,
            _ => {
                let http2 = if stack == Stack::Http2 { Http2Mode::Cleartext } else { Http2Mode::Off };
                let server = Server::builder().options(options(is_patient).http2(http2)).build();
                let accepting = if stack == Stack::Axum {
                    server.serve(listener, service::handler(app()))
                } else {
                    let files = Files::open(&files, FileOptions::default()).map_err(io::Error::other)?;
                    server.serve(listener, async move |request| handle(&files, request).await)
                };
                let drain_started = drain_requested().await;
                accepting.abort();
                server.drain().await;
                assert_eq!(server.connections(), 0, "connections after the drain");
                drain_started
            }
        };
        let elapsed = drain_started.elapsed();
        assert!(elapsed <= DRAIN_TIMEOUT + DRAIN_TOLERANCE, "the drain took {elapsed:?}");
        assert_released().await;
        drains.set(drains.get() + 1);
    }
}

/// Checks that no task, socket or buffer is left, except the main task of the host.
async fn assert_released() {
    let counts = || {
        let RuntimeMetrics { tasks, driver, .. } = RuntimeMetrics::current().expect("a runtime");
        (tasks, driver.sockets, driver.buffers_leased)
    };
    let released = timeout(RELEASE_TIMEOUT, async {
        while counts() != (1, 0, 0) {
            sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(released.await.is_ok(), "left over: {:?} tasks, sockets and buffers", counts());
}

/// Serves the application with hyper, and drains the connections like a server of anello-http.
async fn serve_with_hyper(
    listener: TcpListener,
    mut drain_requested: impl AsyncFnMut() -> Instant,
) -> Instant {
    let drains = Rc::new(Cell::new(false));
    let connections = Rc::new(Cell::new(0_usize));
    let accepting: JoinHandle<()> = {
        let (drains, connections, app) = (Rc::clone(&drains), Rc::clone(&connections), app());
        spawn(async move {
            loop {
                // A failed accept is a fault of the simulated kernel.
                let Ok(stream) = listener.accept().await else { continue };
                connections.set(connections.get() + 1);
                let (drains, connections) = (Rc::clone(&drains), Rc::clone(&connections));
                let serving = serve_connection(stream, app.clone(), drains);
                spawn(async move {
                    serving.await;
                    connections.set(connections.get() - 1);
                })
                .detach();
            }
        })
    };
    let drain_started = drain_requested().await;
    accepting.abort();
    drains.set(true);
    while connections.get() > 0 {
        sleep(Duration::from_millis(50)).await;
    }
    drain_started
}

async fn serve_connection(stream: TcpStream, app: Router, drains: Rc<Cell<bool>>) {
    let mut builder = http1::Builder::new();
    builder.timer(HyperTimer).header_read_timeout(Duration::from_secs(2));
    let mut connection = pin!(builder.serve_connection(stream, TowerToHyperService::new(app)));
    while !drains.get() {
        // Errors are those of the connection.
        if timeout(Duration::from_millis(100), connection.as_mut()).await.is_ok() {
            return;
        }
    }
    connection.as_mut().graceful_shutdown();
    timeout(DRAIN_TIMEOUT, connection).await.ok();
}

/// Returns the bytes `0..bytes` of a request's pattern in chunks, with pauses. Those of every fourth request are long.
fn chunks(number: u64, bytes: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(0, move |offset| async move {
        if offset == bytes {
            return None;
        }
        let choice = (number ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let end = (offset + 1 + choice % 5000).min(bytes);
        if choice.is_multiple_of(4) {
            let max_ms = if number.is_multiple_of(4) { 2000 } else { 100 };
            HyperTimer.sleep(Duration::from_millis(choice % max_ms)).await;
        }
        Some((Ok(pattern(number, offset..end).into()), end))
    })
}

/// Responds without axum.
async fn handle(files: &Files, request: Request) -> Response {
    let path = request.path().to_owned();
    let mut parts = path.split('/').skip(1);
    let name = parts.next().unwrap_or_default();
    let mut next_number = || parts.next().and_then(|part| part.parse::<u64>().ok()).unwrap_or_default();
    let (number, argument) = (next_number(), next_number());
    let body = match name {
        "files" => return files.handle(&request).await,
        "bytes" => Body::from(pattern(number, 0..argument)),
        "stream" => Body::stream(chunks(number, argument)),
        "sized" => Body::stream_with_length(argument, chunks(number, argument)),
        "slow" => {
            sleep(Duration::from_millis(argument)).await;
            Body::from(pattern(number, 0..10))
        }
        "upload" => match request.into_parts().1.collect().await {
            Ok(body) => Body::from(digest(&body)),
            Err(RequestBodyError::Rejected(rejection)) => return Response::new(rejection.status),
            Err(_) => return Response::new(400).with_connection_close(),
        },
        _ => Body::stream(stream::unfold(request.into_parts().1, async |mut body| {
            let chunk = body.next().await.map_err(io::Error::other).transpose()?;
            Some((chunk, body))
        })),
    };
    let response = Response::new(200).with_body(body);
    response.field(NUMBER, number.to_string().as_bytes()).expect("a valid value")
}

fn app() -> Router {
    type Numbers = PathParameters<(u64, u64)>;
    fn respond(number: u64, body: impl IntoResponse) -> AxumResponse {
        ([("x-number", number.to_string())], body).into_response()
    }
    let slow = async |PathParameters((number, milliseconds)): Numbers| {
        HyperTimer.sleep(Duration::from_millis(milliseconds)).await;
        respond(number, pattern(number, 0..10))
    };
    let sized = async |PathParameters((number, bytes)): Numbers| {
        let mut response = respond(number, AxumBody::from_stream(chunks(number, bytes)));
        response.headers_mut().insert(CONTENT_LENGTH, bytes.into());
        response
    };
    let stream = async |PathParameters((number, bytes)): Numbers| {
        respond(number, AxumBody::from_stream(chunks(number, bytes)))
    };
    Router::new()
        .route(
            "/bytes/{number}/{bytes}",
            get(async |PathParameters((number, bytes)): Numbers| {
                Ok::<_, Infallible>(respond(number, pattern(number, 0..bytes)))
            }),
        )
        .route("/stream/{number}/{bytes}", get(stream))
        .route("/sized/{number}/{bytes}", get(sized))
        .route("/slow/{number}/{milliseconds}", get(slow))
        .route(
            "/upload/{number}",
            post(async |PathParameters(number): PathParameters<u64>, body: Bytes| {
                respond(number, digest(&body))
            }),
        )
        .route(
            "/echo/{number}",
            post(async |PathParameters(number): PathParameters<u64>, body: AxumBody| respond(number, body)),
        )
}

/// Returns whether an error of a request is one that a client must expect under faults.
pub fn is_expected(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, TimedOut, UnexpectedEof};
    let expected = [BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, TimedOut, UnexpectedEof];
    expected.contains(&error.kind())
}
