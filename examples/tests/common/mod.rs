//! Starts the programs under test, and the tools that drive them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use anello_test::hang_timeout;

/// A running program, which is killed when it is dropped.
pub struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Address on which the program listens.
    pub address: String,
}

impl Program {
    /// Starts a program with one of the drivers, and waits until it listens.
    pub fn start(path: &str, driver: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(path);
        command.args(arguments).env("ANELLO_DRIVER", driver).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("standard output is text");
        let address = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("first line: {line:?}"));
        let address = address.trim().to_owned();
        Self { child, stdout, address }
    }

    pub fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("an address with a port").1
    }

    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(hang_timeout())).expect("a timeout");
        Client(stream)
    }
}

/// A connection whose reads are not interrupted. Otherwise, a read with a timeout can be, when a child process exits.
#[derive(Debug)]
pub struct Client(TcpStream);

impl Client {
    pub fn shut_down_write(&self) {
        self.0.shutdown(Shutdown::Write).expect("the connection is open");
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().expect("the program is running");
        self.child.wait().expect("the program has exited");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("standard output is text");
    }
}

/// Returns whether a tool is installed, and prints a message if not.
pub fn has_tool(tool: &str, package: &str) -> bool {
    let is_installed = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()));
    if !is_installed {
        eprintln!("skipped: {tool} is not installed (run: apt-get install {package})");
    }
    is_installed
}

/// Runs a tool, with this standard input, and returns its standard output.
#[track_caller]
pub fn run(tool: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("timeout");
    command.arg(hang_timeout().as_secs().to_string()).arg(tool).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the tool is installed");
    child
        .stdin
        .take()
        .expect("standard input is a pipe")
        .write_all(input.as_bytes())
        .expect("the tool reads");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the tool exits");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{tool} {arguments:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}
