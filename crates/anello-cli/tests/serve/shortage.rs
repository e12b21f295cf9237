//! Tests for `anello http` with a low open-file limit and clients that use as many descriptors as possible.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anello_test::{on_each_driver_flag, wait_until};

use crate::served::{BODY, Served, connect, document_root, get, request};

const LIMIT: usize = 64;
const IDLE: usize = 100;

/// A file size above the limit for cached files.
const LARGE_BYTES: usize = 200_000;

/// Returns a command that starts the server with this open-file limit.
fn limited_command(limit: usize, document_root: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {limit}; exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_anello"), "http"]).arg(document_root);
    command.args(["--cores", "0,0"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

fn descriptors(server: &Served) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.id())).expect("read fd directory").count()
}

/// End of the response from a server that has reached its connection limit.
const CONNECTION_LIMIT_REACHED: &str = "connection limit reached, try again later\n";

/// Opens a connection that stays idle after a response. Retries like [`get_with_retry`].
fn idle(address: &str) -> TcpStream {
    let mut client = None;
    wait_until(|| {
        let client = client.insert(connect(address));
        client.write_all(request(true).as_bytes()).expect("send request");
        let mut response = Vec::new();
        while !response.ends_with(BODY.as_bytes()) && !response.ends_with(CONNECTION_LIMIT_REACHED.as_bytes())
        {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("read response");
            response.push(byte[0]);
        }
        response.starts_with(b"HTTP/1.1 200 OK\r\n")
    });
    client.expect("open connection")
}

/// Returns the response to a GET request. On a busy machine, the server may fail to evict idle connections in time and
/// reject the client with 503; the request is then retried until [`wait_until`] times out.
fn get_with_retry(address: &str, path: &str) -> String {
    let mut response = String::new();
    wait_until(|| {
        response = get(address, path);
        !response.ends_with(CONNECTION_LIMIT_REACHED)
    });
    response
}

/// Returns whether the server has responded or closed the connection of a nonblocking client.
fn is_closed(client: &TcpStream) -> bool {
    !matches!(client.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Returns how often two workers can have warned since the server was started: once in ten seconds.
fn max_warnings(started: Instant) -> usize {
    2 * (1 + started.elapsed().as_secs() as usize / 10)
}

#[test]
fn fault_21_files_are_served_despite_idle_clients_exhausting_descriptors() {
    let flag_sets: [&[&str]; 3] = [&[], &["--max-connections", "1000"], &["--metrics-addr", "127.0.0.1:0"]];
    on_each_driver_flag(|driver| {
        for flags in flag_sets {
            let document_root = document_root();
            for name in ["large", "other", "third"] {
                fs::write(document_root.path().join(name), vec![b'x'; LARGE_BYTES]).expect("write file");
            }
            let log = tempfile::NamedTempFile::new().expect("temporary file");
            let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--revalidate-interval", "0s"];
            let mut command = limited_command(LIMIT, document_root.path(), &[&common[..], flags].concat());
            command.stderr(File::create(log.path()).expect("create file"));
            let started = Instant::now();
            let server = Served::spawn(command);
            let address = server.ready_value("addr").to_owned();
            let clients: Vec<_> = (0..IDLE).map(|_| idle(&address)).collect();
            // Connections without a request, all opened at the same time.
            let silent: Vec<_> = (0..IDLE).map(|_| connect(&address)).collect();
            for _ in 0..10 {
                assert!(get_with_retry(&address, "/hello.txt").ends_with(BODY), "{driver}: {flags:?}");
                for path in ["/large", "/other", "/third"] {
                    let response = get_with_retry(&address, path);
                    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{driver}: {path}: {response:.100}");
                    assert!(response.len() > LARGE_BYTES, "{driver}: {path}");
                }
                assert!(descriptors(&server) < LIMIT, "{driver}: {flags:?}");
            }
            drop((clients, silent));
            server.stop();
            let log_text = fs::read_to_string(log.path()).expect("UTF-8");
            assert!(log_text.lines().count() <= max_warnings(started), "{driver}: {log_text}");
        }
    });
}

/// A lasting shortage of descriptors is logged at a limited rate by each of the two workers.
#[test]
fn fault_04_lasting_shortage_is_logged_once_in_ten_seconds() {
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let log = tempfile::NamedTempFile::new().expect("temporary file");
        // Clients with an incomplete request are not evicted.
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--max-connections", "1000"];
        let mut command = limited_command(LIMIT, document_root.path(), &common);
        command.stderr(File::create(log.path()).expect("create file"));
        let started = Instant::now();
        let server = Served::spawn(command);
        let address = server.ready_value("addr").to_owned();
        let open_connection = || {
            let mut client = connect(&address);
            client.write_all(b"GET /hello.txt HTTP/1.1\r\nHost").ok();
            client.set_nonblocking(true).expect("set nonblocking mode");
            client
        };
        // Clients that the server has rejected are replaced until it has run out of descriptors, and for a second more.
        let (mut clients, mut end) = (Vec::new(), None);
        wait_until(|| {
            clients.retain(|client| !is_closed(client));
            if clients.len() < IDLE {
                clients.push(open_connection());
            }
            let text = fs::read_to_string(log.path()).expect("UTF-8");
            if end.is_none() && text.contains("file descriptors exhausted") {
                end = Some(Instant::now() + Duration::from_secs(1));
            }
            end.is_some_and(|end| Instant::now() >= end)
        });
        drop(clients);
        wait_until(|| descriptors(&server) < LIMIT / 2 + 20);
        assert!(get(&address, "/hello.txt").ends_with(BODY));
        server.stop();
        let log_text = fs::read_to_string(log.path()).expect("UTF-8");
        assert!(
            (1..=max_warnings(started)).contains(&log_text.matches("file descriptors exhausted").count()),
            "{driver}: {log_text}"
        );
    });
}

#[test]
fn check_reports_insufficient_open_file_limit() {
    let document_root = document_root();
    let check = |limit, arguments: &[&str]| -> (Option<i32>, String) {
        let mut command = limited_command(limit, document_root.path(), &[&["--check"], arguments].concat());
        let Output { status, stderr, .. } = command.output().expect("run anello");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    assert_eq!(check(LIMIT, &[]), (Some(0), String::new()));
    for (limit, arguments, expected) in [
        (LIMIT, &["--max-connections", "1000"][..], "open-file limit 64 is too low for 1000 connections"),
        (40, &[], "open-file limit 40 is too low for 4 connections"),
    ] {
        let (code, log_text) = check(limit, arguments);
        assert_eq!(code, Some(1), "{log_text}");
        assert!(
            log_text.starts_with("anello: --max-connections: ") && log_text.contains(expected),
            "{log_text}"
        );
        assert!(log_text.contains("ulimit -Hn") && log_text.contains("--cores"), "{log_text}");
    }
    // At startup, the same problem is only a warning.
    let log = tempfile::NamedTempFile::new().expect("temporary file");
    let arguments = ["--addr", "127.0.0.1:0", "--max-connections", "1000"];
    let mut command = limited_command(LIMIT, document_root.path(), &arguments);
    command.stderr(File::create(log.path()).expect("create file"));
    let server = Served::spawn(command);
    assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
    server.stop();
    let log_text = fs::read_to_string(log.path()).expect("UTF-8");
    assert!(log_text.contains("anello: open-file limit 64 is too low for 1000 connections"), "{log_text}");
}

/// If descriptors run out while a worker starts, the server reports an error and exits instead of serving without it.
#[test]
fn worker_that_fails_at_startup_stops_the_server() {
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let mut log_text = String::new();
        // The lowest of these limits are already reached by the main thread, the highest by a worker.
        for limit in 10..20 {
            let arguments = ["--addr", "127.0.0.1:0", "--driver", driver];
            let mut command = limited_command(limit, document_root.path(), &arguments);
            let Output { status, stdout, stderr } = command.output().expect("run anello");
            let stderr = String::from_utf8_lossy(&stderr);
            assert_eq!((status.code(), stdout), (Some(1), Vec::new()), "{driver}: limit {limit}: {stderr}");
            let error = stderr.lines().last().unwrap_or_default();
            assert!(error.starts_with("anello: ") && error.contains("Too many open files"), "{error}");
            log_text.push_str(&stderr);
        }
        assert!(log_text.contains("worker failed"), "{driver}: {log_text}");
    });
}
