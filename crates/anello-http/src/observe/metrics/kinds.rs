//! Label values of the request and connection counters. The set is small and fixed, so a peer cannot create new time
//! series.

/// Values of the label `method`, in the order of the variants of [`Method`](crate::h1::Method). The last value stands
/// for all other methods, and for requests whose head could not be parsed.
pub(super) const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "other"];

/// Why a connection was closed.
///
/// ```
#[doc = metrics!()]
/// worker.connection_accepted();
/// worker.connection_closed(CloseReason::Idle);
/// assert!(scrape().contains("anello_http_connections_closed_total{reason=\"idle\"} 1\n"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed the connection between requests.
    Peer,
    /// The last response on the connection was sent: the client or the handler requested `close`, or the request limit
    /// was reached.
    Complete,
    /// No request arrived within the keep-alive timeout.
    Idle,
    /// The request head did not arrive in time.
    HeaderTimeout,
    /// The request body did not arrive in time.
    BodyTimeout,
    /// The peer read the response too slowly.
    SendTimeout,
    /// The request exceeded its total time limit.
    RequestTimeout,
    /// A request was rejected with a parse error ([`ParseErrorKind`]).
    ProtocolError,
    /// The peer reset the connection, or closed it in the middle of a request or a response.
    Aborted,
    /// The handler failed after part of the response was sent.
    HandlerError,
    /// The connection was upgraded to another protocol.
    Upgrade,
    /// The server is shutting down.
    Drain,
    /// The connection had been waiting the longest for its client and was evicted in favor of a new connection.
    Evicted,
}

/// Why a connection was rejected.
///
/// ```
#[doc = metrics!()]
/// worker.connection_rejected(RejectReason::MaxConnections);
/// assert!(scrape().contains("anello_http_connections_rejected_total{reason=\"max_connections\"} 1\n"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectReason {
    /// The maximum number of connections was reached.
    MaxConnections,
}

/// Class of a request parse error, derived from the response status code.
///
/// ```
#[doc = metrics!()]
/// worker.parse_error(ParseErrorKind::Malformed);
/// assert!(scrape().contains("anello_http_parse_errors_total{kind=\"malformed\"} 1\n"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// 400: malformed.
    Malformed,
    /// 413: the body exceeds its limit.
    BodyTooLarge,
    /// 414: the request target is too long.
    TargetTooLong,
    /// 417: unsupported expectation.
    Expectation,
    /// 431: the header fields are too large or too many.
    FieldsTooLarge,
    /// 501: unknown transfer coding.
    Coding,
    /// 505: unsupported HTTP version.
    Version,
    /// Any other status code.
    Other,
}

impl CloseReason {
    /// Label values, separated by spaces, in the order of the variants.
    pub(super) const LABELS: &str = "peer complete idle header_timeout body_timeout send_timeout request_timeout \
        protocol_error aborted handler_error upgrade drain evicted";
    pub(super) const COUNT: usize = Self::Evicted as usize + 1;
}

impl RejectReason {
    pub(super) const LABELS: &str = "max_connections";
    pub(super) const COUNT: usize = Self::MaxConnections as usize + 1;
}

impl ParseErrorKind {
    pub(super) const LABELS: &str =
        "malformed body_too_large target_too_long expectation fields_too_large coding version other";
    pub(super) const COUNT: usize = Self::Other as usize + 1;

    /// Returns the class of a parse error that is reported with this status code.
    ///
    /// ```
    /// use anello_http::observe::metrics::ParseErrorKind;
    ///
    /// assert_eq!(ParseErrorKind::of(414), ParseErrorKind::TargetTooLong);
    /// assert_eq!(ParseErrorKind::of(408), ParseErrorKind::Other);
    /// ```
    pub fn of(status: u16) -> Self {
        match status {
            400 => Self::Malformed,
            413 => Self::BodyTooLarge,
            414 => Self::TargetTooLong,
            417 => Self::Expectation,
            431 => Self::FieldsTooLarge,
            501 => Self::Coding,
            505 => Self::Version,
            _ => Self::Other,
        }
    }
}

/// A status code outside the range 100 to 599 is counted in the nearest class.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
