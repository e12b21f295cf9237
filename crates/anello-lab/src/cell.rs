//! The places in the matrix: what is asked of the contenders, how much of it at once, how fast, on how many cores.
//!
//! A [`Workload`] is what is asked; a [`Cell`] is one point at which it is measured; a [`Group`] holds the cells that
//! belong into one chart.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is asked of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Workload {
    /// To send every message back as it came, over TCP.
    Echo {
        /// Payload of one request, and of its reply.
        message_bytes: usize,
    },
    /// To hold connections open that have exchanged one message each and then say nothing. What is measured is the
    /// memory of the process, not its speed.
    Idle,
    /// To read or write blocks of one file. What answers is a worker, not a server.
    Disk {
        /// Which way.
        operation: DiskOperation,
        /// Past the page cache (`O_DIRECT`) or through it.
        direct: bool,
        /// Bytes of one operation.
        block_bytes: usize,
    },
}

impl Workload {
    /// What is asked for and counted: requests, of a disk operations.
    #[must_use]
    pub fn unit(self) -> &'static str {
        if self.is_disk() { "operation" } else { "request" }
    }

    /// Who answers: a server, of a disk a worker.
    #[must_use]
    pub fn answerer(self) -> &'static str {
        if self.is_disk() { "worker" } else { "server" }
    }

    /// Whether it is work on a disk.
    #[must_use]
    pub fn is_disk(self) -> bool {
        matches!(self, Workload::Disk { .. })
    }
}

/// Which way a disk is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskOperation {
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
    /// Reads one block after the other.
    SequentialRead,
    /// Writes one block after the other.
    SequentialWrite,
}

/// One point of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// What is asked.
    pub workload: Workload,
    /// Connections open at once. Without an offered rate each has one request in flight. For disks the operations in
    /// flight (queue depth).
    pub connections: usize,
    /// Requests offered per second over all connections, whatever the server does; none: each connection sends as soon
    /// as it has its answer.
    pub offered_per_second: Option<u64>,
    /// Cores that the server may use.
    pub server_cores: usize,
}

/// From so many connections for each core of the servers on, a closed loop keeps both sides busy.
pub const CROWD: usize = 16;

impl Cell {
    /// Echo of `message_bytes` over `connections` connections, as fast as the server answers, on one core.
    #[must_use]
    pub const fn echo(message_bytes: usize, connections: usize) -> Cell {
        Cell {
            workload: Workload::Echo { message_bytes },
            connections,
            offered_per_second: None,
            server_cores: 1,
        }
    }

    /// Whether this is a closed loop with requests enough in flight to keep both sides busy: [`CROWD`] connections for
    /// each core of the servers, and no offered rate.
    #[must_use]
    pub fn is_crowded_loop(&self) -> bool {
        let echo = matches!(self.workload, Workload::Echo { .. });
        let crowd = CROWD.saturating_mul(self.server_cores);
        echo && self.offered_per_second.is_none() && self.connections >= crowd
    }

    /// The part of their cores that servers have in this cell, if they are to have `share` in crowded closed loops: less
    /// where they have more cores than the load, all where they share one with it.
    #[must_use]
    pub fn server_share(&self, share: f64, server_cores: &[usize], load_cores: &[usize]) -> f64 {
        if !self.is_crowded_loop() || server_cores == load_cores {
            return 1.0;
        }
        share * (load_cores.len() as f64 / self.server_cores.max(1) as f64).min(1.0)
    }

    /// The chart that this cell belongs into.
    #[must_use]
    pub fn group(&self) -> Group {
        Group {
            workload: self.workload,
            server_cores: self.server_cores,
            connections: self.offered_per_second.map(|_| self.connections),
        }
    }

    /// Where the cell stands in its group's chart: its offered rate if it has one, else its connections (disk: its
    /// queue depth).
    #[must_use]
    pub fn position(&self) -> f64 {
        match self.offered_per_second {
            Some(rate) => rate as f64,
            None => self.connections as f64,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { workload, connections, offered_per_second, server_cores } = self;
        match workload {
            Workload::Echo { message_bytes } => {
                write!(formatter, "{}, {message_bytes} bytes", counted(*connections, "connection"))?;
            }
            Workload::Idle => formatter.write_str(&counted(*connections, "idle connection"))?,
            Workload::Disk { .. } => write!(formatter, "{workload}, queue depth {connections}")?,
        }
        if let Some(rate) = offered_per_second {
            write!(formatter, ", {} requests/s offered", grouped_digits(*rate))?;
        }
        if *server_cores > 1 {
            write!(formatter, ", {server_cores} cores")?;
        }
        Ok(())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Echo { message_bytes } => write!(formatter, "{message_bytes} bytes"),
            Workload::Idle => formatter.write_str("idle connections"),
            Workload::Disk { operation, direct, block_bytes } => {
                let way = if *direct { "direct" } else { "buffered" };
                write!(formatter, "{operation}, {way}, {block_bytes} bytes")
            }
        }
    }
}

impl fmt::Display for DiskOperation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            DiskOperation::RandomRead => "random reads",
            DiskOperation::RandomWrite => "random writes",
            DiskOperation::SequentialRead => "sequential reads",
            DiskOperation::SequentialWrite => "sequential writes",
        })
    }
}

/// The cells that belong into one chart: they differ only in connections, or, where rates are offered, only in these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// What is asked.
    pub workload: Workload,
    /// Cores of the server.
    pub server_cores: usize,
    /// Connections, where the cells differ in their offered rate.
    pub connections: Option<usize>,
}

impl fmt::Display for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.workload)?;
        if let Some(connections) = self.connections {
            write!(formatter, ", {}", counted(connections, "connection"))?;
        }
        if self.server_cores > 1 {
            write!(formatter, ", {} cores", self.server_cores)?;
        }
        Ok(())
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// 1234567 as 1,234,567.
fn grouped_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_held_back_in_crowded_closed_loops_alone() {
        let share = |cell: Cell| cell.server_share(0.8, &[0, 2], &[1]);
        assert_eq!(share(Cell::echo(128, CROWD)), 0.8);
        assert_eq!(share(Cell::echo(128, CROWD - 1)), 1.0);
        assert_eq!(share(Cell { server_cores: 2, ..Cell::echo(128, 2 * CROWD) }), 0.4);
        assert_eq!(share(Cell { server_cores: 2, ..Cell::echo(128, 2 * CROWD - 1) }), 1.0);
        assert_eq!(share(Cell { offered_per_second: Some(1), ..Cell::echo(128, 300) }), 1.0);
        assert_eq!(share(Cell { workload: Workload::Idle, ..Cell::echo(128, 300) }), 1.0);
        assert_eq!(Cell::echo(128, 300).server_share(0.8, &[0], &[0]), 1.0, "the load is on the same core");
    }

    #[test]
    fn cells_are_named_in_words() {
        assert_eq!(Cell::echo(128, 1).to_string(), "1 connection, 128 bytes");
        let rated = Cell { offered_per_second: Some(20_000), server_cores: 2, ..Cell::echo(1024, 80) };
        assert_eq!(rated.to_string(), "80 connections, 1024 bytes, 20,000 requests/s offered, 2 cores");
        let disk = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
        let deep = Cell { workload: disk, ..Cell::echo(1, 16) };
        assert_eq!(deep.to_string(), "random reads, direct, 4096 bytes, queue depth 16");
        let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
        assert_eq!(idle.to_string(), "1000 idle connections");
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped_digits), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_group_holds_the_cells_of_one_chart() {
        assert_eq!(Cell::echo(128, 1).group(), Cell::echo(128, 300).group());
        assert_ne!(Cell::echo(128, 1).group(), Cell::echo(1024, 1).group());
        let rated =
            |rate, connections| Cell { offered_per_second: Some(rate), ..Cell::echo(100, connections) };
        assert_eq!(rated(1000, 80).group(), rated(2000, 80).group());
        assert_ne!(rated(1000, 80).group(), rated(1000, 250).group());
        assert_ne!(rated(1000, 80).group(), Cell::echo(100, 80).group());
        assert_eq!(rated(1000, 80).group().to_string(), "100 bytes, 80 connections");
        assert_eq!((rated(1000, 80).position(), Cell::echo(100, 80).position()), (1000.0, 80.0));
    }
}
