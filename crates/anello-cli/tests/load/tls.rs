//! Tests for `anello load http` with https:// URLs against `anello http`, both as child processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anello_lab::tls::Identity;
use anello_load::{ErrorKind, Report};
use anello_test::on_each_driver_flag;

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
