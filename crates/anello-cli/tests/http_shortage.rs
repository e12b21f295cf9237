//! `anello http` where the process may have few descriptors, and clients take as many as they can.

mod served;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};

use served::{BODY, Served, connect, drivers, folder, get, request, until};

const LIMIT: usize = 64;
const IDLE: usize = 100;

/// More than a cache keeps in memory.
const LARGE_BYTES: usize = 200_000;

/// The server where it may have so many open files.
fn limited(limit: usize, folder: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {limit}; exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_anello"), "http"]).arg(folder);
    command.args(["--cores", "0,0"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

fn descriptors(server: &Served) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.id())).expect("its descriptors").count()
}

/// How a server that has no place for a connection ends its response.
const TRY_LATER: &str = "as many connections as it may: try again later\n";

/// A client that keeps its connection after the response, admitted as by [`get_when_admitted`].
fn idle(address: &str) -> TcpStream {
    let mut client = None;
    until(|| {
        let client = client.insert(connect(address));
        client.write_all(request(true).as_bytes()).expect("sends");
        let mut response = Vec::new();
        while !response.ends_with(BODY.as_bytes()) && !response.ends_with(TRY_LATER.as_bytes()) {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("a response");
            response.push(byte[0]);
        }
        response.starts_with(b"HTTP/1.1 200 OK\r\n")
    });
    client.expect("it was admitted")
}

/// Returns the response to a GET. A server that cannot evict idle connections in time, because the machine is busy, rejects
/// a client with 503 and asks it to try again later: this client does, within a limit of time.
fn get_when_admitted(address: &str, path: &str) -> String {
    let mut response = String::new();
    until(|| {
        response = get(address, path);
        !response.ends_with(TRY_LATER)
    });
    response
}

#[test]
fn fault_21_files_are_served_while_idle_clients_want_every_descriptor() {
    let ways: [&[&str]; 3] = [&[], &["--max-connections", "1000"], &["--metrics-addr", "127.0.0.1:0"]];
    for driver in drivers() {
        for way in ways {
            let folder = folder();
            for name in ["large", "other", "third"] {
                fs::write(folder.path().join(name), vec![b'x'; LARGE_BYTES]).expect("a file");
            }
            let log = tempfile::NamedTempFile::new().expect("a file");
            let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--revalidate-interval", "0s"];
            let mut command = limited(LIMIT, folder.path(), &[&common[..], way].concat());
            command.stderr(File::create(log.path()).expect("a file"));
            let server = Served::of(command);
            let address = server.ready_value("addr").to_owned();
            let clients: Vec<_> = (0..IDLE).map(|_| idle(&address)).collect();
            // Without a word, all of them at the same time.
            let silent: Vec<_> = (0..IDLE).map(|_| connect(&address)).collect();
            for _ in 0..10 {
                assert!(get_when_admitted(&address, "/hello.txt").ends_with(BODY), "{driver}: {way:?}");
                for path in ["/large", "/other", "/third"] {
                    let answer = get_when_admitted(&address, path);
                    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{driver}: {path}: {answer:.100}");
                    assert!(answer.len() > LARGE_BYTES, "{driver}: {path}");
                }
                assert!(descriptors(&server) < LIMIT, "{driver}: {way:?}");
            }
            drop((clients, silent));
            server.end();
            let said = fs::read_to_string(log.path()).expect("text");
            assert!(said.lines().count() <= 2, "{driver}: {said}");
        }
    }
}

/// Whatever takes the descriptors, a shortage that lasts is logged now and then.
#[test]
fn fault_04_lasting_shortage_is_logged_once_in_ten_seconds() {
    for driver in drivers() {
        let folder = folder();
        let log = tempfile::NamedTempFile::new().expect("a file");
        // Clients in the middle of a request are not closed.
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--max-connections", "1000"];
        let mut command = limited(LIMIT, folder.path(), &common);
        command.stderr(File::create(log.path()).expect("a file"));
        let server = Served::of(command);
        let address = server.ready_value("addr").to_owned();
        let mut clients = Vec::new();
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(3);
        while std::time::Instant::now() < ends {
            if clients.len() < IDLE {
                let mut client = connect(&address);
                client.write_all(b"GET /hello.txt HTTP/1.1\r\nHost").ok();
                clients.push(client);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(clients);
        until(|| descriptors(&server) < LIMIT / 2 + 20);
        assert!(get(&address, "/hello.txt").ends_with(BODY));
        server.end();
        let said = fs::read_to_string(log.path()).expect("text");
        assert!((1..=2).contains(&said.matches("no descriptors left").count()), "{driver}: {said}");
    }
}

#[test]
fn check_tells_of_a_limit_that_does_not_fit() {
    let folder = folder();
    let check = |limit, arguments: &[&str]| -> (Option<i32>, String) {
        let mut command = limited(limit, folder.path(), &[&["--check"], arguments].concat());
        let Output { status, stderr, .. } = command.output().expect("it runs");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    assert_eq!(check(LIMIT, &[]), (Some(0), String::new()));
    for (limit, arguments, words) in [
        (
            LIMIT,
            &["--max-connections", "1000"][..],
            "1000 connections do not fit the limit of open files (64)",
        ),
        (40, &[], "4 connections do not fit the limit of open files (40)"),
    ] {
        let (code, said) = check(limit, arguments);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with("anello: --max-connections: ") && said.contains(words), "{said}");
        assert!(said.contains("ulimit -Hn") && said.contains("--cores"), "{said}");
    }
    // A start says the same, and serves.
    let log = tempfile::NamedTempFile::new().expect("a file");
    let arguments = ["--addr", "127.0.0.1:0", "--max-connections", "1000"];
    let mut command = limited(LIMIT, folder.path(), &arguments);
    command.stderr(File::create(log.path()).expect("a file"));
    let server = Served::of(command);
    assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
    server.end();
    let said = fs::read_to_string(log.path()).expect("text");
    assert!(said.contains("anello: 1000 connections do not fit the limit of open files (64)"), "{said}");
}
