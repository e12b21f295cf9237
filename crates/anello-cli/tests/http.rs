//! `anello http` as its users start it: inside its sandbox, where the kernel has one (fault 40; `http_sandbox.rs`).

mod served;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::Signal;

use served::{BODY, Notices, Served, connect, drivers, folder, get, is_answered, request, until};

fn start(folder: &Path, arguments: &[&str]) -> Served {
    Served::start(folder, &[&["--addr", "127.0.0.1:0"], arguments].concat())
}

#[test]
fn a_folder_is_served_on_both_drivers_until_a_signal() {
    let folder = folder();
    for driver in ["epoll", "auto"] {
        let server = start(folder.path(), &["--driver", driver, "--cores", "0"]);
        let address = server.ready_value("addr").to_owned();
        let answer = get(&address, "/hello.txt");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nHello, world!"),
            "{answer}"
        );
        assert!(get(&address, "/nothing").starts_with("HTTP/1.1 404 "));
        // A connection that has said nothing yet does not keep it.
        let _idle = TcpStream::connect(&address).expect("connects");
        server.end();
    }
}

#[test]
fn there_is_a_worker_for_each_core_that_may_be_used() {
    let folder = folder();
    let usable = thread::available_parallelism().expect("a number").to_string();
    for (flags, workers) in [(&[][..], &usable[..]), (&["--cores", "0"], "1"), (&["--cores", "0,0,0"], "3")] {
        let server = start(folder.path(), flags);
        assert_eq!(server.ready_value("workers"), workers, "{flags:?}");
        server.end();
    }
}

#[test]
fn requests_are_logged_and_counted_and_health_is_told() {
    let (folder, logs) = (folder(), tempfile::tempdir().expect("a folder"));
    let (log, rotated) = (logs.path().join("access.log"), logs.path().join("access.log.1"));
    let arguments = ["--access-log", log.to_str().expect("text"), "--metrics-addr", "127.0.0.1:0"];
    let server = start(folder.path(), &arguments);
    let (address, observed_at) =
        (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
    get(&address, "/hello.txt");
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    until(|| lines(&log).contains("\"GET /hello.txt HTTP/1.1\" 200 13"));
    fs::rename(&log, &rotated).expect("renamed");
    server.signal(Signal::HUP);
    until(|| log.exists());
    get(&address, "/lost");
    until(|| lines(&log).contains("\"GET /lost HTTP/1.1\" 404"));
    assert!(!lines(&rotated).contains("/lost"));
    let health = get(&observed_at, "/health");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("ready\n"), "{health}");
    let metrics = get(&observed_at, "/metrics");
    assert!(metrics.contains("\nanello_"), "{metrics}");
    let refused = String::from_utf8(served::ask(connect(&observed_at), "POST /health", "")).expect("text");
    assert!(
        refused.starts_with("HTTP/1.1 405 ") && refused.contains("\r\nAllow: GET, HEAD\r\n"),
        "{refused}"
    );
    server.end();
}

#[test]
fn what_cannot_be_served_is_said_with_its_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        let output =
            command.arg("http").args(arguments).args(["--addr", "127.0.0.1:0"]).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let here = folder.path().to_str().expect("text");
    assert!(error(&["/no/such/folder"]).contains("/no/such/folder: "));
    assert!(
        error(&[here, "--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem"]).contains("/no/cert.pem: ")
    );
    assert!(error(&[here, "--tls-cert", "/no/cert.pem"]).contains("--tls-key"));
    assert!(error(&[here, "--not-found-file", "../404.html"]).contains("not-found-file"));
    assert!(error(&[here, "--cache-control", "*.css"]).contains("lacks a ="));
    assert!(error(&[here, "--access-log", "/no/such/folder/log"]).contains("/no/such/folder/log"));
}

/// A file that sockets do not take at a time, and a client that has begun to take it.
fn download(folder: &Path, address: &str) -> (TcpStream, usize) {
    const BYTES: usize = 32 << 20;
    fs::write(folder.join("large.bin"), vec![b'x'; BYTES]).expect("a file");
    let mut client = connect(address);
    client.write_all(b"GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    let mut first = [0; 1];
    client.read_exact(&mut first).expect("an answer");
    (client, BYTES)
}

#[test]
fn fault_37_a_slow_download_is_finished_after_a_signal() {
    let folder = folder();
    for driver in drivers() {
        let server =
            start(folder.path(), &["--driver", driver, "--drain-timeout", "60s", "--send-timeout", "60s"]);
        let (mut client, bytes) = download(folder.path(), server.ready_value("addr"));
        server.signal(Signal::TERM);
        // Nobody is accepted any more: it is ending.
        until(|| TcpStream::connect(server.ready_value("addr")).is_err());
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("the rest");
        let head = rest.len() - bytes;
        assert!(rest[..head].ends_with(b"\r\n\r\n") && rest[head..].iter().all(|byte| *byte == b'x'));
        server.ended();
    }
}

#[test]
fn fault_37_a_download_that_takes_longer_than_may_be_is_broken_off() {
    let folder = folder();
    for driver in drivers() {
        let server =
            start(folder.path(), &["--driver", driver, "--drain-timeout", "100ms", "--send-timeout", "1h"]);
        let (_client, _) = download(folder.path(), server.ready_value("addr"));
        server.signal(Signal::TERM);
        server.ended();
    }
}

#[test]
fn fault_37_a_second_signal_ends_it_at_once_also_while_clients_wait_to_be_accepted() {
    let (folder, places) = (folder(), tempfile::tempdir().expect("a folder"));
    for driver in drivers() {
        let notices = Notices::new(places.path());
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(folder.path()).args(["--addr", "127.0.0.1:0", "--driver", driver]);
        command.args(["--drain-timeout", "1h", "--send-timeout", "1h"]).env("NOTIFY_SOCKET", notices.path());
        let server = Served::of(command);
        assert_eq!(notices.next(), "READY=1\n");
        let address = server.ready_value("addr").to_owned();
        let (first, _) = download(folder.path(), &address);
        server.signal(Signal::STOP);
        let waiting: Vec<TcpStream> = (0..700)
            .map(|_| {
                let mut client = connect(&address);
                client.write_all(b"GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
                client
            })
            .collect();
        server.signal(Signal::TERM);
        server.signal(Signal::CONT);
        assert_eq!(notices.next(), "STOPPING=1\n");
        server.signal(Signal::INT);
        server.ended();
        drop((first, waiting));
    }
}

#[test]
fn connections_are_limited_over_all_workers() {
    let folder = folder();
    for driver in drivers() {
        let arguments = ["--driver", driver, "--cores", "0,0,0,0", "--max-connections", "4"];
        let server = start(folder.path(), &arguments);
        let ask = || {
            let mut client = connect(server.ready_value("addr"));
            client.write_all(request(true).as_bytes()).expect("sends");
            let mut status = [0; 12];
            client.read_exact(&mut status).expect("an answer");
            (client, String::from_utf8_lossy(&status).into_owned())
        };
        // Whichever workers they come to.
        let mut four: Vec<_> = (0..4).map(|_| ask()).collect();
        assert!(four.iter().all(|(_, status)| status == "HTTP/1.1 200"), "{four:?}");
        assert_eq!(ask().1, "HTTP/1.1 503");
        four.pop();
        until(|| ask().1 == "HTTP/1.1 200");
    }
}

#[test]
fn a_server_whose_output_nobody_reads_serves_all_the_same() {
    let (folder, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let (notices, socket) = (Notices::new(places.path()), places.path().join("http"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(folder.path()).arg("--addr").arg(format!("unix:{}", socket.display()));
    command.env("NOTIFY_SOCKET", notices.path()).env("ANELLO_LOG", "debug");
    let closed = || Stdio::from(std::io::pipe().expect("a pipe").1);
    let mut child = command.stdout(closed()).stderr(closed()).spawn().expect("starts");
    assert_eq!(notices.next(), "READY=1\n");
    let mut client = UnixStream::connect(&socket).expect("connects");
    client.write_all(request(false).as_bytes()).expect("sends");
    is_answered(client);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM)
        .expect("it is there");
    assert_eq!(notices.next(), "STOPPING=1\n");
    assert_eq!(child.wait().expect("it is ours").code(), Some(0));
}

#[test]
fn whoever_puts_another_folder_in_the_place_of_the_served_one_is_told() {
    let places = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder(), folder());
    let (path, told) = (places.path().join("current"), places.path().join("told"));
    symlink(one.path(), &path).expect("a link");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(&path).args(["--addr", "127.0.0.1:0"]);
    command.stderr(File::create(&told).expect("a file"));
    let server = Served::of(command);
    let says = |what: &str| fs::read_to_string(&told).expect("text").contains(what);
    fs::remove_file(&path).expect("removed");
    server.signal(Signal::HUP);
    until(|| says("the served folder is there no more"));
    symlink(two.path(), &path).expect("a link");
    server.signal(Signal::HUP);
    until(|| says("another folder is there now"));
    // The workers have the first one, whatever the path leads to.
    assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
    server.end();
}
