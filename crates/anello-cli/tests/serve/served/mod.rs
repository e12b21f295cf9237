//! Helpers that start `anello http` and `anello echo` the way a user or a service manager would, and send requests to it.

#![allow(dead_code, reason = "each test binary uses a different subset")]

pub mod http2;
pub mod tls;

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit for every wait in a test.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Content of `hello.txt`.
pub const BODY: &str = "Hello, world!";

pub fn document_root() -> TempDir {
    let document_root = tempfile::tempdir().expect("temporary directory");
    fs::write(document_root.path().join("hello.txt"), BODY).expect("write file");
    document_root
}

pub fn request(keep_alive: bool) -> &'static str {
    match keep_alive {
        true => "GET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n",
        false => "GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    }
}

pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set timeout");
    stream
}

/// Connects, sends a [`request`] with `Connection: close`, and does not wait for the response.
pub fn connect_and_request(address: &str) -> TcpStream {
    let mut client = connect(address);
    client.write_all(request(false).as_bytes()).expect("send request");
    client
}

/// Sends a request with `Connection: close` and returns the whole response.
pub fn send_request(mut stream: impl Read + Write, line: &str, fields: &str) -> Vec<u8> {
    let request = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("send request");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("read response");
    response
}

pub fn get(address: &str, path: &str) -> String {
    String::from_utf8(send_request(connect(address), &format!("GET {path}"), "")).expect("UTF-8")
}

/// Checks the response to a [`request`] with `Connection: close`.
#[track_caller]
pub fn assert_ok_response(mut client: impl Read) {
    let mut response = String::new();
    client.read_to_string(&mut response).expect("read response");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with(BODY), "{response:?}");
}

/// Repeats a read or receive call until it is not interrupted. Under a tracer, a read with a timeout is interrupted
/// whenever a child process exits.
pub fn retry_interrupted(mut operation: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match operation() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for the condition");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the drivers that are available on this machine.
pub fn drivers() -> Vec<&'static str> {
    // Probes on a separate thread, because the kernel interrupts the thread that closes a ring.
    let probe = thread::spawn(|| anello::probe_uring(&anello::DriverOptions::default()));
    match probe.join().expect("probe thread") {
        Ok(_) => vec!["epoll", "uring"],
        Err(error) => {
            eprintln!("uring: skipped: {error}");
            vec!["epoll"]
        }
    }
}

/// A running server that has printed its ready line.
pub struct Served {
    child: Child,
    pub ready: String,
}

impl Served {
    pub fn start(document_root: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(document_root).args(arguments);
        Self::spawn(command)
    }

    /// Starts `anello echo`.
    pub fn start_echo(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("echo").args(arguments);
        Self::spawn(command)
    }

    /// Starts a server and passes sockets to it as a service manager would.
    pub fn start_activated(
        document_root: &Path,
        arguments: &[&str],
        sockets: &[OwnedFd; 2],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut command = activated_command(document_root, arguments, sockets);
        command.envs(environment.iter().copied());
        Self::spawn(command)
    }

    /// Starts a server that receives sockets with these names and must fail. Returns its error messages.
    pub fn startup_error(
        document_root: &Path,
        arguments: &[&str],
        sockets: [OwnedFd; 2],
        names: &str,
    ) -> String {
        let mut command = activated_command(document_root, arguments, &sockets);
        command.env("LISTEN_FDNAMES", names);
        let output = command.stdout(Stdio::piped()).output().expect("run anello");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Spawns the command and waits for the ready line.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start server");
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped stdout"))
            .read_line(&mut ready)
            .expect("ready line");
        assert!(ready.starts_with("anello ") && ready.contains(" ready addr="), "{ready:?}");
        Self { child, ready }
    }

    pub fn ready_value(&self, name: &str) -> &str {
        let value = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("process is running");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the server's standard output, positioned after the ready line.
    pub fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("piped stdout")
    }

    /// Sends SIGTERM and waits until the server has exited successfully.
    pub fn stop(self) {
        self.signal(Signal::TERM);
        self.wait_exit();
    }

    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("wait for child").is_some()
    }

    /// Waits until the server has exited, and checks its exit code.
    pub fn wait_exit(mut self) {
        wait_until(|| self.has_exited());
        assert_eq!(self.child.wait().expect("wait for child").code(), Some(0));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns a command that receives two sockets as descriptors 3 and 4 and writes its errors to standard output.
///
/// The sockets are passed to a shell as standard input and standard error. The shell moves them to their final numbers
/// and then executes the server in the same process.
fn activated_command(document_root: &Path, arguments: &[&str], [first, second]: &[OwnedFd; 2]) -> Command {
    let script = "exec 3<&0 4<&2 </dev/null 2>&1; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_anello"), "http"])
        .arg(document_root)
        .args(arguments);
    let descriptor = |socket: &OwnedFd| Stdio::from(socket.try_clone().expect("duplicate descriptor"));
    command.stdin(descriptor(first)).stderr(descriptor(second));
    command
}

/// A stand-in for the notification socket of a service manager.
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl NotifySocket {
    pub fn new(directory: &Path) -> Self {
        let path = directory.join("notify");
        fs::remove_file(&path).ok();
        let socket = UnixDatagram::bind(&path).expect("bind socket");
        Self::with_timeout(socket, path)
    }

    /// Creates a socket with an abstract name.
    pub fn new_abstract(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("valid name");
        Self::with_timeout(UnixDatagram::bind_addr(&address).expect("bind socket"), format!("@{name}").into())
    }

    fn with_timeout(socket: UnixDatagram, path: PathBuf) -> Self {
        socket.set_read_timeout(Some(TIMEOUT)).expect("set timeout");
        Self { socket, path }
    }

    /// Returns the value for `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reloads and then stops the server, and checks the notifications.
    pub fn reload_and_stop(&self, server: Served) {
        server.signal(Signal::HUP);
        assert!(self.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(self.next(), "READY=1\n");
        server.signal(Signal::TERM);
        assert_eq!(self.next(), "STOPPING=1\n");
        server.wait_exit();
    }

    pub fn next(&self) -> String {
        let mut bytes = [0; 1000];
        let count = retry_interrupted(|| self.socket.recv(&mut bytes)).expect("notification");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

/// Sends a byte together with a file descriptor (`SCM_RIGHTS`).
pub fn send_fd(stream: &UnixStream, byte: u8, descriptor: impl AsFd) {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::empty());
    assert_eq!(sent.expect("sendmsg"), 1);
}
