//! How a contender lives as a child process.
//!
//! A [`ServerProcess`] owns the child: whatever happens, dropping it ends the process and reaps it. Children get a process
//! group of their own, so that Ctrl-C on the terminal reaches the lab alone and no contender seems to crash, and so that
//! what a child has started in its turn is halted and ends with it. A lab that is killed cannot drop anything: for that,
//! the `anello` command starts its contenders through a launcher.

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

use super::Contender;
use crate::machine::{Running, on_cores, pin_process};

/// How long a child may take to end after SIGTERM before SIGKILL follows.
const TERMINATION_GRACE: Duration = Duration::from_millis(300);

/// How long the last words of a child that has ended may take to be read; much longer than that takes, but a
/// grandchild may hold its output open for good.
const STDERR_EOF_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is looked whether a child that is waited for is halted.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How much of a child's last words is kept.
const MAX_STDERR_TAIL_BYTES: usize = 4096;

/// A contender that runs as a child process. Dropping it ends the process (SIGTERM, then SIGKILL) with all that belong to
/// its process group, and reaps it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Once it has been reaped: from then on its id may be another's.
    status: Option<ExitStatus>,
    /// The end of what it wrote to standard error.
    errors: Arc<Mutex<Vec<u8>>>,
    /// Disconnects when standard error has been read to its end.
    errors_complete: Receiver<()>,
}

impl ServerProcess {
    /// Starts the contender on `cores`, by way of `launcher` (see [`LabConfig`](crate::LabConfig)) unless that is
    /// empty, and waits for its ready line.
    ///
    /// # Errors
    /// What the contender did instead, with its last words, if it ended, stayed silent for `timeout` or could not be
    /// started or pinned.
    pub fn start(
        contender: &Contender,
        launcher: &[String],
        cores: &[usize],
        timeout: Duration,
    ) -> Result<(ServerProcess, Running), String> {
        let mut words = launcher.iter().map(OsStr::new).chain([contender.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(contender.arguments.iter().map(|argument| argument.replace("{cores}", &core_list(cores))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let unpinned = |error: io::Error| format!("cannot pin it to cores {}: {error}", core_list(cores));
        // Born on its cores: a child that looks at its cores before it was pinned would see those of the load.
        let mut child = on_cores(cores, || command.process_group(0).spawn())
            .map_err(|error| format!("cannot start {}: {error}", contender.program.display()))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (complete, errors_complete) = sync_channel(0);
        // From here on the child is owned by something that ends it on drop.
        let mut process = ServerProcess { child, status: None, errors: Arc::clone(&errors), errors_complete };
        pin_process(process.id(), cores).map_err(&unpinned)?;
        let ready = match (stdout, stderr) {
            (Some(stdout), Some(stderr)) => {
                let (sender, ready) = sync_channel(1);
                thread::spawn(move || watch_output(stdout, &sender));
                thread::spawn(move || {
                    capture_stderr_tail(stderr, &errors);
                    drop::<SyncSender<()>>(complete);
                });
                ready
            }
            _ => return Err("its output could not be piped".to_owned()),
        };
        let (address, ready_line) = process.wait_until_ready(&ready, timeout)?;
        // Threads that it started before the first call, or that left its cores, are caught here; later ones inherit.
        pin_process(process.id(), cores).map_err(&unpinned)?;
        let running = Running { pid: process.id(), address, ready_line };
        Ok((process, running))
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, with its last words, or that it is halted, which somebody else has done; none if it still
    /// runs after `timeout`. Sleeps meanwhile.
    pub fn exit_description(&mut self, timeout: Duration) -> Option<String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.wait_until(deadline.min(Instant::now() + STOP_CHECK_INTERVAL)) {
                Ok(Some(status)) => return Some(self.describe_exit(status)),
                Err(error) => return Some(format!("is lost: {error}")),
                Ok(None) => {}
            }
            if let Some(signal) = self.stop_signal() {
                return Some(format!("is halted by signal {signal}{}", signal_name(signal)));
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// The signal that has halted the process, if it is halted now.
    fn stop_signal(&self) -> Option<i32> {
        let seen = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), seen).ok()??.stopping_signal()
    }

    /// Asks the process and its group to end (SIGTERM) without waiting. Dropping does the rest.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        // One that is halted would hear it only then.
        self.signal(Signal::CONT);
    }

    /// Sends a signal to the process and its group, if the process still runs.
    pub fn signal(&mut self, signal: Signal) {
        if matches!(self.reap(), Ok(None)) {
            // It has not been reaped, so the id is still its own and its group's. They may end at this very moment: then
            // there is nothing left to signal, and the error says just that.
            kill_process_group(Pid::from_child(&self.child), signal).ok();
        }
    }

    /// The child's status if it has ended. What is left of its group then is killed before the child is reaped: until
    /// then the id cannot be that of another group.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let pid = Pid::from_child(&self.child);
            let seen = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(pid), seen)?.is_none() {
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
    ) -> Result<(SocketAddr, String), String> {
        let deadline = Instant::now() + timeout;
        match ready.recv_timeout(timeout) {
            Ok(line) => {
                let address =
                    address_in(&line).ok_or_else(|| format!("its ready line is unusable: {line}"))?;
                Ok((address, line))
            }
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "printed no ready line (addr=IP:PORT) within {:.1} s{}",
                timeout.as_secs_f64(),
                self.stderr_tail()
            )),
            Err(RecvTimeoutError::Disconnected) => {
                let closed = "closed its output before it was ready";
                let timeout = deadline.saturating_duration_since(Instant::now());
                Err(self
                    .exit_description(timeout)
                    .unwrap_or_else(|| format!("{closed}{}", self.stderr_tail())))
            }
        }
    }

    /// The child's status once it has ended; none if it still runs at the deadline. Asks at least once.
    fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let exit_description = self.reap()?;
            if exit_description.is_some() || Instant::now() >= deadline {
                return Ok(exit_description);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn describe_exit(&self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}{}", signal_name(signal)),
            (None, None) => "ended".to_owned(),
        };
        // The words may still be in the pipe. Wait for its end, but not for a grandchild that holds it open.
        self.errors_complete.recv_timeout(STDERR_EOF_TIMEOUT).ok();
        how + &self.stderr_tail()
    }

    /// The end of what it wrote to standard error, as a clause to append.
    fn stderr_tail(&self) -> String {
        let kept = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(3)..].join(" / ");
        let tail: String = tail.chars().filter(|character| !character.is_control()).take(400).collect();
        if tail.is_empty() { String::new() } else { format!(": {tail}") }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.terminate();
        if !matches!(self.wait_until(Instant::now() + TERMINATION_GRACE), Ok(Some(_))) {
            // Does nothing if it has just ended; the wait below reaps it either way.
            self.signal(Signal::KILL);
            self.child.wait().ok();
        }
    }
}

/// Cores as one would type them: `0,1`.
fn core_list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        19 => " (SIGSTOP)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

/// Finds `addr=IP:PORT` in a ready line.
fn address_in(line: &str) -> Option<SocketAddr> {
    line.split_whitespace().find_map(|word| word.strip_prefix("addr=")?.trim_end_matches(',').parse().ok())
}

/// Passes on the first line with an address and then reads to the end, so that the child never blocks on its output.
fn watch_output(stdout: impl Read, ready: &SyncSender<String>) {
    let mut waiting = true;
    // Bounded: a child that writes without a newline must not fill our memory.
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match (&mut reader).take(MAX_STDERR_TAIL_BYTES as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if waiting => {
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if line.contains("addr=") {
                    waiting = ready.try_send(line).is_err();
                }
            }
            Ok(_) => {}
        }
    }
}

fn capture_stderr_tail(mut stderr: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0u8; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..count]);
        let surplus = kept.len().saturating_sub(MAX_STDERR_TAIL_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Contender {
        Contender::new("shell", Path::new("/bin/sh"), &["-c", script])
    }

    fn start(script: &str) -> Result<(ServerProcess, Running), String> {
        let core = crate::machine::allowed_cores()[0];
        ServerProcess::start(&shell(script), &[], &[core], Duration::from_secs(20))
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn a_ready_server_is_found_and_ends_with_its_owner() {
        let (process, running) =
            start("echo hello; echo 'ready addr=127.0.0.1:4711 driver=none'; exec sleep 60").unwrap();
        assert_eq!(running.address, "127.0.0.1:4711".parse().unwrap());
        assert_eq!(running.ready_line, "ready addr=127.0.0.1:4711 driver=none");
        assert!(exists(running.pid));
        drop(process);
        assert!(!exists(running.pid), "the child is gone and reaped");
    }

    #[test]
    fn a_server_that_ignores_the_request_to_end_is_killed() {
        let (process, running) =
            start("trap '' TERM; echo addr=127.0.0.1:1; while true; do sleep 0.05; done").unwrap();
        drop(process);
        assert!(!exists(running.pid));
    }

    /// Whether a process has ended, be it reaped or not: nobody may care for the orphans here.
    fn has_ended(pid: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        !status.is_ok_and(|status| status.lines().all(|line| !line.starts_with("State:\tZ")))
    }

    #[test]
    fn what_a_server_has_started_ends_with_it_however_that_ends() {
        let deaf = "(trap '' TERM; exec sleep 300) & child=$!";
        for end in ["wait", "trap '' TERM; while true; do wait; done", "kill -9 $$", "exit 3"] {
            let (mut process, running) =
                start(&format!("{deaf}; echo addr=127.0.0.1:1 child=$child; {end}")).unwrap();
            let (_, child) = running.ready_line.split_once("child=").unwrap();
            if end.starts_with(['k', 'e']) {
                assert!(process.exit_description(Duration::from_secs(20)).is_some(), "{end}");
            } else {
                assert!(!has_ended(child), "{end}");
            }
            drop(process);
            let deadline = Instant::now() + Duration::from_secs(20);
            while !has_ended(child) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
            assert!(has_ended(child), "{end}: the child of the server outlives the lab");
        }
    }

    #[test]
    fn a_server_is_halted_with_what_it_has_started() {
        let (mut process, running) = start("sleep 300 & echo addr=127.0.0.1:1 child=$!; wait").unwrap();
        let (_, child) = running.ready_line.split_once("child=").unwrap();
        let is_halted = || {
            let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        for (signal, halted) in [(Signal::STOP, true), (Signal::CONT, false)] {
            process.signal(signal);
            let deadline = Instant::now() + Duration::from_secs(20);
            while is_halted() != halted && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(is_halted(), halted, "{signal:?}");
        }
    }

    #[test]
    fn fault_45_a_server_that_cannot_start_leaves_its_last_words() {
        let error = start("echo 'io_uring_setup: Operation not permitted' >&2; exit 1").unwrap_err();
        assert_eq!(error, "exited with status 1: io_uring_setup: Operation not permitted");
    }

    #[test]
    fn a_server_that_pins_itself_to_one_of_its_cores_stays_there() {
        let cores = crate::machine::allowed_cores();
        let last = cores[cores.len() - 1];
        let script = format!("taskset -p -c {last} $$ >&2; echo addr=127.0.0.1:1; exec sleep 60");
        let (_process, running) =
            ServerProcess::start(&shell(&script), &[], &cores, Duration::from_secs(20)).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), last.to_string());
    }

    #[test]
    fn fault_45_a_missing_program_is_named() {
        let missing = Contender::new("missing", Path::new("/nonexistent/server"), &[]);
        let error = ServerProcess::start(&missing, &[], &[0], Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("/nonexistent/server"), "{error}");
    }

    #[test]
    fn silence_and_nonsense_are_told_apart() {
        let core = crate::machine::allowed_cores()[0];
        let silent = ServerProcess::start(&shell("exec sleep 60"), &[], &[core], Duration::from_millis(50))
            .unwrap_err();
        assert!(silent.contains("no ready line"), "{silent}");
        let nonsense = start("echo addr=somewhere; exec sleep 60").unwrap_err();
        assert!(nonsense.contains("addr=somewhere"), "{nonsense}");
    }

    #[test]
    fn fault_45_a_killed_server_says_by_what() {
        let (mut process, _) = start("echo addr=127.0.0.1:1; kill -9 $$").unwrap();
        let end = process.exit_description(Duration::from_secs(20));
        assert_eq!(end.as_deref(), Some("was killed by signal 9 (SIGKILL)"));
    }

    #[test]
    fn fault_45_a_halted_server_is_not_waited_for_to_the_end() {
        let (mut process, running) = start("echo addr=127.0.0.1:1; kill -STOP $$; exec sleep 60").unwrap();
        // Far longer than the test may take: only one that is seen to be halted is given up before.
        let end = process.exit_description(Duration::from_secs(600));
        assert_eq!(end.as_deref(), Some("is halted by signal 19 (SIGSTOP)"));
        drop(process);
        assert!(!exists(running.pid), "it is ended nevertheless");
    }
}
