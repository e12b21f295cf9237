//! What a server is told.

use std::time::Duration;

use crate::h1::Limits;

/// Limits and deadlines of a server's connections.
///
/// Deadlines are looked at every [`timer_resolution`](Self::timer_resolution): they strike up to two of these late, never early.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Limits of one connection's requests.
    pub limits: Limits,
    /// How long a head may take from its first byte, and the first one of a connection from when that was accepted; by
    /// default 10 s. Then 408 is answered, and a client that has said nothing at all is only closed.
    pub header_timeout: Duration,
    /// How long a connection may be idle between requests; by default 60 s.
    pub keep_alive_timeout: Duration,
    /// How long a body may be waited for beyond what [`min_body_bytes_per_second`](Self::min_body_bytes_per_second) allows it; by
    /// default 10 s. Time that the handler takes for something else does not count. Then 408 is answered.
    pub body_timeout: Duration,
    /// The least rate of a body in bytes a second, averaged from its start; by default 500.
    pub min_body_bytes_per_second: u64,
    /// How long the kernel may take none of what is sent to a client; by default 30 s.
    ///
    /// What counts is that the kernel takes the next 64 KiB of an answer, or more of a file, not that the client reads a
    /// byte. It takes more when about a third of the socket's send buffer has become free, which grows to megabytes with
    /// what is sent (`net.ipv4.tcp_wmem`: 4 MiB at most, unless it was changed), as the client's receive buffer does
    /// (`net.ipv4.tcp_rmem`: 6 MiB). So it is not before both are full that a client that reads nothing is noticed, and one
    /// that reads steadily is cut if what it reads in this time makes no such room: to be safe, it has to read a megabyte
    /// or two. One of 100 kB/s may be cut with 3 s, and is served with the default.
    ///
    /// Then the connection is reset, so that the kernel keeps nothing of what the client has not taken. The same is done
    /// with clients that are waited for so when [`request_timeout`](Self::request_timeout) strikes or the server ends.
    pub send_timeout: Duration,
    /// How long a request may take from its head to the end of its answer; by default for ever. Then the connection is
    /// closed without another word, and a handler that is not done, or the body that it streams, is dropped at the await
    /// point where it waits ([`Server::serve`](crate::Server::serve)). A request that was not answered is counted and
    /// logged as 503. A handler that never waits cannot be stopped. A body that only the end of the connection delimits
    /// (HTTP/1.0) is cut by a reset, here and wherever a connection is broken off: it would seem to be whole.
    pub request_timeout: Option<Duration>,
    /// Most connections at a time of one worker, or of all that [count together](crate::ServerBuilder::shared_connection_count); by
    /// default 10,000. Clients beyond it are answered 503.
    pub max_connections: usize,
    /// Connections that are closed to make room for a further one; by default none.
    pub eviction: Eviction,
    /// Most clients that were refused, being beyond [`max_connections`](Self::max_connections), whose end is waited for, so that they
    /// can read why; by default 64. Beyond it, the connections of those that were refused first are closed.
    pub refusals: usize,
    /// Most bytes of a body that are read and dropped, when the handler has not read them, to keep the connection; by
    /// default 64 KiB. With more to come, the connection is closed behind the answer.
    pub max_discarded_body_bytes: u64,
    /// How long a connection that the server has ended is kept so that what was sent last is not lost to a reset, while
    /// the client still sends; by default 2 s.
    pub linger_timeout: Duration,
    /// When the server is told to end: how long a connection must have been idle to be closed at once, so that clients in
    /// the middle of something get an answer that says that it is the last; by default 500 ms.
    pub drain_min_idle: Duration,
    /// When the server is told to end: how long requests may take until their connections are closed, and their handlers
    /// dropped as by [`request_timeout`](Self::request_timeout); by default 30 s.
    pub drain_timeout: Duration,
    /// How often deadlines are looked at and the date is read; by default 250 ms.
    pub timer_resolution: Duration,
}

/// Connections that a server closes to make room for further ones, the one that has waited longest first. Connections whose
/// request is handled, and a client that waits for a response, are never closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// None: clients beyond [`ServerOptions::max_connections`] are refused.
    #[default]
    Never,
    /// Idle ones: those between two requests, and those whose first request has not begun.
    Idle {
        /// Open connections from which on a further one evicts, of all servers that
        /// [count together](crate::ServerBuilder::shared_connection_count).
        threshold: usize,
    },
    /// Also those in the middle of a request or a response whose client sends, or takes, nothing.
    Stalled {
        /// As with [`Idle`](Self::Idle).
        threshold: usize,
    },
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
