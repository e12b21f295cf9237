//! The lab's end of the connection to an agent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::plan::contender::shell_quote;
use crate::run::hosts::call::{Call, Greeting, HEARTBEAT_INTERVAL, STOP};
use crate::run::process::{capture_stderr_tail, last_lines};

/// Time limit for the login and the start of an agent.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the exit of an agent, which terminates its servers first.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a thread that waits for a reply or an exit checks other conditions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Exit statuses of ssh if the connection fails, and of shells if a program cannot be executed or is missing.
const SSH_FAILED: i32 = 255;
const NOT_EXECUTABLE: [i32; 2] = [126, 127];

/// Options of ssh, in addition to the user's configuration: no questions, and an end within 20 s if the host no longer
/// responds.
const SSH_OPTIONS: [&str; 4] =
    ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];

pub(super) type Shared = Rc<RefCell<Connection>>;

type Input = Arc<Mutex<Option<ChildStdin>>>;

/// The `anello` command that runs the agents.
#[derive(Debug, Clone, Copy)]
pub struct AgentProgram<'a> {
    /// Path on this machine and, unless it is copied, on the hosts.
    pub path: &'a Path,
    /// Version and build of the lab. The agents must have the same.
    pub version: &'a str,
    /// `true` if this program and those of the contenders are copied to a temporary directory on each host. It
    /// is removed at the end.
    pub copy: bool,
}

/// Connection to an agent. Dropping it closes the agent's input and waits until the agent has exited.
#[derive(Debug)]
pub struct Connection {
    /// Destination of ssh. `None` for an agent on this machine.
    pub host: Option<String>,
    pub greeting: Greeting,
    program: PathBuf,
    /// Directory for copied programs on the host.
    directory: Option<CopyDirectory>,
    process: Child,
    input: Input,
    output: Receiver<String>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once standard error has reached EOF.
    errors_complete: Receiver<()>,
    /// Set by the lab to end the run, and by the connection when it is lost.
    stop: Arc<AtomicBool>,
    stop_sent: bool,
    /// Reason why the connection was lost.
    lost: Option<String>,
    /// Ends the thread that sends heartbeats when it is dropped.
    _heartbeat: SyncSender<()>,
}

impl Connection {
    /// Starts an agent and waits for its greeting.
    pub fn open(
        host: Option<&str>,
        program: &AgentProgram<'_>,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<Connection> {
        let AgentProgram { path: program, version, copy } = *program;
        let directory = host.filter(|_| copy).map(CopyDirectory::create).transpose()?;
        let mut command = match (host, &directory) {
            (Some(host), Some(directory)) => {
                let program = directory.copy(host, program).inspect_err(|_| {
                    run(&mut remote(host, &format!("rm -rf {}", directory.path.display()))).ok();
                })?;
                let (program, directory) = (program.display(), directory.path.display());
                // The shell removes the directory even if the connection is lost.
                remote(host, &format!("exec sh -c 'trap \"rm -rf {directory}\" EXIT; {program} lab agent'"))
            }
            (Some(host), None) => {
                // Without a shell that would outlive the agent.
                remote(host, &format!("exec {} lab agent", shell_quote(&program.to_string_lossy())))
            }
            (None, _) => {
                let mut command = Command::new(program);
                command.args(["lab", "agent"]);
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In its own process group, so that Ctrl-C in the terminal reaches only the lab.
        let mut process = command.process_group(0).spawn().map_err(|error| match host {
            Some(_) => other(format!("cannot start ssh: {error} (install the OpenSSH client)")),
            None => other(format!("cannot start {}: {error}", program.display())),
        })?;
        let (Some(stdout), Some(stderr)) = (process.stdout.take(), process.stderr.take()) else {
            return Err(other("cannot read the output of the agent: no pipe".to_owned()));
        };
        let input = Arc::new(Mutex::new(process.stdin.take()));
        let (lines, output) = sync_channel(1);
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (complete, errors_complete) = sync_channel(0);
        let tail = Arc::clone(&errors);
        thread::spawn(move || {
            capture_stderr_tail(stderr, &tail);
            drop::<SyncSender<()>>(complete);
        });
        let (heartbeat, ended) = sync_channel(0);
        send_heartbeats(Arc::clone(&input), ended);
        let mut connection = Connection {
            host: host.map(str::to_owned),
            greeting: Greeting::default(),
            program: program.to_owned(),
            directory,
            process,
            input,
            output,
            errors,
            errors_complete,
            stop: Arc::clone(stop),
            stop_sent: false,
            lost: None,
            _heartbeat: heartbeat,
        };
        connection.greeting = connection.receive_greeting()?;
        let (name, theirs) = (connection.name(), &connection.greeting.version);
        if theirs != version {
            let (theirs, version) = (theirs.replace('\n', ", "), version.replace('\n', ", "));
            return Err(other(format!(
                "{name} has another build of anello: {theirs} instead of {version} (copy {} there, or pass --copy-programs)",
                program.display()
            )));
        }
        Ok(connection)
    }

    /// Skips lines before the greeting, because the startup files of the remote shell may print text.
    fn receive_greeting(&mut self) -> io::Result<Greeting> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Ok(greeting) = serde_json::from_str(&line) {
                        return Ok(greeting);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(other(self.start_failure())),
                Err(RecvTimeoutError::Timeout) => {
                    let (name, seconds) = (self.name(), START_TIMEOUT.as_secs());
                    return Err(other(format!("anello on {name} did not respond within {seconds} s")));
                }
            }
        }
    }

    fn start_failure(&mut self) -> String {
        let status = self.exit_status().and_then(|status| status.code());
        let (name, program, errors) = (self.name(), self.program.display(), self.last_errors());
        match status {
            Some(SSH_FAILED) if self.host.is_some() => format!(
                "cannot log in to {name}{errors} (`ssh -o BatchMode=yes {name} true` must succeed: see ssh_config(5) for keys, \
                 users and ports)"
            ),
            Some(status) if NOT_EXECUTABLE.contains(&status) => {
                format!(
                    "anello not found on {name}: cannot execute {program}{errors} (copy {program} there, or pass --copy-programs)"
                )
            }
            _ => format!("anello on {name} exited at startup{errors}"),
        }
    }

    /// Sends a call and returns the reply.
    ///
    /// # Errors
    /// Returns the reason why the connection was lost. The first such error sets the stop flag.
    pub fn call<T: DeserializeOwned>(&mut self, call: &Call) -> Result<T, String> {
        if let Some(reason) = &self.lost {
            return Err(reason.clone());
        }
        self.exchange(call).and_then(|line| serde_json::from_str(&line).map_err(io::Error::from)).map_err(
            |error| {
                self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
                let errors = self.exit_status().map_or_else(String::new, |_| self.last_errors());
                let reason = format!("lost the connection to anello on {}: {error}{errors}", self.name());
                self.stop.store(true, Ordering::Relaxed);
                self.lost.insert(reason).clone()
            },
        )
    }

    /// Sends a call whose reply is a result.
    pub fn try_call<T: DeserializeOwned>(&mut self, call: &Call) -> io::Result<T> {
        self.call::<Result<T, String>>(call).and_then(|result| result).map_err(other)
    }

    /// Copies a program to the host, once. Returns its path there, or `None` if programs are not copied, or if the host
    /// searches for it in its `PATH`.
    pub fn copy(&self, program: &Path) -> io::Result<Option<PathBuf>> {
        match (&self.host, &self.directory) {
            (Some(host), Some(directory)) if program.components().count() > 1 => {
                directory.copy(host, program).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns whether programs are copied to the host.
    pub fn copies_programs(&self) -> bool {
        self.directory.is_some()
    }

    /// Returns why the connection was lost, if it was.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn exchange(&mut self, call: &impl Serialize) -> io::Result<String> {
        self.send(&serde_json::to_string(call)?)?;
        loop {
            match self.output.recv_timeout(POLL_INTERVAL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stop.load(Ordering::Relaxed) && !std::mem::replace(&mut self.stop_sent, true) {
                self.send(STOP)?;
            }
        }
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let input = input.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        input.write_all(format!("{line}\n").as_bytes())
    }

    /// Returns the name of the host for messages.
    fn name(&self) -> String {
        self.host.clone().unwrap_or_else(|| "this machine".to_owned())
    }

    /// Returns the last lines of standard error as a clause to append to a message.
    fn last_errors(&self) -> String {
        self.errors_complete.recv_timeout(POLL_INTERVAL).ok();
        let errors = last_lines(&self.errors.lock().unwrap_or_else(PoisonError::into_inner));
        if errors.is_empty() { errors } else { format!(": {errors}") }
    }

    /// Closes the agent's input and waits for its exit. Kills the process after a timeout, and then returns `None`: the
    /// agent itself exits when it notices the end of the connection.
    fn exit_status(&mut self) -> Option<std::process::ExitStatus> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < deadline {
            match self.process.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                status => return status.ok().flatten(),
            }
        }
        self.process.kill().ok();
        self.process.wait().ok();
        None
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.exit_status();
    }
}

/// Temporary directory for programs on a host.
#[derive(Debug)]
struct CopyDirectory {
    path: PathBuf,
    /// Copies by the path of the program on this machine.
    copies: RefCell<HashMap<PathBuf, PathBuf>>,
}

impl CopyDirectory {
    fn create(host: &str) -> io::Result<CopyDirectory> {
        let output = run(&mut remote(host, "mktemp -d /tmp/anello-lab-XXXXXXXX"))
            .map_err(|error| other(format!("cannot create a directory on {host}: {error}")))?;
        // The startup files of the remote shell may print text before.
        let path = output.lines().last().unwrap_or_default();
        if !path.starts_with("/tmp/anello-lab-") {
            return Err(other(format!("cannot create a directory on {host}: mktemp printed {path:?}")));
        }
        Ok(CopyDirectory { path: PathBuf::from(path), copies: RefCell::default() })
    }

    /// Copies a program to the directory unless that was done before.
    fn copy(&self, host: &str, program: &Path) -> io::Result<PathBuf> {
        let mut copies = self.copies.borrow_mut();
        if let Some(copy) = copies.get(program) {
            return Ok(copy.clone());
        }
        let copy = self.path.join(format!("program-{}", copies.len()));
        // Not scp, which needs an SFTP server on the host.
        let line = format!("cat >{0} && chmod 700 {0}", copy.display());
        File::open(program)
            .and_then(|file| run(remote(host, &line).stdin(file)))
            .map_err(|error| other(format!("cannot copy {} to {host}: {error}", program.display())))?;
        copies.insert(program.to_owned(), copy.clone());
        Ok(copy)
    }
}

/// Returns a command that runs a command line on a host, without a terminal.
fn remote(host: &str, line: &str) -> Command {
    let mut command = Command::new("ssh");
    for option in SSH_OPTIONS {
        command.args(["-o", option]);
    }
    command.args(["-T", "--", host, line]).stdin(Stdio::null());
    command
}

/// Runs a command and returns its output, or its errors.
fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(other(format!("{} ({})", last_lines(&output.stderr), output.status))),
    }
}

/// Returns the name under which the server host is reached unless another one is given: the host name of ssh's
/// configuration for `host`, or the name of this machine.
pub fn default_address(host: Option<&str>) -> String {
    let Some(host) = host else { return rustix::system::uname().nodename().to_string_lossy().into_owned() };
    let output = Command::new("ssh").args(["-G", "--", host]).stdin(Stdio::null()).output();
    let settings =
        output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    let configured = settings.lines().find_map(|line| line.strip_prefix("hostname "));
    configured.unwrap_or(host).to_owned()
}

/// Sends an empty line at intervals until the other end of `ended` is dropped.
fn send_heartbeats(input: Input, ended: Receiver<()>) {
    thread::spawn(move || {
        while ended.recv_timeout(HEARTBEAT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if let Some(input) = input.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                // A failure is reported by the next call.
                input.write_all(b"\n").ok();
            }
        }
    });
}

pub fn other(text: String) -> io::Error {
    io::Error::other(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn ssh_asks_no_questions_and_has_no_terminal() {
        let words = words(&remote("user@h", "true"));
        assert_eq!(words[..3], ["ssh", "-o", "BatchMode=yes"]);
        assert_eq!(words[words.len() - 4..], ["-T", "--", "user@h", "true"]);
    }
}
