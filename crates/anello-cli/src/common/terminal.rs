//! A view on the whole terminal, which is restored on every exit: at the end, after an error, in a panic, and when a
//! signal ends the process.
//!
//! All access is serialized by the lock of standard error. It is reentrant, so that a panic during drawing can restore
//! the terminal.

use std::env;
use std::io::{self, BufWriter, IsTerminal, Stderr, Write};
use std::panic;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::prelude::CrosstermBackend;
use ratatui::{Frame, Terminal};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcgetpgrp,
    tcsetattr,
};

/// Minimum time between two frames, unless a key is pressed.
const FRAME_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum size of the text that is held back while a view is shown. More is dropped.
const MAX_HELD_BACK_BYTES: usize = 1 << 20;

/// `None` while no view is shown.
static VIEW: Mutex<Option<Shown>> = Mutex::new(None);

static PANIC_HOOK: Once = Once::new();

struct Shown {
    /// Attributes of the terminal before the view.
    attributes: Termios,
    held_back: Vec<u8>,
}

fn view() -> MutexGuard<'static, Option<Shown>> {
    VIEW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a view can be shown: all standard streams are a terminal that supports cursor movement, and this
/// process is in its foreground.
pub fn is_available() -> bool {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    let is_capable = env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    is_terminal && is_capable && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// A view on the whole terminal. Dropping it restores the terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stderr>>>,
    last_frame: Option<Instant>,
}

impl Screen {
    pub fn enter() -> io::Result<Self> {
        PANIC_HOOK.call_once(|| {
            let previous = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                restore();
                previous(panic);
            }));
        });
        let attributes = tcgetattr(io::stdin())?;
        let mut without_lines = attributes.clone();
        // Ctrl-C still sends SIGINT. Ctrl-Z and Ctrl-\ would leave the terminal in this state, so they have no effect.
        without_lines.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // Otherwise, Ctrl-C discards output that the terminal has not read yet.
        without_lines.local_modes.insert(LocalModes::NOFLSH);
        for (index, value) in [
            (SpecialCodeIndex::VMIN, 0),
            (SpecialCodeIndex::VTIME, 0),
            (SpecialCodeIndex::VSUSP, 0),
            (SpecialCodeIndex::VQUIT, 0),
        ] {
            without_lines.special_codes[index] = value;
        }
        let mut stderr = io::stderr().lock();
        view().replace(Shown { attributes, held_back: Vec::new() });
        // From here on, dropping the screen restores the terminal.
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stderr()));
        let screen = Terminal::new(backend).map(|terminal| Self { terminal, last_frame: None });
        if screen.is_err() {
            restore();
        }
        let screen = screen?;
        tcsetattr(io::stdin(), OptionalActions::Now, &without_lines)?;
        execute!(stderr, EnterAlternateScreen)?;
        Ok(screen)
    }

    /// Returns the characters that were typed since the last call. Escape sequences, such as those of arrow keys, are
    /// dropped.
    pub fn typed(&self) -> Vec<u8> {
        let mut bytes = [0; 64];
        let count = rustix::io::read(io::stdin(), &mut bytes).unwrap_or(0);
        bytes[..count].iter().copied().take_while(|&byte| byte != 0x1b).collect()
    }

    /// Draws a frame. Does nothing if the last one is recent, unless `is_urgent` is set. Errors are ignored, because
    /// the command must finish its work even if the terminal is gone.
    pub fn draw(&mut self, is_urgent: bool, render: impl FnOnce(&mut Frame<'_>)) {
        let is_recent = self.last_frame.is_some_and(|last| last.elapsed() < FRAME_INTERVAL);
        let _locked = io::stderr().lock();
        if (is_urgent || !is_recent) && view().is_some() {
            self.last_frame = Some(Instant::now());
            self.terminal.draw(render).ok();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if a view is shown, and then prints the text that was held back.
pub fn restore() {
    let mut stderr = io::stderr().lock();
    let Some(shown) = view().take() else { return };
    // Keys that were pressed too late are not meant for the shell.
    tcflush(io::stdin(), QueueSelector::IFlush).ok();
    execute!(stderr, LeaveAlternateScreen, Show).ok();
    tcsetattr(io::stdin(), OptionalActions::Now, &shown.attributes).ok();
    stderr.write_all(&shown.held_back).ok();
}

/// Writes to standard error. While a view is shown, the text is held back until the terminal is restored.
pub struct Messages;

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        match &mut *view() {
            None => return stderr.write(bytes),
            Some(shown) if shown.held_back.len() + bytes.len() <= MAX_HELD_BACK_BYTES => {
                shown.held_back.extend_from_slice(bytes);
            }
            Some(_) => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use ratatui::widgets::Paragraph;
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

    use super::*;

    /// Runs in a child process of the next test, because it needs a terminal.
    #[test]
    #[ignore = "started by panic_restores_terminal"]
    fn panic_in_view() {
        assert!(is_available());
        let mut screen = Screen::enter().unwrap();
        Messages.write_all(b"held back\n").unwrap();
        screen.draw(true, |frame| {
            frame.render_widget(Paragraph::new("in the view"), frame.area());
            // Another thread would wait for the lock that this one holds.
            panic!("while drawing");
        });
    }

    #[test]
    fn panic_restores_terminal() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let mut terminal = match openpt(flags) {
            Ok(terminal) => File::from(terminal),
            Err(error) => return println!("skipped: no pseudo-terminal available: {error}"),
        };
        unlockpt(&terminal).unwrap();
        let child_end = File::from(ioctl_tiocgptpeer(&terminal, flags).unwrap());
        let before = tcgetattr(&child_end).unwrap();
        let stream = || Stdio::from(child_end.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(env::current_exe().unwrap())
            .env("TERM", "xterm")
            .env("RUST_BACKTRACE", "0");
        command.args(["common::terminal::tests::panic_in_view", "--exact", "--ignored", "--nocapture"]);
        let mut child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        drop((command, child_end));
        let (mut screen, mut bytes) = (vt100::Parser::default(), [0; 4096]);
        let mut has_shown_view = false;
        while let Ok(count @ 1..) = terminal.read(&mut bytes) {
            for byte in &bytes[..count] {
                screen.process(&[*byte]);
                has_shown_view |= screen.screen().alternate_screen();
            }
        }
        assert!(!child.wait().unwrap().success());
        let (text, after) = (screen.screen().contents(), tcgetattr(&terminal).unwrap());
        assert!(has_shown_view && !screen.screen().alternate_screen() && !screen.screen().hide_cursor());
        assert_eq!(before.local_modes, after.local_modes);
        assert!(text.contains("held back") && text.contains("while drawing"), "{text}");
    }
}
