//! `anello http` as its users start it: inside its sandbox, where the kernel has one (fault 40; `http_sandbox.rs`).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A test that waits so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    ready: String,
}

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(folder).args(["--addr", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut ready).expect("a line");
        assert!(ready.starts_with("anello http ready addr=127.0.0.1:"), "{ready:?}");
        Self { child, ready }
    }

    fn told(&self, name: &str) -> &str {
        let found = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a number")).expect("a process");
        kill_process(pid, signal).expect("it is there");
    }

    /// Waits for its end, which has to be a good one.
    fn ended(mut self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                assert_eq!(status.code(), Some(0));
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The whole answer to a request that ends its connection.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\nConnection: close\r\n\r\n")
        .expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it never is");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_folder_is_served_on_both_drivers_until_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("hello.txt"), "Hello, world!").expect("a file");
    for driver in ["epoll", "auto"] {
        let server = Server::start(folder.path(), &["--driver", driver, "--cores", "0"]);
        let address = server.told("addr").to_owned();
        let answer = get(&address, "/hello.txt");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nHello, world!"),
            "{answer}"
        );
        assert!(get(&address, "/nothing").starts_with("HTTP/1.1 404 "));
        // A connection that has said nothing yet does not keep it.
        let _idle = TcpStream::connect(&address).expect("connects");
        server.signal(Signal::TERM);
        server.ended();
    }
}

#[test]
fn requests_are_logged_and_counted_and_health_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = tempfile::tempdir().expect("a folder");
    let (log, rotated) = (logs.path().join("access.log"), logs.path().join("access.log.1"));
    fs::write(folder.path().join("hello.txt"), "Hello, world!").expect("a file");
    let arguments = ["--access-log", log.to_str().expect("text"), "--metrics-addr", "127.0.0.1:0"];
    let server = Server::start(folder.path(), &arguments);
    let (address, observed_at) = (server.told("addr").to_owned(), server.told("metrics").to_owned());
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
    server.signal(Signal::TERM);
    server.ended();
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
