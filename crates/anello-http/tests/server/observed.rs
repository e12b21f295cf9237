//! Metrics and access log entries for requests and connections that fail.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::fs::File;
use anello::net::{TcpListener, TcpStream};
use anello::time::sleep;
use anello::{DriverMetrics, JoinHandle};
use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogFormat, LogStats, LogTarget};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::{ProxyHeader, TlsConfig};
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{Setup, hang_timeout, main_drivers_and_sim, run_on_each, simulated_drivers};
use bytes::Bytes;
use futures_core::Stream;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::stream_client::ByteStreamClient;
use crate::common::{Client, tls, wait_until};

/// More than the buffers between server and client can hold in total.
const LARGE_BYTES: usize = 64 << 20;

/// Number of bytes that a client receives before its download is aborted.
const RECEIVED_BYTES: usize = 1 << 20;

/// A body stream that yields some chunks and then fails.
struct FailingStream {
    remaining_chunks: usize,
    failure: FailureKind,
}

#[derive(Clone, Copy, PartialEq)]
enum FailureKind {
    Error,
    Panic,
    /// The body ends normally, but the function that creates the trailers panics.
    Trailers,
}

impl Stream for FailingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining_chunks == 0 {
            assert!(self.failure != FailureKind::Panic, "on purpose");
            let fails = self.failure == FailureKind::Error;
            return Poll::Ready(fails.then(|| Err(io::Error::other("on purpose"))));
        }
        self.remaining_chunks -= 1;
        Poll::Ready(Some(Ok(Bytes::from_static(b"chunk"))))
    }
}

/// Returns a sparse file.
fn large_file() -> File {
    let file = tempfile::tempfile().expect("temporary file");
    file.set_len(LARGE_BYTES as u64).expect("set length");
    File::from(file)
}

async fn handle(request: Request) -> Response {
    let failing = |failure| FailingStream { remaining_chunks: 3, failure };
    match request.path() {
        "/invalid" => Response::new(99),
        "/broken" => Response::new(200).with_body(Body::stream(failing(FailureKind::Error))),
        "/panics" => Response::new(200).with_body(Body::stream(failing(FailureKind::Panic))),
        "/no-trailers" => {
            let trailers = || panic!("on purpose");
            Response::new(200).with_body(Body::stream_with_trailers(failing(FailureKind::Trailers), trailers))
        }
        "/memory" => Response::new(200).with_body(vec![0; LARGE_BYTES]),
        "/file" => Response::new(200).with_body(Body::file(large_file(), 0, LARGE_BYTES as u64)),
        _ => Response::text("completed"),
    }
}

/// A server with metrics and an access log.
struct ObservedServer {
    metrics: ServerMetrics,
    log: AccessLog,
    path: PathBuf,
    server: Server,
    address: SocketAddr,
    accepting: JoinHandle<()>,
    _directory: TempDir,
}

impl ObservedServer {
    fn start(options: ServerOptions, tls: Option<TlsConfig>) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("access.log");
        let mut log = AccessLogOptions::default();
        (log.target, log.format) = (LogTarget::File(path.clone()), LogFormat::Json);
        log.close_timeout = hang_timeout();
        let log = AccessLog::start(log).expect("start log");
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let builder = Server::builder().options(options).access_log(log.worker(0));
        let builder = builder.metrics(metrics.worker(0).expect("worker 0 available"));
        let server = if let Some(tls) = tls { builder.tls(tls) } else { builder }.build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let accepting = server.serve(listener, handle);
        Self { metrics, log, path, server, address, accepting, _directory: directory }
    }

    /// Returns the value of a metric. Panics if it has no sample.
    fn value(&self, name: &str) -> usize {
        let mut text = Vec::new();
        self.metrics.render(None, &mut text);
        let text = String::from_utf8(text).expect("UTF-8 text");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().expect("number")
    }

    /// Stops the server, waits until at least `count` lines have been logged, and returns all lines.
    async fn lines(self, count: usize) -> Vec<Value> {
        self.accepting.abort();
        self.accepting.await.ok();
        // The server flushes its lines after it has stopped, and the writer thread then writes them to the file.
        let are_written = || {
            // The writer thread runs in real time, even with a simulated kernel.
            std::thread::sleep(Duration::from_millis(1));
            std::fs::read_to_string(&self.path)
                .is_ok_and(|lines| lines.lines().count() >= count && lines.ends_with('\n'))
        };
        wait_until(are_written).await;
        self.log.close().expect("close log");
        let lines = std::fs::read_to_string(&self.path).expect("read log");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// Sends a request and receives until the connection is closed.
async fn send_request(address: SocketAddr, request: &str) {
    let mut client = Client::connect(address).await;
    client.send(request).await;
    while let Ok(Some(_)) = client.stream.recv().await {}
}

#[test]
fn failed_requests_are_counted_and_logged() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let observed = ObservedServer::start(ServerOptions::default(), None);
        let requests = [
            "GET /well HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "GET /invalid HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /broken HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /panics HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /no-trailers HTTP/1.1\r\nHost: h\r\n\r\n",
            "PUT /rejected HTTP/1.1\r\n\r\n",
            "no request\r\n\r\n",
        ];
        for request in requests {
            send_request(observed.address, request).await;
            wait_until(|| observed.server.connections() == 0).await;
        }
        let value = |name: &str| observed.value(name);
        assert_eq!(value("anello_http_connections_open"), 0, "{setup}");
        // One stream fails, one panics, and the function that creates the trailers of a third one panics.
        assert_eq!(value("anello_http_connections_closed_total{reason=\"handler_error\"}"), 3, "{setup}");
        assert_eq!(value("anello_http_connections_closed_total{reason=\"protocol_error\"}"), 2, "{setup}");
        assert_eq!(value("anello_http_requests_total{method=\"GET\",status=\"2xx\"}"), 4, "{setup}");
        assert_eq!(value("anello_http_requests_total{method=\"GET\",status=\"5xx\"}"), 1, "{setup}");
        assert_eq!(value("anello_http_requests_total{method=\"PUT\",status=\"4xx\"}"), 1, "{setup}");
        assert_eq!(value("anello_http_requests_total{method=\"other\",status=\"4xx\"}"), 1, "{setup}");
        // All counted requests except the rejected ones.
        assert_eq!(value("anello_http_request_duration_seconds_count"), 5, "{setup}");
        let request_bytes = requests.iter().map(|request| request.len()).sum::<usize>();
        assert_eq!(value("anello_http_received_bytes_total"), request_bytes, "{setup}");
        let sent_bytes = value("anello_http_sent_bytes_total");
        let lines = observed.lines(7).await;
        let logged: Vec<_> =
            lines.iter().map(|line| (line["target"].as_str(), line["status"].as_u64())).collect();
        let expected = [
            (Some("/well"), Some(200)),
            (Some("/invalid"), Some(500)),
            (Some("/broken"), Some(200)),
            (Some("/panics"), Some(200)),
            (Some("/no-trailers"), Some(200)),
            (Some("/rejected"), Some(400)),
            (None, Some(400)),
        ];
        assert_eq!(logged, expected, "{setup}");
        assert!(lines.iter().all(|line| line["bytes"].as_u64() > Some(7)), "{setup}: {lines:?}");
        let logged_bytes = lines.iter().filter_map(|line| line["bytes"].as_u64()).sum::<u64>();
        assert_eq!(logged_bytes, sent_bytes as u64, "{setup}");
    });
}

#[test]
fn bodies_and_data_after_rejection_count_as_received() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = ServerOptions::default();
        options.linger_timeout = Duration::from_secs(1000);
        let observed = ObservedServer::start(options, None);
        let mut sent_bytes = 0;
        for request in [
            format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n{}", "b".repeat(300_000)),
            format!("no request\r\n\r\n{}", "b".repeat(300_000)),
        ] {
            let mut client = Client::connect(observed.address).await;
            client.send(&request).await;
            client.stream.shutdown().await.expect("shut down");
            while let Ok(Some(_)) = client.stream.recv().await {}
            wait_until(|| observed.server.connections() == 0).await;
            sent_bytes += request.len();
        }
        assert_eq!(observed.value("anello_http_received_bytes_total"), sent_bytes, "{setup}");
    });
}

/// Cause of an aborted download.
#[derive(Clone, Copy, Debug)]
enum AbortCause {
    Client,
    Deadline,
    Drain,
}

/// Aborts a download and checks its metrics and log line.
async fn abort_request(cause: AbortCause, path: &str, is_secured: bool, setup: &Setup) {
    let context = format!("{setup}, {cause:?}, {path}, TLS: {is_secured}");
    let (server_tls, client_tls) = if is_secured { Some(tls::pair()) } else { None }.unzip();
    let observed = ObservedServer::start(cause.options(), server_tls);
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut client = TcpStream::connect(observed.address).await.expect("connect");
    match client_tls {
        Some(config) => tls::send_request(&mut client, config, request.as_bytes()).await,
        None => client.write_all(request.as_bytes()).await.expect("send"),
    }
    let mut received_bytes = 0;
    while received_bytes < RECEIVED_BYTES {
        received_bytes += client.recv().await.expect("receive").expect("more data").len();
    }
    let server = &observed.server;
    match cause {
        AbortCause::Client => drop(client),
        AbortCause::Deadline => wait_until(|| server.connections() == 0).await,
        AbortCause::Drain => assert_eq!(server.drain().await, 1, "{context}"),
    }
    if matches!(cause, AbortCause::Client) {
        wait_until(|| server.connections() == 0).await;
    }
    let sent_bytes = observed.value("anello_http_sent_bytes_total");
    // The received bytes include the head and the TLS overhead.
    let expected = RECEIVED_BYTES - RECEIVED_BYTES / 16..LARGE_BYTES;
    assert!(expected.contains(&sent_bytes), "{context}: {sent_bytes} of {expected:?}");
    assert_eq!(observed.value("anello_http_received_bytes_total"), request.len(), "{context}");
    let lines = observed.lines(1).await;
    assert_eq!(lines.len(), 1, "{context}");
    assert_eq!(
        (lines[0]["target"].as_str(), lines[0]["status"].as_u64()),
        (Some(path), Some(200)),
        "{context}"
    );
    assert_eq!(lines[0]["bytes"].as_u64(), Some(sent_bytes as u64), "{context}");
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

    /// Runs the test with a file and with an in-memory body, each with and without TLS.
    fn run_on(self, setups: Vec<Setup>) {
        run_on_each(setups, move |setup| async move {
            for (path, is_secured) in
                [("/file", false), ("/memory", false), ("/file", true), ("/memory", true)]
            {
                abort_request(self, path, is_secured, &setup).await;
            }
        });
    }
}

#[test]
fn download_aborted_by_client_counts_sent_bytes() {
    AbortCause::Client.run_on(main_drivers_and_sim());
}

#[test]
fn download_aborted_by_drain_counts_sent_bytes() {
    AbortCause::Drain.run_on(main_drivers_and_sim());
}

#[test]
fn download_aborted_by_send_timeout_counts_sent_bytes() {
    // Checked only on simulated kernels, whose clocks are virtual.
    AbortCause::Deadline.run_on(simulated_drivers());
}

#[test]
fn metrics_document_lists_every_metric() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/http-metrics.md"));
    let page = page.expect("read document");
    let metrics = ServerMetrics::new(MetricsOptions::default());
    let worker = metrics.worker(0).expect("worker 0 available");
    assert!(worker.publish(DriverMetrics::default().entries()));
    let mut text = Vec::new();
    metrics.render(Some(&LogStats::default()), &mut text);
    let text = String::from_utf8(text).expect("UTF-8 text");
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        let documented_name = name.strip_prefix("anello_driver_").unwrap_or(name);
        assert!(
            page.contains(&format!("`{documented_name}`")),
            "{name} is missing in docs/reference/http-metrics.md"
        );
    }
}

/// The clients of these tests have the address 127.0.0.1.
#[test]
fn clients_reported_by_trusted_proxies_are_logged() {
    const XFF: &str = "X-Forwarded-For: 198.51.100.7, 203.0.113.9\r\n";
    run_on_each(main_drivers_and_sim(), async |setup| {
        for (trusted, header, fields, expected) in [
            (&["127.0.0.0/8"][..], ProxyHeader::XForwardedFor, XFF, "203.0.113.9"),
            // The addresses of proxies in front of this one are skipped.
            (&["127.0.0.1", "203.0.113.0/24"], ProxyHeader::XForwardedFor, XFF, "198.51.100.7"),
            (&["127.0.0.1", "0.0.0.0/0"], ProxyHeader::XForwardedFor, XFF, "198.51.100.7"),
            (
                &["127.0.0.1"],
                ProxyHeader::XForwardedFor,
                "X-Forwarded-For: a, 2001:db8::9\r\n",
                "2001:db8::9",
            ),
            (&["127.0.0.1"], ProxyHeader::XForwardedFor, "X-Forwarded-For: 203.0.113.9, a\r\n", "127.0.0.1"),
            (&["127.0.0.1"], ProxyHeader::XForwardedFor, "", "127.0.0.1"),
            (
                &["127.0.0.1"],
                ProxyHeader::Forwarded,
                "X-Forwarded-For: 198.51.100.7\r\nForwarded: for=198.51.100.8\r\nForwarded: for=\"[2001:db8::9]:47\"\r\n",
                "2001:db8::9",
            ),
            // The client is not a trusted proxy.
            (&["127.0.0.2", "unix"], ProxyHeader::XForwardedFor, XFF, "127.0.0.1"),
            (&[], ProxyHeader::XForwardedFor, XFF, "127.0.0.1"),
        ] {
            let options = ServerOptions::default()
                .trusted_proxies(trusted.iter().map(|proxy| proxy.parse().expect("proxy")).collect())
                .proxy_header(header);
            let observed = ObservedServer::start(options, None);
            let request = format!("GET /well HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
            send_request(observed.address, &request).await;
            let lines = observed.lines(1).await;
            let peer = lines[0]["peer"].as_str().expect("peer");
            assert!(peer.contains(expected), "{setup}: {trusted:?} {fields}: {peer}");
        }
    });
}

#[test]
fn client_in_header_of_proxy_protocol_is_logged() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\x0a\0\0\x01\x12\x34\0\x50";
        for header in [&b"PROXY TCP4 203.0.113.9 10.0.0.1 4660 80\r\n"[..], binary] {
            for secured in [false, true] {
                let (server_tls, client_tls) = if secured { Some(tls::pair()) } else { None }.unzip();
                let options = ServerOptions::default()
                    .trusted_proxies(vec!["127.0.0.1".parse().expect("proxy")])
                    .proxy_header(ProxyHeader::ProxyProtocol);
                let observed = ObservedServer::start(options, server_tls);
                // Together with the first bytes after it, and in parts.
                for is_split in [false, true] {
                    let mut client = ByteStreamClient::connect(observed.address, client_tls.as_ref()).await;
                    client.send_before_tls(if is_split { &header[..9] } else { header }).await;
                    if is_split {
                        sleep(Duration::from_millis(20)).await;
                        client.send_before_tls(&header[9..]).await;
                    }
                    for _ in 0..2 {
                        client.send(b"GET /well HTTP/1.1\r\nHost: h\r\n\r\n").await;
                        assert!(client.receive().await.starts_with(b"HTTP/1.1 200 "), "{setup}");
                    }
                }
                let mut without_header = Client::connect(observed.address).await;
                without_header.send("GET /well HTTP/1.1\r\nHost: h\r\n\r\n").await;
                assert!(without_header.is_eof().await, "{setup}");
                let lines = observed.lines(4).await;
                assert_eq!(lines.len(), 4, "{setup}");
                for line in lines {
                    assert_eq!(line["peer"], "203.0.113.9:4660", "{setup}");
                }
            }
        }
    });
}
