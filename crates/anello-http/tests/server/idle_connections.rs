//! Suspended connections behave like active ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::time::{Instant, sleep};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::{Request, Response, Server, ServerOptions};
use anello_test::{main_drivers_and_sim, run_on_each, setup_named};

use crate::common::{Client, boxed, metric_value, serve, wait_until, with_long_timeouts};

const TICK: Duration = Duration::from_millis(5);

/// Time after which a simulated kernel has suspended an idle connection. On a slow machine, a connection may be
/// suspended later or not at all, which must make no difference.
const IDLE: Duration = Duration::from_millis(30);

fn options() -> ServerOptions {
    with_long_timeouts().suspend_after(Duration::ZERO).timer_resolution(TICK)
}

async fn echo(mut request: Request) -> Response {
    let body = request.body().collect().await.expect("a body");
    Response::text(format!("{} {} {}", request.method_text(), request.path(), body.len()))
}

#[test]
fn requests_are_served_after_idle_periods() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (server, address) = serve(options(), echo);
        let mut client = Client::connect(address).await;
        for number in 0..5 {
            sleep(IDLE).await;
            // The first byte, and the blank line that a client may send before it, arrive separately.
            for part in ["\r\n", "P", "OST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n12", "34"]
            {
                client.send(part).await;
                sleep(IDLE).await;
            }
            let response = client.response().await.expect("a response");
            assert_eq!((response.status, response.text()), (200, "POST /upload 4"), "{setup}: {number}");
            sleep(IDLE).await;
            client
                .send("GET /one HTTP/1.1\r\nHost: h\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\nGET /th")
                .await;
            for path in ["/one", "/two"] {
                assert_eq!(
                    client.response().await.expect("a response").text(),
                    format!("GET {path} 0"),
                    "{setup}"
                );
            }
            sleep(IDLE).await;
            client.send("ree HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.response().await.expect("a response").text(), "GET /three 0", "{setup}");
        }
        assert_eq!(server.connections(), 1, "{setup}");
        sleep(IDLE).await;
        drop(client);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn request_limit_includes_requests_before_idle_periods() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = options();
        options.limits.max_requests_per_connection = 3;
        let (_server, address) = serve(options, echo);
        let mut client = Client::connect(address).await;
        for number in 1..=3 {
            let response = client.get("/").await;
            let closes = response.field("Connection") == Some("close");
            assert_eq!((response.status, closes), (200, number == 3), "{setup}: request {number}");
            sleep(IDLE).await;
        }
        assert!(client.is_eof().await, "{setup}");
    });
}

#[test]
fn timeouts_include_time_before_suspension() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    run_on_each(main_drivers_and_sim(), async |setup| {
        for had_request in [true, false] {
            let metrics = ServerMetrics::new(MetricsOptions::default());
            let counts = metrics.worker(0).expect("worker 0 available");
            let options = options().keep_alive_timeout(TIMEOUT).header_timeout(TIMEOUT);
            let server = Server::builder().options(options).metrics(counts).build();
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let address = listener.local_addr().expect("local address");
            server.serve(listener, boxed(echo)).detach();
            let mut client = Client::connect(address).await;
            if had_request {
                assert_eq!(client.get("/").await.status, 200, "{setup}");
            }
            let start = Instant::now();
            sleep(TIMEOUT / 2).await;
            // A blank line does not extend the timeout.
            client.stream.write_all(b"\r\n").await.ok();
            assert!(client.is_eof().await, "{setup}");
            let is_in_time = (TIMEOUT - 2 * TICK..=TIMEOUT + 4 * TICK).contains(&start.elapsed());
            assert!(is_in_time || !setup.is_simulated(), "{setup}: {:?}", start.elapsed());
            wait_until(|| server.connections() == 0).await;
            let reason = if had_request { "idle" } else { "header_timeout" };
            let name = format!("anello_http_connections_closed_total{{reason=\"{reason}\"}}");
            assert_eq!(metric_value(&metrics, &name), 1, "{setup}: had a request: {had_request}");
        }
    });
}

#[test]
fn drain_and_abort_close_suspended_connections() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for drains in [true, false] {
            let (server, address) = serve(options().drain_min_idle(Duration::ZERO), echo);
            let mut clients = Vec::new();
            for number in 0..20 {
                let mut client = Client::connect(address).await;
                if number % 2 == 0 {
                    assert_eq!(client.get("/").await.status, 200, "{setup}");
                }
                clients.push(client);
            }
            wait_until(|| server.connections() == clients.len()).await;
            sleep(IDLE).await;
            let aborted = if drains { server.drain().await } else { server.abort_and_wait().await };
            assert_eq!(aborted, if drains { 0 } else { clients.len() }, "{setup}");
            assert_eq!(server.connections(), 0, "{setup}");
            for client in &mut clients {
                assert!(client.is_eof().await, "{setup}");
            }
        }
    });
}

#[test]
fn peer_address_is_known_after_client_has_reset_the_connection() {
    // On epoll, the client sends immediately.
    run_on_each(vec![setup_named("epoll")], async |_| {
        let known = Rc::new(RefCell::new(Vec::new()));
        let stored = Rc::clone(&known);
        let (server, address) = serve(options(), async move |request: Request| {
            stored.borrow_mut().push(request.peer().is_some());
            Response::text("served")
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 200);
        sleep(IDLE).await;
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.stream.shutdown_handle().reset();
        wait_until(|| server.connections() == 0).await;
        assert_eq!(*known.borrow(), [true, true]);
    });
}
