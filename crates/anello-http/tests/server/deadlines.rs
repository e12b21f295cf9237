//! Server timeouts and limits on every driver: clients that are slow or idle, exceed the connection limit, or reset the
//! connection.
//!
//! The timeouts are short. The tests check that a timeout expires, that the client receives the expected data, and that
//! other clients are served in the meantime. The time of expiry is checked only on simulated kernels, whose clocks are
//! virtual.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::{ReadHalf, TcpListener, TcpStream};
use anello::time::{monotonic_now, sleep, timeout};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::{Body, Request, RequestBodyError, Response, Server, ServerOptions};
use anello_test::{Setup, main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::{Client, boxed, metric_value, serve, wait_until};

/// Returns options whose timeouts do not expire during a test, unless the test changes them.
pub fn with_long_timeouts() -> ServerOptions {
    let long = Duration::from_secs(1000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout) = (long, long);
    options.timer_resolution = Duration::from_millis(5);
    options
}

const SHORT: Duration = Duration::from_millis(60);

/// Checks on simulated kernels that a timeout expires within a few ticks of the expected time.
fn assert_timed_out(setup: &Setup, elapsed: Duration, timeout: Duration) {
    let tick = with_long_timeouts().timer_resolution;
    let is_in_time = elapsed >= timeout - tick && elapsed <= timeout + 3 * tick;
    assert!(is_in_time || !setup.is_simulated(), "{setup}: after {elapsed:?}");
}

async fn upload(mut request: Request) -> Response {
    match request.body().collect().await {
        Ok(body) => Response::text(format!("{} bytes", body.len())),
        Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status).with_connection_close(),
        Err(_) => Response::new(400).with_connection_close(),
    }
}

#[test]
fn fault_18_slow_heads_time_out_while_others_are_served() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = with_long_timeouts();
        options.header_timeout = SHORT;
        let (server, address) = serve(options, upload);
        let slow: Vec<_> = (0..50)
            .map(|number| {
                anello::spawn(async move {
                    let mut client = Client::connect(address).await;
                    // Some clients send nothing at all.
                    for byte in b"GET /slowly HTTP/1.1\r\nHost: somewhere\r\n".iter().take(number % 3 * 10) {
                        if client.stream.write_all(&[*byte]).await.is_err() {
                            break;
                        }
                        sleep(Duration::from_millis(5)).await;
                    }
                    client.response().await.map(|response| response.status)
                })
            })
            .collect();
        // The first head of this client is subject to the same timeout, so try again if the machine is too slow.
        let mut other = loop {
            let mut other = Client::connect(address).await;
            other.stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.ok();
            if let Some(response) = other.response().await.filter(|response| response.status == 200) {
                assert_eq!(response.text(), "0 bytes");
                break other;
            }
        };
        let (mut with_408, mut without_response) = (0, 0);
        for (number, client) in slow.into_iter().enumerate() {
            assert_eq!(other.get("/").await.status, 200);
            match client.await.expect("task completes") {
                Some(status) => {
                    assert_eq!(status, 408, "client {number}");
                    with_408 += 1;
                }
                None => without_response += 1,
            }
        }
        assert!(with_408 > 0 && without_response >= 16, "{with_408} {without_response}");
        wait_until(|| server.connections() == 1).await;
    });
}

/// Receives until the connection is closed.
async fn receive_all(mut reader: ReadHalf<Rc<TcpStream>>) -> String {
    let mut received = Vec::new();
    while let Ok(Some(chunk)) = reader.recv().await {
        received.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&received).into_owned()
}

#[test]
fn fault_19_slow_bodies_time_out() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = with_long_timeouts();
        (options.body_timeout, options.min_body_bytes_per_second) = (SHORT, 1_000_000);
        let (server, address) = serve(options, upload);
        for (framing, part) in [("Content-Length: 100000", "x"), ("Transfer-Encoding: chunked", "1\r\nx\r\n")]
        {
            let mut client = Client::connect(address).await;
            client.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n")).await;
            let started = monotonic_now();
            let (reader, mut writer) = client.stream.into_split();
            let sending = anello::spawn(async move {
                while writer.write_all(part.as_bytes()).await.is_ok() {
                    sleep(Duration::from_millis(3)).await
                }
            });
            // The client receives a 408 response that announces the close. The server closes the connection even though
            // the client is still sending.
            let text = receive_all(reader).await;
            assert_timed_out(&setup, monotonic_now() - started, SHORT);
            assert!(
                text.starts_with("HTTP/1.1 408 ") && text.contains("\r\nConnection: close\r\n"),
                "{text}"
            );
            sending.abort();
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn body_at_minimum_rate_does_not_time_out() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = with_long_timeouts();
        // On real kernels the timeout is long, because the machine may be slow.
        options.body_timeout = if setup.is_simulated() { SHORT } else { options.body_timeout };
        options.min_body_bytes_per_second = 10_000;
        let (_server, address) = serve(options, upload);
        let mut client = Client::connect(address).await;
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n").await;
        for _ in 0..100 {
            client.send([b'x'; 200]).await;
            // On simulated kernels, the sleeps take two seconds, as long as 20,000 bytes at the minimum rate.
            sleep(if setup.is_simulated() { Duration::from_millis(20) } else { Duration::from_millis(1) })
                .await;
        }
        assert_eq!(client.response().await.expect("response").text(), "20000 bytes");
    });
}

#[test]
fn fault_21_idle_connections_are_closed_and_busy_ones_are_not() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = with_long_timeouts();
        options.keep_alive_timeout = SHORT;
        let (server, address) = serve(options, async |request: Request| {
            if request.path() == "/slow" {
                sleep(SHORT * 4).await;
            }
            Response::text("done")
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/slow").await.text(), "done");
        let started = monotonic_now();
        assert!(client.is_eof().await);
        assert_timed_out(&setup, monotonic_now() - started, SHORT);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn fault_20_unread_responses_time_out() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = with_long_timeouts();
        options.send_timeout = SHORT;
        let large = Bytes::from(vec![b'x'; 32 << 20]);
        let (server, address) = serve(options, async move |_: Request| Response::text(large.clone()));
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(50)).await;
            clients.push(client);
        }
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn request_timeout_closes_connection() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = with_long_timeouts();
        options.request_timeout = Some(SHORT);
        let (server, address) = serve(options, async |request: Request| {
            if request.path() == "/never" {
                std::future::pending::<()>().await;
            }
            Response::text("done")
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.text(), "done");
        sleep(SHORT * 3).await;
        assert_eq!(client.get("/").await.text(), "done", "the timeout starts with the request");
        client.send("GET /never HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.is_eof().await);
        // The connection is closed even though the handler is still pending and the client has not closed it.
        wait_until(|| server.connections() == 0).await;
    });
}

/// A body stream that stays pending. The guard counts it until it is dropped.
struct PendingStream(AliveGuard);

impl Stream for PendingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        assert!(self.0.0.get() > 0, "polled after drop");
        Poll::Pending
    }
}

/// Increments a counter when it is created and decrements it when it is dropped.
pub struct AliveGuard(Rc<Cell<usize>>);

impl AliveGuard {
    pub fn new(alive: &Rc<Cell<usize>>) -> Self {
        alive.set(alive.get() + 1);
        Self(Rc::clone(alive))
    }
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns a handler that stays pending or whose response does, depending on the path. `alive` counts both.
pub fn pending_handler(alive: &Rc<Cell<usize>>) -> impl AsyncFn(Request) -> Response + 'static {
    let alive = Rc::clone(alive);
    async move |mut request: Request| {
        let guard = AliveGuard::new(&alive);
        match request.path() {
            "/stream" => Response::new(200).with_body(Body::stream(PendingStream(guard))),
            "/body" => {
                // The rest of the body never arrives. The handler ignores the error.
                request.body().collect().await.ok();
                std::future::pending().await
            }
            "/never" => std::future::pending().await,
            "/chat" => Response::upgrade("chat", async move |_upgraded| {
                let _guard = guard;
                std::future::pending().await
            }),
            _ => Response::text("done"),
        }
    }
}

/// A request for an upgrade, for which [`pending_handler`] starts a protocol handler that never completes.
const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n";

pub const PENDING_REQUESTS: [&str; 3] = [
    "GET /never HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf",
];

#[test]
fn pending_handler_is_dropped_at_request_timeout() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for request in PENDING_REQUESTS {
            let mut options = with_long_timeouts();
            (options.request_timeout, options.max_connections) = (Some(SHORT), 2);
            let alive = Rc::new(Cell::new(0));
            let (server, address, metrics) = serve_with_metrics(options, pending_handler(&alive));
            let mut clients = [Client::connect(address).await, Client::connect(address).await];
            let started = monotonic_now();
            for client in &mut clients {
                client.send(request).await;
            }
            for client in clients {
                let (reader, _writer) = client.stream.into_split();
                let text = receive_all(reader).await;
                assert_timed_out(&setup, monotonic_now() - started, SHORT);
                assert_eq!(text.starts_with("HTTP/1.1 200 "), request.contains("/stream"), "{setup}: {text}");
                assert!(!text.ends_with("0\r\n\r\n"), "{setup}: {text}");
            }
            wait_until(|| server.connections() == 0).await;
            assert_eq!(alive.get(), 0, "{setup}: {request}");
            assert_eq!(Client::connect(address).await.get("/").await.text(), "done", "{setup}");
            wait_until(|| server.connections() == 0).await;
            let count = |name: &str| metric_value(&metrics, name);
            assert_eq!(
                count("anello_http_connections_closed_total{reason=\"request_timeout\"}"),
                2,
                "{setup}"
            );
            let (completed, timed_out) = if request.contains("/stream") { (3, 0) } else { (1, 2) };
            let requests = |method, status| {
                count(&format!("anello_http_requests_total{{method=\"{method}\",status=\"{status}\"}}"))
            };
            assert_eq!(requests("GET", "2xx"), completed, "{setup}: {request}");
            assert_eq!(requests("GET", "5xx") + requests("POST", "5xx"), timed_out, "{setup}: {request}");
        }
    });
}

/// Starts a server like [`serve`], with metrics.
fn serve_with_metrics<H>(options: ServerOptions, handler: H) -> (Server, SocketAddr, ServerMetrics)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let metrics = ServerMetrics::new(MetricsOptions::default());
    let worker = metrics.worker(0).expect("worker 0 available");
    let server = Server::builder().options(options).metrics(worker).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    server.serve(listener, boxed(handler)).detach();
    (server, address, metrics)
}

#[test]
fn upgraded_handler_is_dropped_at_server_abort_and_not_before() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let alive = Rc::new(Cell::new(0));
        let (server, address) = serve(with_long_timeouts(), pending_handler(&alive));
        let mut reset = Client::connect(address).await;
        reset.send(CHAT).await;
        wait_until(|| alive.get() == 1).await;
        reset.stream.abort();
        let mut client = Client::connect(address).await;
        client.send(CHAT).await;
        wait_until(|| alive.get() == 2).await;
        // Wait for several timer ticks.
        sleep(with_long_timeouts().timer_resolution * 10).await;
        assert_eq!((server.connections(), alive.get()), (2, 2), "{setup}");
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
        assert_eq!(alive.get(), 0, "{setup}");
    });
}

#[test]
fn upgraded_handler_runs_to_completion_after_clean_close() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let completed_handlers = Rc::new(Cell::new(0));
        let completed = Rc::clone(&completed_handlers);
        let (server, address, metrics) =
            serve_with_metrics(with_long_timeouts(), async move |request: Request| {
                let (completed, is_dropped) = (Rc::clone(&completed), request.path() == "/dropped");
                Response::upgrade("chat", async move |mut upgraded| {
                    assert_eq!(upgraded.recv().await.ok(), Some(None));
                    upgraded.shutdown().await.expect("shut down");
                    if is_dropped {
                        drop(upgraded);
                    }
                    // The handler continues after the connection has been closed.
                    sleep(with_long_timeouts().timer_resolution * 10).await;
                    completed.set(completed.get() + 1);
                })
            });
        for request in [CHAT, &CHAT.replace("/chat", "/dropped")] {
            let mut client = Client::connect(address).await;
            client.send(request).await;
            client.stream.shutdown().await.expect("shut down");
            let (reader, _writer) = client.stream.into_split();
            assert!(receive_all(reader).await.starts_with("HTTP/1.1 101 "), "{setup}");
        }
        wait_until(|| server.connections() == 0).await;
        assert_eq!(completed_handlers.get(), 2, "{setup}");
        assert_eq!(
            metric_value(&metrics, "anello_http_connections_closed_total{reason=\"upgrade\"}"),
            2,
            "{setup}"
        );
    });
}

#[test]
fn fault_21_connections_beyond_limit_receive_503() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = with_long_timeouts();
        options.max_connections = 10;
        let (server, address) = serve(options, upload);
        let mut open = Vec::new();
        for _ in 0..10 {
            let mut client = Client::connect(address).await;
            assert_eq!(client.get("/").await.status, 200);
            open.push(client);
        }
        for _ in 0..200 {
            let mut client = Client::connect(address).await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.field("Connection")), (503, Some("close")));
        }
        assert_eq!(server.connections(), 10);
        for client in &mut open {
            assert_eq!(client.get("/").await.status, 200);
        }
        drop(open);
        wait_until(|| server.connections() == 0).await;
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
    });
}

#[test]
fn fault_22_clients_that_reset_do_not_affect_others() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let large = Bytes::from(vec![b'x'; 8 << 20]);
        let (server, address) =
            serve(with_long_timeouts(), async move |_: Request| Response::text(large.clone()));
        for number in 0..100 {
            let mut client = Client::connect(address).await;
            client.stream.set_linger(Some(Duration::ZERO)).ok();
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            if number % 2 == 0 {
                client.stream.recv().await.expect("receive");
            }
            client.stream.abort();
        }
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.body.len(), 8 << 20);
        drop(client);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn fault_37_drain_loses_no_received_request() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = with_long_timeouts();
        // Long enough that busy clients are not considered idle if the machine stalls.
        options.drain_min_idle = Duration::from_millis(if setup.is_simulated() { 100 } else { 3000 });
        let (has_slow_request, drain_started) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (slow_started, is_draining) = (Rc::clone(&has_slow_request), Rc::clone(&drain_started));
        let (server, address) = serve(options, async move |request: Request| {
            if request.path() == "/slow" {
                slow_started.set(true);
                wait_until(|| is_draining.get()).await;
                sleep(Duration::from_millis(200)).await;
            }
            Response::text("done")
        });
        let mut slow = Client::connect(address).await;
        slow.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await;
        wait_until(|| has_slow_request.get()).await;
        let mut idle = Client::connect(address).await;
        assert_eq!(idle.get("/").await.text(), "done");
        let served: Rc<[Cell<usize>; 8]> = Rc::default();
        let busy: Vec<_> = (0..served.len())
            .map(|number| {
                let served = Rc::clone(&served);
                anello::spawn(async move {
                    let mut client = Client::connect(address).await;
                    loop {
                        let response = client.get("/").await;
                        assert_eq!(response.text(), "done");
                        served[number].set(served[number].get() + 1);
                        if response.field("Connection") == Some("close") {
                            assert!(client.is_eof().await);
                            return;
                        }
                    }
                })
            })
            .collect();
        wait_until(|| served.iter().all(|served| served.get() > 10)).await;
        drain_started.set(true);
        let draining = anello::spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        for client in busy {
            client.await.expect("no request is lost");
        }
        let response = slow.response().await.expect("response");
        assert_eq!((response.text(), response.field("Connection")), ("done", Some("close")));
        assert!(idle.is_eof().await);
        // All clients close their connections, so the drain aborts none.
        drop(slow);
        assert_eq!(draining.await.expect("drain completes"), 0, "{setup}");
    });
}

#[test]
fn fault_37_drain_timeout_aborts_pending_requests() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = with_long_timeouts();
        options.drain_timeout = SHORT;
        let alive = Rc::new(Cell::new(0));
        let (server, address, metrics) = serve_with_metrics(options, pending_handler(&alive));
        let mut client = Client::connect(address).await;
        client.send(PENDING_REQUESTS[0]).await;
        wait_until(|| alive.get() == 1).await;
        assert_eq!(
            timeout(Duration::from_secs(1000), server.drain()).await.expect("drain completes in time"),
            1
        );
        wait_until(|| server.connections() == 0).await;
        assert_eq!(alive.get(), 0);
        assert_eq!(metric_value(&metrics, "anello_http_connections_closed_total{reason=\"drain\"}"), 1);
        assert_eq!(metric_value(&metrics, "anello_http_requests_total{method=\"GET\",status=\"5xx\"}"), 1);
        assert!(client.is_eof().await);
    });
}
