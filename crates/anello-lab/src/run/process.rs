//! Child processes that run contenders.
//!
//! Every child has its own process group. Ctrl-C in the terminal therefore reaches only the lab, and contenders do not
//! appear to crash. Processes started by a child are paused and terminated with that child. If the lab itself is
//! killed, no destructor runs. For this case, the `anello` command starts its contenders through a launcher.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::plan::contender::Contender;
use crate::run::affinity::{on_cores, pin_process};
use crate::run::machine::{MachineError, Running};

/// Delay between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_millis(300);

/// Time limit for reading the rest of an exited child's standard error. A grandchild may keep the pipe open.
const STDERR_EOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a waiting thread checks whether a child has been stopped by a signal.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

const MAX_STDERR_TAIL_BYTES: usize = 4096;

/// A contender running as a child process. Dropping it terminates the whole process group (SIGTERM, then SIGKILL)
/// and reaps the child.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Set once the child has been reaped. From then on, its process ID may belong to another process.
    status: Option<ExitStatus>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once standard error has reached EOF.
    errors_complete: Receiver<()>,
}

impl ServerProcess {
    /// Starts the contender on `cores`, through `launcher` unless it is empty, and waits for its ready line.
    ///
    /// # Errors
    /// Returns an error if the process could not be started or pinned, exited early, or printed no ready line within
    /// `timeout`.
    pub fn start(
        contender: &Contender,
        launcher: &[String],
        cores: &[usize],
        timeout: Duration,
    ) -> Result<(ServerProcess, Running), MachineError> {
        let mut words = launcher.iter().map(OsStr::new).chain([contender.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(contender.arguments.iter().map(|argument| argument.replace("{cores}", &core_list(cores))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let pin_error = |error: io::Error| MachineError::Pin { cores: core_list(cores), error };
        // Start the child on its cores: if it were pinned later, it could see the load generator's affinity.
        let child = on_cores(cores, || command.process_group(0).spawn())
            .map_err(|error| MachineError::Start { program: contender.program.clone(), error })?;
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (complete, errors_complete) = sync_channel(0);
        // From here on, dropping `process` terminates the child.
        let mut process = ServerProcess { child, status: None, errors: Arc::clone(&errors), errors_complete };
        pin_process(process.child.id(), cores).map_err(&pin_error)?;
        let (Some(stdout), Some(stderr)) = (process.child.stdout.take(), process.child.stderr.take()) else {
            return Err(MachineError::NotReady("cannot read the output of the server: no pipe".to_owned()));
        };
        let (sender, ready) = sync_channel(1);
        thread::spawn(move || watch_output(stdout, &sender));
        thread::spawn(move || {
            capture_stderr_tail(stderr, &errors);
            drop::<SyncSender<()>>(complete);
        });
        let running = process.wait_until_ready(&ready, timeout)?;
        // Pin threads that started before the first call or changed their affinity. Later threads inherit this pinning.
        pin_process(running.pid, cores).map_err(&pin_error)?;
        Ok((process, running))
    }

    /// Waits until the process exits or is stopped by a signal, and describes the event with the last lines of standard
    /// error. Returns `None` if the process is still running after `timeout`.
    pub fn exit_description(&mut self, timeout: Duration) -> Option<String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.wait_until(deadline.min(Instant::now() + STOP_CHECK_INTERVAL)) {
                Ok(Some(status)) => return Some(self.describe_exit(status)),
                Err(error) => return Some(format!("cannot wait for the server to exit: {error}")),
                Ok(None) => {}
            }
            if let Some(signal) = self.stop_signal() {
                return Some(format!("was stopped by signal {}", signal_text(signal)));
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    fn stop_signal(&self) -> Option<i32> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).ok()??.stopping_signal()
    }

    /// Sends SIGTERM to the process group without waiting for it to exit. `Drop` waits, sends SIGKILL if necessary, and
    /// reaps the child.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        // A stopped process handles SIGTERM only after SIGCONT.
        self.signal(Signal::CONT);
    }

    /// Sends a signal to the process group if the process is still running.
    pub fn signal(&mut self, signal: Signal) {
        if matches!(self.reap(), Ok(None)) {
            // The process has not been reaped, so its ID and group ID are still valid. If it exits now, the call
            // fails because no process is left to signal.
            kill_process_group(Pid::from_child(&self.child), signal).ok();
        }
    }

    /// Returns the child's status if it has exited. The rest of its process group is killed before the child is
    /// reaped: until then, the group ID cannot be reused.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let pid = Pid::from_child(&self.child);
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(pid), options)?.is_none() {
                return Ok(None);
            }
            kill_process_group(pid, Signal::KILL).ok();
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    fn wait_until_ready(
        &mut self,
        ready: &Receiver<String>,
        timeout: Duration,
    ) -> Result<Running, MachineError> {
        let deadline = Instant::now() + timeout;
        let what = match ready.recv_timeout(timeout) {
            Ok(ready_line) => {
                let address = address_in(&ready_line)
                    .ok_or_else(|| MachineError::NotReady(format!("invalid ready line: {ready_line}")))?;
                return Ok(Running { pid: self.child.id(), address, ready_line });
            }
            Err(RecvTimeoutError::Timeout) => {
                format!("printed no ready line (addr=IP:PORT) within {:.1} s", timeout.as_secs_f64())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let rest = deadline.saturating_duration_since(Instant::now());
                if let Some(exit) = self.exit_description(rest) {
                    return Err(MachineError::Exited(exit));
                }
                "closed its output before printing the ready line".to_owned()
            }
        };
        Err(MachineError::NotReady(what + &self.stderr_tail()))
    }

    /// Returns the child's status once it has exited. `None` if it is still running at the deadline.
    fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = self.reap()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn describe_exit(&self, status: ExitStatus) -> String {
        let mut description = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("was killed by signal {}", signal_text(signal)),
            (None, None) => "exited".to_owned(),
        };
        // The last lines may still be in the pipe. Wait for EOF, but not for a grandchild that keeps the pipe open.
        self.errors_complete.recv_timeout(STDERR_EOF_TIMEOUT).ok();
        description.push_str(&self.stderr_tail());
        description
    }

    /// Returns the last lines of standard error as a clause to append to a message.
    fn stderr_tail(&self) -> String {
        let tail = last_lines(&self.errors.lock().unwrap_or_else(PoisonError::into_inner));
        if tail.is_empty() { String::new() } else { format!(": {tail}") }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.terminate();
        if !matches!(self.wait_until(Instant::now() + TERMINATION_GRACE), Ok(Some(_))) {
            // Has no effect if the process has just exited. The wait below reaps it in either case.
            self.signal(Signal::KILL);
            self.child.wait().ok();
        }
    }
}

/// Returns the last lines of a text, without control characters.
pub(super) fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = lines[lines.len().saturating_sub(3)..].join(" / ");
    tail.chars().filter(|character| !character.is_control()).take(400).collect()
}

fn core_list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the number and name of a signal, for example "9 (SIGKILL)".
fn signal_text(signal: i32) -> String {
    ExitStatus::from_raw(signal).to_string().replace("signal: ", "")
}

fn address_in(line: &str) -> Option<SocketAddr> {
    line.split_whitespace().find_map(|word| word.strip_prefix("addr=")?.trim_end_matches(',').parse().ok())
}

/// Sends the first line with an address to `ready`, then reads until EOF so that the child never blocks on a full pipe.
fn watch_output(stdout: impl Read, ready: &SyncSender<String>) {
    let mut is_waiting = true;
    // Limit the length of a line so that a child that writes no newline cannot exhaust the lab's memory.
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match (&mut reader).take(MAX_STDERR_TAIL_BYTES as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if is_waiting => {
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if line.contains("addr=") {
                    is_waiting = ready.try_send(line).is_err();
                }
            }
            Ok(_) => {}
        }
    }
}

pub(super) fn capture_stderr_tail(mut stderr: impl Read, tail_bytes: &Mutex<Vec<u8>>) {
    let mut buffer = [0u8; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let mut tail_bytes = tail_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        tail_bytes.extend_from_slice(&buffer[..count]);
        let surplus = tail_bytes.len().saturating_sub(MAX_STDERR_TAIL_BYTES);
        tail_bytes.drain(..surplus);
    }
}
