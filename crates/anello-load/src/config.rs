//! What to load, and how.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::source::loopback_sources;

/// Largest message, in bytes.
const MESSAGE_BYTES_LIMIT: usize = 1 << 30;

/// A load on a TCP echo server. [`TcpLoad::new`] has the defaults; every field may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpLoad {
    /// The server.
    pub target: SocketAddr,
    /// Connections, each with one request in flight; 50 by default.
    pub connections: usize,
    /// Bytes of a request, and of its reply; 128 by default.
    pub message_bytes: usize,
    /// How long to measure; 10 seconds by default. Requests in flight at the end are waited for.
    pub duration: Duration,
    /// Load before the measurement, not counted; none by default.
    pub warm_up: Duration,
    /// Whether every byte of every reply is compared with what was sent; if not, they are only counted. Off by
    /// default. Messages differ by connection and by request, so that a reply meant for another is found, too.
    pub verify: bool,
    /// How long opening all connections may take; 10 seconds by default.
    pub connect_timeout: Duration,
    /// How long a request may wait for the end of its reply; 5 seconds by default. Looked after four times in that
    /// time, so that a connection is given up after at most 1.25 times as long.
    pub stall_timeout: Duration,
    /// Connections that are being opened at a time; 64 by default, for servers with short queues.
    pub connects_at_once: usize,
    /// Addresses of this machine that the connections come from, in turn (`bind(2)` with `IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2). None by default; then [`sources_in_use`](Self::sources_in_use) says which.
    pub sources: Vec<IpAddr>,
    /// A process on this machine whose CPU time is measured: the server. None by default.
    pub server_pid: Option<u32>,
}

impl TcpLoad {
    /// The default load on `target`.
    #[must_use]
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            connections: 50,
            message_bytes: 128,
            duration: Duration::from_secs(10),
            warm_up: Duration::ZERO,
            verify: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(5),
            connects_at_once: 64,
            sources: Vec::new(),
            server_pid: None,
        }
    }

    /// The addresses that the connections come from: those named; else, when a target on 127.0.0.0/8 is to have more
    /// than 4,000 connections, as many of 127.0.0.1, 127.0.0.2 and so on as leave no more than that to each. Empty where
    /// the kernel chooses.
    ///
    /// From one address to one server there are about 28,000 ports, and opening the second half of them is slow.
    #[must_use]
    pub fn sources_in_use(&self) -> Vec<IpAddr> {
        match self.sources.is_empty() {
            true => loopback_sources(self.target, self.connections),
            false => self.sources.clone(),
        }
    }

    /// Says what is wrong with this configuration.
    ///
    /// # Errors
    /// The first fault found, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        if self.connections == 0 || self.connects_at_once == 0 {
            return Err("a load needs at least 1 connection, and to open at least 1 at a time".to_owned());
        }
        if !(1..=MESSAGE_BYTES_LIMIT).contains(&self.message_bytes) {
            return Err(format!(
                "messages must have 1 to {MESSAGE_BYTES_LIMIT} bytes, not {}",
                self.message_bytes
            ));
        }
        if let Some(source) = self.sources.iter().find(|source| source.is_ipv4() != self.target.is_ipv4()) {
            return Err(format!(
                "nothing can connect from {source} to {}: name sources of the target's family",
                self.target
            ));
        }
        if self.connect_timeout.is_zero() || self.stall_timeout.is_zero() {
            return Err(
                "the timeouts must be greater than 0: without them a dead server would hold the load"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn sources_that_are_named_are_those_in_use() {
        let many = TcpLoad { connections: 10_000, ..TcpLoad::new(([127, 0, 0, 1], 7000).into()) };
        assert_eq!(many.sources_in_use().len(), 3);
        let named = TcpLoad { sources: vec![[127, 1, 2, 3].into()], ..many };
        assert_eq!(named.sources_in_use(), named.sources);
    }

    #[test]
    fn faults_are_named() {
        let good = TcpLoad::new(([127, 0, 0, 1], 7000).into());
        assert_eq!(good.check(), Ok(()));
        let fault = |change: &dyn Fn(&mut TcpLoad)| {
            let mut load = good.clone();
            change(&mut load);
            load.check().unwrap_err()
        };
        assert!(fault(&|load| load.connections = 0).contains("1 connection"));
        assert!(fault(&|load| load.message_bytes = 0).contains("1 to"));
        assert!(fault(&|load| load.message_bytes = MESSAGE_BYTES_LIMIT + 1).contains("1 to"));
        assert!(
            fault(&|load| load.sources = vec![[127, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()])
                .contains("family")
        );
        assert!(fault(&|load| load.stall_timeout = Duration::ZERO).contains("timeouts"));
    }
}
