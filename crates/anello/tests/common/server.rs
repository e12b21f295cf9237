//! An echo server in a process of its own, which can be asked what it uses.
//!
//! The child is this test program again, running the test `server_child`, which each program that uses this has. It
//! prints the address, then answers each line on its standard input with a report; at the end of the input it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anello::net::{TcpListener, echo};
use anello::{DriverMetrics, current_metrics, spawn};

use super::child::{Usage, limit_open_files, raise_open_files, usage_of};
use super::{ANY_PORT, Setup, all_drivers};

const SETUP: &str = "ANELLO_TEST_SERVER";
const OPEN_FILES: &str = "ANELLO_TEST_OPEN_FILES";
const WORD: &str = "server-says ";

/// A server that runs.
pub struct Server {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

/// What the server uses and has done.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub usage: Usage,
    pub accepted: u64,
    pub refused: u64,
    pub sockets: u64,
    pub turns: u64,
    pub broken_pipes: u64,
}

impl Server {
    /// Starts one on the driver of that setup, with at most so many open files.
    pub fn start(setup: &Setup, open_files: Option<u64>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["server_child", "--exact", "--nocapture", "--test-threads=1"]).env(SETUP, setup.name);
        if let Some(count) = open_files {
            command.env(OPEN_FILES, count.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut server = Self { child, questions, answers, address };
        server.address = server.answer().parse().unwrap();
        server
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the server has died");
            if let Some((_, word)) = line.trim_end().split_once(WORD) {
                return word.to_owned();
            }
        }
    }

    pub fn report(&mut self) -> Report {
        writeln!(self.questions.as_mut().unwrap(), "report").unwrap();
        let answer = self.answer();
        let mut numbers = answer.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        Report {
            usage: usage_of(self.child.id()),
            accepted: next(),
            refused: next(),
            sockets: next(),
            turns: next(),
            broken_pipes: next(),
        }
    }

    /// Asks until it is true; the watchdog of the test sees to it that this ends.
    pub fn wait_until(&mut self, mut is_true: impl FnMut(&Report) -> bool) -> Report {
        loop {
            let report = self.report();
            if is_true(&report) {
                return report;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it, and fails if it did not end well.
    pub fn end(mut self) {
        self.questions = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Of a test that failed: this child, which has not been waited for, and no other.
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// The body of `server_child`: nothing, unless this process was started by [`Server::start`].
pub fn serve_if_asked() {
    let Ok(name) = std::env::var(SETUP) else { return };
    match std::env::var(OPEN_FILES) {
        Ok(count) => limit_open_files(count.parse().unwrap()).unwrap(),
        Err(_) => _ = raise_open_files(),
    }
    let broken_pipes = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&broken_pipes)).unwrap();
    let setup = all_drivers().into_iter().find(|setup| setup.name == name).unwrap();
    let runtime = setup.runtime();
    let handle = runtime.handle();
    let (ready, listening) = mpsc::channel();
    std::thread::spawn(move || {
        println!("\n{WORD}{}", listening.recv().unwrap());
        for _question in std::io::stdin().lines() {
            let (send, metrics) = mpsc::channel::<DriverMetrics>();
            handle.spawn(async move { send.send(current_metrics().unwrap()).unwrap() }).detach();
            let Ok(metrics) = metrics.recv() else { break };
            let pipes = u64::from(broken_pipes.load(Ordering::SeqCst));
            let DriverMetrics { accepted, refused, sockets, turns, .. } = metrics;
            println!("\n{WORD}{accepted} {refused} {sockets} {turns} {pipes}");
        }
        // A clean end: the harness of this process says so by its exit code.
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
