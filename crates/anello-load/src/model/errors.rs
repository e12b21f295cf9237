//! Kinds of connection and reply errors, and error counts per kind.

use std::io;

use serde::de::IntoDeserializer;
use serde::de::value::Error as UnknownKind;
use serde::{Deserialize, Serialize};

use crate::model::tls::{TlsError, TlsRemedy};

/// Kind of error. The connection is closed after an error of any kind except [`WrongBytes`](Self::WrongBytes),
/// [`WrongStatus`](Self::WrongStatus) and [`WrongLength`](Self::WrongLength).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    thiserror::Error,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// No server is listening at the address.
    #[error("connection refused")]
    Refused,
    /// The connection was not established before the timeout.
    #[error("connect timeout")]
    ConnectTimeout,
    /// The address is unreachable.
    #[error("unreachable")]
    Unreachable,
    /// The server reset the connection (RST), or the connection was already closed when a request was sent.
    #[error("connection reset")]
    Reset,
    /// The reply was not complete before the timeout.
    #[error("reply timeout")]
    Timeout,
    /// The server closed the connection before it sent any part of the reply.
    #[error("closed before the reply")]
    ClosedEarly,
    /// The server closed the connection in the middle of a reply.
    #[error("closed during the reply")]
    #[serde(alias = "short_reply")]
    TruncatedReply,
    /// The bytes of the reply differ from the expected bytes.
    #[error("wrong bytes")]
    WrongBytes,
    /// The server sent more bytes than requested.
    #[error("more bytes than requested")]
    #[serde(alias = "long_reply")]
    ExcessData,
    /// HTTP: the status code is not one of the expected codes.
    #[error("wrong status")]
    WrongStatus,
    /// HTTP: the body is complete, but its length differs from the expected length.
    #[error("wrong length")]
    WrongLength,
    /// HTTP: the received bytes are not a valid response.
    #[error("malformed response")]
    Malformed,
    /// TLS: the handshake failed, or a record could not be decrypted.
    #[error("TLS error")]
    Tls,
    /// Any other error reported by the kernel.
    #[error("other error")]
    Other,
}

impl ErrorKind {
    /// All kinds, in declaration order.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns the name used in reports, for example `wrong_bytes`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Error on a connection.
#[derive(Debug)]
pub(crate) struct ConnectionError {
    pub kind: ErrorKind,
    pub text: String,
    pub tls_remedy: Option<TlsRemedy>,
}

impl ConnectionError {
    #[cold]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), tls_remedy: None }
    }

    #[cold]
    pub fn from_exchange_error(error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => ErrorKind::Reset,
            io::ErrorKind::TimedOut => ErrorKind::Timeout,
            _ if TlsError::find(error).is_some() => ErrorKind::Tls,
            _ => ErrorKind::Other,
        };
        Self { tls_remedy: TlsRemedy::of(error), ..Self::new(kind, error.to_string()) }
    }

    #[cold]
    pub fn from_connect_error(error: &io::Error) -> Self {
        let kind = match error.kind() {
            // `NotFound`: the path of the Unix socket does not exist.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ErrorKind::Refused,
            io::ErrorKind::TimedOut => ErrorKind::ConnectTimeout,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown => ErrorKind::Unreachable,
            _ => return Self::from_exchange_error(error),
        };
        Self::new(kind, error.to_string())
    }
}

/// Number of errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// Kind of the errors.
    pub kind: ErrorKind,
    /// Number of errors.
    pub count: u64,
    /// Message of the first error of this kind.
    pub example: String,
    /// TLS option that can resolve the error in `example`. Not part of reports.
    #[serde(skip)]
    pub tls_remedy: Option<TlsRemedy>,
}

/// Error counts per kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errors {
    counts: Vec<ErrorCount>,
}

impl Errors {
    /// Adds `count` errors of the same kind as `error`. If `error` is the first of its kind, it becomes the example.
    pub(crate) fn add(&mut self, count: u64, error: ConnectionError) {
        let ConnectionError { kind, text: example, tls_remedy } = error;
        self.add_entry(ErrorCount { kind, count, example, tls_remedy });
    }

    fn add_entry(&mut self, new: ErrorCount) {
        match self.counts.binary_search_by_key(&new.kind, |entry| entry.kind) {
            // Saturates because counts read from a file can have any value.
            Ok(index) => self.counts[index].count = self.counts[index].count.saturating_add(new.count),
            Err(index) => self.counts.insert(index, new),
        }
    }

    pub(crate) fn merge(&mut self, others: Self) {
        others.counts.into_iter().for_each(|entry| self.add_entry(entry));
    }

    /// Adds the counts of `others`. Returns an error and adds nothing if the total would exceed `u64::MAX`.
    pub(crate) fn try_merge(&mut self, others: Self) -> Result<(), &'static str> {
        self.total().checked_add(others.total()).ok_or("the total number of errors exceeds 2^64 - 1")?;
        self.merge(others);
        Ok(())
    }

    /// Returns `true` if no errors were counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of errors of all kinds, saturating at `u64::MAX`.
    pub fn total(&self) -> u64 {
        self.iter().fold(0, |total, entry| total.saturating_add(entry.count))
    }

    /// Returns the number of errors of this kind.
    pub fn count(&self, kind: ErrorKind) -> u64 {
        self.iter().find(|entry| entry.kind == kind).map_or(0, |entry| entry.count)
    }

    /// Returns an iterator over the counts of the kinds that occurred, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = &ErrorCount> {
        self.counts.iter()
    }

    /// Like [`iter`](Self::iter), but mutable. An application can add its own remedy, such as an option, to an example.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ErrorCount> {
        self.counts.iter_mut()
    }

    /// Formats the counts, for example `reset=3;timeout=1`. Returns an empty string if no errors were counted.
    pub fn by_kind(&self) -> String {
        let kinds: Vec<String> =
            self.iter().map(|entry| format!("{}={}", entry.kind.name(), entry.count)).collect();
        kinds.join(";")
    }

    /// Parses the output of [`by_kind`](Self::by_kind), including the kind names of earlier versions. Unknown kinds,
    /// which a later version may have written, are counted as [`ErrorKind::Other`]. Returns an error if the text is
    /// empty or malformed, or if the total exceeds `u64::MAX`.
    pub(crate) fn parse_by_kind(text: &str) -> Result<Self, &'static str> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        };
        let mut errors = Self::default();
        for part in text.split(';') {
            // The digits are checked explicitly because `parse` accepts a leading sign.
            let (name, count) = part
                .split_once('=')
                .filter(|(name, _)| is_name(name))
                .filter(|(_, count)| count.bytes().all(|byte| byte.is_ascii_digit()))
                .filter(|(_, count)| count.bytes().any(|byte| byte != b'0'))
                .ok_or("expected kinds and counts such as reset=3;timeout=1")?;
            let count = count.parse().ok().filter(|&count| errors.total().checked_add(count).is_some());
            let count = count.ok_or("the total count exceeds 2^64 - 1")?;
            let known: Result<_, UnknownKind> = ErrorKind::deserialize(name.into_deserializer());
            errors.add(count, ConnectionError::new(known.unwrap_or(ErrorKind::Other), ""));
        }
        Ok(errors)
    }
}
