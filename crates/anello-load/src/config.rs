//! What to load, and how.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use crate::connect::loopback_addresses;
use crate::stream::Address;
use crate::tls::Tls;

/// Largest message and reply, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Most requests in flight on one connection.
const MAX_PIPELINE_DEPTH: usize = 1024;

/// Highest rate, in requests per second.
const MAX_REQUESTS_PER_SECOND: u64 = 1_000_000_000;

/// Most steps of a sweep.
const MAX_SWEEP_STEPS: u64 = 1000;

/// Longest timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Most threads.
const MAX_THREADS: usize = 1024;

/// A load on a server. [`LoadConfig::echo`] and [`LoadConfig::http`] have the defaults; every field may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// The server.
    pub target: Address,
    /// What is asked of it.
    pub protocol: Protocol,
    /// When it is asked: as soon as it has answered ([`Mode::Closed`], the default), or at fixed moments.
    pub mode: Mode,
    /// Connections, of all threads together; 50 by default.
    pub connections: usize,
    /// Threads, each with its own runtime and its share of the connections; 1 by default.
    pub threads: usize,
    /// Cores that the threads are pinned to, one each; not pinned if there are none, as by default.
    pub cores: Vec<usize>,
    /// How long to measure; each step of a sweep takes so long. 10 seconds by default. Requests in flight at the end are
    /// waited for.
    pub duration: Duration,
    /// Load before the measurement, not counted; none by default.
    pub warm_up: Duration,
    /// Connections are opened evenly over this time, each working as soon as it is open, instead of all before the load
    /// begins (0, the default). It begins with the warm-up, and belongs to the measurement as far as it takes longer.
    pub ramp: Duration,
    /// Open loop: how long requests that wait for a busy connection at the end may still be sent; what is left is
    /// counted as unsent. 1 second by default.
    pub drain_timeout: Duration,
    /// Whether every byte of every reply is compared with what it must be; if not, they are only counted. Off by
    /// default. Messages differ by connection and by request, so that a reply meant for another is found, too. Over
    /// HTTP, the first right response to a path is what the others are compared with.
    pub verify: bool,
    /// Whether a connection that broke is opened again; off by default. A server of HTTP may always close a connection
    /// between requests, whether it says so or not: that is no error, and it is opened again. A request that was just
    /// under way (for less than a second) is sent again then, if the connection has answered one before; its latency
    /// counts from the first time.
    pub reconnect: bool,
    /// How long opening all connections may take; 10 seconds by default, a day at most. In a ramp, and when a connection is opened
    /// again, how long that one may take.
    pub connect_timeout: Duration,
    /// How long a request may wait for the end of its reply; 5 seconds by default, a day at most. Looked after four times in that
    /// time, so that a connection is given up after at most 1.25 times as long.
    pub stall_timeout: Duration,
    /// Connections that each thread opens at a time; 64 by default, for servers with short queues.
    pub max_concurrent_connects: usize,
    /// Addresses of this machine that the connections come from, in turn (`bind(2)` with `IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2). None by default; then [`effective_source_addresses`](Self::effective_source_addresses) says which.
    pub source_addresses: Vec<IpAddr>,
    /// A process on this machine whose cost is measured: the server. None by default.
    pub server_pid: Option<u32>,
    /// How long the stretches are in which a run is recorded; 1 second by default.
    pub interval: Duration,
}

/// What is asked of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A message of so many bytes; a reply of so many. Byte `i` of a reply is byte `i mod request_bytes` of its request:
    /// where both are alike, an echo.
    Messages {
        /// Bytes of a request.
        request_bytes: usize,
        /// Bytes of a reply.
        response_bytes: usize,
    },
    /// GET over HTTP/1.1.
    Http(HttpLoad),
}

/// Requests over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLoad {
    /// The `Host` field.
    pub host: String,
    /// What to ask for, in turn; each connection begins with another one.
    pub paths: Vec<String>,
    /// Further fields of each request.
    pub headers: Vec<(String, String)>,
    /// Whether a connection takes more than one request; if not, each request has a connection of its own, and opening it
    /// is a part of its latency. On by default.
    pub keep_alive: bool,
    /// Requests that may be in flight on a connection; 1 by default.
    pub pipeline_depth: usize,
    /// Statuses that are right; 200 by default. Any is if there are none.
    pub expected_status: Vec<u16>,
    /// What the body must be, with [`verify`](LoadConfig::verify).
    pub expected_body: Option<Bytes>,
    /// TLS under it; none by default. The handshake is a part of opening a connection, so that with a connection for each
    /// request it is in the latency.
    pub tls: Option<Tls>,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each connection sends as soon as it has its reply. Finds the most a server can do.
    Closed {
        /// How long it waits first; none by default.
        think_time: Duration,
    },
    /// At moments that are fixed before, whether replies come or not. Shows how a server fares at a rate: latency is
    /// counted from the moment when the request was due, so that a pause of the server shows in all requests of that
    /// time.
    Open {
        /// Requests per second, over all connections.
        per_second: u64,
        /// How the moments are spread.
        arrivals: Arrivals,
        /// What Poisson arrivals follow from.
        seed: u64,
    },
    /// Open loops at rising rates over the same connections, one after the other, until the server does not follow.
    Sweep(Sweep),
}

/// Rising rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The first rate, in requests per second.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// From one to the next.
    pub step: u64,
    /// How the moments are spread.
    pub arrivals: Arrivals,
    /// What Poisson arrivals follow from.
    pub seed: u64,
    /// When the server does not follow.
    pub knee: Knee,
}

/// What says that a server does not follow a rate. The sweep stops at the first step of which one is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knee {
    /// Fewer requests are answered within the step than this percentage of those offered in it; 95 by default.
    pub min_answered_percent: u32,
    /// The 99th percentile of the latency is so many times that of the first step; 10 by default.
    pub max_latency_factor: u32,
}

impl Default for Knee {
    fn default() -> Self {
        Self { min_answered_percent: 95, max_latency_factor: 10 }
    }
}

impl Sweep {
    /// All rates, in order.
    pub fn rates(&self) -> impl Iterator<Item = u64> + use<> {
        (self.first..=self.last).step_by(usize::try_from(self.step.max(1)).unwrap_or(usize::MAX))
    }
}

/// How the moments of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly.
    Constant,
    /// As those of many independent users: the gaps are exponentially distributed.
    Poisson,
}

impl LoadConfig {
    /// The default load on an echo server: messages of so many bytes come back as they are.
    #[must_use]
    pub fn echo(target: impl Into<Address>, message_bytes: usize) -> Self {
        Self::new(
            target.into(),
            Protocol::Messages { request_bytes: message_bytes, response_bytes: message_bytes },
        )
    }

    /// The default load on a server of HTTP/1.1: GET of one path.
    #[must_use]
    pub fn http(target: impl Into<Address>, host: &str, path: &str) -> Self {
        let http = HttpLoad {
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
            threads: 1,
            cores: Vec::new(),
            duration: Duration::from_secs(10),
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

    /// The addresses that the connections come from: those named; else, when a target on 127.0.0.0/8 is to have more
    /// than 4,000 connections, as many of 127.0.0.1, 127.0.0.2 and so on as leave no more than that to each. Empty where
    /// the kernel chooses.
    ///
    /// From one address to one server there are about 28,000 ports, and opening the second half of them is slow.
    #[must_use]
    pub fn effective_source_addresses(&self) -> Vec<IpAddr> {
        match self.tcp_target() {
            Some(target) if self.source_addresses.is_empty() => loopback_addresses(target, self.connections),
            Some(_) => self.source_addresses.clone(),
            None => Vec::new(),
        }
    }

    fn tcp_target(&self) -> Option<SocketAddr> {
        match self.target {
            Address::Tcp(target) => Some(target),
            Address::Unix(_) | Address::Abstract(_) => None,
        }
    }

    pub(crate) fn http_load(&self) -> Option<&HttpLoad> {
        match &self.protocol {
            Protocol::Http(http) => Some(http),
            Protocol::Messages { .. } => None,
        }
    }

    /// Says what is wrong with this configuration.
    ///
    /// # Errors
    /// The first fault found, with the remedy.
    pub fn validate(&self) -> Result<(), String> {
        if self.connections == 0 || self.max_concurrent_connects == 0 {
            return Err("a load needs at least 1 connection, and to open at least 1 at a time".to_owned());
        }
        if !(1..=MAX_THREADS).contains(&self.threads) || self.threads > self.connections {
            return Err(format!(
                "{} threads cannot share {} connections: there must be 1 to {MAX_THREADS}, each with at least one \
                 connection",
                self.threads, self.connections
            ));
        }
        if !self.cores.is_empty() && self.cores.len() != self.threads {
            return Err(format!(
                "{} cores were named for {} threads: name one for each",
                self.cores.len(),
                self.threads
            ));
        }
        if let Some(target) = self.tcp_target()
            && let Some(source) =
                self.source_addresses.iter().find(|source| source.is_ipv4() != target.is_ipv4())
        {
            return Err(format!(
                "nothing can connect from {source} to {target}: name sources of the target's family"
            ));
        }
        if self.tcp_target().is_none() && !self.source_addresses.is_empty() {
            return Err("a Unix socket is connected to from nowhere: name no sources".to_owned());
        }
        if self.connect_timeout.is_zero() || self.stall_timeout.is_zero() {
            return Err(
                "the timeouts must be greater than 0: without them a dead server would hold the load"
                    .to_owned(),
            );
        }
        if self.connect_timeout.max(self.stall_timeout) > MAX_TIMEOUT {
            return Err("the timeouts must be 24 hours at most".to_owned());
        }
        if self.interval < Duration::from_millis(10) {
            return Err("the stretches that are recorded must take at least 10 ms".to_owned());
        }
        if self.ramp > self.warm_up.saturating_add(self.duration) {
            return Err(
                "the ramp must not be longer than warm-up and duration: shorten it, or load for longer"
                    .to_owned(),
            );
        }
        self.protocol.validate()?;
        self.mode.validate()
    }
}

impl Protocol {
    fn validate(&self) -> Result<(), String> {
        match self {
            Self::Messages { request_bytes, response_bytes } => {
                let wrong = [request_bytes, response_bytes]
                    .into_iter()
                    .find(|bytes| !(1..=MAX_MESSAGE_BYTES).contains(bytes));
                wrong.map_or(Ok(()), |bytes| {
                    Err(format!("messages must have 1 to {MAX_MESSAGE_BYTES} bytes, not {bytes}"))
                })
            }
            Self::Http(http) => http.validate(),
        }
    }
}

impl HttpLoad {
    fn validate(&self) -> Result<(), String> {
        if !(1..=MAX_PIPELINE_DEPTH).contains(&self.pipeline_depth) {
            return Err(format!("1 to {MAX_PIPELINE_DEPTH} requests may be in flight on a connection"));
        }
        if self.pipeline_depth > 1 && !self.keep_alive {
            return Err("a connection that takes one request cannot have several in flight".to_owned());
        }
        if self.paths.is_empty() {
            return Err("there is nothing to ask for: name at least one path".to_owned());
        }
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(path) = self.paths.iter().find(|path| !path.starts_with('/') || !printable(path)) {
            return Err(format!(
                "{path:?} is no path: it begins with / and has no spaces; write others as %XX"
            ));
        }
        let is_value = |text: &str| text.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f));
        let named = |name: &str| !name.is_empty() && printable(name) && !name.contains(':');
        if let Some((name, value)) =
            self.headers.iter().find(|(name, value)| !named(name) || !is_value(value))
        {
            return Err(format!("{name:?}: {value:?} is no header field: write NAME: VALUE on one line"));
        }
        let ours = ["content-length", "transfer-encoding"];
        if let Some((name, _)) =
            self.headers.iter().find(|(name, _)| ours.contains(&&*name.to_ascii_lowercase()))
        {
            return Err(format!("requests have no body, so that {name} would be wrong"));
        }
        if self.host.is_empty() || !printable(&self.host) {
            return Err(format!("{:?} is no host", self.host));
        }
        Ok(())
    }
}

impl Mode {
    fn validate(&self) -> Result<(), String> {
        let rate = |per_second: u64| match (1..=MAX_REQUESTS_PER_SECOND).contains(&per_second) {
            true => Ok(()),
            false => {
                Err(format!("{per_second} requests per second: it must be 1 to {MAX_REQUESTS_PER_SECOND}"))
            }
        };
        match self {
            Self::Closed { .. } => Ok(()),
            Self::Open { per_second, .. } => rate(*per_second),
            Self::Sweep(sweep) => {
                rate(sweep.first)?;
                rate(sweep.last)?;
                let steps = sweep.last.saturating_sub(sweep.first) / sweep.step.max(1) + 1;
                if sweep.step == 0 || sweep.last < sweep.first || steps > MAX_SWEEP_STEPS {
                    return Err(format!(
                        "a sweep goes up from the first rate to the last in 1 to {MAX_SWEEP_STEPS} steps"
                    ));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn echo() -> LoadConfig {
        LoadConfig::echo(SocketAddr::from(([127, 0, 0, 1], 7000)), 128)
    }

    #[test]
    fn sources_that_are_named_are_those_in_use() {
        let many = LoadConfig { connections: 10_000, ..echo() };
        assert_eq!(many.effective_source_addresses().len(), 3);
        let named = LoadConfig { source_addresses: vec![[127, 1, 2, 3].into()], ..many };
        assert_eq!(named.effective_source_addresses(), named.source_addresses);
    }

    #[test]
    fn a_sweep_ends_with_its_last_rate() {
        let sweep = |first, last, step| Sweep {
            first,
            last,
            step,
            arrivals: Arrivals::Constant,
            seed: 0,
            knee: Knee::default(),
        };
        assert_eq!(sweep(10, 30, 10).rates().collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(sweep(10, 29, 10).rates().collect::<Vec<_>>(), [10, 20]);
        assert_eq!(sweep(10, 10, 5).rates().collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn faults_are_named() {
        let http = LoadConfig::http(SocketAddr::from(([127, 0, 0, 1], 80)), "localhost", "/");
        for good in [echo(), http.clone()] {
            assert_eq!(good.validate(), Ok(()));
        }
        let fault = |change: &dyn Fn(&mut LoadConfig)| {
            let mut load = echo();
            change(&mut load);
            load.validate().unwrap_err()
        };
        assert!(fault(&|load| load.connections = 0).contains("1 connection"));
        assert!(fault(&|load| load.threads = 51).contains("51 threads"));
        assert!(fault(&|load| load.cores = vec![0, 1]).contains("2 cores"));
        assert!(fault(&|load| load.ramp = Duration::from_secs(11)).contains("ramp"));
        assert!(fault(&|load| load.interval = Duration::from_millis(1)).contains("10 ms"));
        for (request_bytes, response_bytes) in [(0, 1), (1, 0), (MAX_MESSAGE_BYTES + 1, 1)] {
            let protocol = Protocol::Messages { request_bytes, response_bytes };
            assert!(fault(&|load| load.protocol = protocol.clone()).contains("1 to"));
        }
        let sources = vec![[127, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()];
        assert!(fault(&|load| load.source_addresses.clone_from(&sources)).contains("family"));
        assert!(fault(&|load| load.stall_timeout = Duration::ZERO).contains("timeouts"));
        assert!(fault(&|load| load.stall_timeout = Duration::MAX).contains("24 hours"));
        assert!(fault(&|load| load.connect_timeout = Duration::MAX).contains("24 hours"));
        let open = |per_second| Mode::Open { per_second, arrivals: Arrivals::Constant, seed: 0 };
        assert!(fault(&|load| load.mode = open(0)).contains("per second"));
        let fault = |change: &dyn Fn(&mut HttpLoad)| {
            let mut load = http.clone();
            if let Protocol::Http(http) = &mut load.protocol {
                change(http);
            }
            load.validate().unwrap_err()
        };
        assert!(fault(&|http| http.paths.clear()).contains("path"));
        assert!(fault(&|http| http.paths[0] = "/a b".to_owned()).contains("%XX"));
        assert!(fault(&|http| http.pipeline_depth = 0).contains("in flight"));
        assert!(fault(&|http| http.headers.push(("A".to_owned(), "b\r\nC: d".to_owned()))).contains("NAME"));
        assert!(
            fault(&|http| http.headers.push(("Content-Length".to_owned(), "3".to_owned()))).contains("body")
        );
        assert!(fault(&|http| http.host.clear()).contains("host"));
    }
}
