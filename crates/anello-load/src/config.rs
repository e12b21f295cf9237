//! What to load, and how.

use std::net::SocketAddr;
use std::time::Duration;

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
            server_pid: None,
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
    use super::*;

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
        assert!(fault(&|load| load.stall_timeout = Duration::ZERO).contains("timeouts"));
    }
}
