//! Instructions per request, kernel and user together, as `bench/instructions/run --json` counts them in an emulated
//! machine. They are counted elsewhere than the slices are timed, and are shown beside them: the two say different things.
//!
//! A contender of the lab and a server of the file are the same if their names are, but for case and everything that is
//! no letter or digit, and with "io_uring" for "uring": `anello-uring` is "anello io_uring", `tokio` is "tokio". A twin
//! has the count of its original. A count belongs to a cell of echo on one core, without an offered rate, with the same
//! connections and bytes.

use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Workload};

/// All counts of one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Release of the kernel of the emulated machine.
    pub kernel: String,
    /// One count for each server, number of connections and message length.
    pub cells: Vec<InstructionCount>,
}

/// The count of one server in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstructionCount {
    /// The server's name there.
    pub server: String,
    /// Connections, one request at a time on each.
    pub connections: usize,
    /// Length of a message in bytes.
    pub bytes: usize,
    /// Requests that were counted over; none if it could not be measured.
    #[serde(default)]
    pub requests: Option<u64>,
    /// Instructions of the server for each; none if it could not be measured.
    #[serde(default)]
    pub instructions_per_request: Option<f64>,
    /// Why it could not be measured.
    #[serde(default)]
    pub error: Option<String>,
}

impl Instructions {
    /// Reads what `bench/instructions/run --json` writes.
    ///
    /// # Errors
    /// What is wrong with the text, and the remedy.
    pub fn from_json(text: &str) -> Result<Instructions, String> {
        let counts: Instructions = serde_json::from_str(text).map_err(|error| {
            format!("not what `bench/instructions/run --json` writes: {error}; give it a file made by that")
        })?;
        let unusable = |count: &&InstructionCount| {
            count.instructions_per_request.is_some_and(|value| !(value.is_finite() && value > 0.0))
        };
        match counts.cells.iter().find(unusable) {
            Some(InstructionCount { server, connections, bytes, .. }) => Err(format!(
                "the instructions per request of {server} at {connections} connections and {bytes} bytes are no positive \
                 number: count anew"
            )),
            None => Ok(counts),
        }
    }

    /// Instructions per request of a contender in a cell; none if they were not counted.
    #[must_use]
    pub fn of(&self, contender: &str, cell: &Cell) -> Option<f64> {
        let Workload::Echo { message_bytes } = cell.workload else { return None };
        if cell.offered_per_second.is_some() || cell.server_cores != 1 {
            return None;
        }
        let name = comparable(contender);
        let counted = self.cells.iter().find(|count| {
            (count.connections, count.bytes) == (cell.connections, message_bytes)
                && comparable(&count.server) == name
        });
        counted?.instructions_per_request
    }

    /// Whether any count is of this contender.
    #[must_use]
    pub fn know(&self, contender: &str) -> bool {
        self.cells.iter().any(|count| comparable(&count.server) == comparable(contender))
    }
}

/// What of a name tells it from others.
fn comparable(name: &str) -> String {
    let plain: String =
        name.chars().filter(|sign| sign.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    plain.replace("iouring", "uring")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"kernel": "6.12.1", "cells": [
  {"server": "anello-uring", "connections": 50, "bytes": 128, "requests": 4000, "instructions_per_request": 12290.5},
  {"server": "tokio", "connections": 50, "bytes": 128, "error": "the server said: no"}
]}"#;

    #[test]
    fn counts_are_found_by_name_and_cell() {
        let counts = Instructions::from_json(FILE).unwrap();
        assert_eq!(counts.kernel, "6.12.1");
        let cell = Cell::echo(128, 50);
        assert_eq!(counts.of("anello io_uring", &cell), Some(12_290.5));
        assert_eq!(counts.of("Anello_IO-uring", &cell), Some(12_290.5));
        assert_eq!(counts.of("anello epoll", &cell), None);
        assert_eq!(counts.of("tokio", &cell), None, "it could not be measured");
        assert!(counts.know("tokio") && !counts.know("gnet"));
        let others = [
            Cell::echo(128, 1),
            Cell::echo(1024, 50),
            Cell { server_cores: 2, ..cell },
            Cell { offered_per_second: Some(1000), ..cell },
            Cell { workload: Workload::Idle, ..cell },
        ];
        for other in others {
            assert_eq!(counts.of("anello io_uring", &other), None, "{other}");
        }
        let read_again = Instructions::from_json(&serde_json::to_string(&counts).unwrap());
        assert_eq!(read_again, Ok(counts));
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        assert!(Instructions::from_json("{}").unwrap_err().contains("bench/instructions/run --json"));
        assert!(Instructions::from_json("").is_err());
        let negative = FILE.replace("12290.5", "-1");
        assert!(Instructions::from_json(&negative).unwrap_err().contains("count anew"));
    }
}
