//! The places in the matrix: what is asked of the contenders, how much of it at once, how fast, on how many cores.
//!
//! A [`Workload`] is what is asked; a [`Cell`] is one point at which it is measured; a [`Group`] holds the cells that
//! belong into one chart.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::site::Target;
use crate::tls::Cipher;

/// What is asked of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Workload {
    /// To send every message back as it came, over TCP.
    Echo {
        /// Payload of one request, and of its reply.
        message_bytes: usize,
    },
    /// To answer GET over HTTP/1.1.
    Http {
        /// What is asked for.
        target: Target,
        /// Requests in flight on each connection.
        pipelining: usize,
        /// Whether each request has a connection of its own, so that opening it is a part of its latency.
        reconnect: bool,
        /// By what TLS encrypts; none for plain HTTP. Where each request has a connection of its own, each makes a full
        /// handshake.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cipher: Option<Cipher>,
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
    pub fn server_noun(self) -> &'static str {
        if self.is_disk() { "worker" } else { "server" }
    }

    /// Plain HTTP requests for `target`, one at a time on connections that are kept.
    #[must_use]
    pub const fn http(target: Target) -> Workload {
        Workload::Http { target, pipelining: 1, reconnect: false, cipher: None }
    }

    /// The same over TLS, if it is HTTP.
    #[must_use]
    pub fn under(self, cipher: Cipher) -> Workload {
        match self {
            Workload::Http { target, pipelining, reconnect, .. } => {
                Workload::Http { target, pipelining, reconnect, cipher: Some(cipher) }
            }
            other => other,
        }
    }

    /// By what TLS encrypts; none where there is none.
    #[must_use]
    pub fn cipher(self) -> Option<Cipher> {
        match self {
            Workload::Http { cipher, .. } => cipher,
            _ => None,
        }
    }

    /// What is asked for over HTTP; none of other workloads.
    #[must_use]
    pub fn target(self) -> Option<Target> {
        match self {
            Workload::Http { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether answers are larger than what a socket takes at once, and are sent as the reader reads them.
    #[must_use]
    pub fn has_large_answers(self) -> bool {
        self.target().is_some_and(Target::is_large)
    }

    /// Whether it has closed loops: requests that follow each other over connections.
    #[must_use]
    pub fn has_loops(self) -> bool {
        matches!(self, Workload::Echo { .. } | Workload::Http { .. })
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
    /// Connections open at once. Without an offered rate each has one request in flight, over HTTP as many as the workload
    /// says. For disks the operations in flight (queue depth).
    pub connections: usize,
    /// Requests offered per second over all connections, whatever the server does; none: each connection sends as soon
    /// as it has its answer.
    pub offered_per_second: Option<u64>,
    /// Cores that the server may use.
    pub server_cores: usize,
}

/// From so many connections for each core of the servers on, a closed loop keeps both sides busy.
pub const SATURATION_CONNECTIONS_PER_CORE: usize = 16;

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

    /// HTTP requests for `target` over `connections` connections that are kept, as fast as the server answers, on one
    /// core.
    #[must_use]
    pub const fn http(target: Target, connections: usize) -> Cell {
        Cell { workload: Workload::http(target), ..Cell::echo(1, connections) }
    }

    /// Whether this is a closed loop: no offered rate, so that each connection sends as soon as it has its answer.
    #[must_use]
    pub fn is_closed_loop(&self) -> bool {
        self.workload.has_loops() && self.offered_per_second.is_none()
    }

    /// Whether this is a closed loop with requests enough in flight to keep both sides busy: [`SATURATION_CONNECTIONS_PER_CORE`] connections for
    /// each core of the servers. Several requests in flight on one connection travel together and are answered together,
    /// so that they are no crowd.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.is_closed_loop()
            && self.connections >= SATURATION_CONNECTIONS_PER_CORE.saturating_mul(self.server_cores)
    }

    /// The part of their cores that servers have in this cell, if they are to have `share` in crowded closed loops: less
    /// where they have more cores than the load, all where they share one with it.
    ///
    /// All where answers are large, too: who sets the pace is no close race there. On loopback a server's core does the
    /// work of both sides in the kernel, so that with some 100 KiB it is busy while the load has time left; with megabytes
    /// the load, which copies and compares every byte, is slower by far, whatever a server has of its core. And the pieces
    /// that are taken away would stand in the middle of answers, where they show in every latency.
    #[must_use]
    pub fn server_share(&self, share: f64, server_cores: &[usize], load_cores: &[usize]) -> f64 {
        if !self.is_saturated() || self.workload.has_large_answers() || server_cores == load_cores {
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
            Workload::Http { target, .. } => {
                write!(formatter, "{}, {target}", counted(*connections, "connection"))?;
                write_loop_kind(formatter, workload)?;
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
            Workload::Http { target, .. } => {
                write!(formatter, "{target}")?;
                if !target.name().starts_with(|first: char| first.is_ascii_digit()) {
                    write!(formatter, " ({})", target.size_in_words())?;
                }
                write_loop_kind(formatter, self)
            }
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

/// How connections are used over HTTP, where it is not plain and one request after the other.
fn write_loop_kind(formatter: &mut fmt::Formatter<'_>, workload: &Workload) -> fmt::Result {
    let Workload::Http { pipelining, reconnect, cipher, .. } = workload else { return Ok(()) };
    if let Some(cipher) = cipher {
        write!(formatter, ", TLS {cipher}")?;
    }
    if *pipelining > 1 {
        write!(formatter, ", pipelining {pipelining}")?;
    }
    if *reconnect { formatter.write_str(", a connection per request") } else { Ok(()) }
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
        assert_eq!(share(Cell::echo(128, SATURATION_CONNECTIONS_PER_CORE)), 0.8);
        assert_eq!(share(Cell::echo(128, SATURATION_CONNECTIONS_PER_CORE - 1)), 1.0);
        assert_eq!(
            share(Cell { server_cores: 2, ..Cell::echo(128, 2 * SATURATION_CONNECTIONS_PER_CORE) }),
            0.4
        );
        assert_eq!(
            share(Cell { server_cores: 2, ..Cell::echo(128, 2 * SATURATION_CONNECTIONS_PER_CORE - 1) }),
            1.0
        );
        assert_eq!(share(Cell { offered_per_second: Some(1), ..Cell::echo(128, 300) }), 1.0);
        assert_eq!(share(Cell { workload: Workload::Idle, ..Cell::echo(128, 300) }), 1.0);
        assert_eq!(Cell::echo(128, 300).server_share(0.8, &[0], &[0]), 1.0, "the load is on the same core");
    }

    #[test]
    fn servers_of_small_answers_are_held_back_as_those_of_messages_and_of_large_ones_not() {
        let share = |cell: Cell| cell.server_share(0.8, &[0], &[1]);
        for target in Target::ALL {
            let expected = if [Target::Large, Target::Huge].contains(&target) { 1.0 } else { 0.8 };
            assert_eq!(share(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE)), expected, "{target}");
            assert!(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE).is_saturated());
            assert_eq!(share(Cell::http(target, SATURATION_CONNECTIONS_PER_CORE - 1)), 1.0);
            assert_eq!(share(Cell { offered_per_second: Some(1), ..Cell::http(target, 50) }), 1.0);
        }
        let deep = Workload::Http { target: Target::Hello, pipelining: 64, reconnect: false, cipher: None };
        assert_eq!(
            share(Cell { workload: deep, ..Cell::echo(1, 1) }),
            1.0,
            "what is in flight on one travels together"
        );
    }

    #[test]
    fn cells_are_named_in_words() {
        assert_eq!(Cell::echo(128, 1).to_string(), "1 connection, 128 bytes");
        let rated = Cell { offered_per_second: Some(20_000), server_cores: 2, ..Cell::echo(1024, 80) };
        assert_eq!(rated.to_string(), "80 connections, 1024 bytes, 20,000 requests/s offered, 2 cores");
        let disk = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
        let deep = Cell { workload: disk, ..Cell::echo(1, 16) };
        assert_eq!(deep.to_string(), "random reads, direct, 4096 bytes, queue depth 16");
        assert_eq!(Cell::http(Target::Page, 50).to_string(), "50 connections, page.html");
        assert_eq!(Workload::http(Target::Page).to_string(), "page.html (6 KiB)");
        assert_eq!(Workload::http(Target::Huge).to_string(), "10m.bin");
        let manner = |pipelining, reconnect| Workload::Http {
            target: Target::Fixed,
            pipelining,
            reconnect,
            cipher: None,
        };
        assert_eq!(manner(16, false).to_string(), "/fixed (13 bytes), pipelining 16");
        let each = Cell { workload: manner(1, true), ..Cell::echo(1, 2) };
        assert_eq!(each.to_string(), "2 connections, /fixed, a connection per request");
        let secure = Cell { workload: each.workload.under(Cipher::Aes128Gcm), ..each };
        let words = "2 connections, /fixed, TLS AES-128-GCM, a connection per request";
        assert_eq!(secure.to_string(), words);
        let page = Workload::http(Target::Page).under(Cipher::Aes256Gcm);
        assert_eq!(page.to_string(), "page.html (6 KiB), TLS AES-256-GCM");
        let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
        assert_eq!(idle.to_string(), "1000 idle connections");
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped_digits), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn plain_http_is_written_as_before_there_was_tls() {
        let written = |workload: Workload| serde_json::to_string(&workload).unwrap();
        let plain = Workload::http(Target::Hello);
        let before = r#"{"kind":"http","target":"hello.txt","pipelining":1,"reconnect":false}"#;
        assert_eq!(written(plain), before);
        let secure = plain.under(Cipher::Aes128Gcm);
        assert_eq!(written(secure), before.replace('}', r#","cipher":"aes-128-gcm"}"#));
        for workload in [plain, secure] {
            assert_eq!(serde_json::from_str::<Workload>(&written(workload)).unwrap(), workload);
        }
        assert_eq!(Workload::Idle.under(Cipher::Aes128Gcm), Workload::Idle);
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
