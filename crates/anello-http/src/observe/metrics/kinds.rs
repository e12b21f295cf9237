//! The labels that requests and connections are counted under: few, and known from the start, so that a peer cannot make
//! up new ones.

/// Methods that are counted apart.
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
    /// Any other, and requests that could not be read.
    Other,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer ended it between requests.
    Peer,
    /// An answer was the last one: the peer or the handler asked for it, or the limit of requests was reached.
    Complete,
    /// No request came within the time for idle connections.
    Idle,
    /// The head of a request took too long.
    HeaderTimeout,
    /// The body of a request took too long.
    BodyTimeout,
    /// The peer took too little of an answer.
    SendTimeout,
    /// The connection took too long in all.
    RequestTimeout,
    /// A request was refused by the protocol ([`ParseErrorKind`]).
    ProtocolError,
    /// The peer reset it, or ended it in the middle of a request or an answer.
    Aborted,
    /// The handler failed in the middle of an answer.
    HandlerError,
    /// It left HTTP: the handler took it over.
    Upgrade,
    /// The server ends.
    Drain,
    /// It waited for its client longest, and made room for another one.
    Evicted,
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// There were as many as there may be.
    MaxConnections,
}

/// What was wrong with a request that the protocol refused, by the status that answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// 400: malformed.
    Malformed,
    /// 413: the body is too large.
    BodyTooLarge,
    /// 414: the target is too long.
    TargetTooLong,
    /// 417: an expectation that nobody can meet.
    Expectation,
    /// 431: fields are too large or too many.
    FieldsTooLarge,
    /// 501: a coding of the body that is not known.
    Coding,
    /// 505: another version of HTTP.
    Version,
    /// Any other status.
    Other,
}

impl MethodClass {
    pub(super) const ALL: [Self; 8] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Delete, Self::Options, Self::Patch, Self::Other];

    /// The class of a method as received.
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

    /// The kind of a refusal with this status.
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

/// Classes of statuses: their first digits. A status that no HTTP knows is counted with the nearest.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

pub(super) fn status_class(status: u16) -> usize {
    usize::from((status / 100).clamp(1, 5)) - 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Counts are kept at the place that a kind has in its list, under a label of its own.
    fn check<K: Copy>(all: &[K], place: impl Fn(K) -> usize, label: impl Fn(K) -> &'static str) {
        assert!(all.iter().enumerate().all(|(index, &kind)| place(kind) == index));
        let labels: HashSet<_> = all.iter().map(|&kind| label(kind)).collect();
        assert_eq!(labels.len(), all.len());
    }

    #[test]
    fn every_kind_has_its_place_and_its_label() {
        check(&MethodClass::ALL, |kind| kind as usize, MethodClass::label);
        check(&CloseReason::ALL, |kind| kind as usize, CloseReason::label);
        check(&RejectReason::ALL, |kind| kind as usize, RejectReason::label);
        check(&ParseErrorKind::ALL, |kind| kind as usize, ParseErrorKind::label);
    }

    #[test]
    fn methods_and_statuses_have_their_classes() {
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
