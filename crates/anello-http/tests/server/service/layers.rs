//! Layers of tower and tower-http, unmodified.

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::TcpListener;
use anello_test::{main_drivers, main_drivers_and_sim, run_on_each};
use axum::error_handling::HandleErrorLayer;
use axum::http::StatusCode;
use axum::routing::{get, post as post_route};
use http_body_util::Full;
use tower::layer::layer_fn;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{BoxError, ServiceBuilder, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use super::*;

#[test]
fn tower_http_layers_work() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let large = "ciao mondo ".repeat(1000);
        let text = large.clone();
        let app = Router::new()
            .route("/large", get(async move || text))
            .route("/echo", post_route(async |body: String| body))
            .layer(RequestBodyLimitLayer::new(10))
            .layer(CompressionLayer::new())
            .layer(CorsLayer::permissive())
            .layer(TraceLayer::new_for_http());
        let address = serve_app(app);
        let mut client = Client::connect(address).await;
        for coding in ["gzip", "br", "zstd"] {
            client.send(format!("GET /large HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {coding}\r\n\r\n")).await;
            let response = client.response().await.expect("response");
            assert_eq!(response.field("Content-Encoding"), Some(coding));
            assert!(!response.body.is_empty() && response.body.len() < large.len() / 2, "{coding}");
            if coding == "gzip" {
                let mut decoded = String::new();
                flate2::read::GzDecoder::new(&*response.body)
                    .read_to_string(&mut decoded)
                    .expect("gzip data");
                assert!(decoded == large);
            }
        }
        assert!(client.get("/large").await.text() == large);
        let preflight = "OPTIONS /echo HTTP/1.1\r\nHost: h\r\nOrigin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n";
        let response = exchange(address, preflight).await;
        assert_eq!((response.status, response.field("Access-Control-Allow-Origin")), (200, Some("*")));
        assert_eq!(exchange(address, post("/echo", "", "ciao")).await.text(), "ciao");
        assert_eq!(exchange(address, post("/echo", "", "too long for this")).await.status, 413);
        let chunked = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n";
        assert_eq!(exchange(address, chunked).await.status, 413);
    });
}

#[test]
fn timeout_layer_works_with_a_timer_of_tokio() {
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("runtime");
    let tokio = tokio.handle().clone();
    run_on_each(main_drivers(), move |_| {
        let tokio = tokio.clone();
        async move {
            let _guard = tokio.enter();
            let layer =
                TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(10));
            let app = Router::new().route("/", get(std::future::pending::<()>)).layer(layer);
            assert_eq!(exchange(serve_app(app), "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.status, 504);
        }
    });
}

#[test]
fn concurrency_limit_delays_requests() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (current, highest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let seen = Rc::clone(&highest);
        let service = service_fn(move |_: http::Request<Incoming>| {
            let (current, highest) = (Rc::clone(&current), Rc::clone(&highest));
            async move {
                current.update(|count| count + 1);
                highest.set(highest.get().max(current.get()));
                anello::yield_now().await;
                current.update(|count| count - 1);
                Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("ciao")))
            }
        });
        let service = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(2)).service(service);
        let (_server, address) = serve(ServerOptions::default(), service::handler(service));
        let client = async |_: u32| exchange(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.status;
        let statuses = futures_util::future::join_all((0..10).map(client)).await;
        assert_eq!(statuses, [200; 10]);
        assert!(seen.get() <= 2, "{}", seen.get());
    });
}

#[test]
fn load_shed_rejects_requests_above_limit() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let layers = ServiceBuilder::new()
            .layer(HandleErrorLayer::new(async |_: BoxError| StatusCode::SERVICE_UNAVAILABLE))
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(1));
        let app = Router::new().route("/", get(std::future::pending::<()>)).layer(layers);
        let address = serve_app(app);
        let mut waiting = Client::connect(address).await;
        waiting.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        // Wait until the first request holds the permit: until then, a request of this loop holds it.
        loop {
            let request = exchange(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            let response = anello::time::timeout(Duration::from_millis(50), request).await;
            if response.is_ok_and(|response| response.status == 503) {
                return;
            }
        }
    });
}

/// Without `Router::with_state`, axum applies the layers of a route again for each request.
#[test]
fn layers_of_routers_are_applied_once() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let applied = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&applied);
        let count = layer_fn(move |service| {
            counted.fetch_add(1, Ordering::Relaxed);
            service
        });
        let routes = get(async || "ciao").layer(count.clone());
        let app = Router::new().route("/", routes.clone()).layer(count);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let served = listener.local_addr().expect("local address");
        anello_http::serve(listener, app.clone()).detach();
        let with_peer = service::handler(service::with_peer_addr(app.clone(), service::PeerAddr));
        let with_peer = serve(ServerOptions::default(), with_peer).1;
        let method_router = serve(ServerOptions::default(), service::handler(routes)).1;
        for address in [served, serve_app(app), with_peer, method_router] {
            let before = applied.load(Ordering::Relaxed);
            let mut client = Client::connect(address).await;
            for _ in 0..3 {
                assert_eq!(client.get("/").await.text(), "ciao");
            }
            assert_eq!(applied.load(Ordering::Relaxed), before);
        }
    });
}
