//! Options of a server.

use std::time::Duration;

use crate::h1::Limits;

/// Limits and timeouts of a server's connections.
///
/// Deadlines are checked every [`timer_resolution`](Self::timer_resolution). They expire up to two resolutions late,
/// never early.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Limits for the requests of one connection.
    pub limits: Limits,
    /// Maximum time from the first byte of a head to its end; by default 10 s. For the first head of a connection, the
    /// time starts when the connection is accepted. A late client receives 408. A client that has sent nothing is
    /// disconnected without a response.
    pub header_timeout: Duration,
    /// Maximum idle time of a connection between requests; by default 60 s.
    pub keep_alive_timeout: Duration,
    /// Maximum time to wait for a body, in addition to the time that
    /// [`min_body_bytes_per_second`](Self::min_body_bytes_per_second) grants; by default 10 s. Time during which the
    /// handler does not read the body does not count. A late client receives 408.
    pub body_timeout: Duration,
    /// Minimum average rate of a body, in bytes per second; by default 500.
    pub min_body_bytes_per_second: u64,
    /// Maximum time during which the kernel accepts no data for a client; by default 30 s.
    ///
    /// The kernel must accept the next 64 KiB of a response, or further file data. It is not enough for the client to
    /// read a byte: the kernel accepts more data when about a third of the socket's send buffer is free. This buffer
    /// grows to megabytes (`net.ipv4.tcp_wmem`: at most 4 MiB by default), and so does the client's receive buffer
    /// (`net.ipv4.tcp_rmem`: 6 MiB).
    ///
    /// A client that reads nothing is therefore detected only after both buffers are full. A client that reads slowly
    /// is disconnected if it frees too little space within the timeout. To be safe, it must read one to two megabytes
    /// in this time. At 100 kB/s, a timeout of 3 s may be too short; the default is sufficient.
    ///
    /// When the timeout expires, the connection is reset, so that the kernel frees the data that the client has not
    /// read. Clients in this state are also reset when [`request_timeout`](Self::request_timeout) expires or the server
    /// shuts down.
    pub send_timeout: Duration,
    /// Maximum time from the head of a request to the end of its response; unlimited by default.
    ///
    /// When the timeout expires, the connection is closed without a further response. A pending handler, or the body
    /// that it streams, is dropped at its current await point ([`Server::serve`](crate::Server::serve)). A handler that
    /// never yields cannot be stopped. A request without a response is counted and logged with status 503.
    ///
    /// If a body is delimited only by closing the connection (HTTP/1.0), the connection is reset, here and whenever a
    /// connection is aborted. Otherwise the truncated body would appear complete.
    pub request_timeout: Option<Duration>,
    /// Maximum number of open connections of one worker, or of all servers that
    /// [share a count](crate::ServerBuilder::shared_connection_count); by default 10,000. Further clients receive 503.
    pub max_connections: usize,
    /// Connections that are closed to make room for new ones; by default none.
    pub eviction: Eviction,
    /// Maximum number of clients rejected because of [`max_connections`](Self::max_connections) whose connections stay
    /// open until they have read the response; by default 64. When it is exceeded, the oldest of these connections are
    /// closed.
    pub refusals: usize,
    /// Maximum number of body bytes that the server reads and discards to keep a connection alive, if the handler does
    /// not read them; by default 64 KiB. If more follow, the connection is closed after the response.
    pub max_discarded_body_bytes: u64,
    /// Maximum time that a connection stays open after the server has shut it down while the client is still sending,
    /// so that a reset does not discard the last response; by default 2 s.
    pub linger_timeout: Duration,
    /// During a drain: minimum idle time after which a connection is closed immediately; by default 500 ms. A more
    /// active client can send one more request, and the response announces the close.
    pub drain_min_idle: Duration,
    /// During a drain: maximum time for pending requests. After that, their connections are closed and their handlers
    /// dropped, as with [`request_timeout`](Self::request_timeout); by default 30 s.
    pub drain_timeout: Duration,
    /// Interval at which deadlines are checked and the date is updated; by default 250 ms.
    pub timer_resolution: Duration,
}

/// The connections that a server closes to make room for new ones, in the order of their waiting time, longest first.
///
/// A connection is never closed while its handler runs and the client waits for the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// None. Clients beyond [`ServerOptions::max_connections`] are rejected.
    #[default]
    Never,
    /// Idle connections: between two requests, or before the first request.
    Idle {
        /// Number of open connections at which a new connection causes evictions. It includes the connections of all
        /// servers that [share a count](crate::ServerBuilder::shared_connection_count).
        threshold: usize,
    },
    /// Idle connections, and connections in the middle of a request or a response if the client sends or accepts no
    /// data.
    Stalled {
        /// Number of open connections, as in [`Idle`](Self::Idle).
        threshold: usize,
    },
}

impl Eviction {
    pub(super) fn threshold(self) -> Option<usize> {
        match self {
            Self::Never => None,
            Self::Idle { threshold } | Self::Stalled { threshold } => Some(threshold),
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            min_body_bytes_per_second: 500,
            send_timeout: Duration::from_secs(30),
            request_timeout: None,
            max_connections: 10_000,
            eviction: Eviction::Never,
            refusals: 64,
            max_discarded_body_bytes: 64 * 1024,
            linger_timeout: Duration::from_secs(2),
            drain_min_idle: Duration::from_millis(500),
            drain_timeout: Duration::from_secs(30),
            timer_resolution: Duration::from_millis(250),
        }
    }
}
