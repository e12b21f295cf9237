//! `anello echo` as a command: where it listens, what it answers, how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a peer waits before the test has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("echo").args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// The server as a child process; ends with its owner.
struct Server {
    child: Child,
    /// As the ready line has it.
    address: String,
    ready: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("addr=").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, address, ready: line }
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn unix(&self) -> UnixStream {
        let name = self.address.strip_prefix("unix:").unwrap();
        let stream = match name.strip_prefix('@') {
            Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()),
            None => UnixStream::connect(name),
        };
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Asks it to end, and waits until it has.
    fn end(mut self) -> ExitStatus {
        self.terminate();
        self.child.wait().unwrap()
    }

    fn terminate(&self) {
        let process = Pid::from_child(&self.child);
        kill_process(process, Signal::TERM).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

fn socket_path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("echo.sock")
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + place / 251) as u8).collect()
}

/// What is to come back for these requests.
fn answers(requests: &[u8], request_bytes: usize, response_bytes: usize) -> Vec<u8> {
    let whole = requests.chunks_exact(request_bytes);
    whole.flat_map(|request| (0..response_bytes).map(|byte| request[byte % request_bytes])).collect()
}

#[test]
fn a_unix_socket_serves_and_leaves_no_file() {
    for driver in ["epoll", "auto"] {
        for cores in [None, Some("0"), Some("0,0")] {
            let folder = tempfile::tempdir().unwrap();
            let path = socket_path(&folder);
            let address = format!("unix:{}", path.display());
            let mut arguments = vec!["--addr", &address, "--driver", driver];
            arguments.extend(cores.iter().flat_map(|cores| ["--cores", cores]));
            let server = Server::start(&arguments);
            assert_eq!(server.address, address);
            let message = pattern(300_000);
            let mut clients: Vec<_> = (0..8).map(|_| server.unix()).collect();
            for client in &mut clients {
                let (mut writer, sent) = (client.try_clone().unwrap(), message.clone());
                let writing = thread::spawn(move || writer.write_all(&sent));
                let mut found = vec![0; message.len()];
                client.read_exact(&mut found).unwrap();
                writing.join().unwrap().unwrap();
                assert!(found == message, "the bytes differ");
            }
            clients[0].write_all(b"last").unwrap();
            assert!(server.end().success());
            // What had arrived was still answered, then came the end.
            let mut last = Vec::new();
            clients[0].read_to_end(&mut last).unwrap();
            assert_eq!(last, b"last");
            assert!(!path.exists(), "the socket file is still there");
        }
    }
}

#[test]
fn ready_line_has_the_sockets_and_the_distribution() {
    let name = format!("unix:@anello-distribution-{}", std::process::id());
    for (arguments, told) in [
        (&["--addr", "127.0.0.1:0", "--cores", "all"][..], "distribution=balanced"),
        (&["--addr", &name, "--distribution", "kernel"][..], "sockets=1 distribution=kernel"),
    ] {
        let server = Server::start(arguments);
        assert!(server.ready.contains(&format!(" {told}")), "{:?}", server.ready);
        assert!(server.end().success());
    }
}

#[test]
fn an_abstract_name_serves() {
    let address = format!("unix:@anello-cli-test-{}", std::process::id());
    let server = Server::start(&["--addr", &address, "--driver", "epoll"]);
    assert_eq!(server.address, address);
    let mut client = server.unix();
    client.write_all(b"ciao").unwrap();
    let mut found = [0; 4];
    client.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"ciao");
    assert!(server.end().success());
}

#[test]
fn a_file_of_somebody_else_is_neither_used_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = socket_path(&folder);
    let address = format!("unix:{}", path.display());
    let refused = || {
        let output = command(&["--addr", &address, "--driver", "epoll"]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&address) && told.contains("choose another path"), "{told}");
        assert!(path.exists(), "it was not its own");
    };
    fs::write(&path, "not a socket").unwrap();
    refused();
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a socket");
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    refused();
    // It is still reached there.
    UnixStream::connect(&path).unwrap();
    // What a server that is gone has left is nobody's.
    drop(other);
    let server = Server::start(&["--addr", &address, "--driver", "epoll"]);
    server.unix();
    assert!(server.end().success());
    assert!(!path.exists());
    // One that took the place of its own is left, too.
    let server = Server::start(&["--addr", &address, "--driver", "epoll"]);
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    assert!(server.end().success());
    assert!(path.exists(), "it was another's by then");
}

#[test]
fn requests_are_answered_by_responses_of_another_size() {
    for driver in ["epoll", "auto"] {
        for (request, response) in
            [(1, 1), (64, 64), (100, 7), (7, 100), (5000, 3), (3, 5000), (70_000, 200_000), (300_000, 10)]
        {
            let (ask, answer) = (request.to_string(), response.to_string());
            let arguments = ["--request-bytes", &ask, "--response-bytes", &answer, "--addr", "127.0.0.1:0"];
            let server = Server::start(&[&arguments[..], &["--driver", driver]].concat());
            let mut client = server.tcp();
            // One at a time, in pieces; then many at once, and in the end one that is not whole.
            for round in 0..3 {
                let message = &pattern(request + round)[round..];
                let (first, second) = message.split_at(request / 2);
                client.write_all(first).unwrap();
                client.write_all(second).unwrap();
                let mut found = vec![0; response];
                client.read_exact(&mut found).unwrap();
                assert!(found == answers(message, request, response), "{request} to {response}");
            }
            let pipelined = pattern(request * 20 + request / 2);
            let (mut writer, sent) = (client.try_clone().unwrap(), pipelined.clone());
            let writing = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut found = Vec::new();
            client.read_to_end(&mut found).unwrap();
            writing.join().unwrap();
            assert!(found == answers(&pipelined, request, response), "{request} to {response}, pipelined");
            assert!(server.end().success());
        }
    }
}

#[test]
fn the_sizes_come_together_and_are_not_zero() {
    for arguments in [
        &["--request-bytes", "5"][..],
        &["--response-bytes", "5"],
        &["--request-bytes", "0", "--response-bytes", "5"],
        &["--request-bytes", "5", "--response-bytes", "0"],
        &["--addr", "unix:"],
        &["--addr", "localhost"],
    ] {
        let output = command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

/// A client that asks without end and reads nothing: the server must stop reading, and hold little.
#[test]
fn answers_that_nobody_reads_hold_the_client_back() {
    for driver in ["epoll", "auto"] {
        let arguments = ["--request-bytes", "10", "--response-bytes", "100000", "--addr", "127.0.0.1:0"];
        let server = Server::start(&[&arguments[..], &["--driver", driver]].concat());
        let process = server.child.id();
        let resident_bytes = || {
            let pages = fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let mut client = server.tcp();
        let before = resident_bytes();
        // The client's writes end when everything is full: then nothing moves for this long.
        client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let (requests, mut sent) = (pattern(1_000_000), 0);
        while let Ok(count @ 1..) = client.write(&requests[sent % 1_000_000..]) {
            sent += count;
            assert!(sent < 1 << 30, "the server takes requests without end");
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes for one client that does not read");
        // It goes on where it was.
        client.shutdown(Shutdown::Write).unwrap();
        let mut found = vec![0; 100_000];
        for number in 0..20 {
            client.read_exact(&mut found).unwrap();
            let request = &requests[number * 10..number * 10 + 10];
            assert!(found == answers(request, 10, 100_000), "answer {number}");
        }
    }
}

#[test]
fn idle_clients_are_closed() {
    for sizes in [&[][..], &["--request-bytes", "10", "--response-bytes", "10"]] {
        let common = ["--idle-timeout", "50ms", "--addr", "127.0.0.1:0", "--driver", "epoll"];
        let server = Server::start(&[&common[..], sizes].concat());
        let mut client = server.tcp();
        client.write_all(b"0123456789").unwrap();
        let mut found = Vec::new();
        client.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"0123456789", "answered, then closed");
        assert!(server.end().success());
    }
}

#[test]
fn a_signal_lets_requests_be_answered() {
    let arguments = ["--request-bytes", "4", "--response-bytes", "6", "--addr", "127.0.0.1:0"];
    let server = Server::start(&[&arguments[..], &["--driver", "epoll"]].concat());
    let mut client = server.tcp();
    client.write_all(b"abcdef").unwrap();
    let mut found = [0; 6];
    client.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"abcdab");
    assert!(server.end().success());
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "half a request has no answer");
}

#[test]
fn a_server_whose_output_nobody_reads_serves_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", socket_path(&folder).display());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let child = command(&["--addr", &address, "--cores", "0,0"]).stdout(closed()).stderr(closed()).spawn();
    let mut server = Server { child: child.unwrap(), address, ready: String::new() };
    while !socket_path(&folder).exists() {
        assert!(server.child.try_wait().unwrap().is_none(), "it has ended");
        thread::sleep(Duration::from_millis(5));
    }
    // The file is there a moment before the socket listens.
    let mut client = loop {
        match UnixStream::connect(socket_path(&folder)) {
            Ok(client) => break client,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused),
        }
    };
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(b"ciao").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ciao");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn an_address_that_a_server_has_is_refused_however_many_workers_there_are() {
    for cores in ["0", "0,0"] {
        let server = Server::start(&["--addr", "127.0.0.1:0", "--cores", cores]);
        for cores in ["0", "0,0"] {
            let output = command(&["--addr", &server.address, "--cores", cores]).output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{told}");
            assert!(told.contains(&server.address) && told.contains("in use"), "{told}");
        }
        let address = server.address.clone();
        let mut client = server.tcp();
        client.write_all(b"ciao").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        assert!(server.end().success());
        // Connections that were just ended do not keep it.
        assert!(Server::start(&["--addr", &address, "--cores", "0,0"]).end().success());
    }
}
