//! HTTP over TLS. The clients use rustls on blocking sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::spawn_blocking;
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::TlsConfig;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{hang_timeout, main_drivers, run_on_each};
use bytes::Bytes;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{boxed, metric_value, wait_until};

/// A self-signed certificate for `localhost` in PEM and DER format, and its key in PEM format.
struct Identity {
    certificate_pem: String,
    key_pem: String,
    certificate: CertificateDer<'static>,
}

fn identity() -> Identity {
    let certified_key =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("generate certificate");
    Identity {
        certificate_pem: certified_key.cert.pem(),
        key_pem: certified_key.signing_key.serialize_pem(),
        certificate: certified_key.cert.der().clone(),
    }
}

impl Identity {
    fn config(&self) -> TlsConfig {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (certificate, key) = (directory.path().join("certificate.pem"), directory.path().join("key.pem"));
        std::fs::write(&certificate, &self.certificate_pem).expect("write certificate");
        std::fs::write(&key, &self.key_pem).expect("write key");
        TlsConfig::from_pem_files(&certificate, &key).expect("valid configuration")
    }

    fn client(&self) -> Arc<ClientConfig> {
        self.client_with_alpn(&["http/1.1"])
    }

    /// Returns the configuration of a client that offers these ALPN protocols.
    fn client_with_alpn(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("valid certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config =
            builder.expect("protocol versions").with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

type Tls = StreamOwned<ClientConnection, StdStream>;

fn connect(config: Arc<ClientConfig>, address: SocketAddr) -> Tls {
    let name = ServerName::try_from("localhost").expect("valid server name");
    let stream = StdStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(hang_timeout())).expect("set read timeout");
    StreamOwned::new(ClientConnection::new(config, name).expect("TLS client"), stream)
}

/// Sends requests, the last of which has `Connection: close`. Returns all responses and the negotiated ALPN protocol.
fn exchange(mut tls: Tls, requests: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    tls.write_all(requests.as_bytes()).expect("send");
    let mut responses = Vec::new();
    // Fails if the server closes the connection without sending close_notify.
    tls.read_to_end(&mut responses).expect("close_notify");
    (responses, tls.conn.alpn_protocol().map(<[u8]>::to_vec))
}

fn start(config: TlsConfig) -> (Server, SocketAddr) {
    let server = Server::builder().options(ServerOptions::default()).tls(config).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    let large = Bytes::from(vec![b'x'; 5 << 20]);
    let file = tempfile::tempfile().expect("temporary file");
    (&file).write_all(&vec![b'f'; 1 << 20]).expect("write file");
    let file = anello::fs::File::from(file);
    let handler = async move |mut request: Request| match request.path() {
        "/large" => Response::text(large.clone()),
        "/file" => Response::new(200).with_body(Body::file(file.clone(), 0, 1 << 20)),
        _ => {
            let path = request.path().to_owned();
            Response::text([path.as_bytes(), &request.body().collect().await.unwrap_or_default()].concat())
        }
    };
    server.serve(listener, boxed(handler)).detach();
    (server, address)
}

#[test]
fn plaintext_request_is_rejected_with_text() {
    run_on_each(main_drivers(), async |_| {
        let (server, address) = start(identity().config());
        for request in [
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcde",
        ] {
            let client = spawn_blocking(move || {
                let mut stream = StdStream::connect(address).expect("connect");
                stream.set_read_timeout(Some(hang_timeout())).expect("set read timeout");
                stream.write_all(request.as_bytes()).expect("send");
                let mut response = String::new();
                stream.read_to_string(&mut response).expect("response and EOF");
                response
            });
            let response = client.await.expect("client");
            assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
            assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
            assert!(response.ends_with("requires TLS (use https://)\n"), "{response}");
        }
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn tls_serves_requests_of_all_sizes() {
    run_on_each(main_drivers(), async |_| {
        let identity = identity();
        let (server, address) = start(identity.config());
        let config = identity.client();
        let client = spawn_blocking(move || {
            let upload = "u".repeat(1 << 20);
            let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
            let put =
                format!("PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{upload}", upload.len());
            let last = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let requests = [get("/a"), get("/large"), put, get("/file"), last.to_owned()].concat();
            exchange(connect(config, address), &requests)
        });
        let (responses, protocol) = client.await.expect("task completes");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
        let count = |byte: u8| responses.iter().filter(|received| **received == byte).count();
        assert!(count(b'x') >= 5 << 20 && count(b'f') >= 1 << 20 && count(b'u') >= 1 << 20);
        assert!(responses.ends_with(b"\r\n\r\n/last"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn tls_accepts_alpn_http_10_and_rejects_unknown_protocols() {
    run_on_each(main_drivers(), async |_| {
        let identity = identity();
        let (_, address) = start(identity.config());
        let (http_10, http_3) =
            (identity.client_with_alpn(&["http/1.0"]), identity.client_with_alpn(&["h3"]));
        let client = spawn_blocking(move || {
            assert!(connect(http_3, address).write_all(b"GET / HTTP/1.1\r\n").is_err());
            exchange(connect(http_10, address), "GET /old HTTP/1.0\r\n\r\n")
        });
        let (response, protocol) = client.await.expect("task completes");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.0"[..]));
        assert!(response.ends_with(b"\r\n\r\n/old"));
    });
}

#[test]
fn failed_handshakes_do_not_affect_other_clients() {
    run_on_each(main_drivers(), async |_| {
        let identity = identity();
        let (server, address) = start(identity.config());
        let (untrusting, trusting) = (self::identity().client(), identity.client());
        let client = spawn_blocking(move || {
            let mut plain = StdStream::connect(address).expect("connect");
            plain.set_read_timeout(Some(Duration::from_secs(60))).expect("set read timeout");
            plain.write_all(b"\0neither TLS nor HTTP\r\n\r\n").expect("send");
            let mut response = Vec::new();
            plain.read_to_end(&mut response).ok();
            assert!(!response.starts_with(b"HTTP"), "{response:?}");
            let mut untrusting = connect(untrusting, address);
            assert!(untrusting.write_all(b"GET / HTTP/1.1\r\n").is_err());
            drop(untrusting);
            exchange(connect(trusting, address), "GET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").0
        });
        assert!(client.await.expect("task completes").ends_with(b"/ok"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn replaced_certificate_applies_to_new_connections() {
    run_on_each(main_drivers(), async |_| {
        let (first, second) = (identity(), identity());
        let config = first.config();
        let (_, address) = start(config.clone());
        let (old_client, new_client) = (first.client(), second.client());
        let mut connection = connect(Arc::clone(&old_client), address);
        let connection = spawn_blocking(move || {
            connection.write_all(b"GET /before HTTP/1.1\r\nHost: h\r\n\r\n").expect("send");
            let mut response = [0; 4096];
            let count = connection.read(&mut response).expect("response");
            assert!(response[..count].starts_with(b"HTTP/1.1 200 OK"));
            connection
        });
        let connection = connection.await.expect("task completes");
        config.replace(&second.config());
        let last = "GET /after HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let client = spawn_blocking(move || {
            assert!(exchange(connection, last).0.ends_with(b"/after"));
            assert!(
                connect(old_client, address).write_all(b"G").is_err(),
                "the server still uses the old certificate"
            );
            exchange(connect(new_client, address), last).0
        });
        assert!(client.await.expect("task completes").ends_with(b"/after"));
    });
}

#[test]
fn tls_clients_beyond_connection_limit_receive_503() {
    run_on_each(main_drivers(), async |_| {
        let identity = identity();
        let server =
            Server::builder().configure(|options| options.max_connections = 1).tls(identity.config()).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        server.serve(listener, boxed(async |_: Request| Response::text("served"))).detach();
        let (first, second) = (identity.client(), identity.client());
        let last = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let client = spawn_blocking(move || {
            let mut connection = connect(first, address);
            connection.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("send");
            let mut response = [0; 4096];
            let count = connection.read(&mut response).expect("response");
            assert!(response[..count].ends_with(b"served"));
            (exchange(connect(second, address), last).0, exchange(connection, last).0)
        });
        let (rejection, served) = client.await.expect("task completes");
        assert!(rejection.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&rejection));
        assert!(served.ends_with(b"served"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn client_that_disconnects_without_request_counts_as_closed_by_peer() {
    run_on_each(main_drivers(), async |setup| {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let counts = metrics.worker(0).expect("worker 0 available");
        let server = Server::builder().tls(identity().config()).metrics(counts).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        server.serve(listener, boxed(async |_: Request| Response::new(204))).detach();
        // The clients disconnect before the handshake, so the server cannot send close_notify.
        let clients = move || (0..10).for_each(|_| drop(StdStream::connect(address).expect("connect")));
        spawn_blocking(clients).await.expect("task completes");
        let closed = |reason| {
            metric_value(&metrics, &format!("anello_http_connections_closed_total{{reason=\"{reason}\"}}"))
        };
        wait_until(|| closed("peer") + closed("aborted") == 10).await;
        assert_eq!(closed("peer"), 10, "{setup}");
    });
}
