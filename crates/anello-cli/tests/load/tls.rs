//! Tests for `anello load http` with https:// URLs against `anello http`, both as child processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anello_lab::tls::Identity;
use anello_load::{ErrorKind, Report};
use anello_test::on_each_driver_flag;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::common::anello;
use crate::common::served::Served;

/// `anello http` with a temporary document root and certificate.
struct Server {
    _served: Served,
    identity: Identity,
    _directory: tempfile::TempDir,
    url: String,
}

impl Server {
    fn start() -> Self {
        let (directory, identity) = (tempfile::tempdir().unwrap(), Identity::make().unwrap());
        fs::write(directory.path().join("hello.txt"), "Hello, World!").unwrap();
        let (root, certificate, key) = (directory.path(), identity.certificate(), identity.key());
        let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key)];
        let served =
            Served::start(root, &[&["--addr", "127.0.0.1:0", "--driver", "epoll"], &tls[..]].concat());
        let url = format!("https://{}/hello.txt", served.address().replace("127.0.0.1", "localhost"));
        Self { _served: served, identity, _directory: directory, url }
    }

    /// Runs the load generator briefly with these flags and the server's certificate as a trusted CA.
    fn load(&self, flags: &[&str]) -> Output {
        let certificate = self.identity.certificate();
        load(&[&[&*self.url, "--tls-ca", text(&certificate)], flags].concat())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = anello(&["load", "http", "-c", "2", "-d", "40ms", "--verify"]);
    command.args(arguments).env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    command
}

fn load(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Parses the output of `--json`.
fn report(output: &Output) -> Report {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn reports_contain_negotiated_parameters() {
    let server = Server::start();
    on_each_driver_flag(|driver| {
        let output = server.load(&["--driver", driver, "--tls-cipher", "TLS_AES_128_GCM_SHA256"]);
        let table = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let line = "TLS           2 × TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519\n";
        assert!(table.contains(line) && !table.contains("not verified"), "{table}");
    });
    for (flags, resumes) in [(&[][..], false), (&["--tls-resume"][..], true)] {
        let output = server.load(&[&["--no-keep-alive", "--json"], flags].concat());
        let report = report(&output);
        let tls = report.tls.unwrap();
        assert!(tls.certificates_verified && tls.server_name == "localhost", "{tls:?}");
        let count = |resumed| -> u64 {
            tls.handshakes.iter().filter(|kind| kind.resumed == resumed).map(|kind| kind.count).sum()
        };
        assert_eq!(count(false) + count(true), report.requests, "one connection per request: {tls:?}");
        assert!(count(false) > 0, "{tls:?}");
        // On a busy machine, the run may complete only the first two requests, which cannot resume a session.
        assert_eq!(count(true) > 0, resumes && report.requests > 2, "{tls:?}");
    }
}

#[test]
fn untrusted_certificate_is_rejected_unless_insecure() {
    let server = Server::start();
    let output = load(&[&server.url, "--json"]);
    let untrusted = report(&output);
    assert_eq!((output.status.code(), untrusted.requests), (Some(1), 0));
    assert_eq!(untrusted.errors.count(ErrorKind::Tls), 2, "{untrusted:?}");
    let example = &untrusted.errors.iter().next().unwrap().example;
    assert!(example.contains("--tls-ca") && example.contains("--tls-insecure"), "{example}");
    assert!(!example.contains("--tls-cipher"), "{example}");
    assert_eq!(load(&[&server.url, "--json", "--allow-errors=tls"]).status.code(), Some(1), "no responses");
    // SSL_CERT_FILE overrides the system's CA certificates.
    let mut trusting = command(&[&server.url]);
    assert_eq!(
        trusting.env("SSL_CERT_FILE", server.identity.certificate()).output().unwrap().status.code(),
        Some(0)
    );
    let output = load(&[&server.url, "--tls-insecure"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(table.contains("WARNING       certificates were not verified"), "{table}");
    let report = report(&load(&[&server.url, "--tls-insecure", "--json"]));
    assert!(!report.tls.unwrap().certificates_verified);
}

#[test]
fn invalid_tls_flags_are_reported_with_remedy() {
    let error = |code, arguments: &[&str]| {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        stderr(&output)
    };
    assert!(error(2, &["http://127.0.0.1:9/", "--tls-resume"]).contains("use https://"));
    let cipher = error(2, &["https://127.0.0.1:9/", "--tls-cipher", "rot13", "--tls-insecure"]);
    assert!(
        cipher.contains("unknown cipher suite \"rot13\"") && cipher.contains("TLS13_AES_256_GCM_SHA384"),
        "{cipher}"
    );
    assert!(
        error(1, &["https://127.0.0.1:9/", "--tls-ca", "/no/such.pem"]).contains("cannot read /no/such.pem")
    );
    let both = error(2, &["https://127.0.0.1:9/", "--tls-ca", "a", "--tls-insecure"]);
    assert!(both.contains("--tls-insecure") && both.contains("cannot be used with"), "{both}");
}

/// The server name (SNI) and the `Host` field of each request that a server has received on a connection.
#[derive(Debug, Default, PartialEq)]
struct Received {
    server_name: Option<String>,
    hosts: Vec<String>,
}

/// Serves one connection over TLS, with a certificate for `example.test` that it writes to this file.
fn serve_one_connection(certificate: &Path) -> (SocketAddr, JoinHandle<Received>) {
    let identity = rcgen::generate_simple_self_signed(["example.test".to_owned()]).unwrap();
    fs::write(certificate, identity.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.unwrap().with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(vec![identity.cert.der().clone()], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let connection = ServerConnection::new(config).unwrap();
        let mut stream = BufReader::new(StreamOwned::new(connection, listener.accept().unwrap().0));
        let mut received = Received::default();
        let mut line = String::new();
        // Reading fails if the client rejects the certificate.
        while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some((_, host)) = line.split_once("ost: ") {
                received.hosts.push(host.trim().to_owned());
            }
            if line == "\r\n" {
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nciao").unwrap();
            }
            line.clear();
        }
        received.server_name = stream.get_ref().conn.server_name().map(str::to_owned);
        received
    };
    (address, thread::spawn(serve))
}

/// The name in the URL, and not the address of the connection, is the server name and that of the certificate.
#[test]
fn connect_to_keeps_name_of_url_for_tls() {
    on_each_driver_flag(|driver| {
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("certificate.pem");
        let run = |url: &str| {
            let (address, received) = serve_one_connection(&certificate);
            let connection = ["--connect-to", &address.to_string(), "-c", "1", "-n", "3"].map(str::to_owned);
            let mut command = anello(&["load", "http", url, "--json", "--driver", driver, "--tls-ca"]);
            let output = command.arg(&certificate).args(connection).output().unwrap();
            (output.status.code(), report(&output), received.join().unwrap())
        };
        let (code, accepted, received) = run("https://example.test:444/");
        let hosts = vec!["example.test:444".to_owned(); 3];
        assert_eq!(received, Received { server_name: Some("example.test".to_owned()), hosts });
        assert_eq!((code, accepted.requests), (Some(0), 3), "{accepted:?}");
        let tls = accepted.tls.unwrap();
        assert!(tls.certificates_verified && tls.server_name == "example.test", "{tls:?}");
        let (code, rejected, received) = run("https://other.test/");
        assert_eq!(received, Received { server_name: Some("other.test".to_owned()), ..Received::default() });
        assert_eq!((code, rejected.requests), (Some(1), 0), "{rejected:?}");
        assert_eq!(rejected.errors.count(ErrorKind::Tls), 1, "{rejected:?}");
        let example = &rejected.errors.iter().next().unwrap().example;
        assert!(example.contains("not valid for name \"other.test\""), "{example}");
    });
}
