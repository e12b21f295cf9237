//! Server options.

use std::time::Duration;

use super::proxies::{ProxyHeader, TrustedProxy};
use crate::h1::Limits;

/// Limits and timeouts for a server's connections.
///
/// Deadlines are checked every [`timer_resolution`](Self::timer_resolution). They may expire late, by up to two such
/// intervals, but never early.
///
/// ```
/// use std::time::Duration;
///
/// use anello_http::ServerOptions;
///
/// let options = ServerOptions::default().max_connections(500).header_timeout(Duration::from_secs(5));
/// assert_eq!(options.max_connections, 500);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Limits for the requests of one connection.
    pub limits: Limits,
    /// Maximum time from the first byte of a head to its end (default: 10 s). For the first head, the time starts when
    /// the connection is accepted. A client that exceeds the limit receives 408. A client that has sent nothing is
    /// disconnected without a response.
    pub header_timeout: Duration,
    /// Maximum idle time of a connection between requests (default: 60 s).
    pub keep_alive_timeout: Duration,
    /// Maximum time to wait for a body, in addition to the time allowed by
    /// [`min_body_bytes_per_second`](Self::min_body_bytes_per_second) (default: 10 s). Time during which the handler is
    /// not reading the body is not counted. When it expires, the read fails with
    /// [`RequestBodyError::Rejected`](crate::RequestBodyError::Rejected) and status 408, and the handler responds.
    pub body_timeout: Duration,
    /// Minimum average rate of a body, in bytes per second (default: 500).
    pub min_body_bytes_per_second: u64,
    /// Maximum time during which the kernel accepts no data for a client (default: 30 s). When it expires, the
    /// connection is reset, so that the kernel frees the data that the client has not read. Connections in this state
    /// are also reset when [`request_timeout`](Self::request_timeout) expires or the server shuts down.
    ///
    /// The times of several waits are added up until the kernel has accepted the amount that
    /// [`min_send_bytes_per_second`](Self::min_send_bytes_per_second) requires.
    ///
    /// Within this time, the kernel must accept the next 128 KiB of a response, or further file data. It accepts more
    /// data only when about a third of the socket's send buffer is free. This buffer grows to megabytes
    /// (`net.ipv4.tcp_wmem`: at most 4 MiB by default), and so does the client's receive buffer (`net.ipv4.tcp_rmem`: 6
    /// MiB). A client that reads nothing is therefore detected only once both buffers are full, and a client that reads
    /// slowly must read one to two megabytes within the timeout to be safe. At 100 kB/s, a timeout of 3 s may be too
    /// short; the default is sufficient.
    pub send_timeout: Duration,
    /// Minimum rate at which a client must accept a response while the server waits for it, in bytes per second (default:
    /// 500). In waits of [`send_timeout`](Self::send_timeout) altogether, it must accept the bytes of this time, which are
    /// 15,000 by default. A client that accepts single bytes, for example with a small flow-control window of HTTP/2,
    /// therefore does not occupy the server for longer. If 0, each byte restarts the timeout.
    pub min_send_bytes_per_second: u64,
    /// Maximum time from the request head to the end of the response (default: unlimited). When it expires, the
    /// connection is closed without a further response. A pending handler, or the body that it streams, is dropped at
    /// its current await point ([`Server::serve`](crate::Server::serve)). A handler that never yields cannot be stopped.
    /// A request without a response is counted and logged with status 503.
    ///
    /// As with every abort, the connection is reset if the response body is delimited only by closing the connection
    /// (HTTP/1.0). Otherwise the truncated body would appear complete.
    pub request_timeout: Option<Duration>,
    /// Maximum number of open connections of one worker, or of all servers that [share a
    /// count](crate::ServerBuilder::shared_connection_count) (default: 10,000). Further clients receive 503.
    pub max_connections: usize,
    /// Proxies whose information about their clients is used in the access log (default: none). Handlers receive it from
    /// the fields of the request, and with the PROXY protocol also from [`Request::peer`](crate::Request::peer).
    pub trusted_proxies: Vec<TrustedProxy>,
    /// How the trusted proxies report the addresses of their clients (default: `X-Forwarded-For`).
    pub proxy_header: ProxyHeader,
    /// Connections that are closed to make room for new ones (default: none).
    pub eviction: Eviction,
    /// Maximum number of connections that are kept open so that clients rejected because of
    /// [`max_connections`](Self::max_connections) can read the response (default: 64). If there are more, the oldest
    /// are closed.
    pub refusals: usize,
    /// Maximum number of body bytes that the server reads and discards to keep a connection alive when the handler
    /// leaves them unread (default: 64 KiB). If more follow, the connection is closed after the response.
    pub max_discarded_body_bytes: u64,
    /// Maximum time that a connection stays open after the server has shut it down, if the client is still sending
    /// (default: 2 s). This avoids a reset, which could discard the last response.
    pub linger_timeout: Duration,
    /// Keeps a request whose client has shut down its write direction, and can therefore still receive the response
    /// (default: `false`). Otherwise, EOF from the client cancels a handler or response body that is pending at the next
    /// check of the deadlines: nearly always, the client has closed the connection. With TLS, a close_notify is EOF too,
    /// unless 64 KiB or more that the handler has not read precede it: the server receives less than 82 KiB ahead. To a
    /// handler that is waiting for the request body, the body reports the EOF. With this option, only a reset cancels, and
    /// a client that has closed the connection occupies its handler until the response is sent. Has no effect on HTTP/2,
    /// whose clients end a request with its stream, nor on Unix sockets, whose clients must close the connection.
    pub half_close: bool,
    /// Time after the last request at which an idle connection frees its buffers, until the next request arrives (default:
    /// 4 s). A shorter time saves memory, and costs CPU time for clients that send requests at longer intervals.
    /// Connections with TLS or HTTP/2 keep their state.
    pub suspend_after: Duration,
    /// During a drain, connections that have been idle for at least this time are closed immediately (default: 500 ms).
    /// A client that was active more recently can send one more request, and the response announces the close.
    pub drain_min_idle: Duration,
    /// Grace period for in-flight requests during a drain (default: 30 s). After that, their connections are closed and
    /// their handlers dropped, as with [`request_timeout`](Self::request_timeout).
    pub drain_timeout: Duration,
    /// Interval at which deadlines are checked and the date is updated (default: 250 ms).
    pub timer_resolution: Duration,
    /// Connections on which clients may use HTTP/2 (default: those with TLS).
    #[cfg(feature = "http2")]
    pub http2: Http2Mode,
    /// Maximum number of requests that are served at the same time on one HTTP/2 connection (default: 100). Clients learn
    /// the limit when they connect; further requests are refused and can be repeated safely.
    #[cfg(feature = "http2")]
    pub http2_max_concurrent_streams: u32,
}

setters!(ServerOptions {
    limits: Limits = Limits { max_body_bytes: 1024, ..Limits::default() },
    header_timeout: Duration = Duration::from_secs(5),
    keep_alive_timeout: Duration = Duration::from_secs(15),
    body_timeout: Duration = Duration::from_secs(5),
    min_body_bytes_per_second: u64 = 1000,
    send_timeout: Duration = Duration::from_secs(10),
    min_send_bytes_per_second: u64 = 1000,
    request_timeout: Option<Duration> = Some(Duration::from_secs(60)),
    max_connections: usize = 500,
    trusted_proxies: Vec<TrustedProxy> = vec!["10.0.0.0/8".parse().unwrap()],
    proxy_header: ProxyHeader = ProxyHeader::Forwarded,
    eviction: Eviction = Eviction::Idle { threshold: 400 },
    refusals: usize = 16,
    max_discarded_body_bytes: u64 = 4096,
    linger_timeout: Duration = Duration::from_secs(1),
    half_close: bool = true,
    suspend_after: Duration = Duration::from_secs(10),
    drain_min_idle: Duration = Duration::from_secs(1),
    drain_timeout: Duration = Duration::from_secs(10),
    timer_resolution: Duration = Duration::from_millis(100),
});

#[cfg(feature = "http2")]
setters!(ServerOptions { http2: Http2Mode = Http2Mode::Off, http2_max_concurrent_streams: u32 = 10 });

/// The connections on which clients may use HTTP/2.
///
/// All versions have the same handlers, limits and timeouts. `Http2Mode::Cleartext` is for clients that know that the
/// server supports HTTP/2, such as gRPC clients and proxies. Such a connection starts with the HTTP/2 preface; all
/// others are served with HTTP/1.1.
///
/// ```
/// use anello_http::ServerOptions;
/// use anello_http::server::Http2Mode;
///
/// assert_eq!(ServerOptions::default().http2, Http2Mode::Tls);
/// let options = ServerOptions::default().http2(Http2Mode::Cleartext);
/// assert_eq!(options.http2, Http2Mode::Cleartext);
/// ```
#[cfg(feature = "http2")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Http2Mode {
    /// None.
    Off,
    /// Connections with TLS, if the client prefers HTTP/2 (ALPN).
    #[default]
    Tls,
    /// Connections with TLS, and connections without it if the client starts with the HTTP/2 preface ("prior
    /// knowledge", RFC 9113, section 3.3).
    Cleartext,
}

impl ServerOptions {
    /// Returns the number of bytes that a client must accept in waits of [`send_timeout`](Self::send_timeout) altogether.
    pub(super) fn min_send_bytes(&self) -> u64 {
        let bytes = u128::from(self.min_send_bytes_per_second) * self.send_timeout.as_millis() / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns `true` if TLS connections offer HTTP/2.
    pub(super) fn offers_http2(&self) -> bool {
        #[cfg(feature = "http2")]
        return self.http2 != Http2Mode::Off;
        #[cfg(not(feature = "http2"))]
        false
    }
}

/// The connections that a server may close to make room for new ones. Those that have waited longest are closed first.
/// A connection is never closed while its handler is running and the client is waiting for the response.
///
/// ```
/// use anello_http::ServerOptions;
/// use anello_http::server::Eviction;
///
/// let options = ServerOptions::default().max_connections(1000).eviction(Eviction::Idle { threshold: 900 });
/// assert_ne!(options.eviction, Eviction::Never);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// No connections. Clients beyond [`ServerOptions::max_connections`] are rejected.
    #[default]
    Never,
    /// Idle connections: between two requests, or before the first request.
    Idle {
        /// Number of open connections at which a new connection causes evictions. It includes the connections of all
        /// servers that [share a count](crate::ServerBuilder::shared_connection_count).
        threshold: usize,
    },
    /// Idle connections, and connections in the middle of a request or a response if the client is neither sending nor
    /// accepting data.
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
            min_send_bytes_per_second: 500,
            request_timeout: None,
            max_connections: 10_000,
            trusted_proxies: Vec::new(),
            proxy_header: ProxyHeader::default(),
            eviction: Eviction::Never,
            refusals: 64,
            max_discarded_body_bytes: 64 * 1024,
            linger_timeout: Duration::from_secs(2),
            half_close: false,
            suspend_after: Duration::from_secs(4),
            drain_min_idle: Duration::from_millis(500),
            drain_timeout: Duration::from_secs(30),
            timer_resolution: Duration::from_millis(250),
            #[cfg(feature = "http2")]
            http2: Http2Mode::default(),
            #[cfg(feature = "http2")]
            http2_max_concurrent_streams: 100,
        }
    }
}
