//! TLS servers that run in threads of the test process, their certificates, and loads that target them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anello_load::tls::{HandshakeSummary, Trust};
use anello_load::{ErrorKind, HttpLoad, LoadConfig, Protocol, Report, Tls, TlsOptions};
use anello_test::tcp_server;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::common::reports;

pub const CONNECTIONS: usize = 3;
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Self-signed certificate, its key, and the directory that contains the PEM file for the load.
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    directory: tempfile::TempDir,
}

/// Creates an identity for `localhost`. `change` can modify the certificate parameters.
pub fn identity_with(change: impl FnOnce(&mut CertificateParams)) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
    change(&mut parameters);
    let certificate = parameters.self_signed(&key).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("certificate.pem"), certificate.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Identity { certificate: certificate.der().clone(), key, directory }
}

pub fn identity() -> Identity {
    identity_with(|_| {})
}

impl Identity {
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("certificate.pem")
    }

    pub fn trusting_options(&self) -> TlsOptions {
        TlsOptions { trust: Trust::CaFile(self.file()), ..TlsOptions::default() }
    }

    pub fn server_config(&self) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        builder.with_single_cert(vec![self.certificate.clone()], self.key.clone_key()).unwrap()
    }

    /// Returns the configuration of a server whose key does not match its certificate.
    pub fn mismatched_key_config(&self) -> ServerConfig {
        let provider = ring::default_provider();
        let key = provider.key_provider.load_private_key(self.key.clone_key()).unwrap();
        let mismatched = CertifiedKey::new(vec![self.certificate.clone()], key);
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(mismatched)))
    }
}

/// Starts a server that uses the identity and responds to all requests.
pub fn serve_with_identity(identity: &Identity) -> SocketAddr {
    tls_server(identity.server_config(), |client| serve(client, b"hello"))
}

/// Server side of a TLS connection.
pub type Client = StreamOwned<ServerConnection, TcpStream>;

/// Starts a TLS server that calls `serve` for every connection.
pub fn tls_server(
    config: ServerConfig,
    serve: impl Fn(&mut Client) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let config = Arc::new(config);
    tcp_server(move |stream| {
        stream.set_nodelay(true)?;
        let session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        serve(&mut StreamOwned::new(session, stream))
    })
}

/// Reads the head of a request. Returns `None` at EOF.
pub fn head(client: &mut impl Read) -> io::Result<Option<String>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    Ok(Some(String::from_utf8(head).unwrap()))
}

/// Reads a request. Returns its path and whether it asks to close the connection, or `None` at EOF.
pub fn request(client: &mut impl Read) -> io::Result<Option<(String, bool)>> {
    let Some(head) = head(client)? else { return Ok(None) };
    let path = head.split(' ').nth(1).unwrap().to_owned();
    Ok(Some((path, head.contains("Connection: close"))))
}

pub fn respond(client: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all(&[head.as_bytes(), body].concat())
}

/// Sends a close_notify and shuts down the write half.
pub fn end(client: &mut Client) -> io::Result<()> {
    client.conn.send_close_notify();
    client.flush()?;
    client.sock.shutdown(Shutdown::Write)
}

/// Responds to all requests with `body` until EOF, or until a request asks to close the connection.
pub fn serve(client: &mut Client, body: &[u8]) -> io::Result<()> {
    while let Some((_, closes)) = request(client)? {
        respond(client, body)?;
        if closes {
            return end(client);
        }
    }
    Ok(())
}

/// Returns a short load run with verification enabled.
pub fn load(target: SocketAddr, options: TlsOptions, change: impl FnOnce(&mut HttpLoad)) -> LoadConfig {
    let mut load = LoadConfig {
        connections: CONNECTIONS,
        duration: Duration::from_millis(30),
        verify: true,
        connect_timeout: TIMEOUT,
        stall_timeout: TIMEOUT,
        ..LoadConfig::http(target, "localhost", "/")
    };
    if let Protocol::Http(http) = &mut load.protocol {
        http.tls = Some(Tls::new("localhost", options).unwrap());
        change(http);
    }
    load
}

pub fn handshakes(report: &Report) -> &[HandshakeSummary] {
    &report.tls.as_ref().unwrap().handshakes
}

/// Returns the kind, the count and the example of the errors. Panics unless there is exactly one kind.
pub fn only_error(report: &Report) -> (ErrorKind, u64, &str) {
    let all: Vec<_> = report.errors.iter().collect();
    let [error] = all[..] else { panic!("{report:?}") };
    (error.kind, error.count, &error.example)
}

/// Asserts that, on every driver, each connection fails with an error of this kind and no request is answered. The
/// message of the first error must contain `expected_text`.
pub fn assert_connections_fail(load: &LoadConfig, kind: ErrorKind, expected_text: &str) {
    for report in reports(load) {
        let (actual_kind, count, example) = only_error(&report);
        assert_eq!((actual_kind, count), (kind, CONNECTIONS as u64), "{report:?}");
        assert!(example.contains(expected_text), "{example}");
        assert_eq!((report.requests, report.connections_open_at_end), (0, 0));
    }
}
