//! Clients that are slow, idle, too many or gone: the server's deadlines and limits, on every driver.
//!
//! Deadlines are short here, and struck at some time after: what is looked at is that they are struck, what the client is
//! told, and that others are served meanwhile. When they are struck is looked at on simulated kernels alone, whose clock is
//! virtual.

mod common;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::DriverKind;
use anello::net::{ReadHalf, TcpListener, TcpStream};
use anello::time::{monotonic_now, sleep, timeout};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::{Body, Request, RequestBodyError, Response, Server, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;

use common::{Client, count_of, drivers, for_each_driver, serve, wait_until};

/// All deadlines far away, but for what a test sets.
fn with_long_timeouts() -> ServerOptions {
    let long = Duration::from_secs(1000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout) = (long, long);
    options.timer_resolution = Duration::from_millis(5);
    options
}

const SHORT: Duration = Duration::from_millis(60);

fn is_simulated(kind: &DriverKind) -> bool {
    matches!(kind, DriverKind::Sim(_))
}

/// Checks when a deadline was struck, by a clock that nothing else holds up: up to two ticks late, and never early.
fn assert_timed_out(kind: &DriverKind, after: Duration, deadline: Duration) {
    let tick = with_long_timeouts().timer_resolution;
    let is_in_time = after >= deadline - tick && after <= deadline + 3 * tick;
    assert!(is_in_time || !is_simulated(kind), "{kind}: after {after:?}");
}

async fn upload(mut request: Request) -> Response {
    match request.body().collect().await {
        Ok(body) => Response::text(format!("{} bytes", body.len())),
        Err(RequestBodyError::Rejected(refusal)) => Response::new(refusal.status).with_connection_close(),
        Err(_) => Response::new(400).with_connection_close(),
    }
}

#[test]
fn fault_18_heads_that_drip_are_cut_at_the_deadline_and_others_are_served() {
    for_each_driver(drivers(), async |_| {
        let mut options = with_long_timeouts();
        options.header_timeout = SHORT;
        let (server, address) = serve(options, upload);
        let slow: Vec<_> = (0..50)
            .map(|number| {
                anello::spawn(async move {
                    let mut client = Client::connect(address).await;
                    // Some say nothing at all.
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
        // It has to be as fast with its first head, too, which a machine may not be.
        let mut other = loop {
            let mut other = Client::connect(address).await;
            other.stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.ok();
            if let Some(response) = other.response().await.filter(|response| response.status == 200) {
                assert_eq!(response.text(), "0 bytes");
                break other;
            }
        };
        let mut told = [0, 0];
        for (number, client) in slow.into_iter().enumerate() {
            assert_eq!(other.get("/").await.status, 200);
            match client.await.expect("done") {
                Some(status) => {
                    assert_eq!(status, 408, "client {number}");
                    told[0] += 1;
                }
                None => told[1] += 1,
            }
        }
        assert!(told[0] > 0 && told[1] >= 16, "{told:?}");
        wait_until(|| server.connections() == 1).await;
    });
}

/// What comes until the connection ends.
async fn all_of(mut reader: ReadHalf<Rc<TcpStream>>) -> String {
    let mut received = Vec::new();
    while let Ok(Some(chunk)) = reader.recv().await {
        received.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&received).into_owned()
}

#[test]
fn fault_19_bodies_that_drip_are_cut() {
    for_each_driver(drivers(), async |kind| {
        let mut options = with_long_timeouts();
        (options.body_timeout, options.min_body_bytes_per_second) = (SHORT, 1_000_000);
        let (server, address) = serve(options, upload);
        for (framing, drop) in [("Content-Length: 100000", "x"), ("Transfer-Encoding: chunked", "1\r\nx\r\n")]
        {
            let mut client = Client::connect(address).await;
            client.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n")).await;
            let started = monotonic_now();
            let (reader, mut writer) = client.stream.into_split();
            let dripping = anello::spawn(async move {
                while writer.write_all(drop.as_bytes()).await.is_ok() {
                    sleep(Duration::from_millis(3)).await
                }
            });
            // It is told, and that the connection ends; which it does, though the client drips on.
            let text = all_of(reader).await;
            assert_timed_out(&kind, monotonic_now() - started, SHORT);
            assert!(
                text.starts_with("HTTP/1.1 408 ") && text.contains("\r\nConnection: close\r\n"),
                "{text}"
            );
            dripping.abort();
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn bodies_that_are_as_fast_as_they_have_to_be_are_not_cut() {
    for_each_driver(drivers(), async |kind| {
        let mut options = with_long_timeouts();
        // Wherever time is that of the machine, there is plenty.
        options.body_timeout = if is_simulated(&kind) { SHORT } else { options.body_timeout };
        options.min_body_bytes_per_second = 10_000;
        let (_server, address) = serve(options, upload);
        let mut client = Client::connect(address).await;
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n").await;
        for _ in 0..100 {
            client.send([b'x'; 200]).await;
            // Two seconds in all, of which each may be waited for because so much has come.
            sleep(if is_simulated(&kind) { Duration::from_millis(20) } else { Duration::from_millis(1) })
                .await;
        }
        assert_eq!(client.response().await.expect("an answer").text(), "20000 bytes");
    });
}

#[test]
fn fault_21_idle_connections_are_closed_and_busy_ones_are_not() {
    for_each_driver(drivers(), async |kind| {
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
        assert_timed_out(&kind, monotonic_now() - started, SHORT);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn fault_20_answers_that_nobody_reads_are_given_up_and_take_bounded_memory() {
    for_each_driver(drivers(), async |_| {
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
fn a_request_may_have_a_deadline_of_its_own() {
    for_each_driver(drivers(), async |_| {
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
        assert_eq!(client.get("/").await.text(), "done", "it counts from the request");
        client.send("GET /never HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.is_eof().await);
        // The handler does not keep it, and the client has not closed it.
        wait_until(|| server.connections() == 0).await;
    });
}

/// A body without a piece, told of by its guard.
struct Never(Guard);

impl Stream for Never {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        assert!(self.0.0.get() > 0, "it was dropped");
        Poll::Pending
    }
}

/// Counts what is alive.
struct Guard(Rc<Cell<usize>>);

impl Guard {
    fn new(alive: &Rc<Cell<usize>>) -> Self {
        alive.set(alive.get() + 1);
        Self(Rc::clone(alive))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Handlers that do not come to an end, each in its way, and count themselves.
fn endless(alive: &Rc<Cell<usize>>) -> impl AsyncFn(Request) -> Response + 'static {
    let alive = Rc::clone(alive);
    async move |mut request: Request| {
        let guard = Guard::new(&alive);
        match request.path() {
            "/stream" => Response::new(200).with_body(Body::stream(Never(guard))),
            "/body" => {
                // The rest of it never comes, and the handler does not mind.
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

/// The protocol that it changes to does not come to an end.
const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n";

const ENDLESS: [&str; 3] = [
    "GET /never HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf",
];

#[test]
fn a_handler_that_does_not_end_is_dropped_at_the_deadline_and_makes_room() {
    for_each_driver(drivers(), async |kind| {
        for request in ENDLESS {
            let mut options = with_long_timeouts();
            (options.request_timeout, options.max_connections) = (Some(SHORT), 2);
            let alive = Rc::new(Cell::new(0));
            let (server, address, metrics) = serve_counted(options, endless(&alive));
            let mut clients = [Client::connect(address).await, Client::connect(address).await];
            let started = monotonic_now();
            for client in &mut clients {
                client.send(request).await;
            }
            for client in clients {
                let (reader, _writer) = client.stream.into_split();
                let text = all_of(reader).await;
                assert_timed_out(&kind, monotonic_now() - started, SHORT);
                assert_eq!(text.starts_with("HTTP/1.1 200 "), request.contains("/stream"), "{kind}: {text}");
                assert!(!text.ends_with("0\r\n\r\n"), "{kind}: {text}");
            }
            wait_until(|| server.connections() == 0).await;
            assert_eq!(alive.get(), 0, "{kind}: {request}");
            assert_eq!(Client::connect(address).await.get("/").await.text(), "done", "{kind}");
            wait_until(|| server.connections() == 0).await;
            let count = |name: &str| count_of(&metrics, name);
            assert_eq!(count("anello_http_connections_closed_total{reason=\"total_deadline\"}"), 2, "{kind}");
            let (answered, cut) = if request.contains("/stream") { (3, 0) } else { (1, 2) };
            let requests = |method, status| {
                count(&format!("anello_http_requests_total{{method=\"{method}\",status=\"{status}\"}}"))
            };
            assert_eq!(requests("GET", "2xx"), answered, "{kind}: {request}");
            assert_eq!(requests("GET", "5xx") + requests("POST", "5xx"), cut, "{kind}: {request}");
        }
    });
}

/// As [`serve`], with metrics.
fn serve_counted<H>(options: ServerOptions, handler: H) -> (Server, SocketAddr, ServerMetrics)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let metrics = ServerMetrics::new(MetricsOptions::default());
    let worker = metrics.worker(0).expect("the first");
    let server = Server::builder().options(options).metrics(worker).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    server.serve(listener, handler).detach();
    (server, address, metrics)
}

#[test]
fn fault_22_a_handler_is_dropped_when_its_client_resets_and_not_when_it_ends_its_side() {
    for_each_driver(drivers(), async |kind| {
        for request in &ENDLESS[..2] {
            let alive = Rc::new(Cell::new(0));
            let (server, address) = serve(with_long_timeouts(), endless(&alive));
            let mut half_closed = Client::connect(address).await;
            half_closed.send(request).await;
            half_closed.stream.shutdown().await.expect("ends");
            let mut reset = Client::connect(address).await;
            reset.stream.set_linger(Some(Duration::ZERO)).ok();
            reset.send(request).await;
            wait_until(|| alive.get() == 2).await;
            reset.stream.abort();
            wait_until(|| server.connections() == 1).await;
            // Looked at again and again.
            sleep(with_long_timeouts().timer_resolution * 10).await;
            assert_eq!((server.connections(), alive.get()), (1, 1), "{kind}: {request}");
            server.abort_connections();
            wait_until(|| server.connections() == 0).await;
            assert_eq!(alive.get(), 0, "{kind}: {request}");
        }
    });
}

#[test]
fn another_protocol_is_dropped_when_the_server_ends_and_no_sooner() {
    for_each_driver(drivers(), async |kind| {
        let alive = Rc::new(Cell::new(0));
        let (server, address) = serve(with_long_timeouts(), endless(&alive));
        let mut reset = Client::connect(address).await;
        reset.send(CHAT).await;
        wait_until(|| alive.get() == 1).await;
        reset.stream.abort();
        let mut client = Client::connect(address).await;
        client.send(CHAT).await;
        wait_until(|| alive.get() == 2).await;
        // Looked at again and again.
        sleep(with_long_timeouts().timer_resolution * 10).await;
        assert_eq!((server.connections(), alive.get()), (2, 2), "{kind}");
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
        assert_eq!(alive.get(), 0, "{kind}");
    });
}

#[test]
fn another_protocol_that_has_ended_in_good_order_comes_to_its_own_end() {
    for_each_driver(drivers(), async |kind| {
        let ended = Rc::new(Cell::new(0));
        let ends = Rc::clone(&ended);
        let (server, address, metrics) =
            serve_counted(with_long_timeouts(), async move |request: Request| {
                let (ends, is_dropped) = (Rc::clone(&ends), request.path() == "/dropped");
                Response::upgrade("chat", async move |mut upgraded| {
                    assert_eq!(upgraded.recv().await.ok(), Some(None));
                    upgraded.shutdown().await.expect("ends");
                    if is_dropped {
                        drop(upgraded);
                    }
                    // It has something else to do.
                    sleep(with_long_timeouts().timer_resolution * 10).await;
                    ends.set(ends.get() + 1);
                })
            });
        for request in [CHAT, &CHAT.replace("/chat", "/dropped")] {
            let mut client = Client::connect(address).await;
            client.send(request).await;
            client.stream.shutdown().await.expect("ends");
            let (reader, _writer) = client.stream.into_split();
            assert!(all_of(reader).await.starts_with("HTTP/1.1 101 "), "{kind}");
        }
        wait_until(|| server.connections() == 0).await;
        assert_eq!(ended.get(), 2, "{kind}");
        assert_eq!(
            count_of(&metrics, "anello_http_connections_closed_total{reason=\"upgrade\"}"),
            2,
            "{kind}"
        );
    });
}

#[test]
fn fault_21_there_are_no_more_connections_than_may_be() {
    for_each_driver(drivers(), async |_| {
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
            let response = client.response().await.expect("an answer");
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
fn fault_22_clients_that_reset_in_the_middle_harm_nobody() {
    for_each_driver(drivers(), async |_| {
        let large = Bytes::from(vec![b'x'; 8 << 20]);
        let (server, address) =
            serve(with_long_timeouts(), async move |_: Request| Response::text(large.clone()));
        for number in 0..100 {
            let mut client = Client::connect(address).await;
            client.stream.set_linger(Some(Duration::ZERO)).ok();
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            if number % 2 == 0 {
                client.stream.recv().await.expect("bytes");
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
fn fault_37_draining_loses_no_request_that_has_come() {
    for_each_driver(drivers(), async |kind| {
        let mut options = with_long_timeouts();
        // Clients that are busy must not seem to be idle, however long the machine stops in between.
        options.drain_min_idle = Duration::from_millis(if is_simulated(&kind) { 100 } else { 3000 });
        let (is_slow_begun, drains) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (begun, is_draining) = (Rc::clone(&is_slow_begun), Rc::clone(&drains));
        let (server, address) = serve(options, async move |request: Request| {
            if request.path() == "/slow" {
                begun.set(true);
                wait_until(|| is_draining.get()).await;
                sleep(Duration::from_millis(200)).await;
            }
            Response::text("whole")
        });
        let mut slow = Client::connect(address).await;
        slow.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await;
        wait_until(|| is_slow_begun.get()).await;
        let mut idle = Client::connect(address).await;
        assert_eq!(idle.get("/").await.text(), "whole");
        let served: Rc<[Cell<usize>; 8]> = Rc::default();
        let busy: Vec<_> = (0..served.len())
            .map(|number| {
                let served = Rc::clone(&served);
                anello::spawn(async move {
                    let mut client = Client::connect(address).await;
                    loop {
                        let response = client.get("/").await;
                        assert_eq!(response.text(), "whole");
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
        drains.set(true);
        let draining = anello::spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        for client in busy {
            client.await.expect("no request was lost");
        }
        let response = slow.response().await.expect("an answer");
        assert_eq!((response.text(), response.field("Connection")), ("whole", Some("close")));
        assert!(idle.is_eof().await);
        // Clients end their side, and nobody has to be cut off.
        drop(slow);
        assert_eq!(draining.await.expect("drained"), 0, "{kind}");
    });
}

#[test]
fn fault_37_what_takes_too_long_is_cut_at_the_deadline() {
    for_each_driver(drivers(), async |_| {
        let mut options = with_long_timeouts();
        options.drain_timeout = SHORT;
        let alive = Rc::new(Cell::new(0));
        let (server, address, metrics) = serve_counted(options, endless(&alive));
        let mut client = Client::connect(address).await;
        client.send(ENDLESS[0]).await;
        wait_until(|| alive.get() == 1).await;
        assert_eq!(timeout(Duration::from_secs(1000), server.drain()).await.expect("in time"), 1);
        wait_until(|| server.connections() == 0).await;
        assert_eq!(alive.get(), 0);
        assert_eq!(count_of(&metrics, "anello_http_connections_closed_total{reason=\"drain\"}"), 1);
        assert_eq!(count_of(&metrics, "anello_http_requests_total{method=\"GET\",status=\"5xx\"}"), 1);
        assert!(client.is_eof().await);
    });
}
