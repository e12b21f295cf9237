//! Servers as their users and service managers start them.

#![allow(dead_code, reason = "each test program uses its own part of this")]

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

/// A test that waits so long hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What is served.
pub const BODY: &str = "Hello, world!";

pub fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("hello.txt"), BODY).expect("a file");
    folder
}

pub fn request(keeps: bool) -> &'static str {
    match keeps {
        true => "GET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n",
        false => "GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    }
}

pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// The whole answer to a request that ends its connection.
pub fn ask(mut stream: impl Read + Write, line: &str, fields: &str) -> Vec<u8> {
    let request = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer
}

pub fn get(address: &str, path: &str) -> String {
    String::from_utf8(ask(connect(address), &format!("GET {path}"), "")).expect("text")
}

/// The answer to a [`request`] that ends its connection.
#[track_caller]
pub fn is_answered(mut client: impl Read) {
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(BODY), "{answer:?}");
}

/// What a read or a receive returns, made again while it is interrupted: one with a timeout is, under a tracer, whenever
/// any child of the process ends.
pub fn retry_interrupted(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "it never is");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The drivers that can be had here.
pub fn drivers() -> Vec<&'static str> {
    // By a thread of its own: what the kernel does when the ring has ended interrupts the one that had it.
    let probe = thread::spawn(|| anello::probe_uring(&anello::DriverOptions::default()));
    match probe.join().expect("it returns") {
        Ok(_) => vec!["epoll", "uring"],
        Err(error) => {
            eprintln!("uring: skipped: {error}");
            vec!["epoll"]
        }
    }
}

/// A server that is ready.
pub struct Served {
    child: Child,
    pub ready: String,
}

impl Served {
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(folder).args(arguments);
        Self::of(command)
    }

    /// Started by a service manager that passes these sockets.
    pub fn activated(
        folder: &Path,
        arguments: &[&str],
        sockets: &[OwnedFd; 2],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut command = activating(folder, arguments, sockets);
        command.envs(environment.iter().copied());
        Self::of(command)
    }

    /// The same for one that does not start, with these names of its sockets; what it says.
    pub fn refuses(folder: &Path, arguments: &[&str], sockets: [OwnedFd; 2], names: &str) -> String {
        let mut command = activating(folder, arguments, &sockets);
        command.env("LISTEN_FDNAMES", names);
        let output = command.stdout(Stdio::piped()).output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What this starts.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut ready).expect("a line");
        assert!(ready.starts_with("anello http ready addr="), "{ready:?}");
        Self { child, ready }
    }

    pub fn ready_value(&self, name: &str) -> &str {
        let found = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it writes to standard output behind the ready line.
    pub fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("its output")
    }

    /// Asks it to end, and waits for that.
    pub fn end(self) {
        self.signal(Signal::TERM);
        self.ended();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some()
    }

    /// Waits for its end, which has to be a good one.
    pub fn ended(mut self) {
        until(|| self.has_ended());
        assert_eq!(self.child.wait().expect("it is ours").code(), Some(0));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A command that is passed two sockets as descriptors 3 and 4, and whose errors go to standard output.
///
/// They come as standard input and standard error, which a shell, whose process becomes the server's, puts in their places.
fn activating(folder: &Path, arguments: &[&str], [first, second]: &[OwnedFd; 2]) -> Command {
    let script = "exec 3<&0 4<&2 </dev/null 2>&1; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_anello"), "http"]).arg(folder).args(arguments);
    let descriptor = |of: &OwnedFd| Stdio::from(of.try_clone().expect("a descriptor"));
    command.stdin(descriptor(first)).stderr(descriptor(second));
    command
}

/// The socket of a service manager.
pub struct Notices {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notices {
    pub fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        fs::remove_file(&path).ok();
        let socket = UnixDatagram::bind(&path).expect("a socket");
        Self::at(socket, path)
    }

    /// One without a file.
    pub fn without_file(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        Self::at(UnixDatagram::bind_addr(&address).expect("a socket"), format!("@{name}").into())
    }

    fn at(socket: UnixDatagram, path: PathBuf) -> Self {
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Self { socket, path }
    }

    /// What `NOTIFY_SOCKET` is to be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn next(&self) -> String {
        let mut bytes = [0; 1000];
        let count = retry_interrupted(|| self.socket.recv(&mut bytes)).expect("a notice");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

/// Sends a byte and a descriptor.
pub fn give(stream: &UnixStream, byte: u8, descriptor: impl AsFd) {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::empty());
    assert_eq!(sent.expect("sent"), 1);
}
