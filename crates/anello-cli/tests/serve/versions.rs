//! Flags of `anello http` whose effect is the same over HTTP/1.1 and HTTP/2: additional fields, trusted proxies, and the
//! owner and mode of Unix sockets.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anello_test::{hang_timeout, on_each_driver_flag};

use crate::common::anello;
use crate::served::http2::{GET_HELLO, Http2Client, TranslatingStream};
use crate::served::{self, BODY, Served, connect, document_root, send_request};

/// Sends a request with HTTP/1.1 and one with HTTP/2 to an IP address or a Unix socket, each on a connection that starts
/// with these bytes. Returns the responses.
fn exchange(address: &str, first_bytes: &[u8], path: &str, fields: &str) -> [String; 2] {
    let line = format!("GET {path}");
    let first = match address.strip_prefix("unix:") {
        Some(path) => {
            let mut stream = UnixStream::connect(path).expect("connect");
            stream.set_read_timeout(Some(hang_timeout())).expect("set timeout");
            stream.write_all(first_bytes).expect("send");
            send_request(stream, &line, fields)
        }
        None => {
            let mut stream = connect(address);
            stream.write_all(first_bytes).expect("send");
            send_request(stream, &line, fields)
        }
    };
    let client = Http2Client::connect_and_send(address, first_bytes);
    let second = send_request(TranslatingStream::new(client), &line, fields);
    [first, second].map(|response| String::from_utf8(response).expect("UTF-8"))
}

#[test]
fn additional_fields_are_those_of_matching_patterns() {
    let document_root = document_root();
    fs::create_dir(document_root.path().join("app")).expect("create directory");
    for file in ["index.html", "app/page.html"] {
        fs::write(document_root.path().join(file), file).expect("write file");
    }
    on_each_driver_flag(|driver| {
        let fields = ["x-all: 1", "*.html=x-page: a=b", "app/**=x-app: c, d", "app/**=x-app: e"];
        let mut flags = vec!["--addr", "127.0.0.1:0", "--http2", "cleartext", "--driver", driver];
        flags.extend(fields.iter().flat_map(|field| ["--header", field]));
        let server = Served::start(document_root.path(), &flags);
        for (path, status, expected) in [
            ("/hello.txt", 200, &["x-all: 1"][..]),
            ("/index.html", 200, &["x-all: 1", "x-page: a=b"]),
            ("/", 200, &["x-all: 1", "x-page: a=b"]),
            ("/app/page.html", 200, &["x-all: 1", "x-app: c, d", "x-app: e", "x-page: a=b"]),
            ("/app", 301, &["x-all: 1"]),
            ("/missing.html", 404, &["x-all: 1"]),
        ] {
            for response in exchange(server.address(), b"", path, "") {
                assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
                let lines = response.lines();
                let mut additional = lines.filter(|line| line.starts_with("x-")).collect::<Vec<_>>();
                additional.sort_unstable();
                assert_eq!(additional, expected, "{path}: {response}");
            }
        }
        server.stop();
    });
    for field in ["etag: 1", "x-y", "x y: 1", "[=x: 1"] {
        let mut command = anello(&["http", "--addr", "127.0.0.1:0", "--header", field]);
        let output = command.arg(document_root.path()).output().expect("run anello");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{field}: {text}");
        assert!(text.contains("--header"), "{field}: {text}");
    }
}

/// Header of the PROXY protocol, version 2, for a connection from 203.0.113.9.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\x7f\0\0\x01\x04\xd2\0\x50";

#[test]
fn access_log_contains_clients_of_trusted_proxies() {
    let document_root = document_root();
    let proxy_v1 = b"PROXY TCP4 203.0.113.9 127.0.0.1 1234 80\r\n";
    // The client can send a field with any address to the proxy, which appends the address of the client.
    let x_forwarded_for = "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n";
    let forwarded = "Forwarded: for=198.51.100.1, for=\"203.0.113.9:1234\";proto=https\r\n";
    let two_proxies = "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 127.0.0.5\r\n";
    on_each_driver_flag(|driver| {
        for (proxy, header, first_bytes, fields, client) in [
            ("127.0.0.1", None, &b""[..], x_forwarded_for, "203.0.113.9"),
            ("127.0.0.0/8", None, b"", two_proxies, "203.0.113.9"),
            ("127.0.0.2", None, b"", x_forwarded_for, "127.0.0.1"),
            ("127.0.0.1", None, b"", forwarded, "127.0.0.1"),
            ("127.0.0.1", Some("forwarded"), b"", forwarded, "203.0.113.9"),
            ("127.0.0.1", Some("forwarded"), b"", x_forwarded_for, "127.0.0.1"),
            ("127.0.0.2", Some("forwarded"), b"", forwarded, "127.0.0.1"),
            ("127.0.0.1", Some("proxy-protocol"), proxy_v1, x_forwarded_for, "203.0.113.9"),
            ("127.0.0.1", Some("proxy-protocol"), PROXY_V2, x_forwarded_for, "203.0.113.9"),
            ("127.0.0.2", Some("proxy-protocol"), b"", x_forwarded_for, "127.0.0.1"),
        ] {
            let header = header.map_or_else(Vec::new, |header| vec!["--proxy-header", header]);
            let flags = [&["--addr", "127.0.0.1:0", "--trusted-proxy", proxy], &header[..]].concat();
            assert_logged(document_root.path(), driver, &flags, first_bytes, fields, client);
        }
    });
}

#[test]
fn access_log_contains_clients_of_proxies_on_unix_sockets() {
    let (document_root, sockets) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    on_each_driver_flag(|driver| {
        let address = format!("unix:{}", sockets.path().join(driver).display());
        let fields = "X-Forwarded-For: 203.0.113.9\r\n";
        let flags = ["--addr", &address];
        assert_logged(document_root.path(), driver, &flags, b"", fields, "unix:");
        let flags = ["--addr", &address, "--trusted-proxy", "unix"];
        assert_logged(document_root.path(), driver, &flags, b"", fields, "203.0.113.9");
        let flags = [&flags[..], &["--proxy-header", "proxy-protocol"]].concat();
        assert_logged(document_root.path(), driver, &flags, PROXY_V2, "", "203.0.113.9");
    });
}

/// Sends a request to a server with these flags over each version of HTTP, and checks that the access log contains the
/// client.
fn assert_logged(
    document_root: &Path,
    driver: &str,
    flags: &[&str],
    first_bytes: &[u8],
    fields: &str,
    client: &str,
) {
    let logs = tempfile::tempdir().expect("temporary directory");
    let log = logs.path().join("access.log");
    let common = ["--driver", driver, "--http2", "cleartext", "--cores", "0", "--access-log"];
    let flags = [flags, &common, &[log.to_str().expect("UTF-8")]].concat();
    let server = Served::start(document_root, &flags);
    for response in exchange(server.address(), first_bytes, "/hello.txt", fields) {
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with(BODY), "{response}");
    }
    server.stop();
    let text = fs::read_to_string(&log).expect("access log");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{flags:?}: {text}");
    for (line, version) in lines.into_iter().zip(["1.1", "2"]) {
        assert!(line.starts_with(&format!("{client} ")), "{flags:?}: {line}");
        assert!(line.contains(&format!("\"GET /hello.txt HTTP/{version}")), "{flags:?}: {line}");
    }
}

#[test]
fn proxies_without_header_of_proxy_protocol_are_rejected() {
    let document_root = document_root();
    on_each_driver_flag(|driver| {
        let flags = ["--addr", "127.0.0.1:0", "--http2", "cleartext", "--driver", driver];
        let proxy = ["--trusted-proxy", "127.0.0.1", "--proxy-header", "proxy-protocol"];
        let server = Served::start(document_root.path(), &[&flags[..], &proxy].concat());
        for first_bytes in [served::request(false).as_bytes(), GET_HELLO] {
            let mut stream = connect(server.address());
            stream.write_all(first_bytes).expect("send");
            let mut received = Vec::new();
            // The server has not read all bytes, so that the connection may be reset.
            stream.read_to_end(&mut received).ok();
            assert!(received.is_empty(), "{}", String::from_utf8_lossy(&received));
        }
        server.stop();
    });
}

#[test]
fn unix_socket_with_owner_and_mode_serves_both_versions() {
    let (document_root, sockets) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Only root can give a file to another user.
    let owners = if user == 0 { vec![(user, group), (54321, 54322)] } else { vec![(user, group)] };
    on_each_driver_flag(|driver| {
        for owner in &owners {
            let socket = sockets.path().join(driver);
            let address = format!("unix:{}", socket.display());
            let owner_flag = format!("{}:{}", owner.0, owner.1);
            let flags = ["--socket-owner", &owner_flag, "--socket-mode", "600", "--http2", "cleartext"];
            let flags = [&["--addr", &address, "--driver", driver], &flags[..]].concat();
            let server = Served::start(document_root.path(), &flags);
            let metadata = fs::symlink_metadata(&socket).expect("socket file");
            assert_eq!((metadata.uid(), metadata.gid()), *owner);
            assert_eq!(metadata.mode() & 0o777, 0o600);
            for response in exchange(&address, b"", "/hello.txt", "") {
                assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with(BODY), "{response}");
            }
            server.stop();
            assert!(!socket.exists());
        }
    });
}
