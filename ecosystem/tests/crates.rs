//! Crates that work unchanged on anello, and crates that need the tokio runtime, with what happens there.

use std::convert::Infallible;
use std::io;
use std::num::NonZero;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anello::compat::{HyperExecutor, HyperTimer};
use anello::io::duplex;
use anello::net::{TcpListener, TcpStream};
use anello::{DriverKind, Runtime};
use anello_ecosystem::local::Local;
use anello_ecosystem::tcp::TcpConnector;
use async_compression::tokio::bufread::GzipDecoder;
use async_compression::tokio::write::GzipEncoder;
use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use backon::{ConstantBuilder, Retryable};
use bytes::Bytes;
use deadpool::managed::{Manager, Metrics, Pool, RecycleResult};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use send_wrapper::SendWrapper;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::codec::{Framed, LinesCodec};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;

/// Runs the test on each driver that is available here.
fn on_each_driver(test: impl AsyncFn()) {
    for driver in [DriverKind::Uring, DriverKind::Epoll] {
        match Runtime::builder().driver(driver.clone()).driver_from_environment(false).build() {
            Ok(runtime) => runtime.block_on(test()),
            Err(error) => eprintln!("skipped on {driver:?}: {error}"),
        }
    }
}

/// Serves a router on a free port, and returns its URL.
fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    anello::spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let mut server = auto::Builder::new(HyperExecutor);
            server.http1().timer(HyperTimer);
            let service = TowerToHyperService::new(router.clone());
            // The client may close the connection at any time.
            anello::spawn(async move { server.serve_connection(stream, service).await.map_err(drop) })
                .detach();
        }
    })
    .detach();
    format!("http://{address}")
}

#[test]
fn axum_and_tower_http_serve_hyper_util_client() {
    on_each_driver(async || {
        let layers = ServiceBuilder::new()
            .layer(SetResponseHeaderLayer::overriding(header::SERVER, HeaderValue::from_static("anello")))
            .layer(CompressionLayer::new());
        let greet = get(|Path(name): Path<String>| async move { format!("ciao, {name}").repeat(100) });
        let url = serve(Router::new().route("/{name}", greet).layer(layers));
        let client: Client<_, Empty<Bytes>> =
            Client::builder(HyperExecutor).pool_timer(HyperTimer).build(TcpConnector);
        let request = Request::get(format!("{url}/Ada")).header("accept-encoding", "gzip").body(Empty::new());
        let response = client.request(request.expect("a request")).await.expect("a response");
        assert_eq!(response.headers()["server"], "anello");
        assert_eq!(response.headers()["content-encoding"], "gzip");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let mut text = String::new();
        GzipDecoder::new(&body[..]).read_to_string(&mut text).await.expect("valid data");
        assert_eq!(text, "ciao, Ada".repeat(100));
    });
}

#[test]
fn tower_limits_buffers_and_retries() {
    on_each_driver(async || {
        let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let service = service_fn(move |number: u32| {
            let call = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { if call < 2 { Err("busy") } else { Ok(number * 2) } }
        });
        let service = ServiceBuilder::new().concurrency_limit(1).retry(Attempts(3)).service(service);
        // `ServiceBuilder::buffer` spawns on the tokio runtime. The pair is spawned by its caller.
        let (mut service, worker) = tower::buffer::Buffer::pair(service, 8);
        anello::spawn(worker).detach();
        let response = service.ready().await.expect("ready").call(21).await;
        assert_eq!(response.expect("the third attempt succeeds"), 42);
        assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 3);
    });
}

/// A retry policy with a number of attempts.
#[derive(Clone)]
struct Attempts(u32);

impl<E> tower::retry::Policy<u32, u32, E> for Attempts {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _request: &mut u32, result: &mut Result<u32, E>) -> Option<Self::Future> {
        self.0 -= 1;
        (result.is_err() && self.0 > 0).then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &u32) -> Option<u32> {
        Some(*request)
    }
}

#[test]
fn tokio_util_codecs_and_cancellation_work() {
    on_each_driver(async || {
        let (one, other) = duplex(64);
        let (mut one, mut other) =
            (Framed::new(one, LinesCodec::new()), Framed::new(other, LinesCodec::new()));
        let token = CancellationToken::new();
        let stopped = token.clone();
        let echo = anello::spawn(async move {
            while let Some(Some(line)) = stopped.run_until_cancelled(other.next()).await {
                other.send(line.expect("a line")).await.expect("the line is sent");
            }
        });
        one.send("ciao").await.expect("the line is sent");
        assert_eq!(one.next().await.expect("a line").expect("a line"), "ciao");
        token.cancel();
        echo.await.expect("no panic");
    });
}

#[test]
fn streams_of_async_stream_and_tokio_stream_work() {
    on_each_driver(async || {
        let (sender, receiver) = anello::sync::mpsc::channel(1);
        anello::spawn(async move {
            let numbers = async_stream::stream! {
                for number in 0..5 {
                    anello::time::sleep(Duration::from_micros(10)).await;
                    yield number;
                }
            };
            let mut numbers = pin!(numbers);
            while let Some(number) = numbers.next().await {
                sender.send(number).await.expect("the receiver exists");
            }
        })
        .detach();
        let numbers: Vec<u32> = ReceiverStream::new(receiver.into()).collect().await;
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    });
}

#[test]
fn async_compression_works_on_streams() {
    on_each_driver(async || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        let server = listener.accept().await.expect("a connection");
        anello::spawn(async move {
            let mut encoder = GzipEncoder::new(client);
            encoder.write_all(&b"ciao ".repeat(100_000)).await.expect("the data is sent");
            encoder.shutdown().await.expect("the data is sent");
        })
        .detach();
        let mut text = Vec::new();
        GzipDecoder::new(BufReader::new(server)).read_to_end(&mut text).await.expect("valid data");
        assert!(text == b"ciao ".repeat(100_000));
    });
}

/// Connections to an address, for a pool of deadpool.
struct Connections(std::net::SocketAddr);

impl Manager for Connections {
    type Type = Local<TcpStream>;
    type Error = io::Error;

    fn create(&self) -> impl Future<Output = io::Result<Self::Type>> + Send {
        SendWrapper::new(async { TcpStream::connect(self.0).await.map(Local::new) })
    }

    async fn recycle(&self, _stream: &mut Self::Type, _metrics: &Metrics) -> RecycleResult<io::Error> {
        Ok(())
    }
}

#[test]
fn deadpool_reuses_connections() {
    on_each_driver(async || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let pool = Pool::builder(Connections(listener.local_addr().expect("an address"))).max_size(1);
        let pool: Pool<Connections> = pool.build().expect("a pool");
        anello::spawn(async move {
            let mut stream = listener.accept().await.expect("a connection");
            while let Some(chunk) = stream.recv().await.expect("the connection is open") {
                stream.send(chunk).await.expect("the connection is open");
            }
        })
        .detach();
        for _ in 0..3 {
            let mut stream = pool.get().await.expect("a connection");
            stream.write_all(b"ciao").await.expect("the data is sent");
            let mut reply = [0; 4];
            stream.read_exact(&mut reply).await.expect("a reply");
            assert_eq!(&reply, b"ciao");
        }
        assert_eq!(pool.status().size, 1);
    });
}

#[test]
fn async_channel_backon_governor_and_moka_work() {
    on_each_driver(async || {
        let (sender, receiver) = async_channel::bounded(1);
        anello::spawn(async move { sender.send("ciao").await }).detach();
        assert_eq!(receiver.recv().await, Ok("ciao"));

        let mut attempts = 0;
        let fetch = || {
            attempts += 1;
            std::future::ready(if attempts < 3 { Err("busy") } else { Ok(attempts) })
        };
        let delays = ConstantBuilder::default().with_delay(Duration::from_micros(10));
        assert_eq!(fetch.retry(delays).sleep(anello::time::sleep).await, Ok(3));

        // Waits for a timer thread of its own.
        let limiter =
            governor::RateLimiter::direct(governor::Quota::per_second(NonZero::new(1000).expect("not 0")));
        for _ in 0..1010 {
            limiter.until_ready().await;
        }

        let cache = moka::future::Cache::new(10);
        assert_eq!(cache.get_with(1, async { "ciao" }).await, "ciao");
        assert_eq!(cache.get_with(1, async { unreachable!("the value is in the cache") }).await, "ciao");
    });
}

/// Crates that use the tokio runtime by themselves work if a tokio runtime on another thread is entered: it runs their
/// tasks, timers and sockets.
#[test]
fn entered_tokio_runtime_serves_crates_that_need_it() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let tokio = tokio.expect("a tokio runtime");
    let _entered = tokio.enter();
    on_each_driver(async || {
        let url = serve(Router::new().route("/", get(|| async { "ciao" })));
        let response = reqwest::get(&url).await.expect("a response");
        assert_eq!(response.text().await.expect("text"), "ciao");

        let call = service_fn(|()| std::future::pending::<Result<(), Infallible>>());
        let mut service = ServiceBuilder::new().buffer(8).timeout(Duration::from_millis(10)).service(call);
        let elapsed =
            service.ready().await.expect("ready").call(()).await.expect_err("the time limit has passed");
        assert!(elapsed.is::<tower::timeout::error::Elapsed>());

        // The address has no broker, so that the connection is refused.
        let mut options = rumqttc::MqttOptions::new("anello", "127.0.0.1", 1);
        options.set_keep_alive(Duration::from_secs(5));
        let (_client, mut events) = rumqttc::AsyncClient::new(options, 10);
        assert!(matches!(events.poll().await, Err(rumqttc::ConnectionError::Io(_))));
    });
}

/// Without a tokio runtime, such crates panic.
#[test]
#[should_panic(expected = "there is no reactor running")]
fn tower_timeout_panics_without_tokio() {
    Runtime::new().expect("a runtime").block_on(async {
        let call = service_fn(|()| std::future::ready(Ok::<_, Infallible>(())));
        let mut service = ServiceBuilder::new().timeout(Duration::from_secs(1)).service(call);
        drop(service.ready().await.expect("ready").call(()).await);
    });
}

/// Without a tokio runtime, such crates panic.
#[test]
#[should_panic(expected = "there is no reactor running")]
fn reqwest_panics_without_tokio() {
    Runtime::new().expect("a runtime").block_on(async {
        drop(reqwest::get("http://127.0.0.1:1/").await);
    });
}
