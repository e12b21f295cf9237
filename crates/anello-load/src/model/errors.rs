//! Error kinds of connections and replies, and error counts per kind.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::model::tls::TlsError;

/// Kind of error. Every kind except [`WrongBytes`](Self::WrongBytes), [`WrongStatus`](Self::WrongStatus) and
/// [`WrongLength`](Self::WrongLength) closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// No server is listening at the address.
    Refused,
    /// The connection was not established before the timeout.
    ConnectTimeout,
    /// The address is unreachable.
    Unreachable,
    /// The server reset the connection (RST), or the connection was already closed when a request was sent.
    Reset,
    /// The reply was not complete before the timeout.
    Timeout,
    /// The server closed the connection before it sent any part of the reply.
    ClosedEarly,
    /// The server closed the connection in the middle of a reply.
    #[serde(alias = "short_reply")]
    TruncatedReply,
    /// The bytes of the reply differ from the expected bytes.
    WrongBytes,
    /// The server sent more bytes than requested.
    #[serde(alias = "long_reply")]
    ExcessData,
    /// HTTP: the status code is not one of the expected codes.
    WrongStatus,
    /// HTTP: the body is complete, but its length differs from the expected length.
    WrongLength,
    /// HTTP: the received bytes are not a valid response.
    Malformed,
    /// TLS: the handshake failed, or a record could not be decrypted.
    Tls,
    /// Any other error reported by the kernel.
    Other,
}

impl ErrorKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 14] = {
        let mut all = [Self::Refused; 14];
        let mut index = 0;
        while index < all.len() {
            all[index] = NAMES[index].0;
            index += 1;
        }
        all
    };

    /// Returns the name used in reports, for example `wrong_bytes`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Returns the kind of an error that occurred while connecting.
    #[must_use]
    pub fn from_connect_error(error: &io::Error) -> Self {
        match error.kind() {
            // `NotFound`: the path of the Unix socket does not exist.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::Refused,
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown => Self::Unreachable,
            _ => Self::from_exchange_error(error),
        }
    }

    /// Returns the kind of an error that occurred while sending or receiving.
    #[must_use]
    pub fn from_exchange_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => Self::Reset,
            io::ErrorKind::TimedOut => Self::Timeout,
            _ if TlsError::is_source_of(error) => Self::Tls,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NAMES[*self as usize].2)
    }
}

/// All kinds in declaration order, with their name in reports and a description.
const NAMES: [(ErrorKind, &str, &str); 14] = [
    (ErrorKind::Refused, "refused", "connection refused"),
    (ErrorKind::ConnectTimeout, "connect_timeout", "connect timeout"),
    (ErrorKind::Unreachable, "unreachable", "unreachable"),
    (ErrorKind::Reset, "reset", "connection reset"),
    (ErrorKind::Timeout, "timeout", "reply timeout"),
    (ErrorKind::ClosedEarly, "closed_early", "closed before the reply"),
    (ErrorKind::TruncatedReply, "truncated_reply", "closed during the reply"),
    (ErrorKind::WrongBytes, "wrong_bytes", "wrong bytes"),
    (ErrorKind::ExcessData, "excess_data", "more bytes than requested"),
    (ErrorKind::WrongStatus, "wrong_status", "wrong status"),
    (ErrorKind::WrongLength, "wrong_length", "wrong length"),
    (ErrorKind::Malformed, "malformed", "malformed response"),
    (ErrorKind::Tls, "tls", "TLS error"),
    (ErrorKind::Other, "other", "other error"),
];

/// Error on a connection: its kind and a message.
#[derive(Debug)]
pub(crate) struct ConnectionError {
    pub kind: ErrorKind,
    pub text: String,
}

impl ConnectionError {
    #[cold]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    #[cold]
    pub fn from_exchange_error(error: &io::Error) -> Self {
        Self::new(ErrorKind::from_exchange_error(error), error.to_string())
    }

    #[cold]
    pub fn from_connect_error(error: &io::Error) -> Self {
        Self::new(ErrorKind::from_connect_error(error), error.to_string())
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
}

/// Error counts per kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errors {
    counts: Vec<ErrorCount>,
}

impl Errors {
    /// Counts one error. `example` is called only for the first error of its kind.
    pub(crate) fn add(&mut self, kind: ErrorKind, example: impl FnOnce() -> String) {
        self.add_many(kind, 1, example);
    }

    pub(crate) fn add_many(&mut self, kind: ErrorKind, count: u64, example: impl FnOnce() -> String) {
        match self.counts.binary_search_by_key(&kind, |entry| entry.kind) {
            Ok(index) => {
                let entry = &mut self.counts[index];
                // Saturates because counts read from a file can have any value.
                entry.count = entry.count.saturating_add(count);
            }
            Err(index) => self.counts.insert(index, ErrorCount { kind, count, example: example() }),
        }
    }

    /// Adds the counts of `others`.
    pub(crate) fn merge(&mut self, others: Self) {
        for entry in others.counts {
            self.add_many(entry.kind, entry.count, || entry.example);
        }
    }

    /// Adds the counts of `others`. Returns an error and adds nothing if the total would exceed `u64::MAX`.
    pub(crate) fn try_merge(&mut self, others: Self) -> Result<(), &'static str> {
        self.total().checked_add(others.total()).ok_or("the total number of errors exceeds 2^64 - 1")?;
        self.merge(others);
        Ok(())
    }

    /// Returns `true` if no errors were counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of errors of all kinds, saturating at `u64::MAX`.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |total, entry| total.saturating_add(entry.count))
    }

    /// Returns the number of errors of this kind.
    #[must_use]
    pub fn count(&self, kind: ErrorKind) -> u64 {
        self.counts.iter().find(|entry| entry.kind == kind).map_or(0, |entry| entry.count)
    }

    /// Returns an iterator over the kinds that occurred, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = &ErrorCount> {
        self.counts.iter()
    }

    /// Replaces the example of this kind, if any, with the result of `rewrite`. An application can use this to add a
    /// remedy of its own, such as a command-line flag.
    pub fn explain(&mut self, kind: ErrorKind, rewrite: impl FnOnce(String) -> String) {
        if let Some(entry) = self.counts.iter_mut().find(|entry| entry.kind == kind) {
            entry.example = rewrite(std::mem::take(&mut entry.example));
        }
    }

    /// Formats the counts, for example `reset=3;timeout=1`. Returns an empty string if no errors were counted.
    #[must_use]
    pub fn by_kind(&self) -> String {
        let kinds: Vec<String> =
            self.counts.iter().map(|entry| format!("{}={}", entry.kind.name(), entry.count)).collect();
        kinds.join(";")
    }

    /// Parses the output of [`by_kind`](Self::by_kind). The examples are left empty. Unknown kinds, which a later
    /// version may have written, are counted as [`ErrorKind::Other`]. Returns an error if the text is empty or
    /// malformed, or if the total exceeds `u64::MAX`.
    pub(crate) fn parse_by_kind(text: &str) -> Result<Self, &'static str> {
        const INVALID_COUNTS: &str = "expected kinds and counts such as reset=3;timeout=1";
        let mut errors = Self::default();
        for part in text.split(';') {
            let (name, count) =
                part.split_once('=').filter(|(name, _)| is_kind(name)).ok_or(INVALID_COUNTS)?;
            // Names used in logs written by earlier versions.
            let name = match name {
                "short_reply" => "truncated_reply",
                "long_reply" => "excess_data",
                name => name,
            };
            let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name() == name);
            // Checked explicitly because `parse` accepts a leading sign.
            if !count.bytes().all(|byte| byte.is_ascii_digit()) || count.bytes().all(|byte| byte == b'0') {
                return Err(INVALID_COUNTS);
            }
            let count = count.parse::<u64>().ok();
            let count = count.filter(|&count| errors.total().checked_add(count).is_some());
            let count = count.ok_or("the total count exceeds 2^64 - 1")?;
            errors.add_many(kind.unwrap_or(ErrorKind::Other), count, String::new);
        }
        Ok(errors)
    }
}

/// Returns `true` if `name` has the form of a kind name. Names that a later version may add are included.
fn is_kind(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_with_names_of_previous_versions_are_parsed() {
        let errors = Errors::parse_by_kind("short_reply=2;long_reply=1").unwrap();
        assert_eq!(errors.by_kind(), "truncated_reply=2;excess_data=1");
    }

    #[test]
    fn errors_are_counted_by_kind_and_keep_first_example() {
        let mut errors = Errors::default();
        assert!(errors.is_empty());
        errors.add(ErrorKind::Reset, || "first".to_owned());
        errors.add(ErrorKind::Refused, || "no listener".to_owned());
        errors.add(ErrorKind::Reset, || unreachable!("only the first error of a kind needs an example"));
        let mut more = Errors::default();
        more.add(ErrorKind::Reset, || "later".to_owned());
        errors.merge(more);
        assert_eq!(
            (errors.total(), errors.count(ErrorKind::Reset), errors.count(ErrorKind::Other)),
            (4, 3, 0)
        );
        let kinds: Vec<_> = errors.iter().map(|entry| (entry.kind, entry.example.as_str())).collect();
        assert_eq!(kinds, [(ErrorKind::Refused, "no listener"), (ErrorKind::Reset, "first")]);
    }
}
