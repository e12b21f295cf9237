//! Control connection: one line of JSON per command, one line of JSON per response.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::io::Errno;
use serde_json::json;

use super::command::{Command, Outcome};
use crate::accept::{ACCEPT_PAUSE, AcceptError};

/// Maximum length of a line in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Serves control connections one after the other. Executes each command with `perform`.
pub(super) fn serve(
    listener: &TcpListener,
    perform: impl Fn(&Command) -> io::Result<Outcome>,
) -> io::Result<()> {
    listener.set_nonblocking(false)?;
    loop {
        match listener.accept() {
            // An aborted control connection is followed by the next one.
            Ok((stream, _)) => serve_connection(&stream, &perform).unwrap_or_default(),
            Err(error) => match Errno::from_io_error(&error).map(AcceptError::from) {
                Some(AcceptError::WouldBlock | AcceptError::Transient) => {}
                Some(AcceptError::OutOfResources) => std::thread::sleep(ACCEPT_PAUSE),
                Some(AcceptError::Fatal(_)) | None => return Err(error),
            },
        }
    }
}

/// Responds to each line until EOF.
fn serve_connection(
    mut stream: &TcpStream,
    perform: impl Fn(&Command) -> io::Result<Outcome>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let is_complete = line.ends_with(b"\n");
        let mut response = if is_complete {
            respond(&line, &perform)
        } else {
            json!({"error": format!("line exceeds {MAX_LINE_BYTES} bytes")}).to_string()
        };
        response.push('\n');
        stream.write_all(response.as_bytes())?;
        // The start of the next line is unknown.
        if !is_complete {
            return Ok(());
        }
    }
}

fn respond(line: &[u8], perform: impl Fn(&Command) -> io::Result<Outcome>) -> String {
    let response = serde_json::from_slice::<Command>(line)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("invalid command: {error}")))
        .and_then(|command| perform(&command))
        .and_then(|outcome| serde_json::to_string(&outcome).map_err(io::Error::other));
    response.unwrap_or_else(|error| json!({"error": error.to_string()}).to_string())
}
