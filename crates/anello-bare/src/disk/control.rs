//! Control connection: one line of JSON per command, one line of JSON per response.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::command::{Command, Outcome};

/// Maximum length of a line in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Responds to each line until EOF, executing the commands with `perform`.
pub(super) fn serve_connection(
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
        let response = if is_complete {
            serde_json::from_slice(&line)
                .map_err(|error| format!("invalid command: {error}"))
                .and_then(|command| perform(&command).map_err(|error| error.to_string()))
        } else {
            Err(format!("line exceeds {MAX_LINE_BYTES} bytes"))
        };
        let response = response.map_or_else(|error| json!({ "error": error }), |outcome| json!(outcome));
        stream.write_all(format!("{response}\n").as_bytes())?;
        // The start of the next line is unknown.
        if !is_complete {
            return Ok(());
        }
    }
}
