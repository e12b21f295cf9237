//! Output to standard output and standard error. Unlike `println!`, these functions do not panic if the reader has
//! closed the pipe, as in `anello lab run | head`: a command must finish its work even then.

use std::fmt::Display;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::terminal::Messages;

/// Writes text to standard output. A closed pipe is not an error, because the reader needs no further output.
pub fn show(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes the ready line of a server to standard output. Errors are logged, and the server keeps running.
pub fn announce(line: &str) {
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
        tracing::warn!(%error, "cannot write the ready line to standard output");
    }
}

/// Writes a line to standard error, after the end of a view, and ignores errors, such as a closed pipe.
pub fn print_stderr(line: impl Display) {
    Messages.write_all(format!("{line}\n").as_bytes()).ok();
}

/// Creates a progress bar from this template; it is hidden unless standard error is a terminal.
pub fn progress_bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
