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

/// Writes a line to standard error, if anybody can still read it.
pub fn say(line: impl Display) {
    writeln!(io::stderr(), "{line}").ok();
}
