//! What can go wrong with a connection or a reply, by kind, and how often each did.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::tls::TlsError;

/// A kind of trouble. All but [`WrongBytes`](Self::WrongBytes), [`WrongStatus`](Self::WrongStatus) and
/// [`WrongLength`](Self::WrongLength) cost the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Nobody listens at the address.
    Refused,
    /// The connection was not made in time.
    ConnectTimeout,
    /// The network has no way to the address.
    Unreachable,
    /// The server broke the connection (RST), or it was broken when the request was sent.
    Reset,
    /// The reply was not complete in time.
    Timeout,
    /// The server closed the connection instead of replying.
    ClosedEarly,
    /// The server closed the connection within a reply.
    #[serde(rename = "short_reply")]
    TruncatedReply,
    /// The reply has other bytes than it should have.
    WrongBytes,
    /// More bytes came than were asked for.
    #[serde(rename = "long_reply")]
    ExcessData,
    /// HTTP: another status than those expected.
    WrongStatus,
    /// HTTP: the body is whole, but has another length than it should have.
    WrongLength,
    /// HTTP: what came is no response.
    Malformed,
    /// TLS: no handshake, or what came is not what TLS has sent.
    Tls,
    /// Anything else that the kernel reported.
    Other,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Refused,
        Self::ConnectTimeout,
        Self::Unreachable,
        Self::Reset,
        Self::Timeout,
        Self::ClosedEarly,
        Self::TruncatedReply,
        Self::WrongBytes,
        Self::ExcessData,
        Self::WrongStatus,
        Self::WrongLength,
        Self::Malformed,
        Self::Tls,
        Self::Other,
    ];

    /// Its name in reports, as in `wrong_bytes`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::ClosedEarly => "closed_early",
            Self::TruncatedReply => "short_reply",
            Self::WrongBytes => "wrong_bytes",
            Self::ExcessData => "long_reply",
            Self::WrongStatus => "wrong_status",
            Self::WrongLength => "wrong_length",
            Self::Malformed => "malformed",
            Self::Tls => "tls",
            Self::Other => "other",
        }
    }

    /// The kind of an error while connecting.
    #[must_use]
    pub fn from_connect_error(error: &io::Error) -> Self {
        match error.kind() {
            // The path of a Unix socket that is not there.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::Refused,
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown => Self::Unreachable,
            _ => Self::from_exchange_error(error),
        }
    }

    /// The kind of an error while sending or receiving.
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
        formatter.write_str(match self {
            Self::Refused => "connection refused",
            Self::ConnectTimeout => "no connection in time",
            Self::Unreachable => "unreachable",
            Self::Reset => "connection reset",
            Self::Timeout => "no reply in time",
            Self::ClosedEarly => "closed before the reply",
            Self::TruncatedReply => "closed within the reply",
            Self::WrongBytes => "wrong bytes",
            Self::ExcessData => "more bytes than asked for",
            Self::WrongStatus => "wrong status",
            Self::WrongLength => "wrong length",
            Self::Malformed => "malformed response",
            Self::Tls => "TLS failed",
            Self::Other => "other error",
        })
    }
}

/// Something that went wrong, in words.
#[derive(Debug)]
pub(crate) struct ConnectionError {
    pub kind: ErrorKind,
    pub text: String,
}

impl ConnectionError {
    #[cold]
    pub fn from_exchange_error(error: &io::Error) -> Self {
        Self { kind: ErrorKind::from_exchange_error(error), text: error.to_string() }
    }

    #[cold]
    pub fn from_connect_error(error: &io::Error) -> Self {
        Self { kind: ErrorKind::from_connect_error(error), text: error.to_string() }
    }
}

/// How often one kind happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The kind.
    pub kind: ErrorKind,
    /// How often.
    pub count: u64,
    /// What the first of them was in words.
    pub example: String,
}

/// Troubles, counted by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errors {
    counts: Vec<ErrorCount>,
}

impl Errors {
    /// Counts one; `example` is asked for words only for the first of its kind.
    pub(crate) fn add(&mut self, kind: ErrorKind, example: impl FnOnce() -> String) {
        self.add_many(kind, 1, example);
    }

    pub(crate) fn add_many(&mut self, kind: ErrorKind, count: u64, example: impl FnOnce() -> String) {
        match self.counts.binary_search_by_key(&kind, |entry| entry.kind) {
            Ok(index) => {
                let entry = &mut self.counts[index];
                // Counts that were read from somewhere may be anything.
                entry.count = entry.count.saturating_add(count);
            }
            Err(index) => self.counts.insert(index, ErrorCount { kind, count, example: example() }),
        }
    }

    /// Adds what others have counted.
    pub(crate) fn merge(&mut self, others: Self) {
        for entry in others.counts {
            self.add_many(entry.kind, entry.count, || entry.example);
        }
    }

    /// Adds what others have counted, or fails where the number of all would be too large; then nothing is added.
    pub(crate) fn try_merge(&mut self, others: Self) -> Result<(), &'static str> {
        self.total().checked_add(others.total()).ok_or("more errors in all than can be counted")?;
        self.merge(others);
        Ok(())
    }

    /// Whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many there were of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |total, entry| total.saturating_add(entry.count))
    }

    /// How many there were of this kind.
    #[must_use]
    pub fn count(&self, kind: ErrorKind) -> u64 {
        self.counts.iter().find(|entry| entry.kind == kind).map_or(0, |entry| entry.count)
    }

    /// All kinds that happened.
    pub fn iter(&self) -> impl Iterator<Item = &ErrorCount> {
        self.counts.iter()
    }

    /// Has the example of this kind, if it happened, told in other words: what a user can do about it may be known to the
    /// program alone.
    pub fn explain(&mut self, kind: ErrorKind, words: impl FnOnce(String) -> String) {
        if let Some(entry) = self.counts.iter_mut().find(|entry| entry.kind == kind) {
            entry.example = words(std::mem::take(&mut entry.example));
        }
    }

    /// Kinds and counts with semicolons, as `reset=3;timeout=1`; empty if there was none.
    #[must_use]
    pub fn by_kind(&self) -> String {
        let kinds: Vec<String> =
            self.counts.iter().map(|entry| format!("{}={}", entry.kind.name(), entry.count)).collect();
        kinds.join(";")
    }

    /// Reads what [`by_kind`](Self::by_kind) wrote; the examples are empty. Kinds may be added: one that is not known
    /// here is counted as [`ErrorKind::Other`]. Fails if it is something else or nothing, or too many.
    pub(crate) fn parse_by_kind(text: &str) -> Result<Self, &'static str> {
        const NO_COUNTS: &str = "no kinds and counts, as in reset=3;timeout=1";
        let mut errors = Self::default();
        for part in text.split(';') {
            let (name, count) = part.split_once('=').filter(|(name, _)| is_kind(name)).ok_or(NO_COUNTS)?;
            let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name() == name);
            // Numbers in Rust may have a sign.
            if !count.bytes().all(|byte| byte.is_ascii_digit()) || count.bytes().all(|byte| byte == b'0') {
                return Err(NO_COUNTS);
            }
            let count = count.parse::<u64>().ok();
            let count = count.filter(|&count| errors.total().checked_add(count).is_some());
            let count = count.ok_or("more than can be counted")?;
            errors.add_many(kind.unwrap_or(ErrorKind::Other), count, String::new);
        }
        Ok(errors)
    }
}

/// Whether this may be the name of a kind, be it of a later version.
fn is_kind(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_reports() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(
                (kind as usize, serde_json::to_string(&kind).unwrap()),
                (index, format!("{:?}", kind.name()))
            );
        }
    }

    #[test]
    fn errors_are_counted_by_kind_with_the_first_as_example() {
        let mut errors = Errors::default();
        assert!(errors.is_empty());
        errors.add(ErrorKind::Reset, || "first".to_owned());
        errors.add(ErrorKind::Refused, || "nobody".to_owned());
        errors.add(ErrorKind::Reset, || unreachable!("one example is enough"));
        let mut more = Errors::default();
        more.add(ErrorKind::Reset, || "later".to_owned());
        errors.merge(more);
        assert_eq!(
            (errors.total(), errors.count(ErrorKind::Reset), errors.count(ErrorKind::Other)),
            (4, 3, 0)
        );
        let kinds: Vec<_> = errors.iter().map(|entry| (entry.kind, entry.example.as_str())).collect();
        assert_eq!(kinds, [(ErrorKind::Refused, "nobody"), (ErrorKind::Reset, "first")]);
    }

    #[test]
    fn counts_by_kind_are_written_and_read() {
        let mut errors = Errors::default();
        assert_eq!(errors.by_kind(), "");
        for (count, kind) in (1..).zip(ErrorKind::ALL) {
            errors.add_many(kind, count, String::new);
        }
        assert!(errors.by_kind().starts_with("refused=1;connect_timeout=2;"), "{}", errors.by_kind());
        assert_eq!(Errors::parse_by_kind(&errors.by_kind()), Ok(errors));
        // Kinds of a later version.
        let later = Errors::parse_by_kind("late_hello_2=3;reset=1;other=1").unwrap();
        assert_eq!(later.by_kind(), "reset=1;other=4");
        let wrong = [
            "",
            "Reset=3",
            "re set=3",
            "=3",
            "reset=3;",
            "reset",
            "reset=",
            "reset=0",
            "reset=-1",
            "reset=+3",
            "reset= 3",
            "reset=3=4",
        ];
        for wrong in wrong {
            let why = Errors::parse_by_kind(wrong).unwrap_err();
            assert!(why.starts_with("no kinds and counts"), "{wrong}: {why}");
        }
    }

    #[test]
    fn more_than_can_be_counted_is_refused() {
        let mut largest =
            Errors::parse_by_kind(&format!("reset=3;timeout={};reset=1", u64::MAX - 4)).unwrap();
        assert_eq!((largest.count(ErrorKind::Reset), largest.total()), (4, u64::MAX));
        let too_many = ["reset=99999999999999999999".to_owned(), format!("reset=1;timeout={}", u64::MAX)];
        for text in too_many {
            assert_eq!(Errors::parse_by_kind(&text), Err("more than can be counted"));
        }
        let before = largest.clone();
        let one = Errors::parse_by_kind("refused=1").unwrap();
        assert!(largest.try_merge(one).is_err());
        assert_eq!((largest.try_merge(Errors::default()), &largest), (Ok(()), &before));
    }
}
