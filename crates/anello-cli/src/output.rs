//! What long commands show: nobody who stops reading (`anello lab run | head`) may cost them their result, as `println!`
//! would, which panics then.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes a text to standard output. A reader that has gone is no error.
///
/// # Errors
/// Standard output could not be written for another reason, such as a disk that is full.
pub fn show(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes the line that tells that a server is ready. It serves whether or not anybody reads that.
pub fn announce(line: &str) {
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
        tracing::warn!(%error, "the ready line could not be written to standard output");
    }
}

/// Writes a line to standard error, if anybody can still read it.
pub fn print_stderr(line: impl Display) {
    writeln!(io::stderr(), "{line}").ok();
}
