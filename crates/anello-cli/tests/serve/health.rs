//! Tests of `/health` and `/metrics` of `anello http` and `anello echo`: `/health` responds while `/metrics` clients are
//! stalled, its body indicates whether the server is draining, and connections and bytes are counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anello_test::{driver_flags, on_each_driver_flag, wait_until};
use rustix::process::Signal;
use socket2::SockRef;

use crate::served::{Served, connect, document_root, get};

/// More than three times the connection limit of the metrics endpoint.
const STALLED: usize = 200;

/// The servers with these endpoints.
const SERVICES: [&str; 2] = ["http", "echo"];

fn start(service: &str, document_root: &Path, driver: &str, flags: &[&str]) -> Served {
    let common = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--driver", driver];
    let flags = [&common[..], flags].concat();
    match service {
        "http" => Served::start(document_root, &flags),
        _ => Served::start_echo(&flags),
    }
}

/// Returns the value of the sample with this name and these labels.
fn metric(address: &str, name: &str) -> Option<u64> {
    let metrics = get(address, "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().expect("integer"))
}

fn wait_for_metric(address: &str, name: &str, value: u64) {
    wait_until(|| metric(address, name) == Some(value));
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
    for (service, driver) in cases() {
        let document_root = document_root();
        let server = start(service, document_root.path(), driver, &["--cores", "0,0"]);
        let address = server.ready_value("metrics").to_owned();
        let mut stalled = Vec::new();
        for number in 0..STALLED {
            stalled.push(stall(&address, number));
            let expected = ("200".to_owned(), "ready\n".to_owned());
            assert_eq!(health(&address), expected, "{service} {driver}: {number}");
        }
        assert_eq!(metric(&address, &format!("anello_{service}_connections_open")), Some(0), "{driver}");
        drop(stalled);
        server.stop();
    }
}

#[test]
fn draining_server_reports_draining_in_health_body() {
    for (service, driver) in cases() {
        let document_root = document_root();
        // Delays the server's exit: an incomplete request, or a response that the client does not read and that no
        // buffer can contain.
        let (flags, request, progress): (&[&str], &[u8], _) = match service {
            "http" => (&[], b"GET /hello.txt HTTP/1.1\r\nHost: h\r\n", "anello_http_connections_open"),
            _ => (
                &["--request-bytes", "1", "--response-bytes", "1000000000"],
                b"x",
                "anello_echo_sent_bytes_total",
            ),
        };
        let flags = [flags, &["--cores", "0,0", "--drain-timeout", "60s"]].concat();
        let server = start(service, document_root.path(), driver, &flags);
        let (address, metrics) =
            (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
        let mut slow = connect(&address);
        slow.write_all(request).expect("send request");
        wait_until(|| metric(&metrics, progress) > Some(0));
        let stalled: Vec<_> = (0..STALLED).map(|number| stall(&metrics, number)).collect();
        server.signal(Signal::TERM);
        wait_until(|| health(&metrics).1 != "ready\n");
        let expected = ("503".to_owned(), "draining\n".to_owned());
        assert_eq!(health(&metrics), expected, "{service} {driver}");
        let mut json = connect(&metrics);
        json.write_all(
            b"GET /health HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        )
        .expect("send request");
        let mut response = String::new();
        json.read_to_string(&mut response).expect("read response");
        assert!(response.ends_with("\r\n\r\n{\"status\":\"draining\"}\n"), "{service} {driver}: {response}");
        if service == "http" {
            slow.write_all(b"\r\n").expect("send request");
            slow.read_to_string(&mut response).expect("read response");
        }
        drop((slow, stalled));
        server.wait_exit();
    }
}

#[test]
fn echo_connections_and_bytes_are_counted() {
    // Each set selects another implementation of the exchange.
    let sets: [(&[&str], u64); 3] =
        [(&[], 6), (&["--idle-timeout", "60s"], 6), (&["--request-bytes", "3", "--response-bytes", "5"], 10)];
    on_each_driver_flag(|driver| {
        for (flags, sent_bytes) in sets {
            let flags = [flags, &["--max-connections", "1"]].concat();
            let server = Served::start_echo(
                &[
                    &["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--driver", driver],
                    &flags[..],
                ]
                .concat(),
            );
            let (address, metrics) =
                (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
            let wait_for =
                |name: &str, value| wait_for_metric(&metrics, &format!("anello_echo_{name}"), value);
            let mut client = connect(&address);
            let mut received = vec![0; sent_bytes as usize];
            client.write_all(b"abcdef").expect("send");
            client.read_exact(&mut received).expect("receive");
            // Counted while the connection is open.
            wait_for("received_bytes_total", 6);
            wait_for("sent_bytes_total", sent_bytes);
            wait_for("connections_open", 1);
            assert_eq!(connect(&address).read(&mut [0]).expect("EOF"), 0, "{driver} {flags:?}");
            wait_for("connections_rejected_total{reason=\"max_connections\"}", 1);
            drop(client);
            wait_for("connections_closed_total{reason=\"peer\"}", 1);
            wait_for("connections_open", 0);
            wait_for("connections_accepted_total", 1);
            wait_for_metric(&metrics, "anello_driver_accepted_total{worker=\"0\"}", 2);
            let client = connect(&address);
            wait_for("connections_open", 1);
            // Closing a socket with linger 0 resets the connection.
            SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("set linger");
            drop(client);
            wait_for("connections_closed_total{reason=\"aborted\"}", 1);
            server.stop();
        }
    });
}

#[test]
fn idle_echo_connections_are_counted() {
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let server = start("echo", document_root.path(), driver, &["--idle-timeout", "50ms"]);
        let _client = connect(server.ready_value("addr"));
        let metrics = server.ready_value("metrics");
        wait_for_metric(metrics, "anello_echo_connections_closed_total{reason=\"idle\"}", 1);
        server.stop();
    });
}

/// Returns all combinations of servers and drivers.
fn cases() -> Vec<(&'static str, &'static str)> {
    SERVICES.iter().flat_map(|&service| driver_flags().map(move |driver| (service, driver))).collect()
}
