//! A server as a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anello_test::{hang_timeout, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::anello;

/// A running server that has printed its ready line.
pub struct Served {
    child: Child,
    pub ready: String,
}

impl Served {
    /// Starts `anello http`.
    pub fn start(document_root: &Path, arguments: &[&str]) -> Self {
        let mut command = anello(&["http"]);
        command.arg(document_root).args(arguments);
        Self::spawn(command)
    }

    /// Starts `anello echo`.
    pub fn start_echo(arguments: &[&str]) -> Self {
        Self::spawn(anello(&[&["echo"], arguments].concat()))
    }

    /// Spawns the command and waits for the ready line.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start server");
        let mut ready = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().expect("piped stdout"));
        output.read_line(&mut ready).expect("ready line");
        if ready.starts_with("anello http ready ") {
            output.read_line(&mut ready).expect("line with the configuration");
        }
        assert!(ready.starts_with("anello ") && ready.contains(" ready addr="), "{command:?}: {ready:?}");
        Self { child, ready }
    }

    /// Takes over a server whose ready line cannot be read.
    pub fn without_ready_line(child: Child) -> Self {
        Self { child, ready: String::new() }
    }

    pub fn ready_value(&self, name: &str) -> &str {
        let value = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    pub fn address(&self) -> &str {
        self.ready_value("addr")
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

pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(hang_timeout())).expect("set timeout");
    stream
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
