//! `/health` answers whatever clients of `/metrics` do, and what it says of a server that drains is said by nothing else.

mod served;

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use served::{Served, connect, drivers, folder, get, until};

/// Three times as many as the server takes there.
const STALLED: usize = 200;

fn start(folder: &std::path::Path, driver: &str) -> Served {
    let common = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--cores", "0,0"];
    Served::start(folder, &[&common[..], &["--driver", driver]].concat())
}

/// Status and body.
fn health(address: &str) -> (String, String) {
    let answer = get(address, "/health");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head[9..12].to_owned(), body.to_owned())
}

/// How a client stalls.
fn stall(address: &str, number: usize) -> TcpStream {
    let mut client = connect(address);
    let request: &[u8] = match number % 5 {
        // Says nothing.
        0 => b"",
        1 => b"GET /metrics HTTP/1.1\r\nHost: h\r\nSlow",
        // Reads nothing, of as many answers as were asked for.
        2 => &b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(50),
        3 => b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nslow",
        // Idle between two requests.
        _ => b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    };
    client.write_all(request).expect("sends");
    if number % 5 == 4 {
        client.read_exact(&mut [0; 12]).expect("an answer");
    }
    client
}

#[test]
fn health_answers_while_clients_of_metrics_stall() {
    for driver in drivers() {
        let folder = folder();
        let server = start(folder.path(), driver);
        let address = server.ready_value("metrics").to_owned();
        let mut stalled = Vec::new();
        for number in 0..STALLED {
            stalled.push(stall(&address, number));
            assert_eq!(health(&address), ("200".to_owned(), "ready\n".to_owned()), "{driver}: {number}");
        }
        assert!(get(&address, "/metrics").contains("\nanello_http_connections_open "), "{driver}");
        drop(stalled);
        server.end();
    }
}

#[test]
fn health_of_a_draining_server_has_a_body_of_its_own() {
    for driver in drivers() {
        let folder = folder();
        let server = start(folder.path(), driver);
        let (files, metrics) =
            (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
        // A request that has begun keeps the server from ending.
        let mut slow = connect(&files);
        slow.write_all(b"GET /hello.txt HTTP/1.1\r\nHost: h\r\n").expect("sends");
        until(|| get(&metrics, "/metrics").contains("\nanello_http_connections_open 1\n"));
        let stalled: Vec<_> = (0..STALLED).map(|number| stall(&metrics, number)).collect();
        server.signal(Signal::TERM);
        until(|| health(&metrics).1 != "ready\n");
        assert_eq!(health(&metrics), ("503".to_owned(), "draining\n".to_owned()), "{driver}");
        let mut json = connect(&metrics);
        json.write_all(
            b"GET /health HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        )
        .expect("sends");
        let mut answer = String::new();
        json.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("\r\n\r\n{\"status\":\"draining\"}\n"), "{driver}: {answer}");
        slow.write_all(b"\r\n").expect("sends");
        slow.read_to_string(&mut answer).expect("an answer");
        drop((slow, stalled));
        server.ended();
    }
}
