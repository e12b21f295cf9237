//! Tests for socket acquisition in `anello http`: socket activation by a service manager, and handover between servers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use anello_test::{driver_flags, hang_timeout, wait_until};
use rustix::fs::FlockOperation;
use rustix::process::Signal;

use crate::served;
use crate::served::http2::{GET_HELLO, Http2Client};
use crate::served::{BODY, Served, assert_ok_response, connect, connect_and_request, document_root, request};

/// Client threads that send requests continuously until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    response_count: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the clients. Every third client uses HTTP/2. Of the others, those with an even number keep their
    /// connections alive, and those with an odd number open a connection for each request.
    fn start(address: &str, clients: usize) -> Self {
        let (stop, response_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..clients).map(|client| {
            let (address, stop, response_count) =
                (address.to_owned(), Arc::clone(&stop), Arc::clone(&response_count));
            thread::spawn(move || {
                if client % 3 == 2 {
                    return send_http2_requests(&address, &stop, &response_count);
                }
                while !stop.load(Ordering::Relaxed) {
                    let mut stream = connect(&address);
                    let keep_alive = client % 2 == 0;
                    // Sends requests until the server announces that it will close the connection. If the server closes
                    // the connection without an announcement, the request has failed.
                    while send_request(&mut stream, keep_alive) {
                        response_count.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    response_count.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let clients = clients.collect();
        Self { stop, response_count, clients }
    }

    /// Waits until this many further responses have arrived.
    fn assert_still_serving(&self, count: usize) {
        let previous = self.response_count.load(Ordering::Relaxed);
        wait_until(|| {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "a client has failed");
            self.response_count.load(Ordering::Relaxed) >= previous + count
        });
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("client thread"));
    }
}

/// Sends requests on one connection until the server announces that it will close the connection, and then continues on
/// another one.
fn send_http2_requests(address: &str, stop: &AtomicBool, response_count: &AtomicUsize) {
    let request = http::Request::get("http://h/hello.txt").body(()).expect("valid request");
    while !stop.load(Ordering::Relaxed) {
        let mut client = Http2Client::connect(address);
        while let Some(response) = client.send(&request) {
            assert!(response.status() == 200 && response.body() == BODY.as_bytes(), "{response:?}");
            response_count.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Sends a request and checks the response. Returns `true` if the connection stays open.
fn send_request(stream: &mut TcpStream, keep_alive: bool) -> bool {
    stream.write_all(request(keep_alive).as_bytes()).expect("send request");
    let mut response = Vec::new();
    let mut bytes = [0; 4096];
    while !response.ends_with(BODY.as_bytes()) {
        let count = served::retry_interrupted(|| stream.read(&mut bytes)).expect("read response");
        assert_ne!(count, 0, "cut off: {:?}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&bytes[..count]);
    }
    let response = String::from_utf8(response).expect("UTF-8");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    !response.to_ascii_lowercase().contains("\r\nconnection: close\r\n")
}

/// Starts a server with a handover path. `--drain-min-idle` is long, so that the drain does not close the connection of
/// a client thread that has not been scheduled for a while.
fn start(document_root: &Path, address: &str, handover: &Path, arguments: &[&str]) -> Served {
    let handover = handover.to_str().expect("UTF-8");
    let common =
        ["--addr", address, "--handover", handover, "--drain-min-idle", "60s", "--http2", "cleartext"];
    Served::start(document_root, &[&common, arguments].concat())
}

/// Reads the server's messages up to the end of the socket list.
fn read_offer(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b".") {
        bytes.push(read_byte(stream));
    }
    bytes
}

/// Reads the next byte.
fn read_byte(stream: &mut UnixStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).expect("read message");
    byte[0]
}

#[test]
fn fault_38_consecutive_handovers_fail_no_request() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let handover = test_directory.path().join("handover");
    let all_drivers: Vec<_> = driver_flags().collect();
    let Some(&first) = all_drivers.first() else { return };
    let mut server =
        start(files.path(), "127.0.0.1:0", &handover, &["--driver", first, "--metrics-addr", "127.0.0.1:0"]);
    let (address, metrics) =
        (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
    assert_eq!(fs::metadata(&handover).expect("handover socket").permissions().mode() & 0o777, 0o600);
    let load = Load::start(&address, 6);
    load.assert_still_serving(100);
    // Handovers between all pairs of drivers, and between different numbers of workers.
    let cores = ["0", "0,0", "0"];
    for round in 0..3 * all_drivers.len() {
        let driver = all_drivers[(round / 2) % all_drivers.len()];
        let cores = cores[round % cores.len()];
        let arguments = ["--driver", driver, "--cores", cores, "--metrics-addr", &metrics];
        let next = start(files.path(), &address, &handover, &arguments);
        assert_eq!((next.ready_value("addr"), next.ready_value("metrics")), (&*address, &*metrics));
        // The old server exits on its own while requests are being sent.
        server.wait_exit();
        server = next;
        load.assert_still_serving(100);
        let mut health = connect(&metrics);
        health
            .write_all(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            .expect("send request");
        let mut response = String::new();
        health.read_to_string(&mut response).expect("read response");
        assert!(response.ends_with("ready\n"), "{response}");
    }
    load.stop();
    server.stop();
    assert!(!handover.exists(), "handover socket removed at exit");
}

#[test]
fn fault_38_handover_transfers_all_sockets_and_socket_files() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (handover, path) = (test_directory.path().join("handover"), test_directory.path().join("http"));
    driver_flags().for_each(|driver| {
        // A single worker takes over two sockets on one port. No client may be left waiting on the other socket.
        let old_server =
            start(files.path(), "127.0.0.1:0", &handover, &["--driver", driver, "--cores", "0,0"]);
        let address = old_server.ready_value("addr").to_owned();
        let load = Load::start(&address, 4);
        load.assert_still_serving(50);
        let new_server = start(files.path(), &address, &handover, &["--driver", driver]);
        old_server.wait_exit();
        load.assert_still_serving(50);
        (0..20).for_each(|_| assert!(!send_request(&mut connect(&address), false)));
        load.stop();
        drop(new_server);
        // The files left by a killed server do not prevent startup.
        assert!(handover.exists());
        let unix_address = format!("unix:{}", path.display());
        let first = start(files.path(), &unix_address, &handover, &["--driver", driver, "--cores", "0,0"]);
        let second = start(files.path(), &unix_address, &handover, &["--driver", driver, "--cores", "0,0"]);
        first.wait_exit();
        let mut client = UnixStream::connect(&path).expect("connect to the transferred socket file");
        client.set_read_timeout(Some(hang_timeout())).expect("set timeout");
        client.write_all(request(false).as_bytes()).expect("send request");
        assert_ok_response(client);
        second.stop();
        assert!(!path.exists() && !handover.exists());
    });
}

#[test]
fn fault_38_failed_successor_leaves_server_running() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let handover = test_directory.path().join("handover");
    driver_flags().for_each(|driver| {
        let server = start(files.path(), "127.0.0.1:0", &handover, &["--driver", driver, "--cores", "0,0"]);
        let address = server.ready_value("addr").to_owned();
        let load = Load::start(&address, 4);
        load.assert_still_serving(20);
        // One successor disconnects after connecting, one after the offer, and one after READY; another sends an
        // unknown message.
        let connect_successor = || UnixStream::connect(&handover).expect("connect to the handover socket");
        drop(connect_successor());
        let mut successor = connect_successor();
        assert!(read_offer(&mut successor).starts_with(b"anello handover 1\nssd"));
        drop(successor);
        load.assert_still_serving(20);
        let mut successor = connect_successor();
        read_offer(&mut successor);
        successor.write_all(b"r").expect("send READY");
        assert_eq!(read_byte(&mut successor), b'p', "server stopped accepting");
        drop(successor);
        load.assert_still_serving(20);
        let mut successor = connect_successor();
        read_offer(&mut successor);
        successor.write_all(b"G").expect("send message");
        assert_eq!(read_byte(&mut successor), b'x', "server continues");
        load.assert_still_serving(20);
        // Successors that fail at startup because of a missing document root or a different address.
        for (argument, expected) in [
            ("/no/such/directory", "/no/such/directory"),
            (files.path().to_str().expect("UTF-8"), "127.0.0.1:1"),
        ] {
            let address_argument = if argument.starts_with("/no") { &address } else { "127.0.0.1:1" };
            let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
            command.args(["http", argument, "--addr", address_argument, "--handover"]).arg(&handover);
            let output = command.output().expect("run anello");
            let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && error_text.contains(expected), "{error_text}");
        }
        load.assert_still_serving(20);
        // The handover socket still works.
        let next = start(files.path(), &address, &handover, &["--driver", driver]);
        server.wait_exit();
        load.assert_still_serving(20);
        load.stop();
        next.stop();
    });
}

#[test]
fn fault_38_concurrent_successors_take_over_in_sequence() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let handover = test_directory.path().join("handover");
    let server = start(files.path(), "127.0.0.1:0", &handover, &[]);
    let address = server.ready_value("addr").to_owned();
    let load = Load::start(&address, 4);
    load.assert_still_serving(20);
    let successors: Vec<JoinHandle<Served>> = (0..2)
        .map(|_| {
            let (files, address, handover) = (files.path().to_owned(), address.clone(), handover.clone());
            thread::spawn(move || start(&files, &address, &handover, &[]))
        })
        .collect();
    let mut successors: Vec<Served> =
        successors.into_iter().map(|successor| successor.join().expect("successor is ready")).collect();
    server.wait_exit();
    // One of the successors exits after a handover to the other.
    wait_until(|| successors.iter_mut().any(|successor| successor.has_exited()));
    let last = successors.iter_mut().position(|successor| !successor.has_exited()).expect("running server");
    let last = successors.swap_remove(last);
    load.assert_still_serving(20);
    successors.into_iter().for_each(Served::wait_exit);
    load.stop();
    last.stop();
}

#[test]
fn fault_38_concurrent_first_starts_are_serialized() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (handover, socket) = (test_directory.path().join("handover"), test_directory.path().join("http"));
    let address = format!("unix:{}", socket.display());
    // The test holds the start lock, so all servers wait for it, as they would wait for one another.
    let lock = File::create(test_directory.path().join("handover.lock")).expect("create file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("lock file");
    let start_threads: Vec<JoinHandle<Served>> = (0..3)
        .map(|_| {
            let (files, address, handover) = (files.path().to_owned(), address.clone(), handover.clone());
            thread::spawn(move || start(&files, &address, &handover, &[]))
        })
        .collect();
    assert!(!handover.exists() && !socket.exists());
    drop(lock);
    let mut servers: Vec<Served> =
        start_threads.into_iter().map(|server| server.join().expect("server is ready")).collect();
    wait_until(|| servers.iter_mut().filter_map(|server| (!server.has_exited()).then_some(())).count() == 1);
    let last = servers.iter_mut().position(|server| !server.has_exited()).expect("running server");
    let last = servers.swap_remove(last);
    servers.into_iter().for_each(Served::wait_exit);
    let mut client = UnixStream::connect(&socket).expect("connect to the socket file");
    client.set_read_timeout(Some(hang_timeout())).expect("set timeout");
    client.write_all(request(false).as_bytes()).expect("send request");
    assert_ok_response(client);
    last.stop();
    assert!(!handover.exists() && !socket.exists());
}

#[test]
fn fault_38_server_stopped_during_handover_leaves_socket_files() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (handover, socket) = (test_directory.path().join("handover"), test_directory.path().join("http"));
    let address = format!("unix:{}", socket.display());
    driver_flags().for_each(|driver| {
        let connect_successor = || UnixStream::connect(&handover).expect("connect to the handover socket");
        let server = start(files.path(), &address, &handover, &["--driver", driver]);
        let mut successor = connect_successor();
        assert!(read_offer(&mut successor).starts_with(b"anello handover 1\nsd"));
        server.stop();
        // The successor has received the sockets and could now start serving.
        assert!(handover.exists() && socket.exists());
        for file in [&handover, &socket] {
            fs::remove_file(file).expect("remove file");
        }
        // After an aborted handover, the server owns the files again.
        let server = start(files.path(), &address, &handover, &["--driver", driver]);
        let mut successor = connect_successor();
        read_offer(&mut successor);
        successor.write_all(b"G").expect("send message");
        assert_eq!(read_byte(&mut successor), b'x');
        server.stop();
        assert!(!handover.exists() && !socket.exists());
    });
}

/// Starts a thread that acts as a server: it transfers its sockets, sends `final_messages`, and disconnects.
fn fake_server(handover: &Path, final_messages: &'static [u8]) -> (TcpListener, JoinHandle<()>) {
    let (listener, control) = (
        TcpListener::bind("127.0.0.1:0").expect("bind port"),
        UnixListener::bind(handover).expect("bind handover socket"),
    );
    let transferred = listener.try_clone().expect("duplicate descriptor");
    let fake_server = thread::spawn(move || {
        let (stream, _) = control.accept().expect("accept successor");
        (&stream).write_all(b"anello handover 1\n").expect("send hello");
        served::send_fd(&stream, b's', &transferred);
        served::send_fd(&stream, b'd', &control);
        (&stream).write_all(final_messages).expect("send messages");
    });
    (listener, fake_server)
}

#[test]
fn fault_38_late_successor_exits() {
    // The server aborts the handover, or sends an unknown message.
    let cases = [(&b".x"[..], "aborted by the running server"), (b"Z", "stop the old server")];
    for (messages, expected) in cases {
        let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
        let handover = test_directory.path().join("handover");
        let (listener, fake_server) = fake_server(&handover, messages);
        let address = listener.local_addr().expect("local address").to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(files.path()).args(["--addr", &address, "--handover"]).arg(&handover);
        let output = command.output().expect("run anello");
        fake_server.join().expect("fake server");
        let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error_text.contains(expected), "{error_text}");
        assert!(handover.exists(), "handover socket belongs to the server");
    }
}

#[test]
fn fault_38_missing_socket_file_error_names_remedy() {
    let (files, directories) =
        (document_root(), [(); 2].map(|()| tempfile::tempdir().expect("temporary directory")));
    let command = |working_directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.current_dir(working_directory).arg("http").arg(files.path()).args([
            "--addr",
            "unix:http",
            "--handover",
        ]);
        command.arg(directories[0].path().join("handover"));
        command
    };
    let server = Served::spawn(command(directories[0].path()));
    // In the second directory, the relative path refers to another file.
    let output = command(directories[1].path()).output().expect("run anello");
    let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error_text}");
    assert!(
        error_text.contains("--addr unix:http: ") && error_text.contains("start in the working directory of"),
        "{error_text}"
    );
    let next = Served::spawn(command(directories[0].path()));
    server.wait_exit();
    next.stop();
}

#[test]
fn fault_38_successor_serves_sockets_of_dead_server() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let handover = test_directory.path().join("handover");
    let (listener, fake_server) = fake_server(&handover, b".");
    let address = listener.local_addr().expect("local address").to_string();
    let queued_client = connect_and_request(&address);
    drop(listener);
    let server = start(files.path(), &address, &handover, &[]);
    fake_server.join().expect("fake server");
    assert_ok_response(queued_client);
    server.stop();
}

#[test]
fn fault_39_queued_connections_are_served_at_shutdown() {
    let files = document_root();
    driver_flags().for_each(|driver| {
        for cores in ["0", "0,0"] {
            eprintln!("{driver}, cores {cores}");
            let arguments =
                ["--addr", "127.0.0.1:0", "--driver", driver, "--cores", cores, "--http2", "cleartext"];
            let server = Served::start(files.path(), &arguments);
            let address = server.ready_value("addr").to_owned();
            // While the process is stopped, the kernel completes handshakes but no connection is accepted.
            server.signal(Signal::STOP);
            let queued_client: Vec<TcpStream> = (0..40).map(|_| connect_and_request(&address)).collect();
            let queued_http2_client = (0..10).map(|_| {
                let mut client = connect(&address);
                client.write_all(GET_HELLO).expect("send request");
                client
            });
            let queued_http2_client: Vec<TcpStream> = queued_http2_client.collect();
            server.signal(Signal::TERM);
            server.signal(Signal::CONT);
            queued_client.into_iter().for_each(assert_ok_response);
            for mut client in queued_http2_client {
                let mut response = Vec::new();
                client.read_to_end(&mut response).expect("read response");
                let has_body = response.windows(BODY.len()).any(|bytes| bytes == BODY.as_bytes());
                assert!(has_body, "{}", response.escape_ascii());
            }
            server.wait_exit();
        }
    });
}

#[test]
fn passed_sockets_are_served_and_kept_by_service_manager() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let path = test_directory.path().join("http");
    for (driver, cores) in driver_flags().flat_map(|driver| [(driver, "0"), (driver, "0,0")]) {
        let (tcp, unix) = (
            TcpListener::bind("127.0.0.1:0").expect("bind port"),
            UnixListener::bind(&path).expect("bind socket"),
        );
        let address = tcp.local_addr().expect("local address").to_string();
        let notify_socket = served::NotifySocket::new(test_directory.path());
        let environment = [("NOTIFY_SOCKET", notify_socket.path())];
        let both = || {
            [
                tcp.try_clone().expect("duplicate descriptor").into(),
                unix.try_clone().expect("duplicate descriptor").into(),
            ]
        };
        let arguments = ["--driver", driver, "--cores", cores];
        let server = Served::start_activated(files.path(), &arguments, &both(), &environment);
        assert_eq!(server.ready_value("addr"), format!("{address},unix:{}", path.display()));
        assert_eq!(notify_socket.next(), "READY=1\n");
        assert!(!send_request(&mut connect(&address), false));
        let mut client = UnixStream::connect(&path).expect("connect");
        client.write_all(request(false).as_bytes()).expect("send request");
        assert_ok_response(client);
        notify_socket.reload_and_stop(server);
        // Clients that connect in the meantime wait for the next server.
        let queued_client = connect_and_request(&address);
        let server = Served::start_activated(files.path(), &arguments, &both(), &[]);
        assert_ok_response(queued_client);
        server.stop();
        assert!(path.exists(), "socket file belongs to the service manager");
        fs::remove_file(&path).expect("remove file");
    }
}

#[test]
fn passed_socket_named_metrics_serves_metrics() {
    let files = document_root();
    let (tcp, metrics) = (
        TcpListener::bind("127.0.0.1:0").expect("bind port"),
        TcpListener::bind("127.0.0.1:0").expect("bind port"),
    );
    let (address, metrics_address) =
        (tcp.local_addr().expect("local address"), metrics.local_addr().expect("local address"));
    let names = [("LISTEN_FDNAMES", Path::new("web:metrics"))];
    let server = Served::start_activated(files.path(), &[], &[tcp.into(), metrics.into()], &names);
    assert_eq!(server.ready_value("addr"), address.to_string());
    assert_eq!(server.ready_value("metrics"), metrics_address.to_string());
}

#[test]
fn ready_line_contains_sockets_and_distribution() {
    let files = document_root();
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("bind port").into();
    let server = Served::start_activated(files.path(), &[], &[tcp(), tcp()], &[]);
    assert_eq!([server.ready_value("sockets"), server.ready_value("distribution")], ["2", "balanced"]);
    let server = Served::start_activated(files.path(), &["--distribution", "kernel"], &[tcp(), tcp()], &[]);
    assert_eq!([server.ready_value("sockets"), server.ready_value("distribution")], ["2", "kernel"]);
    // One socket per worker.
    let server = Served::start(files.path(), &["--addr", "127.0.0.1:0"]);
    assert_eq!(server.ready_value("sockets"), server.ready_value("workers"));
}

/// Transferred connections are also served inside the sandbox. There are two workers with one socket each; the second
/// worker serves half of the connections to the first worker's socket.
#[test]
fn transferred_connections_are_served() {
    let files = document_root();
    driver_flags().for_each(|driver| {
        let sockets = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("bind port"));
        let address = sockets[0].local_addr().expect("local address").to_string();
        let server =
            Served::start_activated(files.path(), &["--driver", driver], &sockets.map(Into::into), &[]);
        for _ in 0..200 {
            assert_ok_response(connect_and_request(&address));
        }
        server.stop();
    });
}

#[test]
fn unusable_passed_socket_error_names_remedy() {
    let files = document_root();
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("bind port").into();
    let assert_fails = |arguments: &[&str], sockets, expected: &[&str]| {
        let error_text = Served::startup_error(files.path(), arguments, sockets, "");
        assert!(expected.iter().all(|expected| error_text.contains(expected)), "{error_text}");
    };
    assert_fails(&["--addr", "127.0.0.1:0"], [tcp(), tcp()], &["LISTEN_FDS", "--addr", "remove one"]);
    assert_fails(
        &["--handover", "/tmp/handover"],
        [tcp(), tcp()],
        &["LISTEN_FDS", "--handover", "remove one"],
    );
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind port").into();
    assert_fails(&[], [tcp(), udp], &["descriptor 4 of LISTEN_FDS", "listening TCP or Unix stream sockets"]);
    let (connected, _other) = UnixStream::pair().expect("socket pair");
    assert_fails(&[], [connected.into(), tcp()], &["descriptor 3 of LISTEN_FDS", "not listening"]);
    let file = File::open(files.path()).expect("open directory").into();
    assert_fails(&[], [tcp(), file], &["descriptor 4 of LISTEN_FDS", "not a socket"]);
}

#[test]
fn sockets_named_metrics_never_serve_files() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("bind port").into();
    let unix = UnixListener::bind(test_directory.path().join("metrics")).expect("bind socket").into();
    for (sockets, names, expected) in [
        ([tcp(), tcp()], "metrics:metrics", "descriptor 4 of LISTEN_FDS (\"metrics\")"),
        ([tcp(), unix], "web:metrics", "descriptor 4 of LISTEN_FDS (\"metrics\")"),
    ] {
        let error_text = Served::startup_error(files.path(), &[], sockets, names);
        assert!(
            error_text.contains(expected) && error_text.contains("at most one TCP socket"),
            "{error_text}"
        );
    }
}

#[test]
fn passed_socket_named_metrics_serves_metrics_of_echo() {
    let [echo_socket, metrics] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("bind port"));
    let address = metrics.local_addr().expect("local address").to_string();
    let mut echo = Command::new("sh");
    let script = "exec 3<&0 4<&2 </dev/null 2>&1; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    echo.args(["-c", script, "sh", env!("CARGO_BIN_EXE_anello"), "echo"])
        .env("LISTEN_FDNAMES", "echo:metrics")
        .stdin(OwnedFd::from(echo_socket))
        .stderr(OwnedFd::from(metrics));
    let server = Served::spawn(echo);
    assert_eq!(server.ready_value("metrics"), address);
    assert!(served::get(&address, "/health").ends_with("ready\n"));
    server.stop();
}

#[test]
fn fault_38_restart_with_passed_sockets_fails_no_request() {
    let files = document_root();
    driver_flags().for_each(|driver| {
        let sockets = || [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("bind port"));
        let [site, other_socket] = sockets();
        let address = site.local_addr().expect("local address").to_string();
        let passed_sockets =
            || [&site, &other_socket].map(|socket| socket.try_clone().expect("duplicate descriptor").into());
        let arguments = ["--driver", driver, "--drain-min-idle", "60s", "--http2", "cleartext"];
        let mut server = Served::start_activated(files.path(), &arguments, &passed_sockets(), &[]);
        let load = Load::start(&address, 4);
        for _ in 0..3 {
            load.assert_still_serving(50);
            // Clients that connect in the meantime wait for the next server.
            server.stop();
            server = Served::start_activated(files.path(), &arguments, &passed_sockets(), &[]);
        }
        load.assert_still_serving(50);
        load.stop();
        server.stop();
    });
}

#[test]
fn abstract_notify_socket_works_inside_sandbox() {
    let files = document_root();
    let notify_socket = served::NotifySocket::new_abstract(&format!("anello-test-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command
        .arg("http")
        .arg(files.path())
        .args(["--addr", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", notify_socket.path());
    let server = Served::spawn(command);
    assert_eq!(notify_socket.next(), "READY=1\n");
    notify_socket.reload_and_stop(server);
}

#[test]
fn unusable_handover_path_error_names_remedy() {
    let (files, test_directory) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let error = |handover: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(files.path()).args(["--addr", "127.0.0.1:0", "--handover"]).arg(handover);
        let output = command.output().expect("run anello");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let file = test_directory.path().join("file");
    fs::write(&file, "precious").expect("write file");
    assert!(error(&file).contains("is not a socket"), "{}", error(&file));
    assert_eq!(fs::read_to_string(&file).expect("read file"), "precious");
    let error_text = error(Path::new("/no/such/directory/handover"));
    assert!(
        error_text.contains("/no/such/directory/handover") && error_text.contains("writable by this user"),
        "{error_text}"
    );
    // The socket belongs to a process that does not support handovers.
    let other_socket = test_directory.path().join("other");
    let listener = UnixListener::bind(&other_socket).expect("bind");
    let listener_thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        stream.write_all(b"SSH-2.0-something else\r\n").expect("send request");
    });
    let error_text = error(&other_socket);
    assert!(error_text.contains("stop the old server"), "{error_text}");
    listener_thread.join().expect("listener thread");
}
