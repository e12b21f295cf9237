//! End-to-end tests of `anello http` with default flags, that is, inside its sandbox if the kernel supports it (see
//! `sandbox.rs` and fault 40 in `docs/internals/faults.md`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anello_test::{driver_flags, on_each_driver_flag, wait_until};
use rustix::process::Signal;

use crate::common::anello;
use crate::served;
use crate::served::tls::create_identity;
use crate::served::{BODY, NotifySocket, Served, assert_ok_response, connect, document_root, get, request};

fn start(document_root: &Path, arguments: &[&str]) -> Served {
    Served::start(document_root, &[&["--addr", "127.0.0.1:0"], arguments].concat())
}

#[test]
fn both_drivers_serve_files_until_signal() {
    let document_root = document_root();
    on_each_driver_flag(|driver| {
        let server = start(document_root.path(), &["--driver", driver, "--cores", "0"]);
        let address = server.ready_value("addr").to_owned();
        let response = get(&address, "/hello.txt");
        assert!(
            response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nHello, world!"),
            "{response}"
        );
        assert!(get(&address, "/nothing").starts_with("HTTP/1.1 404 "));
        // An open connection without a request does not delay the shutdown.
        let _idle = TcpStream::connect(&address).expect("connect");
        server.stop();
    });
}

#[test]
fn ready_line_is_short_and_contains_url() {
    let document_root = document_root();
    let path = |name: &str| document_root.path().join(name).to_str().expect("UTF-8").to_owned();
    let (certificate, key, socket) =
        (path(".cert.pem"), path(".key.pem"), format!("unix:{}", path(".socket")));
    create_identity(Path::new(&certificate), Path::new(&key));
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--metrics-addr", "127.0.0.1:0"];
    on_each_driver_flag(|driver| {
        for (addresses, flags, start) in [
            (&["127.0.0.1:0"][..], &tls[..], Some("https://127.0.0.1:")),
            (&["0"], &[], Some("http://127.0.0.1:")),
            (&[":0"], &[], Some("http://localhost:")),
            (&["localhost:0", &socket], &[], Some("http://")),
            (&[&socket], &[], None),
        ] {
            let addresses = addresses.iter().flat_map(|address| {
                // Each driver has its own socket file.
                let suffix = if address.starts_with("unix:") { driver } else { "" };
                ["--addr".to_owned(), format!("{address}{suffix}")]
            });
            let mut command = anello(&["http"]);
            command.arg(document_root.path()).args(addresses).args(flags).args(["--driver", driver]);
            let server = Served::spawn(command);
            let line = server.ready.lines().next().expect("ready line");
            assert!(line.len() <= 160, "{line}");
            let url = line.split_whitespace().find_map(|word| word.strip_prefix("url="));
            match start {
                Some(start) => {
                    assert!(url.is_some_and(|url| url.starts_with(start) && url.ends_with('/')), "{line}")
                }
                None => assert_eq!(url, None, "{line}"),
            }
            server.stop();
        }
    });
}

#[test]
fn server_listens_on_all_given_addresses() {
    let document_root = document_root();
    on_each_driver_flag(|driver| {
        let sockets = tempfile::tempdir().expect("temporary directory");
        let [first, second] = ["first", "second"].map(|name| sockets.path().join(name));
        let unix = |path: &Path| format!("unix:{}", path.display());
        let mut command = anello(&["http"]);
        command.arg(document_root.path()).args([
            "--driver",
            driver,
            "--workers",
            "2",
            "--socket-mode",
            "640",
        ]);
        for address in ["127.0.0.1:0", "127.0.0.2:0", &unix(&first), &unix(&second)] {
            command.args(["--addr", address]);
        }
        let server = Served::spawn(command);
        let addresses: Vec<_> = server.address().split(',').collect();
        assert_eq!(addresses.len(), 4, "{addresses:?}");
        for address in &addresses[..2] {
            // Each worker accepts from all sockets.
            for _ in 0..8 {
                assert!(get(address, "/hello.txt").ends_with(BODY), "{address}");
            }
        }
        for path in [&first, &second] {
            let mode = fs::symlink_metadata(path).expect("socket file").permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
            let mut client = UnixStream::connect(path).expect("connect");
            client.write_all(request(false).as_bytes()).expect("send request");
            assert_ok_response(client);
        }
        server.stop();
        assert!(!first.exists() && !second.exists());
    });
}

#[test]
fn current_directory_and_single_file_are_served() {
    let document_root = document_root();
    fs::write(document_root.path().join("other.txt"), "other").expect("write file");
    fs::create_dir(document_root.path().join("docs")).expect("create directory");
    on_each_driver_flag(|driver| {
        for (arguments, others_are_served) in [(&[][..], true), (&["hello.txt"][..], false)] {
            let mut command = anello(&["http"]);
            command.current_dir(document_root.path()).args(arguments);
            command.args(["--addr", "127.0.0.1:0", "--listing", "--driver", driver]);
            let server = Served::spawn(command);
            let address = server.address();
            let is_found = |path: &str| get(address, path).starts_with("HTTP/1.1 200 ");
            // Twice, because the second response comes from the cache.
            for _ in 0..2 {
                assert!(get(address, "/hello.txt").ends_with(BODY));
                assert_eq!(get(address, "/").ends_with(BODY), !others_are_served);
                for path in ["/other.txt", "/docs/"] {
                    assert_eq!(is_found(path), others_are_served, "{path}");
                }
            }
            server.stop();
        }
    });
}

#[test]
fn default_worker_count_equals_usable_cores() {
    let document_root = document_root();
    let usable = thread::available_parallelism().expect("core count").to_string();
    for (flags, workers) in [
        (&[][..], &usable[..]),
        (&["--cores", "0"], "1"),
        (&["--cores", "0,0,0"], "3"),
        (&["--workers", "3"], "3"),
    ] {
        let server = start(document_root.path(), flags);
        assert_eq!(server.ready_value("workers"), workers, "{flags:?}");
        server.stop();
    }
}

#[test]
fn requests_are_logged_and_counted_and_health_is_ready() {
    let (document_root, logs) = (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (log, rotated) = (logs.path().join("access.log"), logs.path().join("access.log.1"));
    let arguments = ["--access-log", log.to_str().expect("UTF-8"), "--metrics-addr", "127.0.0.1:0"];
    let server = start(document_root.path(), &arguments);
    let (address, metrics_address) =
        (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
    get(&address, "/hello.txt");
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    wait_until(|| lines(&log).contains("\"GET /hello.txt HTTP/1.1\" 200 13"));
    fs::rename(&log, &rotated).expect("rename");
    server.signal(Signal::HUP);
    wait_until(|| log.exists());
    get(&address, "/lost");
    wait_until(|| lines(&log).contains("\"GET /lost HTTP/1.1\" 404"));
    assert!(!lines(&rotated).contains("/lost"));
    let health = get(&metrics_address, "/health");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("ready\n"), "{health}");
    let metrics = get(&metrics_address, "/metrics");
    assert!(metrics.contains("\nanello_"), "{metrics}");
    let response = String::from_utf8(served::send_request(connect(&metrics_address), "POST /health", ""))
        .expect("UTF-8");
    assert!(
        response.starts_with("HTTP/1.1 405 ") && response.contains("\r\nAllow: GET, HEAD\r\n"),
        "{response}"
    );
    server.stop();
}

#[test]
fn unreadable_file_is_logged_with_its_path() {
    let document_root = document_root();
    fs::create_dir(document_root.path().join("docs")).expect("create directory");
    for path in ["private.txt", "docs/index.html"] {
        let path = document_root.path().join(path);
        fs::write(&path, "secret").expect("write file");
        // The sandbox also denies root the access to files of others.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).expect("set permissions");
    }
    for (target, path) in [("/private.txt", "private.txt"), ("/docs/", "docs/index.html")] {
        let mut command = anello(&["http"]);
        command.arg(document_root.path()).args(["--addr", "127.0.0.1:0", "--cores", "0"]);
        let log = document_root.path().join("log");
        command.stderr(File::create(&log).expect("create file"));
        let server = Served::spawn(command);
        assert!(get(server.address(), target).starts_with("HTTP/1.1 404 "));
        let expected = format!("cannot open or read file path=\"{path}\" error=Permission denied");
        wait_until(|| fs::read_to_string(&log).is_ok_and(|text| text.contains(&expected)));
        server.stop();
    }
}

#[test]
fn startup_error_names_cause() {
    let document_root = tempfile::tempdir().expect("temporary directory");
    let error = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        let output =
            command.arg("http").args(arguments).args(["--addr", "127.0.0.1:0"]).output().expect("run anello");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let root_path = document_root.path().to_str().expect("UTF-8");
    assert!(error(&["/no/such/directory"]).contains("/no/such/directory: "));
    assert!(
        error(&[root_path, "--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem"])
            .contains("/no/cert.pem: ")
    );
    assert!(error(&[root_path, "--tls-cert", "/no/cert.pem"]).contains("--tls-key"));
    assert!(error(&[root_path, "--not-found-file", "../404.html"]).contains("not-found-file"));
    assert!(error(&[root_path, "--cache-control", "*.css"]).contains("missing ="));
    assert!(error(&[root_path, "--access-log", "/no/such/directory/log"]).contains("/no/such/directory/log"));
}

/// Creates a file larger than the socket buffers, and a client that has read the first byte of the response.
fn download(document_root: &Path, address: &str) -> (TcpStream, usize) {
    const BYTES: usize = 32 << 20;
    fs::write(document_root.join("large.bin"), vec![b'x'; BYTES]).expect("write file");
    let mut client = connect(address);
    client.write_all(b"GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("send request");
    let mut first_byte = [0; 1];
    client.read_exact(&mut first_byte).expect("read response");
    (client, BYTES)
}

#[test]
fn fault_37_slow_download_completes_after_signal() {
    let document_root = document_root();
    driver_flags().for_each(|driver| {
        let server = start(
            document_root.path(),
            &["--driver", driver, "--drain-timeout", "60s", "--send-timeout", "60s"],
        );
        let (mut client, bytes) = download(document_root.path(), server.ready_value("addr"));
        server.signal(Signal::TERM);
        // Once the listener is closed, the server is draining.
        wait_until(|| TcpStream::connect(server.ready_value("addr")).is_err());
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("read remaining body");
        let head = rest.len() - bytes;
        assert!(rest[..head].ends_with(b"\r\n\r\n") && rest[head..].iter().all(|byte| *byte == b'x'));
        server.wait_exit();
    });
}

#[test]
fn fault_37_download_exceeding_drain_timeout_is_aborted() {
    let document_root = document_root();
    on_each_driver_flag(|driver| {
        let server = start(
            document_root.path(),
            &["--driver", driver, "--drain-timeout", "100ms", "--send-timeout", "1h"],
        );
        let (_client, _) = download(document_root.path(), server.ready_value("addr"));
        server.stop();
    });
}

#[test]
fn fault_37_second_signal_aborts_drain_with_queued_clients() {
    let (document_root, test_directory) =
        (document_root(), tempfile::tempdir().expect("temporary directory"));
    driver_flags().for_each(|driver| {
        let notify_socket = NotifySocket::new(test_directory.path());
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(document_root.path()).args(["--addr", "127.0.0.1:0", "--driver", driver]);
        command
            .args(["--drain-timeout", "1h", "--send-timeout", "1h"])
            .env("NOTIFY_SOCKET", notify_socket.path());
        let server = Served::spawn(command);
        assert_eq!(notify_socket.next(), "READY=1\n");
        let address = server.ready_value("addr").to_owned();
        let (first_client, _) = download(document_root.path(), &address);
        server.signal(Signal::STOP);
        let queued_clients: Vec<TcpStream> = (0..700)
            .map(|_| {
                let mut client = connect(&address);
                client.write_all(b"GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("send request");
                client
            })
            .collect();
        server.signal(Signal::TERM);
        server.signal(Signal::CONT);
        assert_eq!(notify_socket.next(), "STOPPING=1\n");
        server.signal(Signal::INT);
        server.wait_exit();
        drop((first_client, queued_clients));
    });
}

#[test]
fn connection_limit_applies_across_workers() {
    let document_root = document_root();
    on_each_driver_flag(|driver| {
        let arguments = ["--driver", driver, "--cores", "0,0,0,0", "--max-connections", "4"];
        let server = start(document_root.path(), &arguments);
        let send_request = || {
            let mut client = connect(server.ready_value("addr"));
            client.write_all(request(true).as_bytes()).expect("send request");
            let mut status = [0; 12];
            client.read_exact(&mut status).expect("read response");
            (client, String::from_utf8_lossy(&status).into_owned())
        };
        // The clients are distributed across all workers.
        let mut clients: Vec<_> = (0..4).map(|_| send_request()).collect();
        assert!(clients.iter().all(|(_, status)| status == "HTTP/1.1 200"), "{clients:?}");
        assert_eq!(send_request().1, "HTTP/1.1 503");
        clients.pop();
        wait_until(|| send_request().1 == "HTTP/1.1 200");
    });
}

#[test]
fn server_with_closed_output_keeps_serving() {
    let (document_root, test_directory) =
        (document_root(), tempfile::tempdir().expect("temporary directory"));
    let (notify_socket, socket) =
        (NotifySocket::new(test_directory.path()), test_directory.path().join("http"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(document_root.path()).arg("--addr").arg(format!("unix:{}", socket.display()));
    command.env("NOTIFY_SOCKET", notify_socket.path()).env("ANELLO_LOG", "debug");
    let closed_pipe = || Stdio::from(std::io::pipe().expect("create pipe").1);
    let mut child = command.stdout(closed_pipe()).stderr(closed_pipe()).spawn().expect("start server");
    assert_eq!(notify_socket.next(), "READY=1\n");
    let mut client = UnixStream::connect(&socket).expect("connect");
    client.write_all(request(false).as_bytes()).expect("send request");
    assert_ok_response(client);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM)
        .expect("process is running");
    assert_eq!(notify_socket.next(), "STOPPING=1\n");
    assert_eq!(child.wait().expect("wait for child").code(), Some(0));
}

#[test]
fn replaced_document_root_is_logged() {
    let test_directory = tempfile::tempdir().expect("temporary directory");
    let (first_root, second_root) = (document_root(), document_root());
    let (path, log_path) = (test_directory.path().join("current"), test_directory.path().join("log"));
    symlink(first_root.path(), &path).expect("create symlink");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(&path).args(["--addr", "127.0.0.1:0"]);
    command.stderr(File::create(&log_path).expect("create file"));
    let server = Served::spawn(command);
    let logged = |message: &str| fs::read_to_string(&log_path).expect("UTF-8").contains(message);
    fs::remove_file(&path).expect("remove file");
    server.signal(Signal::HUP);
    wait_until(|| logged("document root was removed"));
    symlink(second_root.path(), &path).expect("create symlink");
    server.signal(Signal::HUP);
    wait_until(|| logged("document root was replaced"));
    // The workers keep serving the first directory.
    assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
    server.stop();
}
