//! Configuration of a load run.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::shard::Shard;
use crate::model::tls::Tls;
use crate::system::nanoseconds;

const MAX_MESSAGE_BYTES: usize = 1 << 30;
const MAX_PIPELINE_DEPTH: usize = 1024;
const MAX_REQUESTS_PER_SECOND: u64 = 1_000_000_000;
const MAX_SWEEP_STEPS: u64 = 1000;
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const MAX_THREADS: usize = 1024;
/// Maximum number of connections from one loopback address to one server address. This is less than a third of the
/// ports that the kernel tries first, so ports remain free while those of a previous load run are in TIME_WAIT.
const MAX_CONNECTIONS_PER_SOURCE: usize = 4000;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
    /// Abstract name of a Unix stream socket (`unix(7)`).
    Abstract(String),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Abstract(name) => write!(formatter, "unix:@{name}"),
        }
    }
}

/// Configuration of a load run. [`LoadConfig::echo`] and [`LoadConfig::http`] set defaults. All fields may be changed.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Address of the server.
    pub target: Address,
    /// Protocol of the requests, and their contents.
    pub protocol: Protocol,
    /// When requests are sent: after each reply ([`Mode::Closed`], the default) or on a fixed schedule.
    pub mode: Mode,
    /// Total number of connections over all threads and shards; 50 by default.
    pub connections: usize,
    /// Part of the load that this process generates; `None` by default, which means the whole load. `connections`, the
    /// rate and the ramp are those of the whole load.
    pub shard: Option<Shard>,
    /// Start of the warm-up, or of the measurement if there is no warm-up, according to the system clock
    /// (`CLOCK_REALTIME`). `None` by default: the load starts as soon as the connections are open. Otherwise, the
    /// connections are opened during the last [`connect_timeout`](Self::connect_timeout) before this time. Ignored by
    /// [`Session`](crate::Session).
    pub start_at: Option<SystemTime>,
    /// Number of threads, each with its own runtime and its share of the connections; 1 by default.
    pub threads: usize,
    /// Cores that the threads are pinned to, one per thread. Empty by default; the threads are then not pinned.
    pub cores: Vec<usize>,
    /// Duration of the measurement, and of each step of a sweep; 10 seconds by default. Replies to requests in flight
    /// may arrive later.
    pub duration: Duration,
    /// Total number of requests over all threads and shards, after which the load ends, even before
    /// [`duration`](Self::duration); `None` by default, which means no limit. Requests during the warm-up do not count.
    /// Requests that fail do, except those that are sent again. Each thread sends the part of its connections. Not
    /// available for a sweep.
    pub requests: Option<u64>,
    /// Duration of the warm-up before the measurement; 0 by default. Requests during the warm-up do not count.
    pub warm_up: Duration,
    /// Time over which the opening of the connections is spread evenly, from the start of the warm-up. Each connection
    /// sends requests as soon as it is open. With 0, the default, all connections are opened before the load starts.
    pub ramp: Duration,
    /// Open loop: time after the end of the schedule during which requests queued for a busy connection can still be
    /// sent; 1 second by default. Requests that remain are counted as unsent.
    pub drain_timeout: Duration,
    /// Whether every byte of every reply is compared with its expected value rather than merely counted; off by
    /// default. Messages differ by connection and by request, so a reply to a different request is detected. With HTTP,
    /// later responses for a path are compared with its first complete response that has an expected status.
    pub verify: bool,
    /// Whether a connection is opened again after an error; off by default. If an HTTP server closes or resets a
    /// connection between requests, that is not an error, and the connection is always opened again. A request that was
    /// sent less than one second before such a close is sent again if the connection has already received a reply. Its
    /// latency is measured from the first time it was sent.
    pub reconnect: bool,
    /// Timeout for opening all connections; 10 seconds by default, at most 24 hours. In a ramp, and when a connection
    /// is reopened, the timeout applies to each connection separately.
    pub connect_timeout: Duration,
    /// Maximum time from sending a request to the end of its reply; 5 seconds by default, at most 24 hours. It is
    /// checked at least four times in this period, so a connection is aborted after at most 1.25 times the timeout.
    pub stall_timeout: Duration,
    /// Maximum number of connections that each thread opens at the same time; 64 by default, which suits servers with a
    /// short accept queue.
    pub max_concurrent_connects: usize,
    /// Local addresses that connections use in turn (`bind(2)` with `IP_BIND_ADDRESS_NO_PORT`, Linux 4.2). Empty by
    /// default. [`effective_source_addresses`](Self::effective_source_addresses) returns the addresses in use.
    pub source_addresses: Vec<IpAddr>,
    /// ID of a process on this machine, usually the server, whose resource usage is measured; `None` by default.
    pub server_pid: Option<u32>,
    /// Length of the intervals in which results are recorded; 1 second by default, at least 10 ms.
    pub interval: Duration,
}

/// Protocol of the requests, and their contents.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a load has only one value")]
#[non_exhaustive]
pub enum Protocol {
    /// Messages of fixed length. Byte `i` of a reply is byte `i mod request_bytes` of its request. With equal lengths,
    /// the reply is an echo of the request.
    Messages {
        /// Length of a request in bytes.
        request_bytes: usize,
        /// Length of a reply in bytes.
        response_bytes: usize,
    },
    /// HTTP/1.1 requests.
    Http(HttpLoad),
}

/// Configuration of HTTP/1.1 requests.
#[derive(Clone, Debug)]
pub struct HttpLoad {
    /// Method of the requests; `GET` by default. `CONNECT` is not supported.
    pub method: String,
    /// Body of each request, sent with a `Content-Length` field; empty by default.
    pub body: Bytes,
    /// Value of the `Host` field.
    pub host: String,
    /// Paths that every connection requests in turn. Consecutive connections start with consecutive paths.
    pub paths: Vec<String>,
    /// Additional header fields of each request.
    pub headers: Vec<(String, String)>,
    /// Whether a connection is used for more than one request; on by default. If off, each request uses its own
    /// connection, and opening the connection is part of the request latency.
    pub keep_alive: bool,
    /// Maximum number of requests in flight on a connection; 1 by default.
    pub pipeline_depth: usize,
    /// Expected status codes; 200 by default. If empty, every status is accepted.
    pub expected_status: Vec<u16>,
    /// Expected body of every response, compared if [`verify`](LoadConfig::verify) is set.
    pub expected_body: Option<Bytes>,
    /// TLS configuration; `None` by default. The handshake is part of opening a connection. If each request uses its
    /// own connection, the handshake is part of the request latency.
    pub tls: Option<Tls>,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// Closed loop: each connection sends the next request after the reply. Measures maximum throughput.
    Closed {
        /// Pause between a reply and the next request; 0 by default.
        #[serde(rename = "think_ns", serialize_with = "serialize_ns", deserialize_with = "deserialize_ns")]
        think_time: Duration,
    },
    /// Open loop: requests are sent at fixed times, whether or not replies arrive. Measures latency at a given rate,
    /// from the time at which each request was due.
    Open {
        /// Requests per second, over all connections.
        per_second: u64,
        /// Distribution of the due times.
        arrivals: Arrivals,
        /// Seed of Poisson arrivals.
        seed: u64,
    },
    /// A sequence of open loops at rising rates over the same connections, until the server no longer keeps up.
    Sweep(Sweep),
}

/// Parameters of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// First rate, in requests per second.
    pub first: u64,
    /// Last rate, in requests per second.
    pub last: u64,
    /// Difference between consecutive rates, in requests per second.
    pub step: u64,
    /// Distribution of the due times.
    pub arrivals: Arrivals,
    /// Seed of Poisson arrivals.
    pub seed: u64,
    /// Criteria for saturation of the server. Not part of reports.
    #[serde(skip)]
    pub knee: Knee,
}

/// Limits beyond which the server counts as saturated. A sweep stops after the first step that violates one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knee {
    /// Minimum percentage of the offered requests that are answered within the step; 95 by default.
    pub min_answered_percent: u32,
    /// Maximum 99th percentile latency, as a multiple of the value in the first step; 10 by default.
    pub max_latency_factor: u32,
}

impl Default for Knee {
    fn default() -> Self {
        Self { min_answered_percent: 95, max_latency_factor: 10 }
    }
}

impl Sweep {
    /// Returns all rates in ascending order.
    pub fn rates(&self) -> impl Iterator<Item = u64> + use<> {
        (self.first..=self.last).step_by(usize::try_from(self.step.max(1)).unwrap_or(usize::MAX))
    }
}

/// Distribution of the due times in an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arrivals {
    /// Constant gaps.
    Constant,
    /// Exponentially distributed gaps, like those between requests of many independent users.
    Poisson,
}

fn serialize_ns<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(nanoseconds(*duration))
}

fn deserialize_ns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_nanos)
}

impl LoadConfig {
    /// Creates a configuration with default settings for an echo server, with messages of `message_bytes` bytes.
    pub fn echo(target: impl Into<Address>, message_bytes: usize) -> Self {
        Self::new(
            target.into(),
            Protocol::Messages { request_bytes: message_bytes, response_bytes: message_bytes },
        )
    }

    /// Creates a configuration with default settings for an HTTP/1.1 server, with GET requests for one path.
    pub fn http(target: impl Into<Address>, host: &str, path: &str) -> Self {
        let http = HttpLoad {
            method: "GET".to_owned(),
            body: Bytes::new(),
            host: host.to_owned(),
            paths: vec![path.to_owned()],
            headers: Vec::new(),
            keep_alive: true,
            pipeline_depth: 1,
            expected_status: vec![200],
            expected_body: None,
            tls: None,
        };
        Self::new(target.into(), Protocol::Http(http))
    }

    fn new(target: Address, protocol: Protocol) -> Self {
        Self {
            target,
            protocol,
            mode: Mode::Closed { think_time: Duration::ZERO },
            connections: 50,
            shard: None,
            start_at: None,
            threads: 1,
            cores: Vec::new(),
            duration: Duration::from_secs(10),
            requests: None,
            warm_up: Duration::ZERO,
            ramp: Duration::ZERO,
            drain_timeout: Duration::from_secs(1),
            verify: false,
            reconnect: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(5),
            max_concurrent_connects: 64,
            source_addresses: Vec::new(),
            server_pid: None,
            interval: Duration::from_secs(1),
        }
    }

    /// Returns the source addresses of the connections: [`source_addresses`](Self::source_addresses) if not empty.
    /// Otherwise, if more than 4,000 connections go to a target in 127.0.0.0/8, returns 127.0.0.1, 127.0.0.2 and so on,
    /// with at most 4,000 connections per address. Empty if the kernel chooses the address.
    pub fn effective_source_addresses(&self) -> Vec<IpAddr> {
        let Some(target) = self.tcp_target() else { return Vec::new() };
        let has_other_addresses = target.is_ipv4() && target.ip().is_loopback();
        if !self.source_addresses.is_empty()
            || !has_other_addresses
            || self.connections <= MAX_CONNECTIONS_PER_SOURCE
        {
            return self.source_addresses.clone();
        }
        let first = u32::from(Ipv4Addr::LOCALHOST);
        let count = u32::try_from(self.connections.div_ceil(MAX_CONNECTIONS_PER_SOURCE)).unwrap_or(u32::MAX);
        // The last address of the network is its broadcast address.
        let addresses = first..first.saturating_add(count).min(first | 0x00ff_fffe);
        addresses.map(|address| IpAddr::V4(address.into())).collect()
    }

    /// Returns the number of connections of this process: those of its shard, or all.
    pub fn own_connections(&self) -> usize {
        self.shard.as_ref().map_or(self.connections, |shard| shard.connections(self.connections))
    }

    fn tcp_target(&self) -> Option<SocketAddr> {
        if let Address::Tcp(target) = self.target { Some(target) } else { None }
    }

    pub(crate) fn http_load(&self) -> Option<&HttpLoad> {
        if let Protocol::Http(http) = &self.protocol { Some(http) } else { None }
    }

    /// Checks the configuration. Returns a description of the first problem and its remedy.
    pub fn validate(&self) -> Result<(), String> {
        let (threads, connections, target) = (self.threads, self.connections, self.tcp_target());
        let other_family = |target: SocketAddr| {
            self.source_addresses.iter().find(|source| source.is_ipv4() != target.is_ipv4())
        };
        let problem = if connections == 0 || self.max_concurrent_connects == 0 {
            "the numbers of connections and of concurrent connection attempts must be at least 1".to_owned()
        } else if let Some(shard) = &self.shard
            && shard.index >= shard.count
        {
            format!("invalid shard {shard} (expected an index from 0 to the number of shards minus 1)")
        } else if let Some(shard) = &self.shard
            // The same for all shards, so that none of them runs if one cannot.
            && threads > connections / shard.count
        {
            format!(
                "cannot divide {connections} connections into {} shards with {threads} threads each (every thread \
                 needs at least one connection)",
                shard.count
            )
        } else if self.shard.as_ref().is_some_and(|shard| shard.count > 1)
            && matches!(self.mode, Mode::Sweep(_))
        {
            "a sweep cannot be divided into shards, because each would find a knee of its own (use a single rate for \
             each run)"
                .to_owned()
        } else if !(1..=MAX_THREADS).contains(&threads) || threads > connections {
            format!(
                "cannot run {threads} threads with {connections} connections (use 1 to {MAX_THREADS} threads with at \
                 least one connection each)"
            )
        } else if !self.cores.is_empty() && self.cores.len() != threads {
            format!("{} cores for {threads} threads (specify one core per thread)", self.cores.len())
        } else if let Some(target) = target
            && let Some(source) = other_family(target)
        {
            format!(
                "cannot connect from {source} to {target}: different address families (use source addresses of the \
                 target's family)"
            )
        } else if target.is_none() && !self.source_addresses.is_empty() {
            "source addresses cannot be used with a Unix socket target".to_owned()
        } else if self.connect_timeout.is_zero() || self.stall_timeout.is_zero() {
            "connect and stall timeouts must be greater than 0 (an unresponsive server would block the run)"
                .to_owned()
        } else if self.connect_timeout.max(self.stall_timeout) > MAX_TIMEOUT {
            "connect and stall timeouts must be at most 24 hours".to_owned()
        } else if self.requests == Some(0) {
            "the number of requests must be at least 1".to_owned()
        } else if self.requests.is_some() && matches!(self.mode, Mode::Sweep(_)) {
            "the number of requests of a sweep cannot be limited (use a single rate, or set the duration of a step)"
                .to_owned()
        } else if self.interval < Duration::from_millis(10) {
            "interval must be at least 10 ms".to_owned()
        } else if self.ramp > self.warm_up.saturating_add(self.duration) {
            "ramp must not be longer than warm-up and duration together (shorten the ramp or extend the duration)"
                .to_owned()
        } else {
            self.target.validate()?;
            self.protocol.validate()?;
            return self.mode.validate();
        };
        Err(problem)
    }
}

impl Address {
    fn validate(&self) -> Result<(), String> {
        let address = match self {
            Self::Tcp(_) => return Ok(()),
            Self::Unix(path) => UnixAddress::from_pathname(path),
            Self::Abstract(name) => UnixAddress::from_abstract_name(name),
        };
        address.map(drop).map_err(|error| format!("cannot connect to {self}: {error} (use a shorter name)"))
    }
}

impl Protocol {
    fn validate(&self) -> Result<(), String> {
        match self {
            Self::Messages { request_bytes, response_bytes } => {
                let mut lengths = [request_bytes, response_bytes].into_iter();
                match lengths.find(|bytes| !(1..=MAX_MESSAGE_BYTES).contains(bytes)) {
                    None => Ok(()),
                    Some(bytes) => Err(format!(
                        "invalid message length {bytes} (expected 1 to {MAX_MESSAGE_BYTES} bytes)"
                    )),
                }
            }
            Self::Http(http) => http.validate(),
        }
    }
}

impl HttpLoad {
    fn validate(&self) -> Result<(), String> {
        let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_value = |text: &str| text.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f));
        let is_name = |name: &str| !name.is_empty() && is_printable(name) && !name.contains(':');
        let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(is_token_byte);
        let is_header = |(name, value): &(String, String)| is_name(name) && is_value(value);
        let is_body_header = |name: &str| {
            ["content-length", "transfer-encoding"].iter().any(|other| name.eq_ignore_ascii_case(other))
        };
        let depth = self.pipeline_depth;
        let problem = if !(1..=MAX_PIPELINE_DEPTH).contains(&depth) {
            format!("invalid pipeline depth {depth} (expected 1 to {MAX_PIPELINE_DEPTH} requests in flight)")
        } else if depth > 1 && !self.keep_alive {
            "pipelining requires keep-alive (enable keep-alive or set the pipeline depth to 1)".to_owned()
        } else if self.paths.is_empty() {
            "no path configured (specify at least one)".to_owned()
        } else if let Some(path) =
            self.paths.iter().find(|path| !path.starts_with('/') || !is_printable(path))
        {
            format!(
                "invalid path {path:?} (must start with / and consist of printable ASCII; write other characters \
                 as %XX)"
            )
        } else if let Some((name, value)) = self.headers.iter().find(|header| !is_header(header)) {
            format!("invalid header field {name:?}: {value:?} (expected NAME: VALUE on one line)")
        } else if let Some((name, _)) = self.headers.iter().find(|(name, _)| is_body_header(name)) {
            format!("header field {name} is not allowed: it is determined by the body")
        } else if !is_token(&self.method) {
            format!("invalid method {:?}", self.method)
        } else if self.method == "CONNECT" {
            "method CONNECT is not supported (it opens a tunnel in place of a response)".to_owned()
        } else if self.method == "HEAD" && self.expected_body.is_some() {
            "responses to HEAD have no body (remove the expected body, or use another method)".to_owned()
        } else if self.body.len() > MAX_MESSAGE_BYTES {
            format!("invalid body length {} (expected at most {MAX_MESSAGE_BYTES} bytes)", self.body.len())
        } else if self.host.is_empty() || !is_printable(&self.host) {
            format!("invalid host {:?}", self.host)
        } else {
            return Ok(());
        };
        Err(problem)
    }
}

impl Mode {
    /// Returns the first rate, the arrival distribution and the seed of an open loop.
    pub(crate) fn open_loop(&self) -> Option<(u64, Arrivals, u64)> {
        match self {
            Self::Closed { .. } => None,
            Self::Open { per_second, arrivals, seed } => Some((*per_second, *arrivals, *seed)),
            Self::Sweep(sweep) => Some((sweep.first, sweep.arrivals, sweep.seed)),
        }
    }

    fn validate(&self) -> Result<(), String> {
        let validate_rate = |per_second: u64| match (1..=MAX_REQUESTS_PER_SECOND).contains(&per_second) {
            true => Ok(()),
            false => Err(format!(
                "invalid rate: {per_second} requests per second (expected 1 to {MAX_REQUESTS_PER_SECOND})"
            )),
        };
        match self {
            Self::Closed { .. } => Ok(()),
            Self::Open { per_second, .. } => validate_rate(*per_second),
            Self::Sweep(Sweep { first, last, step, .. }) => {
                validate_rate(*first).and_then(|()| validate_rate(*last))?;
                let steps = last.saturating_sub(*first) / (*step).max(1) + 1;
                if *step > 0 && last >= first && steps <= MAX_SWEEP_STEPS {
                    return Ok(());
                }
                Err(format!(
                    "invalid sweep: rates must rise from the first to the last in 1 to {MAX_SWEEP_STEPS} steps"
                ))
            }
        }
    }
}
