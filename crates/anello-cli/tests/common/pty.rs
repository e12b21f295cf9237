//! A child process on a pseudo-terminal, whose screen the test can read.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anello_test::hang_timeout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

pub struct Pty {
    terminal: File,
    screen: vt100::Parser,
    child: Child,
    /// Time after which the child is considered to hang.
    deadline: Instant,
    pub has_shown_view: bool,
}

impl Pty {
    /// Runs `anello` with these arguments and this `TERM` in a session of its own, with the pseudo-terminal as its
    /// controlling terminal and standard streams. Returns `None` if there are no pseudo-terminals.
    pub fn anello(term: &str, arguments: &[&str]) -> Option<Self> {
        Self::start(term, env!("CARGO_BIN_EXE_anello"), arguments)
    }

    fn start(term: &str, program: &str, arguments: &[&str]) -> Option<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = match openpt(flags) {
            Ok(terminal) => File::from(terminal),
            Err(error) => {
                println!("skipped: no pseudo-terminal available: {error}");
                return None;
            }
        };
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, winsize(ROWS, COLUMNS)).unwrap();
        let child_end = File::from(ioctl_tiocgptpeer(&terminal, flags).unwrap());
        let stream = || Stdio::from(child_end.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(arguments).env("TERM", term).env_remove("ANELLO_DRIVER");
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        // When this function returns, only the child holds its end, so that reading fails when the child exits.
        Some(Self {
            terminal,
            screen: vt100::Parser::new(size(ROWS), size(COLUMNS), 1000),
            child,
            deadline: Instant::now() + hang_timeout(),
            has_shown_view: false,
        })
    }

    pub fn text(&self) -> String {
        self.screen.screen().contents()
    }

    pub fn is_view(&self) -> bool {
        self.screen.screen().alternate_screen()
    }

    /// Reads the output until the screen fulfils a condition.
    pub fn wait(&mut self, what: &str, is_fulfilled: impl Fn(&Self) -> bool) {
        while !is_fulfilled(self) {
            assert!(self.read(), "{what} did not appear before the end:\n{}", self.text());
        }
    }

    /// Reads a part of the output. Returns `false` at its end. Panics if the child hangs.
    pub fn read(&mut self) -> bool {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).unwrap();
        let events = poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&timeout)).unwrap();
        assert!(events > 0 && !remaining.is_zero(), "the child hangs:\n{}", self.text());
        let mut bytes = [0; 4096];
        let count = self.terminal.read(&mut bytes).unwrap_or(0);
        for byte in &bytes[..count] {
            self.screen.process(&[*byte]);
            self.has_shown_view |= self.is_view();
        }
        count > 0
    }

    pub fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.screen.screen_mut().set_size(size(rows), size(columns));
        tcsetwinsize(&self.terminal, winsize(rows, columns)).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process, and checks that it has restored the terminal. Returns the exit code and the
    /// text on the screen.
    pub fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        let code = self.child.wait().unwrap().code();
        let text = self.text();
        let (screen, modes) = (self.screen.screen(), tcgetattr(&self.terminal).unwrap().local_modes);
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{text}");
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        (code, text)
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Fails if the child has exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn size(size: u16) -> NonZero<u16> {
    NonZero::new(size).unwrap()
}

fn winsize(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
