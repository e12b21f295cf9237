//! The lab's end of the connection to an agent.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::plan::contender::shell_quote;
use crate::run::hosts::HEARTBEAT_INTERVAL;
use crate::run::hosts::call::{Call, Greeting, STOP};
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

type Input = Arc<Mutex<Option<ChildStdin>>>;

/// Connection to an agent. Dropping it closes the agent's input and waits until the agent has exited.
#[derive(Debug)]
pub struct Connection {
    /// Destination of ssh. `None` for an agent on this machine.
    pub host: Option<String>,
    pub greeting: Greeting,
    program: PathBuf,
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
        program: &Path,
        version: &str,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<Connection> {
        let mut command = command(host, program);
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
            // Replaced below.
            greeting: Greeting::of_this_machine(version),
            program: program.to_owned(),
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
                "{name} has another build of anello: {theirs} instead of {version} (copy {} there)",
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
                format!("anello not found on {name}: cannot execute {program}{errors} (copy {program} there)")
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

/// Returns the command that starts an agent.
fn command(host: Option<&str>, program: &Path) -> Command {
    let Some(host) = host else {
        let mut command = Command::new(program);
        command.args(["lab", "agent"]);
        return command;
    };
    let mut command = Command::new("ssh");
    for option in SSH_OPTIONS {
        command.args(["-o", option]);
    }
    // Without a terminal, and without a shell that would outlive the agent.
    let remote = format!("exec {} lab agent", shell_quote(&program.to_string_lossy()));
    command.args(["-T", "--", host, &remote]);
    command
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
    fn ssh_asks_no_questions_and_quotes_program() {
        let command = command(Some("user@h"), Path::new("/opt/a b/anello"));
        let words = words(&command);
        assert_eq!(words[..3], ["ssh", "-o", "BatchMode=yes"]);
        assert_eq!(words[words.len() - 4..], ["-T", "--", "user@h", "exec '/opt/a b/anello' lab agent"]);
    }

    #[test]
    fn agent_on_this_machine_is_started_without_ssh() {
        assert_eq!(words(&command(None, Path::new("/a b"))), ["/a b", "lab", "agent"]);
    }
}
