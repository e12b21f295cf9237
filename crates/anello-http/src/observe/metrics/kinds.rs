//! Label values of the request and connection counters. The set is small and fixed, so a peer cannot create new time
//! series.

/// Label value of the request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodClass {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `PATCH`
    Patch,
    /// Any other method, or a request whose head could not be parsed.
    Other,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed the connection between requests.
    Peer,
    /// The last response was sent: the client or the handler requested `close`, or the request limit was reached.
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
    /// The connection had been waiting longest for its client, and was evicted in favor of a new one.
    Evicted,
}

/// Why a connection was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The maximum number of connections was reached.
    MaxConnections,
}

/// Class of a request parse error, derived from the status code of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl MethodClass {
    pub(super) const ALL: [Self; 8] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Delete, Self::Options, Self::Patch, Self::Other];

    /// Returns the class of a request method. The comparison is case-sensitive.
    #[must_use]
    pub fn of(method: &str) -> Self {
        match method {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            "PATCH" => Self::Patch,
            _ => Self::Other,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
            Self::Other => "other",
        }
    }
}

impl CloseReason {
    pub(super) const ALL: [Self; 13] = [
        Self::Peer,
        Self::Complete,
        Self::Idle,
        Self::HeaderTimeout,
        Self::BodyTimeout,
        Self::SendTimeout,
        Self::RequestTimeout,
        Self::ProtocolError,
        Self::Aborted,
        Self::HandlerError,
        Self::Upgrade,
        Self::Drain,
        Self::Evicted,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Complete => "complete",
            Self::Idle => "idle",
            Self::HeaderTimeout => "head_deadline",
            Self::BodyTimeout => "body_deadline",
            Self::SendTimeout => "write_stall",
            Self::RequestTimeout => "total_deadline",
            Self::ProtocolError => "refusal",
            Self::Aborted => "aborted",
            Self::HandlerError => "handler",
            Self::Upgrade => "upgrade",
            Self::Drain => "drain",
            Self::Evicted => "evicted",
        }
    }
}

impl RejectReason {
    pub(super) const ALL: [Self; 1] = [Self::MaxConnections];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::MaxConnections => "limit",
        }
    }
}

impl ParseErrorKind {
    pub(super) const ALL: [Self; 8] = [
        Self::Malformed,
        Self::BodyTooLarge,
        Self::TargetTooLong,
        Self::Expectation,
        Self::FieldsTooLarge,
        Self::Coding,
        Self::Version,
        Self::Other,
    ];

    /// Returns the class of a parse error that is reported with this status code.
    #[must_use]
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

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::BodyTooLarge => "body",
            Self::TargetTooLong => "target",
            Self::Expectation => "expectation",
            Self::FieldsTooLarge => "fields",
            Self::Coding => "coding",
            Self::Version => "version",
            Self::Other => "other",
        }
    }
}

/// Label values of the status class. A status code outside of 100 to 599 is counted in the nearest class.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

pub(super) fn status_class(status: u16) -> usize {
    usize::from((status / 100).clamp(1, 5)) - 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Checks that the position of each kind in `all` equals its discriminant, and that labels are unique.
    fn check<K: Copy>(all: &[K], discriminant: impl Fn(K) -> usize, label: impl Fn(K) -> &'static str) {
        assert!(all.iter().enumerate().all(|(index, &kind)| discriminant(kind) == index));
        let labels: HashSet<_> = all.iter().map(|&kind| label(kind)).collect();
        assert_eq!(labels.len(), all.len());
    }

    #[test]
    fn kinds_have_unique_labels_and_match_their_index() {
        check(&MethodClass::ALL, |kind| kind as usize, MethodClass::label);
        check(&CloseReason::ALL, |kind| kind as usize, CloseReason::label);
        check(&RejectReason::ALL, |kind| kind as usize, RejectReason::label);
        check(&ParseErrorKind::ALL, |kind| kind as usize, ParseErrorKind::label);
    }

    #[test]
    fn methods_and_statuses_map_to_their_classes() {
        for method in MethodClass::ALL {
            assert_eq!(MethodClass::of(method.label()), method);
        }
        assert_eq!(MethodClass::of("get"), MethodClass::Other, "methods are case-sensitive");
        assert_eq!(
            [0, 99, 100, 199, 200, 304, 404, 599, 600, 65535].map(status_class),
            [0, 0, 0, 0, 1, 2, 3, 4, 4, 4]
        );
        assert_eq!(
            [400, 413, 431, 418].map(ParseErrorKind::of).map(ParseErrorKind::label),
            ["malformed", "body", "fields", "other"]
        );
    }
}
