//! Applications of axum.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::TcpListener;
use anello_http::Server;
use anello_test::{main_drivers_and_sim, run_on_each};
use axum::Json;
use axum::body::Body as AxumBody;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post as post_route};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::*;
use crate::common::{wait_until, with_long_timeouts};

fn app() -> Router {
    let items = Router::new()
        .route("/", get(async || "items"))
        .route("/{id}", get(async |Path(id): Path<u32>| format!("item {id}")));
    let events = async || {
        let events =
            (0..3).map(|number| Ok::<_, Infallible>(Event::default().event("tick").data(number.to_string())));
        Sse::new(stream::iter(events))
    };
    let numbers = async || {
        let chunks = (0..100).map(|_| Ok::<_, Infallible>(Bytes::from(vec![b'x'; 1024])));
        AxumBody::from_stream(stream::iter(chunks))
    };
    let count =
        async |State(count): State<Arc<AtomicUsize>>| count.fetch_add(1, Ordering::Relaxed).to_string();
    Router::new()
        .nest("/api/items", items)
        .route("/count", get(count))
        .route(
            "/double",
            post_route(async |Json(value): Json<Value>| {
                Json(json!({ "double": value["number"].as_i64().map(|number| number * 2) }))
            }),
        )
        .route("/query", get(async |Query(query): Query<Vec<(String, String)>>| format!("{query:?}")))
        .route("/echo", post_route(async |body: Bytes| body))
        .route("/stream-echo", post_route(async |request: Request| request.into_body()))
        .route("/events", get(events))
        .route("/stream", get(numbers))
        .with_state(Arc::new(AtomicUsize::new(0)))
}

#[test]
fn routes_extractors_and_responses_work() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_app(app());
        let mut client = Client::connect(address).await;
        for (path, text) in [
            ("/api/items", "items"),
            ("/api/items/17", "item 17"),
            ("/count", "0"),
            ("/count", "1"),
            ("/query?a=b%20c", "[(\"a\", \"b c\")]"),
        ] {
            let response = client.get(path).await;
            assert_eq!((response.status, response.text()), (200, text), "{path}");
            assert!(response.field("Content-Length").is_some());
        }
        assert_eq!(client.get("/api/items/x").await.status, 400);
        assert_eq!(client.get("/missing").await.status, 404);
        client.send("HEAD /count HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.response_to("HEAD").await.expect("response").field("Content-Length"), Some("1"));
        let request = post("/double", "Content-Type: application/json\r\n", "{\"number\":21}");
        let response = exchange(address, request).await;
        assert_eq!(
            (response.field("Content-Type"), response.text()),
            (Some("application/json"), "{\"double\":42}")
        );
        assert_eq!(exchange(address, "POST /count HTTP/1.1\r\nHost: h\r\n\r\n").await.status, 405);
    });
}

#[test]
fn bodies_are_streamed_in_both_directions() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_app(app());
        let body = "x".repeat(1024);
        let mut client = Client::connect(address).await;
        for _ in 0..2 {
            client.send(post("/echo", "", &body)).await;
            assert_eq!(client.response().await.expect("response").text(), body);
        }
        let response = client.get("/stream").await;
        assert_eq!((response.field("Transfer-Encoding"), response.body.len()), (Some("chunked"), 100 * 1024));
        let response = client.get("/events").await;
        assert_eq!(response.field("Content-Type"), Some("text/event-stream"));
        let expected = "event: tick\ndata: 0\n\nevent: tick\ndata: 1\n\nevent: tick\ndata: 2\n\n";
        assert_eq!(response.text(), expected);
        // The response starts before the request is complete.
        client.send("POST /stream-echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let mut head = Vec::new();
        for part in ["uno", "due"] {
            client.send(format!("3\r\n{part}\r\n")).await;
            loop {
                let line = client.read_line().await;
                if line == part {
                    break;
                }
                head.push(line);
            }
        }
        client.send("0\r\n\r\n").await;
        assert_eq!(client.read_line().await, "0");
        assert_eq!(client.read_line().await, "");
        assert!(head.contains(&"Transfer-Encoding: chunked".to_owned()), "{head:?}");
        client.send(post("/stream-echo", "Expect: 100-continue\r\n", "ciao")).await;
        let mut response = client.response().await.expect("response");
        if response.status == 100 {
            response = client.response().await.expect("response");
        }
        assert_eq!((response.field("Content-Length"), response.text()), (Some("4"), "ciao"));
    });
}

#[test]
fn disconnect_during_body_is_an_error() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let errors = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&errors);
        let read = async move |request: Request| {
            if axum::body::to_bytes(request.into_body(), usize::MAX).await.is_err() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let address = serve_app(Router::new().route("/", post_route(read)));
        let mut client = Client::connect(address).await;
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nciao").await;
        drop(client);
        wait_until(|| errors.load(Ordering::Relaxed) == 1).await;
    });
}

#[test]
fn extractors_report_body_errors_as_in_guide() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let start = |body_timeout: Option<Duration>| {
            let mut options = with_long_timeouts();
            options.body_timeout = body_timeout.unwrap_or(options.body_timeout);
            options.limits.max_body_bytes = 32;
            serve(options, service::handler(app().layer(DefaultBodyLimit::max(16)))).1
        };
        let (long_timeout, short_timeout) = (start(None), start(Some(Duration::from_millis(10))));
        let chunked = |body: &str| {
            let fields = "Host: h\r\nTransfer-Encoding: chunked\r\n";
            format!("POST /echo HTTP/1.1\r\n{fields}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        };
        let incomplete = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx".to_owned();
        let [allowed, above_axum, above_both] = [16, 17, 33].map(|length| "x".repeat(length));
        for (address, request, status, text) in [
            (long_timeout, post("/echo", "", &allowed), 200, &*allowed),
            (long_timeout, chunked(&allowed), 200, &allowed),
            // The limit of axum.
            (long_timeout, post("/echo", "", &above_axum), 413, "length limit exceeded"),
            (long_timeout, chunked(&above_axum), 413, "length limit exceeded"),
            // The limits and the timeout of the server: the extractor reports them if they end the reading of the body.
            (long_timeout, post("/echo", "", &above_both), 413, "413 Content Too Large: body too long"),
            (long_timeout, chunked(&above_both), 400, "413 Content Too Large: body too long"),
            (short_timeout, incomplete, 400, "408 Request Timeout: request not received in time"),
        ] {
            let response = exchange(address, &request).await;
            assert_eq!(response.status, status, "{request}");
            assert!(response.text().contains(text), "{request}: {}", response.text());
        }
    });
}

#[test]
fn drain_completes_requests_in_flight() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let app = Router::new().route("/", post_route(async |body: String| body));
        let server = Server::builder().build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let accepting = server.serve(listener, service::handler(app));
        let mut client = Client::connect(address).await;
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nci").await;
        wait_until(|| server.connections() == 1).await;
        accepting.abort();
        let draining = anello::spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        anello::time::sleep(Duration::from_millis(1)).await;
        client.send("ao").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.text(), response.field("Connection")), ("ciao", Some("close")));
        drop(client);
        assert_eq!(draining.await.expect("no panic"), 0);
    });
}

/// Counts itself in handlers and bodies that must be `Send`.
struct AliveGuard(Arc<AtomicUsize>);

impl AliveGuard {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(alive))
    }
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn fault_22_handler_and_body_are_dropped_when_client_closes() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let alive = Arc::new(AtomicUsize::new(0));
        let never = async |State(alive): State<Arc<AtomicUsize>>| {
            let _guard = AliveGuard::new(&alive);
            pending::<()>().await;
        };
        let endless = async |State(alive): State<Arc<AtomicUsize>>| {
            let first = stream::iter([Ok::<_, Infallible>(Bytes::from("first\n"))]);
            let guard = AliveGuard::new(&alive);
            // The closure owns the guard, and is dropped with the body.
            AxumBody::from_stream(first.chain(stream::pending()).inspect(move |_| _ = &guard))
        };
        let app = Router::new().route("/never", get(never)).route("/endless", get(endless));
        let app = app.with_state(Arc::clone(&alive));
        let server = Server::builder().options(with_long_timeouts()).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        server.serve(listener, service::handler(app)).detach();
        for path in ["/never", "/endless"] {
            let mut clients = Vec::new();
            for number in 1..=2 {
                let mut client = Client::connect(address).await;
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
                wait_until(|| alive.load(Ordering::Relaxed) == number).await;
                if path == "/endless" {
                    while client.read_line().await != "first\n" {}
                }
                clients.push(client);
            }
            clients[0].stream.shutdown().await.expect("shut down");
            wait_until(|| (alive.load(Ordering::Relaxed), server.connections()) == (1, 1)).await;
            drop(clients);
            wait_until(|| server.connections() == 0).await;
            assert_eq!(alive.load(Ordering::Relaxed), 0, "{setup}: {path}");
        }
    });
}
