//! Helpers that start servers the way a service manager would, and send requests to them.

pub mod http2;

use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anello_test::hang_timeout;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use tempfile::TempDir;

pub use crate::common::served::{Served, connect, get, send_request};
pub use crate::common::tls;

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

/// Connects, sends a [`request`] with `Connection: close`, and does not wait for the response.
pub fn connect_and_request(address: &str) -> TcpStream {
    let mut client = connect(address);
    client.write_all(request(false).as_bytes()).expect("send request");
    client
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

impl Served {
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
        socket.set_read_timeout(Some(hang_timeout())).expect("set timeout");
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
