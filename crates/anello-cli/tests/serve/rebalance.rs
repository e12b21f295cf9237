//! Connections of `anello echo` and `anello http` that move between the workers under a skewed load.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anello::doctor::allowed_cores;
use anello_test::{on_each_driver_flag, wait_until};

use crate::served::{Served, connect, document_root, get};

const CONNECTIONS: usize = 20;
/// Number of connections with requests in each round. The others are idle.
const BUSY: usize = 5;
const EXCHANGES: usize = 3000;
const MAX_ROUNDS: usize = 100;

fn metric(address: &str, name: &str) -> u64 {
    let metrics = get(address, "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no sample {name}")).parse().expect("integer")
}

/// Returns the response with its `Date` field removed.
fn without_date(mut response: Vec<u8>) -> Vec<u8> {
    if let Some(start) = response.windows(6).position(|window| window == b"Date: ") {
        response.drain(start..start + "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n".len());
    }
    response
}

fn exchange(client: &mut TcpStream, request: &[u8], expected: &[u8], response_bytes: usize) {
    let mut received = vec![0; response_bytes];
    for _ in 0..EXCHANGES {
        client.write_all(request).expect("send");
        client.read_exact(&mut received).expect("receive");
        assert!(without_date(received.clone()) == expected, "{:?}", String::from_utf8_lossy(&received));
    }
}

/// Sends requests on some of the connections until connections have moved.
fn move_connections(server: &Served, service: &str, request: &[u8], response_bytes: usize) {
    let (address, metrics) = (server.ready_value("addr"), server.ready_value("metrics"));
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address)).collect();
    let mut first = vec![0; response_bytes];
    for client in &mut clients {
        client.write_all(request).expect("send");
        client.read_exact(&mut first).expect("receive");
    }
    let expected = without_date(first);
    for round in 0.. {
        assert!(round < MAX_ROUNDS, "no connection has moved");
        thread::scope(|scope| {
            for client in &mut clients[..BUSY] {
                scope.spawn(|| exchange(client, request, &expected, response_bytes));
            }
        });
        if metric(metrics, &format!("anello_{service}_connections_moved_total")) > 0 {
            break;
        }
        // The workers may have the same number of busy connections.
        clients.rotate_left(round % BUSY + 1);
    }
    let count = |name: &str| metric(metrics, &format!("anello_{service}_connections_{name}"));
    assert!(count("accepted_total") >= CONNECTIONS as u64 && count("open") == CONNECTIONS as u64);
    drop(clients);
    wait_until(|| count("open") == 0);
}

fn has_two_cores() -> bool {
    let cores = allowed_cores().expect("the affinity").len();
    if cores < 2 {
        eprintln!("skipped: one core");
    }
    cores >= 2
}

#[test]
fn echo_connections_move_without_losing_bytes() {
    if !has_two_cores() {
        return;
    }
    // Each set selects another implementation of the exchange.
    let sets: [(&[&str], usize); 3] =
        [(&[], 6), (&["--idle-timeout", "60s"], 6), (&["--request-bytes", "3", "--response-bytes", "5"], 10)];
    on_each_driver_flag(|driver| {
        for (flags, response_bytes) in sets {
            let common = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--cores", "all"];
            let server = Served::start_echo(&[&common, flags, &["--driver", driver]].concat());
            move_connections(&server, "echo", b"abcdef", response_bytes);
            server.stop();
        }
    });
}

#[test]
fn http_connections_move_in_sandbox() {
    if !has_two_cores() {
        return;
    }
    let root = document_root();
    // All responses must be equal. Until a second after the last change of the file, its entity tag is weak, and each
    // worker has a cache of its own.
    let modified =
        fs::metadata(root.path().join("hello.txt")).and_then(|file| file.modified()).expect("file time");
    wait_until(|| modified.elapsed().is_ok_and(|age| age > Duration::from_secs(1)));
    on_each_driver_flag(|driver| {
        let common = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--cores", "all"];
        // The idle connections stay open however long the rounds take.
        let flags = ["--keep-alive-timeout", "1h", "--driver", driver];
        let server = Served::start(root.path(), &[&common[..], &flags].concat());
        let response = get(server.ready_value("addr"), "/hello.txt");
        let closing = "Connection: close\r\n";
        assert!(response.contains(closing));
        let request = b"GET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n";
        move_connections(&server, "http", request, response.len() - closing.len());
        server.stop();
    });
}
