//! Eviction of connections that are waiting for their clients.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::time::{monotonic_now, sleep};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::Eviction;
use anello_http::{Request, Response, Server, ServerOptions};
use anello_test::{Setup, main_drivers_and_sim, run_on_each};

use crate::common::{Client, boxed, metric_value, serve, wait_until, with_long_timeouts};

const CONNECTIONS: usize = 10;

fn options(eviction: Eviction) -> ServerOptions {
    let mut options = with_long_timeouts();
    (options.max_connections, options.eviction) = (CONNECTIONS, eviction);
    options
}

#[test]
fn fault_21_further_client_evicts_longest_idle_connection() {
    // The clients are idle either between two requests or before the first one.
    for (had_request, suspends) in [(true, false), (true, true), (false, false)] {
        run_on_each(main_drivers_and_sim(), move |setup| {
            check_eviction_by_further_client(setup, had_request, suspends)
        });
    }
}

async fn check_eviction_by_further_client(setup: Setup, had_request: bool, suspends: bool) {
    let metrics = ServerMetrics::new(MetricsOptions::default());
    let counts = metrics.worker(0).expect("worker 0 available");
    let eviction = Eviction::Idle { threshold: CONNECTIONS };
    let mut options = options(eviction);
    if suspends {
        options = options.suspend_after(Duration::ZERO).timer_resolution(Duration::from_millis(1));
    }
    let server = Server::builder().options(options).metrics(counts).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    server.serve(listener, boxed(async |_: Request| Response::text("served"))).detach();
    let mut idle = Vec::new();
    for _ in 0..100 {
        let mut client = Client::connect(address).await;
        if had_request {
            assert_eq!(client.get("/").await.status, 200, "{setup}");
        }
        if suspends {
            sleep(Duration::from_millis(1)).await;
        }
        idle.push(client);
    }
    let mut last = Client::connect(address).await;
    assert_eq!(last.get("/").await.status, 200, "{setup}");
    assert!(server.connections() <= CONNECTIONS, "{setup}");
    // The first clients have been idle for the longest time.
    for (number, client) in idle[..=100 - CONNECTIONS].iter_mut().enumerate() {
        let response = client.response().await;
        assert_eq!(response, None, "{setup}: client {number}, had a request: {had_request}");
    }
    wait_until(|| metric_value(&metrics, "anello_http_connections_closed_total{reason=\"evicted\"}") == 91)
        .await;
    assert_eq!(
        metric_value(&metrics, "anello_http_connections_rejected_total{reason=\"max_connections\"}"),
        0,
        "{setup}"
    );
    assert_eq!(last.get("/").await.status, 200, "{setup}");
}

/// The number of connections that are handling requests exceeds the threshold. A new connection only has to wait until
/// the evicted one has closed.
#[test]
fn fault_21_new_connections_wait_only_for_evicted_connections() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (is_released, handled) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let handler = {
            let (is_released, handled) = (Rc::clone(&is_released), Rc::clone(&handled));
            async move |request: Request| {
                if request.path() == "/busy" {
                    handled.set(handled.get() + 1);
                    wait_until(|| is_released.get()).await;
                }
                Response::text("served")
            }
        };
        let mut options = options(Eviction::Idle { threshold: CONNECTIONS });
        options.max_connections = 4 * CONNECTIONS;
        let (server, address) = serve(options, handler);
        let mut busy = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            let mut client = Client::connect(address).await;
            client.send("GET /busy HTTP/1.1\r\nHost: h\r\n\r\n").await;
            busy.push(client);
        }
        wait_until(|| handled.get() == busy.len()).await;
        let (start, mut idle) = (monotonic_now(), Vec::new());
        for _ in 0..3 * CONNECTIONS {
            let mut client = Client::connect(address).await;
            assert_eq!(client.get("/").await.status, 200, "{setup}");
            idle.push(client);
        }
        // On real kernels, other processes may delay this test.
        if setup.is_simulated() {
            assert!(
                monotonic_now() - start < Duration::from_millis(500),
                "{setup}: {:?}",
                monotonic_now() - start
            );
        }
        assert!(server.connections() <= 2 * CONNECTIONS + 1, "{setup}");
        is_released.set(true);
        for client in &mut busy {
            assert_eq!(client.response().await.expect("response").status, 200, "{setup}");
        }
    });
}

#[test]
fn fault_21_requests_in_progress_are_not_evicted() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (is_released, handled) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let handler = {
            let (is_released, handled) = (Rc::clone(&is_released), Rc::clone(&handled));
            async move |_: Request| {
                handled.set(handled.get() + 1);
                wait_until(|| is_released.get()).await;
                Response::text("served")
            }
        };
        let (server, address) = serve(options(Eviction::Stalled { threshold: CONNECTIONS }), handler);
        let mut busy = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            busy.push(client);
        }
        wait_until(|| handled.get() == CONNECTIONS).await;
        for _ in 0..10 {
            let response = Client::connect(address).await.response().await.expect("rejection");
            assert_eq!(response.status, 503, "{setup}");
        }
        assert_eq!(server.connections(), CONNECTIONS);
        is_released.set(true);
        for client in &mut busy {
            assert_eq!(client.response().await.expect("response").status, 200, "{setup}");
        }
    });
}

#[test]
fn fault_18_stalled_clients_are_evicted_where_idle_ones_are_not() {
    let incomplete_head = "GET / HTTP/1.1\r\nHost";
    for (eviction, status) in [
        (Eviction::Idle { threshold: CONNECTIONS }, 503),
        (Eviction::Stalled { threshold: CONNECTIONS }, 200),
    ] {
        run_on_each(main_drivers_and_sim(), move |setup| async move {
            let (server, address) = serve(options(eviction), async |_: Request| Response::text("served"));
            let mut stalled = Vec::new();
            for _ in 0..CONNECTIONS {
                let mut client = Client::connect(address).await;
                // After a complete request, the client sends an incomplete head.
                assert_eq!(client.get("/").await.status, 200);
                client.send(incomplete_head).await;
                stalled.push(client);
            }
            wait_until(|| server.connections() == CONNECTIONS).await;
            // Loopback delivers immediately: the server reads the incomplete heads before this sleep ends.
            anello::time::sleep(std::time::Duration::from_millis(100)).await;
            let mut client = Client::connect(address).await;
            client.stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.ok();
            assert_eq!(client.response().await.expect("response").status, status, "{setup}");
        });
    }
}
