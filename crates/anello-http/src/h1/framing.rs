//! Request framing: the effect of the header fields on the body and the connection (RFC 9112, sections 6.3 and 9.3).
//! Messages that two implementations could interpret differently are rejected.

use super::rejection::Rejection;
use super::syntax::{elements, is_name, is_token, trim};
use super::types::{RequestFraming, Version};

/// Framing information from the fields. The framing is decided once all fields are known, so it does not depend on
/// their order.
#[derive(Debug, Default)]
pub(super) struct FramingFields {
    /// Index of the first `Host` field. [`upgrade`](Self::upgrade) is the index of the first `Upgrade` field.
    pub host: Option<u32>,
    upgrade: Option<u32>,
    hosts: u32,
    length: Length,
    coding: Coding,
    options: Options,
    expectation: Expectation,
}

#[derive(Debug, Default)]
enum Length {
    #[default]
    Absent,
    Bytes(u64),
    Invalid(&'static str),
}

/// The codings listed in all `Transfer-Encoding` fields so far.
#[derive(Debug, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    Absent,
    /// Only chunked.
    Chunked,
    /// An unsupported coding, followed by chunked.
    UnknownThenChunked,
    /// An unsupported coding at the end.
    Unknown,
    /// A coding after chunked, or an invalid list.
    Invalid,
}

/// The options of all `Connection` fields.
#[derive(Debug, Default)]
struct Options {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

#[derive(Debug, Default)]
enum Expectation {
    #[default]
    None,
    Continue,
    Other,
}

#[derive(Debug, Default)]
pub(super) struct FramingDecision {
    pub framing: RequestFraming,
    /// `true` if the version and the fields allow keep-alive.
    pub keeps_alive: bool,
    pub expects_continue: bool,
    /// Index of the `Upgrade` field, if the request asks for an upgrade.
    pub upgrade: Option<u32>,
}

impl FramingFields {
    #[inline]
    pub fn record(&mut self, index: u32, name: &[u8], value: &[u8]) {
        match name.len() {
            4 if is_name(name, b"host") => {
                self.hosts += 1;
                self.host.get_or_insert(index);
            }
            6 if is_name(name, b"expect") => self.expect(value),
            7 if is_name(name, b"upgrade") => _ = self.upgrade.get_or_insert(index),
            10 if is_name(name, b"connection") => self.options.record(value),
            14 if is_name(name, b"content-length") => self.length = self.length.merge(value),
            17 if is_name(name, b"transfer-encoding") => {
                elements(value).for_each(|element| self.coding.push(element));
            }
            _ => {}
        }
    }

    fn expect(&mut self, value: &[u8]) {
        for expectation in elements(value).filter(|element| !element.is_empty()) {
            let is_known = expectation.eq_ignore_ascii_case(b"100-continue");
            self.expectation = match self.expectation {
                Expectation::None | Expectation::Continue if is_known => Expectation::Continue,
                _ => Expectation::Other,
            };
        }
    }

    pub fn decide(&self, version: Version, max_body_bytes: u64) -> Result<FramingDecision, Rejection> {
        let framing = self.framing(version, max_body_bytes)?;
        match (self.hosts, version) {
            (1, _) | (0, Version::Http10) => {}
            (0, _) => return Err(Rejection::bad("missing Host field")),
            _ => return Err(Rejection::bad("more than one Host field")),
        }
        let is_11 = version != Version::Http10;
        // HTTP/1.0 has neither `100 Continue` nor upgrades.
        let expects_continue = match self.expectation {
            Expectation::Continue => is_11 && framing.has_body(),
            Expectation::Other if is_11 => {
                return Err(Rejection::new(417, "unsupported expectation (only 100-continue is supported)"));
            }
            Expectation::Other | Expectation::None => false,
        };
        Ok(FramingDecision {
            framing,
            keeps_alive: !self.options.close && (is_11 || self.options.keep_alive),
            expects_continue,
            upgrade: self.upgrade.filter(|_| is_11 && self.options.upgrade),
        })
    }

    fn framing(&self, version: Version, max_body_bytes: u64) -> Result<RequestFraming, Rejection> {
        let reason = match (&self.coding, &self.length) {
            (Coding::Absent, Length::Absent) => return Ok(RequestFraming::None),
            (Coding::Absent, &Length::Bytes(bytes)) if bytes > max_body_bytes => {
                return Err(Rejection::new(413, "body too long"));
            }
            (Coding::Absent, &Length::Bytes(bytes)) => return Ok(RequestFraming::Length(bytes)),
            (Coding::Absent, &Length::Invalid(reason)) => reason,
            (_, Length::Bytes(_) | Length::Invalid(_)) => {
                "both Content-Length and Transfer-Encoding (send only one of them)"
            }
            _ if version == Version::Http10 => "Transfer-Encoding in an HTTP/1.0 request",
            (Coding::Chunked, _) => return Ok(RequestFraming::Chunked),
            (Coding::UnknownThenChunked, _) => {
                return Err(Rejection::new(501, "unsupported transfer coding (only chunked is supported)"));
            }
            (Coding::Unknown, _) => "Transfer-Encoding does not end in chunked: body length unknown",
            (Coding::Invalid, _) => {
                "invalid Transfer-Encoding (chunked must be the last coding and occur only once)"
            }
        };
        Err(Rejection::bad(reason))
    }
}

impl Length {
    /// Adds the value of another `Content-Length` field.
    fn merge(&self, value: &[u8]) -> Self {
        if !matches!(self, Self::Absent) {
            // Equal values are rejected as well: an intermediary may have merged messages and used either value.
            return Self::Invalid("more than one Content-Length");
        }
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Self::Invalid("Content-Length is not a decimal number");
        }
        let digit = |bytes: u64, digit: &u8| bytes.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        match value.iter().try_fold(0, digit) {
            Some(bytes) => Self::Bytes(bytes),
            None => Self::Invalid("Content-Length too large"),
        }
    }
}

impl Coding {
    fn push(&mut self, coding: &[u8]) {
        let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
        // The parameters are not checked.
        let name = trim(coding.split(|&byte| byte == b';').next().unwrap_or_default());
        *self = match self {
            Self::Chunked | Self::UnknownThenChunked | Self::Invalid => Self::Invalid,
            // The chunked coding has no parameters.
            _ if !is_token(name) || !is_chunked && name.eq_ignore_ascii_case(b"chunked") => Self::Invalid,
            Self::Absent if is_chunked => Self::Chunked,
            Self::Unknown if is_chunked => Self::UnknownThenChunked,
            Self::Absent | Self::Unknown => Self::Unknown,
        };
    }
}

impl Options {
    #[inline]
    fn record(&mut self, value: &[u8]) {
        if !self.record_option(value) {
            self.record_list(value);
        }
    }

    #[cold]
    fn record_list(&mut self, value: &[u8]) {
        for option in elements(value) {
            self.record_option(option);
        }
    }

    /// Returns `false` if the option is unknown.
    #[inline]
    fn record_option(&mut self, option: &[u8]) -> bool {
        match option.len() {
            5 if is_name(option, b"close") => self.close = true,
            7 if is_name(option, b"upgrade") => self.upgrade = true,
            10 if is_name(option, b"keep-alive") => self.keep_alive = true,
            _ => return false,
        }
        true
    }
}
