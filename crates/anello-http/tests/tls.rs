//! HTTP under TLS, with clients that are rustls on plain blocking sockets.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::spawn_blocking;
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_http::server::TlsConfig;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use bytes::Bytes;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use common::{count_of, for_each_driver, real_drivers, wait_until};

/// A certificate for `localhost`, signed by itself, in PEM and DER, and its key in PEM.
struct Identity {
    certificate_pem: String,
    key_pem: String,
    certificate: CertificateDer<'static>,
}

fn identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    Identity {
        certificate_pem: made.cert.pem(),
        key_pem: made.signing_key.serialize_pem(),
        certificate: made.cert.der().clone(),
    }
}

impl Identity {
    fn config(&self) -> TlsConfig {
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, &self.certificate_pem).expect("written");
        std::fs::write(&key, &self.key_pem).expect("written");
        TlsConfig::from_pem_files(&certificate, &key).expect("a configuration")
    }

    fn client(&self) -> Arc<ClientConfig> {
        self.client_of(&["h2", "http/1.1"])
    }

    /// A client that offers these protocols.
    fn client_of(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

type Tls = StreamOwned<ClientConnection, StdStream>;

fn connect(config: Arc<ClientConfig>, address: SocketAddr) -> Tls {
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = StdStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    StreamOwned::new(ClientConnection::new(config, name).expect("a client"), stream)
}

/// Sends requests that end with `Connection: close` and reads all answers.
fn exchange(mut tls: Tls, requests: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    tls.write_all(requests.as_bytes()).expect("sends");
    let mut answers = Vec::new();
    // A close_notify is asked for: without it, this is an error.
    tls.read_to_end(&mut answers).expect("an orderly end");
    (answers, tls.conn.alpn_protocol().map(<[u8]>::to_vec))
}

fn start(config: TlsConfig) -> (Server, SocketAddr) {
    let server = Server::builder().options(ServerOptions::default()).tls(config).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let large = Bytes::from(vec![b'x'; 5 << 20]);
    let file = tempfile::tempfile().expect("a file");
    (&file).write_all(&vec![b'f'; 1 << 20]).expect("written");
    let file = anello::fs::File::from(file);
    let handler = async move |mut request: Request| match request.path() {
        "/large" => Response::text(large.clone()),
        "/file" => Response::new(200).with_body(Body::file(file.clone(), 0, 1 << 20)),
        _ => {
            let path = request.path().to_owned();
            Response::text([path.as_bytes(), &request.body().collect().await.unwrap_or_default()].concat())
        }
    };
    server.serve(listener, handler).detach();
    (server, address)
}

#[test]
fn requests_of_all_sizes_are_answered_under_tls() {
    for_each_driver(real_drivers(), async |_| {
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
        let (answers, protocol) = client.await.expect("exchanged");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
        let count = |byte: u8| answers.iter().filter(|found| **found == byte).count();
        assert!(count(b'x') >= 5 << 20 && count(b'f') >= 1 << 20 && count(b'u') >= 1 << 20);
        assert!(answers.ends_with(b"\r\n\r\n/last"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn clients_of_http_10_are_served_under_tls_and_those_of_http_2_alone_are_not() {
    for_each_driver(real_drivers(), async |_| {
        let identity = identity();
        let (_, address) = start(identity.config());
        let (old, new) = (identity.client_of(&["http/1.0"]), identity.client_of(&["h2"]));
        let client = spawn_blocking(move || {
            assert!(connect(new, address).write_all(b"PRI * HTTP/2.0\r\n").is_err());
            exchange(connect(old, address), "GET /old HTTP/1.0\r\n\r\n")
        });
        let (response, protocol) = client.await.expect("exchanged");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.0"[..]));
        assert!(response.ends_with(b"\r\n\r\n/old"));
    });
}

#[test]
fn what_is_no_tls_is_refused_and_harms_nobody() {
    for_each_driver(real_drivers(), async |_| {
        let identity = identity();
        let (server, address) = start(identity.config());
        let (wrong, right) = (self::identity().client(), identity.client());
        let client = spawn_blocking(move || {
            let mut plain = StdStream::connect(address).expect("connects");
            plain.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            plain.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            let mut response = Vec::new();
            plain.read_to_end(&mut response).ok();
            assert!(!response.starts_with(b"HTTP"), "{response:?}");
            let mut distrustful = connect(wrong, address);
            assert!(distrustful.write_all(b"GET / HTTP/1.1\r\n").is_err());
            drop(distrustful);
            exchange(connect(right, address), "GET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").0
        });
        assert!(client.await.expect("exchanged").ends_with(b"/ok"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_new_certificate_is_for_new_connections() {
    for_each_driver(real_drivers(), async |_| {
        let (first, second) = (identity(), identity());
        let shown = first.config();
        let (_, address) = start(shown.clone());
        let (old, new) = (first.client(), second.client());
        let mut kept = connect(Arc::clone(&old), address);
        let kept = spawn_blocking(move || {
            kept.write_all(b"GET /before HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            let mut response = [0; 4096];
            let count = kept.read(&mut response).expect("an answer");
            assert!(response[..count].starts_with(b"HTTP/1.1 200 OK"));
            kept
        });
        let kept = kept.await.expect("exchanged");
        shown.replace(&second.config());
        let last = "GET /after HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let client = spawn_blocking(move || {
            assert!(exchange(kept, last).0.ends_with(b"/after"));
            assert!(connect(old, address).write_all(b"G").is_err(), "the old one is not shown any more");
            exchange(connect(new, address), last).0
        });
        assert!(client.await.expect("exchanged").ends_with(b"/after"));
    });
}

#[test]
fn clients_beyond_the_limit_are_told_so_under_tls() {
    for_each_driver(real_drivers(), async |_| {
        let identity = identity();
        let server =
            Server::builder().configure(|options| options.max_connections = 1).tls(identity.config()).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        server.serve(listener, async |_: Request| Response::text("served")).detach();
        let (first, second) = (identity.client(), identity.client());
        let last = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let client = spawn_blocking(move || {
            let mut kept = connect(first, address);
            kept.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            let mut response = [0; 4096];
            let count = kept.read(&mut response).expect("an answer");
            assert!(response[..count].ends_with(b"served"));
            (exchange(connect(second, address), last).0, exchange(kept, last).0)
        });
        let (refused, served) = client.await.expect("exchanged");
        assert!(refused.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&refused));
        assert!(served.ends_with(b"served"));
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_client_that_leaves_between_requests_has_ended_its_connection_itself() {
    for_each_driver(real_drivers(), async |kind| {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let counts = metrics.worker(0).expect("the first");
        let server = Server::builder().tls(identity().config()).metrics(counts).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        server.serve(listener, async |_: Request| Response::new(204)).detach();
        // Nobody is there to be told the end of TLS.
        let clients = move || (0..10).for_each(|_| drop(StdStream::connect(address).expect("connects")));
        spawn_blocking(clients).await.expect("done");
        let closed = |reason| {
            count_of(&metrics, &format!("anello_http_connections_closed_total{{reason=\"{reason}\"}}"))
        };
        wait_until(|| closed("peer") + closed("aborted") == 10).await;
        assert_eq!(closed("peer"), 10, "{kind}");
    });
}
