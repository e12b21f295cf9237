//! Drains that end before clients have received their responses. A client of the echo server, whose responses have no
//! framing, is reset: after an EOF, it could take what it has received for everything. A Unix socket cannot be reset, so
//! its client gets EOF too early.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anello_test::{hang_timeout, on_each_driver_flag, wait_until};
use rustix::process::Signal;

use crate::served::http2::GET_LARGE;
use crate::served::tls::{connect_tls, create_identity};
use crate::served::{Served, connect};

/// Size of a response, which is larger than the buffers of the kernel.
const BODY_BYTES: usize = 64 << 20;

/// The cause that ends a drain.
#[derive(Clone, Copy, Debug)]
enum DrainEnd {
    Timeout,
    SecondSignal,
}

impl DrainEnd {
    fn flag(self) -> &'static str {
        match self {
            Self::Timeout => "--drain-timeout=100ms",
            Self::SecondSignal => "--drain-timeout=1h",
        }
    }

    /// Terminates the server while a response is in flight, and waits until it has exited.
    fn stop(self, server: Served) {
        server.signal(Signal::TERM);
        if let Self::SecondSignal = self {
            // A second signal has no effect until the first one has been received. The server then stops listening.
            wait_until(|| match server.address().strip_prefix("unix:") {
                Some(path) => UnixStream::connect(path).is_err(),
                None => TcpStream::connect(server.address()).is_err(),
            });
            server.signal(Signal::TERM);
        }
        server.wait_exit();
    }
}

/// Runs a test on each driver, with each end of the drain.
fn on_each_drain_end(test: impl Fn(&'static str, DrainEnd) + Sync) {
    on_each_driver_flag(|driver| {
        for end in [DrainEnd::Timeout, DrainEnd::SecondSignal] {
            test(driver, end);
        }
    });
}

/// Sends a request, and receives the beginning of the response.
fn begin_response(mut stream: impl Read + Write, request: &[u8]) {
    stream.write_all(request).expect("send request");
    stream.read_exact(&mut vec![0; 100_000]).expect("the beginning of the response");
}

fn read_to_end(mut stream: impl Read) -> (usize, io::Result<()>) {
    let mut received = Vec::new();
    let end = stream.read_to_end(&mut received);
    (received.len(), end.map(drop))
}

#[track_caller]
fn assert_reset(stream: TcpStream, case: &str) {
    let (received, end) = read_to_end(stream);
    let end = end.map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "{case}: the end after {received} more bytes");
    assert!(received < BODY_BYTES - 100_000, "{case}: {received} more bytes");
}

/// Asserts that the end of a response with a length is a reset, or an EOF before this length. EOF follows if nothing is
/// queued for the client, because the server is reading the file.
#[track_caller]
fn assert_incomplete(stream: TcpStream, case: &str) {
    let (received, end) = read_to_end(stream);
    assert!(received < BODY_BYTES - 100_000, "{case}: {received} more bytes");
    let is_reset = |error: &io::Error| error.kind() == ErrorKind::ConnectionReset;
    assert!(end.as_ref().err().is_none_or(is_reset), "{case}: {end:?}");
}

#[track_caller]
fn assert_early_eof(stream: UnixStream, case: &str) {
    let (received, end) = read_to_end(stream);
    end.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(received < BODY_BYTES - 100_000, "{case}: {received} more bytes");
}

fn connect_unix(path: &Path) -> UnixStream {
    let client = UnixStream::connect(path).expect("connect");
    client.set_read_timeout(Some(hang_timeout())).expect("set timeout");
    client
}

#[test]
fn fault_37_client_detects_incomplete_http_response() {
    on_each_drain_end(|driver, end| {
        let directory = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
        let file = File::create(at("large")).expect("create file");
        file.set_len(BODY_BYTES as u64).expect("set length");
        let (certificate, key, socket) = (at(".certificate.pem"), at(".key.pem"), at(".socket"));
        let client = create_identity(certificate.as_ref(), key.as_ref());
        let start = |flags: &[&str]| {
            let common = ["--driver", driver, "--cores", "0", end.flag()];
            Served::start(directory.path(), &[&common, flags].concat())
        };
        let request = &b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"[..];
        for request in [request, GET_LARGE] {
            let server = start(&["--addr", "127.0.0.1:0", "--http2", "cleartext"]);
            let client = connect(server.address());
            begin_response(&client, request);
            end.stop(server);
            assert_incomplete(client, &format!("{driver}, {end:?}: {}", request.escape_ascii()));
        }

        let server = start(&["--addr", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key]);
        let mut client = connect_tls(&client, server.address());
        begin_response(&mut client, request);
        end.stop(server);
        assert_incomplete(client.sock, &format!("{driver}, {end:?}: TLS"));

        let server = start(&["--addr", &format!("unix:{socket}")]);
        let client = connect_unix(socket.as_ref());
        begin_response(&client, request);
        end.stop(server);
        assert_early_eof(client, &format!("{driver}, {end:?}: Unix socket"));
    });
}

#[test]
fn fault_37_client_with_incomplete_echo_is_reset() {
    on_each_drain_end(|driver, end| {
        let directory = tempfile::tempdir().expect("temporary directory");
        let socket = directory.path().join("socket");
        let unix_address = format!("unix:{}", socket.display());
        let body_bytes = format!("--response-bytes={BODY_BYTES}");
        let sizes = ["--request-bytes=1", &body_bytes];
        let start = |address, flags: &[&str]| {
            let common = ["--addr", address, "--driver", driver, end.flag()];
            Served::start_echo(&[&common, flags].concat())
        };
        let server = start("127.0.0.1:0", &sizes);
        let client = connect(server.address());
        begin_response(&client, b"x");
        end.stop(server);
        assert_reset(client, &format!("{driver}, {end:?}: response of a given size"));

        let server = start(&unix_address, &sizes);
        let client = connect_unix(&socket);
        begin_response(&client, b"x");
        end.stop(server);
        assert_early_eof(client, &format!("{driver}, {end:?}: Unix socket"));

        let server = start("127.0.0.1:0", &[]);
        let mut client = connect(server.address());
        // The client's writes time out once all buffers are full.
        client.set_write_timeout(Some(Duration::from_millis(500))).expect("set timeout");
        let mut sent = 0;
        while let Ok(count) = client.write(&[1; 100_000]) {
            sent += count;
        }
        end.stop(server);
        let (received, end) = read_to_end(client);
        let is_complete = received == sent && end.is_ok();
        let is_reset = end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_complete || is_reset, "{driver}: {received} of {sent} bytes were received, then {end:?}");
    });
}
