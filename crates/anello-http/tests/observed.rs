//! What the counts and the access log tell of requests and connections that do not end well.

mod common;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::fs::File;
use anello::net::{TcpListener, TcpStream};
use anello::{DriverKind, DriverMetrics, JoinHandle};
use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogFormat, LogStats, LogTarget};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics, driver_samples};
use anello_http::server::TlsConfig;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;
use serde_json::Value;
use tempfile::TempDir;

use common::{Client, drivers, for_each_driver, tls, wait_until};

/// More than all buffers on the way hold.
const LARGE_BYTES: usize = 64 << 20;

/// What clients take of it before it breaks off.
const TAKEN_BYTES: usize = 1 << 20;

/// Pieces, and then an error, a panic, or the end.
struct Failing {
    pieces: usize,
    fails_by: FailureKind,
}

#[derive(Clone, Copy, PartialEq)]
enum FailureKind {
    Error,
    Panic,
    /// And panics where its trailers are made.
    Trailers,
}

impl Stream for Failing {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.pieces == 0 {
            assert!(self.fails_by != FailureKind::Panic, "on purpose");
            let fails = self.fails_by == FailureKind::Error;
            return Poll::Ready(fails.then(|| Err(io::Error::other("on purpose"))));
        }
        self.pieces -= 1;
        Poll::Ready(Some(Ok(Bytes::from_static(b"piece"))))
    }
}

/// A file that takes no room on the disk.
fn large_file() -> File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(LARGE_BYTES as u64).expect("so large");
    File::from(file)
}

async fn handle(request: Request) -> Response {
    let failing = |fails_by| Failing { pieces: 3, fails_by };
    match request.path() {
        "/invalid" => Response::new(99),
        "/broken" => Response::new(200).with_body(Body::stream(failing(FailureKind::Error))),
        "/panics" => Response::new(200).with_body(Body::stream(failing(FailureKind::Panic))),
        "/no-trailers" => {
            let ends = || panic!("on purpose");
            Response::new(200).with_body(Body::stream_with_trailers(failing(FailureKind::Trailers), ends))
        }
        "/memory" => Response::new(200).with_body(vec![0; LARGE_BYTES]),
        "/file" => Response::new(200).with_body(Body::file(large_file(), 0, LARGE_BYTES as u64)),
        _ => Response::text("answered"),
    }
}

/// A server that counts and logs.
struct Observed {
    metrics: ServerMetrics,
    log: AccessLog,
    path: PathBuf,
    server: Server,
    address: SocketAddr,
    accepting: JoinHandle<()>,
    _folder: TempDir,
}

impl Observed {
    fn start(options: ServerOptions, tls: Option<TlsConfig>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let mut log = AccessLogOptions::default();
        (log.target, log.format) = (LogTarget::File(path.clone()), LogFormat::Json);
        let log = AccessLog::start(log).expect("a log");
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let builder = Server::builder().options(options).access_log(log.worker(0));
        let builder = builder.metrics(metrics.worker(0).expect("the first"));
        let server = if let Some(tls) = tls { builder.tls(tls) } else { builder }.build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let accepting = server.serve(listener, handle);
        Self { metrics, log, path, server, address, accepting, _folder: folder }
    }

    /// What a scrape says under this name.
    fn value(&self, name: &str) -> usize {
        let mut text = Vec::new();
        self.metrics.render(None, &mut text);
        let text = String::from_utf8(text).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("a number")
    }

    /// The lines of the log, of which there are so many.
    async fn lines(self, count: usize) -> Vec<Value> {
        self.accepting.abort();
        self.accepting.await.ok();
        // They go to the writer when the server has come to rest, and from there to the file.
        let are_written = || {
            // The writer's time is not that of a simulated kernel.
            std::thread::sleep(Duration::from_millis(1));
            std::fs::read_to_string(&self.path)
                .is_ok_and(|lines| lines.lines().count() >= count && lines.ends_with('\n'))
        };
        wait_until(are_written).await;
        self.log.close().expect("written");
        let lines = std::fs::read_to_string(&self.path).expect("a log");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// Asks, and reads until the connection ends.
async fn send_request(address: SocketAddr, request: &str) {
    let mut client = Client::connect(address).await;
    client.send(request).await;
    while let Ok(Some(_)) = client.stream.recv().await {}
}

#[test]
fn what_fails_is_counted_and_logged_as_well() {
    for_each_driver(drivers(), async |kind| {
        let observed = Observed::start(ServerOptions::default(), None);
        let requests = [
            "GET /well HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "GET /invalid HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /broken HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /panics HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /no-trailers HTTP/1.1\r\nHost: h\r\n\r\n",
            "PUT /refused HTTP/1.1\r\n\r\n",
            "no request\r\n\r\n",
        ];
        for request in requests {
            send_request(observed.address, request).await;
            wait_until(|| observed.server.connections() == 0).await;
        }
        let value = |name: &str| observed.value(name);
        assert_eq!(value("anello_http_connections_open"), 0, "{kind}");
        // The one that breaks, and those that panic.
        assert_eq!(value("anello_http_connections_closed_total{reason=\"handler\"}"), 3, "{kind}");
        assert_eq!(value("anello_http_connections_closed_total{reason=\"refusal\"}"), 2, "{kind}");
        assert_eq!(value("anello_http_requests_total{method=\"GET\",status=\"2xx\"}"), 4, "{kind}");
        assert_eq!(value("anello_http_requests_total{method=\"GET\",status=\"5xx\"}"), 1, "{kind}");
        assert_eq!(value("anello_http_requests_total{method=\"PUT\",status=\"4xx\"}"), 1, "{kind}");
        assert_eq!(value("anello_http_requests_total{method=\"other\",status=\"4xx\"}"), 1, "{kind}");
        // All that were counted but those that were refused.
        assert_eq!(value("anello_http_request_duration_seconds_count"), 5, "{kind}");
        let request_bytes = requests.iter().map(|request| request.len()).sum::<usize>();
        assert_eq!(value("anello_http_received_bytes_total"), request_bytes, "{kind}");
        let sent_bytes = value("anello_http_sent_bytes_total");
        let lines = observed.lines(7).await;
        let told: Vec<_> =
            lines.iter().map(|line| (line["target"].as_str(), line["status"].as_u64())).collect();
        let expected = [
            (Some("/well"), Some(200)),
            (Some("/invalid"), Some(500)),
            (Some("/broken"), Some(200)),
            (Some("/panics"), Some(200)),
            (Some("/no-trailers"), Some(200)),
            (Some("/refused"), Some(400)),
            (None, Some(400)),
        ];
        assert_eq!(told, expected, "{kind}");
        assert!(lines.iter().all(|line| line["bytes"].as_u64() > Some(7)), "{kind}: {lines:?}");
        let logged_bytes = lines.iter().filter_map(|line| line["bytes"].as_u64()).sum::<u64>();
        assert_eq!(logged_bytes, sent_bytes as u64, "{kind}");
    });
}

#[test]
fn bodies_and_what_comes_behind_a_refusal_count_as_received() {
    for_each_driver(drivers(), async |kind| {
        let mut options = ServerOptions::default();
        options.linger_timeout = Duration::from_secs(1000);
        let observed = Observed::start(options, None);
        let mut sent_bytes = 0;
        for request in [
            format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n{}", "b".repeat(300_000)),
            format!("no request\r\n\r\n{}", "b".repeat(300_000)),
        ] {
            let mut client = Client::connect(observed.address).await;
            client.send(&request).await;
            client.stream.shutdown().await.expect("an end");
            while let Ok(Some(_)) = client.stream.recv().await {}
            wait_until(|| observed.server.connections() == 0).await;
            sent_bytes += request.len();
        }
        assert_eq!(observed.value("anello_http_received_bytes_total"), sent_bytes, "{kind}");
    });
}

/// Who breaks a download off.
#[derive(Clone, Copy, Debug)]
enum AbortCause {
    Client,
    Deadline,
    Drain,
}

/// Has a download broken off, and looks at what is told of it.
async fn abort_request(cause: AbortCause, path: &str, is_secured: bool, kind: &DriverKind) {
    let what = format!("{kind}, {cause:?}, {path}, TLS: {is_secured}");
    let (server_tls, client_tls) = if is_secured { Some(tls::pair()) } else { None }.unzip();
    let observed = Observed::start(cause.options(), server_tls);
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut client = TcpStream::connect(observed.address).await.expect("connects");
    match client_tls {
        Some(config) => tls::send_request(&mut client, config, request.as_bytes()).await,
        None => client.write_all(request.as_bytes()).await.expect("sends"),
    }
    let mut taken_bytes = 0;
    while taken_bytes < TAKEN_BYTES {
        taken_bytes += client.recv().await.expect("a connection").expect("more").len();
    }
    let server = &observed.server;
    match cause {
        AbortCause::Client => drop(client),
        AbortCause::Deadline => wait_until(|| server.connections() == 0).await,
        AbortCause::Drain => assert_eq!(server.drain().await, 1, "{what}"),
    }
    if matches!(cause, AbortCause::Client) {
        wait_until(|| server.connections() == 0).await;
    }
    let sent_bytes = observed.value("anello_http_sent_bytes_total");
    // The head is among what the client has taken, and what TLS adds.
    let expected = TAKEN_BYTES - TAKEN_BYTES / 16..LARGE_BYTES;
    assert!(expected.contains(&sent_bytes), "{what}: {sent_bytes} of {expected:?}");
    assert_eq!(observed.value("anello_http_received_bytes_total"), request.len(), "{what}");
    let lines = observed.lines(1).await;
    assert_eq!(lines.len(), 1, "{what}");
    assert_eq!((lines[0]["target"].as_str(), lines[0]["status"].as_u64()), (Some(path), Some(200)), "{what}");
    assert_eq!(lines[0]["bytes"].as_u64(), Some(sent_bytes as u64), "{what}");
}

impl AbortCause {
    fn options(self) -> ServerOptions {
        let mut options = ServerOptions::default();
        match self {
            Self::Client => {}
            Self::Deadline => options.send_timeout = Duration::from_secs(1),
            Self::Drain => options.drain_timeout = Duration::ZERO,
        }
        options
    }

    /// Of a file and of a body in memory, with TLS and without.
    fn run_on(self, kinds: Vec<DriverKind>) {
        for_each_driver(kinds, move |kind| async move {
            for (path, is_secured) in
                [("/file", false), ("/memory", false), ("/file", true), ("/memory", true)]
            {
                abort_request(self, path, is_secured, &kind).await;
            }
        });
    }
}

#[test]
fn a_download_that_its_client_breaks_off_counts_as_far_as_it_went() {
    AbortCause::Client.run_on(drivers());
}

#[test]
fn a_download_that_the_end_of_the_server_breaks_off_counts_as_far_as_it_went() {
    AbortCause::Drain.run_on(drivers());
}

#[test]
fn a_download_that_nobody_reads_on_counts_as_far_as_it_went() {
    // Their clocks are virtual.
    AbortCause::Deadline
        .run_on(drivers().into_iter().filter(|kind| matches!(kind, DriverKind::Sim(_))).collect());
}

#[test]
fn the_page_about_metrics_names_all_of_them() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/http-metrics.md"));
    let page = page.expect("a page");
    let metrics = ServerMetrics::new(MetricsOptions::default());
    assert!(metrics.worker(0).expect("the first").publish(&driver_samples(&DriverMetrics::default())));
    let mut text = Vec::new();
    metrics.render(Some(&LogStats::default()), &mut text);
    let text = String::from_utf8(text).expect("text");
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        let shown = name.strip_prefix("anello_driver_").unwrap_or(name);
        assert!(page.contains(&format!("`{shown}`")), "{name} is missing in docs/reference/http-metrics.md");
    }
}
