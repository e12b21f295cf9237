//! Echo server in a child process that reports its resource usage.
//!
//! The child runs the test `server_child` of this program. It prints its address, and then prints a report for each line
//! on its standard input. It exits at EOF.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::echo;
use anello::net::TcpListener;
use anello::{DriverMetrics, current_driver_metrics, spawn};

use crate::common::usage::{Usage, limit_open_files, raise_open_files, usage_of};
use crate::common::{ANY_PORT, Setup, command_for, setup_named};

const SETUP: &str = "ANELLO_TEST_SERVER";
const OPEN_FILES: &str = "ANELLO_TEST_OPEN_FILES";
const REPLY_PREFIX: &str = "server-reply ";

/// Running server process.
pub struct Server {
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

/// Resource usage and counters of the server.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub usage: Usage,
    pub accepted: u64,
    pub rejected: u64,
    pub sockets: u64,
    pub turns: u64,
    pub broken_pipes: u64,
}

impl Server {
    /// Starts a server on the setup's driver, with an optional open-file limit.
    pub fn start(setup: &Setup, open_files: Option<u64>) -> Self {
        let mut command = command_for(&server_child);
        command.env(SETUP, setup.name);
        if let Some(count) = open_files {
            command.env(OPEN_FILES, count.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().unwrap());
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut server = Self { child, commands, replies, address };
        server.address = server.read_reply().parse().unwrap();
        server
    }

    /// Returns the process ID.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn read_reply(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.replies.read_line(&mut line).unwrap(), 0, "the server exited unexpectedly");
            if let Some((_, reply)) = line.trim_end().split_once(REPLY_PREFIX) {
                return reply.to_owned();
            }
        }
    }

    pub fn report(&mut self) -> Report {
        writeln!(self.commands.as_mut().unwrap(), "report").unwrap();
        let reply = self.read_reply();
        let mut numbers = reply.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        Report {
            usage: usage_of(self.child.id()),
            accepted: next(),
            rejected: next(),
            sockets: next(),
            turns: next(),
            broken_pipes: next(),
        }
    }

    /// Polls until the condition is true. The test's watchdog limits the wait.
    pub fn wait_until(&mut self, mut is_true: impl FnMut(&Report) -> bool) -> Report {
        loop {
            let report = self.report();
            if is_true(&report) {
                return report;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server and fails if its exit status is not success.
    pub fn stop(mut self) {
        self.commands = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the server exited with {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The test failed: kill this child if it has not been waited for.
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Not a test: the server process. Does nothing unless this process was started by [`Server::start`].
#[test]
fn server_child() {
    let Ok(name) = std::env::var(SETUP) else { return };
    match std::env::var(OPEN_FILES) {
        Ok(count) => limit_open_files(count.parse().unwrap()).unwrap(),
        Err(_) => _ = raise_open_files(),
    }
    let broken_pipes = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&broken_pipes)).unwrap();
    let runtime = setup_named(&name).runtime();
    let handle = runtime.handle();
    let (ready, listening) = mpsc::channel();
    std::thread::spawn(move || {
        println!("\n{REPLY_PREFIX}{}", listening.recv().unwrap());
        for _command in std::io::stdin().lines() {
            let (send, metrics) = mpsc::channel::<DriverMetrics>();
            handle.spawn(async move { send.send(current_driver_metrics().unwrap()).unwrap() }).detach();
            let Ok(metrics) = metrics.recv() else { break };
            let pipes = u64::from(broken_pipes.load(Ordering::SeqCst));
            let DriverMetrics { accepted, rejected, sockets, turns, .. } = metrics;
            println!("\n{REPLY_PREFIX}{accepted} {rejected} {sockets} {turns} {pipes}");
        }
        // Reports success to the parent through the exit code.
        std::process::exit(0);
    });
    runtime.block_on(async {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        loop {
            let mut stream = listener.accept().await.unwrap();
            spawn(async move { echo(&mut stream).await }).detach();
        }
    });
}
