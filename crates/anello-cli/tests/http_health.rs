//! Tests that `/health` responds while `/metrics` clients are stalled, and that its body indicates whether the server
//! is draining.

mod served;

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use served::{Served, connect, document_root, drivers, get, wait_until};

/// More than three times the connection limit of the metrics endpoint.
const STALLED: usize = 200;

fn start(document_root: &std::path::Path, driver: &str) -> Served {
    let common = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--cores", "0,0"];
    Served::start(document_root, &[&common[..], &["--driver", driver]].concat())
}

/// Returns the status and the body of `/health`.
fn health(address: &str) -> (String, String) {
    let response = get(address, "/health");
    let (head, body) = response.split_once("\r\n\r\n").expect("response head");
    (head[9..12].to_owned(), body.to_owned())
}

/// Opens a connection that stalls in one of five states.
fn stall(address: &str, number: usize) -> TcpStream {
    let mut client = connect(address);
    let request: &[u8] = match number % 5 {
        // No request.
        0 => b"",
        1 => b"GET /metrics HTTP/1.1\r\nHost: h\r\nSlow",
        // Many pipelined requests whose responses are not read.
        2 => &b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(50),
        3 => b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nslow",
        // Idle after a request.
        _ => b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    };
    client.write_all(request).expect("send request");
    if number % 5 == 4 {
        client.read_exact(&mut [0; 12]).expect("read response");
    }
    client
}

#[test]
fn health_responds_while_metrics_clients_stall() {
    for driver in drivers() {
        let document_root = document_root();
        let server = start(document_root.path(), driver);
        let address = server.ready_value("metrics").to_owned();
        let mut stalled = Vec::new();
        for number in 0..STALLED {
            stalled.push(stall(&address, number));
            assert_eq!(health(&address), ("200".to_owned(), "ready\n".to_owned()), "{driver}: {number}");
        }
        assert!(get(&address, "/metrics").contains("\nanello_http_connections_open "), "{driver}");
        drop(stalled);
        server.stop();
    }
}

#[test]
fn draining_server_reports_draining_in_health_body() {
    for driver in drivers() {
        let document_root = document_root();
        let server = start(document_root.path(), driver);
        let (files, metrics) =
            (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
        // An incomplete request delays the server's exit.
        let mut slow = connect(&files);
        slow.write_all(b"GET /hello.txt HTTP/1.1\r\nHost: h\r\n").expect("send request");
        wait_until(|| get(&metrics, "/metrics").contains("\nanello_http_connections_open 1\n"));
        let stalled: Vec<_> = (0..STALLED).map(|number| stall(&metrics, number)).collect();
        server.signal(Signal::TERM);
        wait_until(|| health(&metrics).1 != "ready\n");
        assert_eq!(health(&metrics), ("503".to_owned(), "draining\n".to_owned()), "{driver}");
        let mut json = connect(&metrics);
        json.write_all(
            b"GET /health HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        )
        .expect("send request");
        let mut response = String::new();
        json.read_to_string(&mut response).expect("read response");
        assert!(response.ends_with("\r\n\r\n{\"status\":\"draining\"}\n"), "{driver}: {response}");
        slow.write_all(b"\r\n").expect("send request");
        slow.read_to_string(&mut response).expect("read response");
        drop((slow, stalled));
        server.wait_exit();
    }
}
