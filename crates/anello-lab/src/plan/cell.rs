//! Cells of the benchmark matrix: workload, concurrency, rate and server cores.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::site::Target;

/// Kind of request that a contender processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Workload {
    /// Echoes every message unchanged over TCP.
    Echo {
        /// Payload of a request and its reply, in bytes.
        message_bytes: usize,
    },
    /// Responds to GET requests over HTTP/1.1.
    Http {
        /// Requested resource.
        target: Target,
        /// Number of requests in flight on each connection.
        pipelining: usize,
        /// `true` if each request uses a new connection, so that its latency includes connecting.
        reconnect: bool,
        /// TLS cipher. `None` for plain HTTP. With `reconnect`, each request needs a full handshake.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cipher: Option<Cipher>,
    },
    /// Keeps connections open and idle after one message on each, to measure the memory usage of the process.
    Idle,
    /// Reads or writes blocks of a file. The contender is a worker, not a server.
    Disk {
        /// Type of access.
        operation: DiskOperation,
        /// `true` if the page cache is bypassed (`O_DIRECT`).
        direct: bool,
        /// Size of one operation in bytes.
        block_bytes: usize,
    },
}

impl Workload {
    /// Returns the noun for the counted unit of work.
    pub fn unit(self) -> &'static str {
        if self.is_disk() { "operation" } else { "request" }
    }

    pub(crate) fn server_noun(self) -> &'static str {
        if self.is_disk() { "worker" } else { "server" }
    }

    /// Returns a workload of plain HTTP requests for `target`, one at a time on keep-alive connections.
    pub const fn http(target: Target) -> Workload {
        Workload::Http { target, pipelining: 1, reconnect: false, cipher: None }
    }

    /// Returns this workload with TLS if it is an HTTP workload, and any other workload unchanged.
    pub fn under(self, cipher: Cipher) -> Workload {
        let Workload::Http { target, pipelining, reconnect, .. } = self else { return self };
        Workload::Http { target, pipelining, reconnect, cipher: Some(cipher) }
    }

    /// Returns the TLS cipher, if any.
    pub fn cipher(self) -> Option<Cipher> {
        if let Workload::Http { cipher, .. } = self { cipher } else { None }
    }

    /// Returns the requested HTTP resource.
    pub fn target(self) -> Option<Target> {
        if let Workload::Http { target, .. } = self { Some(target) } else { None }
    }

    /// See [`Target::is_large`].
    pub(crate) fn has_large_answers(self) -> bool {
        self.target().is_some_and(Target::is_large)
    }

    pub(crate) fn has_loops(self) -> bool {
        matches!(self, Workload::Echo { .. } | Workload::Http { .. })
    }

    pub(crate) fn is_disk(self) -> bool {
        matches!(self, Workload::Disk { .. })
    }
}

/// Cipher for TLS 1.3 connections.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
#[non_exhaustive]
pub enum Cipher {
    /// AES with 128-bit keys.
    #[default]
    #[serde(rename = "aes-128-gcm")]
    #[strum(to_string = "AES-128-GCM")]
    Aes128Gcm,
    /// AES with 256-bit keys, OpenSSL's default.
    #[serde(rename = "aes-256-gcm")]
    #[strum(to_string = "AES-256-GCM")]
    Aes256Gcm,
}

impl Cipher {
    /// Returns the cipher suite's name in rustls.
    pub const fn suite(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "TLS13_AES_128_GCM_SHA256",
            Cipher::Aes256Gcm => "TLS13_AES_256_GCM_SHA384",
        }
    }
}

/// Type of disk access.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskOperation {
    /// Reads at random offsets.
    #[strum(to_string = "random reads")]
    RandomRead,
    /// Writes at random offsets.
    #[strum(to_string = "random writes")]
    RandomWrite,
    /// Reads consecutive blocks.
    #[strum(to_string = "sequential reads")]
    SequentialRead,
    /// Writes consecutive blocks.
    #[strum(to_string = "sequential writes")]
    SequentialWrite,
}

/// A point in the benchmark matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Kind of request.
    pub workload: Workload,
    /// Number of open connections. Without an offered rate, each has one request in flight, or `pipelining`
    /// requests over HTTP. For disks, the number of operations in flight (queue depth).
    pub connections: usize,
    /// Requests offered per second across all connections, independent of the server's speed. If `None`, each
    /// connection sends its next request when it receives a response.
    pub offered_per_second: Option<u64>,
    /// Number of cores available to the server.
    pub server_cores: usize,
}

/// Minimum number of connections per server core at which a closed loop keeps the server and the load generator busy.
pub const SATURATION_CONNECTIONS_PER_CORE: usize = 16;

impl Cell {
    /// Returns a closed-loop echo cell on one core, with `message_bytes` per message.
    pub const fn echo(message_bytes: usize, connections: usize) -> Cell {
        Cell {
            workload: Workload::Echo { message_bytes },
            connections,
            offered_per_second: None,
            server_cores: 1,
        }
    }

    /// Returns a closed-loop HTTP cell on one core, with keep-alive connections.
    pub const fn http(target: Target, connections: usize) -> Cell {
        Cell { workload: Workload::http(target), ..Cell::echo(1, connections) }
    }

    /// Returns whether each connection waits for a response before it sends the next request (no offered rate).
    pub(crate) fn is_closed_loop(&self) -> bool {
        self.workload.has_loops() && self.offered_per_second.is_none()
    }

    /// Returns whether this cell is a closed loop that keeps the server and the load generator busy. Pipelining is not
    /// considered, because the requests on one connection are sent and processed together.
    pub fn is_saturated(&self) -> bool {
        self.is_closed_loop()
            && self.connections >= SATURATION_CONNECTIONS_PER_CORE.saturating_mul(self.server_cores)
    }

    /// Returns the CPU share of the servers in this cell: `share` in a saturated closed loop, otherwise 1. The share is
    /// smaller if the servers have more cores than the load generator, and 1 if both use the same cores.
    ///
    /// It is also 1 for large responses, where the bottleneck is clear anyway: with a few hundred KiB per response, the
    /// server is busy, and with several megabytes, the load generator copies and compares every byte and is much
    /// slower. In addition, limiting the CPU time would interrupt responses and distort all latencies.
    pub fn server_share(&self, share: f64, server_cores: &[usize], load_cores: &[usize]) -> f64 {
        self.server_share_beside(share, load_cores.len(), server_cores == load_cores)
    }

    /// Returns the share as [`server_share`](Self::server_share) for this number of load generator cores.
    /// `shares_cores` is `true` if they are also the cores of the servers.
    pub(crate) fn server_share_beside(&self, share: f64, load_cores: usize, shares_cores: bool) -> f64 {
        if !self.is_saturated() || self.workload.has_large_answers() || shares_cores {
            return 1.0;
        }
        share * (load_cores as f64 / self.server_cores.max(1) as f64).min(1.0)
    }

    /// Returns the group whose chart contains this cell.
    pub fn group(&self) -> Group {
        Group {
            workload: self.workload,
            server_cores: self.server_cores,
            connections: self.offered_per_second.map(|_| self.connections),
        }
    }

    /// Returns the x position in the chart: the offered rate, or the number of connections (disk: the queue depth).
    pub fn position(&self) -> f64 {
        self.offered_per_second.unwrap_or(self.connections as u64) as f64
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
                let mode = if *direct { "direct" } else { "buffered" };
                write!(formatter, "{operation}, {mode}, {block_bytes} bytes")
            }
        }
    }
}

/// Cells of one chart. They differ only in the number of connections or, with offered rates, only in the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Kind of request.
    pub workload: Workload,
    /// Number of server cores.
    pub server_cores: usize,
    /// Number of connections, if the cells differ in their offered rate.
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

/// Writes TLS, pipelining and reconnection, if used.
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

pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn grouped_digits(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped_digits(number / 1000), number % 1000),
    }
}
