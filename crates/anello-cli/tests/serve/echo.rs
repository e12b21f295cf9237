//! Tests for `anello echo`, run as a child process: listening, replies and shutdown.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anello_test::{driver_flags, hang_timeout, on_each_driver_flag};

use crate::common::anello;
use crate::common::served::{Served, connect};

fn command(arguments: &[&str]) -> Command {
    anello(&[&["echo"], arguments].concat())
}

fn tcp(server: &Served) -> TcpStream {
    let stream = connect(server.address());
    stream.set_write_timeout(Some(hang_timeout())).unwrap();
    stream
}

fn unix(server: &Served) -> UnixStream {
    let name = server.address().strip_prefix("unix:").unwrap();
    let stream = match name.strip_prefix('@') {
        Some(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()),
        None => UnixStream::connect(name),
    };
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(hang_timeout())).unwrap();
    stream.set_write_timeout(Some(hang_timeout())).unwrap();
    stream
}

fn socket_path(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("echo.sock")
}

/// Returns bytes whose values depend on their offsets.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|offset| (offset * 31 + offset / 251) as u8).collect()
}

/// Returns the expected responses to all complete requests.
fn responses(requests: &[u8], request_bytes: usize, response_bytes: usize) -> Vec<u8> {
    // Copies slices, because single bytes take long without optimization.
    let response = |request: &[u8]| {
        let mut response = request.repeat(response_bytes.div_ceil(request_bytes));
        response.truncate(response_bytes);
        response
    };
    requests.chunks_exact(request_bytes).map(response).collect::<Vec<_>>().concat()
}

#[test]
fn unix_socket_echoes_and_file_is_removed_at_exit() {
    on_each_driver_flag(|driver| {
        for workers in [&[][..], &["--cores", "0"], &["--cores", "0,0"], &["--workers", "2"]] {
            let directory = tempfile::tempdir().unwrap();
            let path = socket_path(&directory);
            let address = format!("unix:{}", path.display());
            let mut arguments = vec!["--addr", &address, "--driver", driver];
            arguments.extend(workers);
            let server = Served::start_echo(&arguments);
            assert_eq!(server.address(), address);
            let message = pattern(300_000);
            let mut clients: Vec<_> = (0..8).map(|_| unix(&server)).collect();
            for client in &mut clients {
                let (mut writer, sent) = (client.try_clone().unwrap(), message.clone());
                let writing = thread::spawn(move || writer.write_all(&sent));
                let mut received = vec![0; message.len()];
                client.read_exact(&mut received).unwrap();
                writing.join().unwrap().unwrap();
                assert!(received == message, "the bytes differ");
            }
            clients[0].write_all(b"last").unwrap();
            server.stop();
            // The server echoes the data that it received before the signal, then closes the connection.
            let mut last = Vec::new();
            clients[0].read_to_end(&mut last).unwrap();
            assert_eq!(last, b"last");
            assert!(!path.exists(), "the socket file still exists");
        }
    });
}

#[test]
fn ready_line_contains_workers_sockets_and_distribution() {
    let name = format!("unix:@anello-distribution-{}", std::process::id());
    for (arguments, expected) in [
        (&["--addr", "127.0.0.1:0", "--cores", "all"][..], "distribution=balanced"),
        (&["--addr", "127.0.0.1:0", "--distribution", "least-loaded"], "distribution=least-loaded"),
        (&["--addr", "127.0.0.1:0", "--workers", "3"], "workers=3"),
        (&["--addr", "127.0.0.1:0", "--cores", "all", "--distribution", "by-core"], "distribution=by-core"),
        (&["--addr", &name, "--distribution", "kernel"][..], "sockets=1 distribution=kernel"),
    ] {
        let server = Served::start_echo(arguments);
        assert!(server.ready.contains(&format!(" {expected}")), "{:?}", server.ready);
        server.stop();
    }
}

#[test]
fn abstract_unix_socket_echoes() {
    let address = format!("unix:@anello-cli-test-{}", std::process::id());
    let server = Served::start_echo(&["--addr", &address, "--driver", "epoll"]);
    assert_eq!(server.address(), address);
    let mut client = unix(&server);
    client.write_all(b"ciao").unwrap();
    let mut received = [0; 4];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ciao");
    server.stop();
}

#[test]
fn foreign_file_at_socket_path_is_neither_used_nor_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_path(&directory);
    let address = format!("unix:{}", path.display());
    let assert_rejected = || {
        let output = command(&["--addr", &address, "--driver", "epoll"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&address) && stderr.contains("choose another path"), "{stderr}");
        assert!(path.exists(), "the file belongs to another process");
    };
    fs::write(&path, "not a socket").unwrap();
    assert_rejected();
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a socket");
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    assert_rejected();
    // The other listener still accepts connections.
    UnixStream::connect(&path).unwrap();
    // Without a listener, the socket file is stale and is replaced.
    drop(other);
    let server = Served::start_echo(&["--addr", &address, "--driver", "epoll"]);
    unix(&server);
    server.stop();
    assert!(!path.exists());
    // The server does not remove a file that has replaced its own socket file.
    let server = Served::start_echo(&["--addr", &address, "--driver", "epoll"]);
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    server.stop();
    assert!(path.exists(), "the file of the other listener still exists");
}

#[test]
fn responses_have_configured_size() {
    on_each_driver_flag(|driver| {
        let small = [(1, 1), (7, 1), (7, 6), (7, 7), (7, 8), (7, 20), (10, 4), (64, 64), (100, 7), (7, 100)];
        let large = [(5000, 3), (3, 5000), (7, 200_000), (70_000, 200_000), (300_000, 10)];
        for (request, response) in small.into_iter().chain(large) {
            let (request_bytes, response_bytes) = (request.to_string(), response.to_string());
            let sizes = ["--request-bytes", &request_bytes, "--response-bytes", &response_bytes];
            let arguments = [&sizes[..], &["--addr", "127.0.0.1:0"]].concat();
            let server = Served::start_echo(&[&arguments[..], &["--driver", driver]].concat());
            let mut client = tcp(&server);
            // First sends single requests, each in two parts; then pipelined requests, the last of which is incomplete.
            for round in 0..3 {
                let message = &pattern(request + round)[round..];
                let (first, second) = message.split_at(request / 2);
                client.write_all(first).unwrap();
                client.write_all(second).unwrap();
                let mut received = vec![0; response];
                client.read_exact(&mut received).unwrap();
                assert!(received == responses(message, request, response), "{request} to {response}");
            }
            let pipelined = pattern(request * 20 + request / 2);
            let (mut writer, sent) = (client.try_clone().unwrap(), pipelined.clone());
            let writing = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            writing.join().unwrap();
            assert!(
                received == responses(&pipelined, request, response),
                "{request} to {response}, pipelined"
            );
            server.stop();
        }
    });
}

#[test]
fn sizes_must_be_given_together_and_nonzero() {
    for arguments in [
        &["--request-bytes", "5"][..],
        &["--response-bytes", "5"],
        &["--request-bytes", "0", "--response-bytes", "5"],
        &["--request-bytes", "5", "--response-bytes", "0"],
    ] {
        let output = command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

#[test]
fn invalid_addresses_are_rejected_with_examples() {
    for address in ["", "localhost", "127.0.0.1", "unix:", &format!("unix:/{}", "x".repeat(200))] {
        let output = command(&["--addr", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("unix:"), "{output:?}");
    }
    // The ready line contains the address in the syntax of the command line.
    for address in ["[::1]:0", "unix:echo-test.sock"] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = command(&["--addr", address]);
        let mut child = command.current_dir(&directory).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
        let expected = format!(" addr={}", address.trim_end_matches('0'));
        assert!(ready.contains(&expected) || (address.starts_with('[') && !has_ipv6), "{ready}");
    }
}

/// The client sends requests without reading the responses. The server must stop reading, and its memory usage must
/// stay low.
#[test]
fn unread_responses_apply_backpressure() {
    on_each_driver_flag(|driver| {
        let arguments = ["--request-bytes", "10", "--response-bytes", "100000", "--addr", "127.0.0.1:0"];
        let server = Served::start_echo(&[&arguments[..], &["--driver", driver]].concat());
        let process = server.id();
        let resident_bytes = || {
            let pages = fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let mut client = tcp(&server);
        let before = resident_bytes();
        // The client's writes time out once all buffers are full.
        client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let (requests, mut sent) = (pattern(1_000_000), 0);
        while let Ok(count @ 1..) = client.write(&requests[sent % 1_000_000..]) {
            sent += count;
            assert!(sent < 1 << 30, "the server reads requests without limit");
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes for one client that does not read");
        // Once the client reads, the server continues with the next response.
        client.shutdown(Shutdown::Write).unwrap();
        let mut received = vec![0; 100_000];
        for number in 0..20 {
            client.read_exact(&mut received).unwrap();
            let request = &requests[number * 10..number * 10 + 10];
            assert!(received == responses(request, 10, 100_000), "response {number}");
        }
    });
}

#[test]
fn huge_pages_are_disabled() {
    let server = Served::start_echo(&["--addr", "127.0.0.1:0"]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    assert!(!status.contains("THP_enabled:\t1"), "{status}");
}

#[test]
fn idle_clients_are_closed() {
    for sizes in [&[][..], &["--request-bytes", "10", "--response-bytes", "10"]] {
        let common = ["--idle-timeout", "500ms", "--addr", "127.0.0.1:0", "--driver", "epoll"];
        let server = Served::start_echo(&[&common[..], sizes].concat());
        let mut client = tcp(&server);
        client.write_all(b"0123456789").unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"0123456789", "responds, then closes");
        server.stop();
    }
}

#[test]
fn sigterm_completes_received_requests() {
    let arguments = ["--request-bytes", "4", "--response-bytes", "6", "--addr", "127.0.0.1:0"];
    let server = Served::start_echo(&[&arguments[..], &["--driver", "epoll"]].concat());
    let mut client = tcp(&server);
    client.write_all(b"abcdef").unwrap();
    let mut received = [0; 6];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"abcdab");
    server.stop();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "an incomplete request gets no response");
}

#[test]
fn service_manager_is_notified_once_for_all_workers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notifications = UnixDatagram::bind(&path).unwrap();
    notifications.set_read_timeout(Some(hang_timeout())).unwrap();
    let next = || {
        let mut text = [0; 100];
        let length = notifications.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = command(&["--addr", "127.0.0.1:0", "--cores", "0,0"]);
    let server = {
        command.env("NOTIFY_SOCKET", &path);
        Served::spawn(command)
    };
    assert_eq!(next(), "READY=1\n");
    drop(tcp(&server));
    server.stop();
    assert_eq!(next(), "STOPPING=1\n");
    notifications.set_nonblocking(true).unwrap();
    assert_eq!(notifications.recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn closed_output_pipes_do_not_stop_server() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", socket_path(&directory).display());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let child = command(&["--addr", &address, "--cores", "0,0"]).stdout(closed()).stderr(closed()).spawn();
    let mut server = Served::without_ready_line(child.unwrap());
    while !socket_path(&directory).exists() {
        assert!(!server.has_exited(), "the server has exited");
        thread::sleep(Duration::from_millis(5));
    }
    // The socket file is created shortly before the socket starts listening.
    let mut client = loop {
        match UnixStream::connect(socket_path(&directory)) {
            Ok(client) => break client,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
    };
    client.set_read_timeout(Some(hang_timeout())).unwrap();
    client.write_all(b"ciao").unwrap();
    let mut received = [0; 4];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ciao");
    server.stop();
}

#[test]
fn address_in_use_is_rejected_for_any_number_of_workers() {
    for cores in ["0", "0,0"] {
        // The source address of other connections on this machine is another one, so that their ports cannot be that
        // of the server after its end.
        let server = Served::start_echo(&["--addr", "127.0.0.77:0", "--cores", cores]);
        // The servers wait for the address at the same time.
        let others = ["0", "0,0"].map(|cores| {
            command(&["--addr", server.address(), "--cores", cores]).stderr(Stdio::piped()).spawn().unwrap()
        });
        for other in others {
            let output = other.wait_with_output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(stderr.contains(server.address()) && stderr.contains("in use"), "{stderr}");
        }
        let address = server.address().to_owned();
        let mut client = tcp(&server);
        client.write_all(b"ciao").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        server.stop();
        // Recently closed connections do not keep the address in use.
        Served::start_echo(&["--addr", &address, "--cores", "0,0"]).stop();
    }
}

#[test]
fn address_of_killed_server_can_be_bound_again() {
    for driver in driver_flags() {
        let directory = tempfile::tempdir().unwrap();
        let socket_file = format!("unix:{}", directory.path().join("socket").display());
        for address in ["127.0.0.78:0", "unix:@anello-killed", &socket_file] {
            let start =
                |address: &str| Served::start_echo(&["--addr", address, "--driver", driver, "--cores", "0"]);
            let mut server = start(address);
            for _ in 0..5 {
                let address = server.address().to_owned();
                // Kills the process and waits for its exit, after which io_uring can still hold its sockets.
                drop(server);
                server = start(&address);
            }
            server.stop();
        }
    }
}
