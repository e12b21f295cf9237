//! What the fields of a head say of its body and its connection (RFC 9112, sections 6.3 and 9.3), strictly: where two
//! programs could read a message differently, it is refused.

use super::head::Version;
use super::rejection::Rejection;
use super::syntax::{elements, is_name, is_token, trim};

/// How the body of a request is delimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFraming {
    /// There is none.
    #[default]
    None,
    /// So many bytes.
    Length(u64),
    /// Chunks, each with its size; then, perhaps, trailers.
    Chunked,
}

impl RequestFraming {
    /// Whether there is anything to receive behind the head.
    #[must_use]
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// What is noted of the fields while they are gone through; judged when all are known, so that what is refused does not
/// hang on their order.
#[derive(Debug, Default)]
pub(super) struct FramingFields {
    /// Of the first `Host` and the first `Upgrade`, the place in the order of fields.
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

/// What the `Transfer-Encoding` fields so far make, as one list.
#[derive(Debug, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    Absent,
    /// Chunked and nothing else.
    Chunked,
    /// Something else, and then chunked.
    UnknownThenChunked,
    /// Something else at the end.
    Unknown,
    /// Something behind chunked, or no list of codings.
    Invalid,
}

/// Of the `Connection` fields.
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

/// What the fields come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FramingDecision {
    pub framing: RequestFraming,
    pub keeps_alive: bool,
    pub expects_continue: bool,
    /// The place of `Upgrade`, if it counts.
    pub upgrade: Option<u32>,
}

impl FramingFields {
    /// Notes a field, which has this place in their order.
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
            self.expectation = match self.expectation {
                Expectation::Other => Expectation::Other,
                _ if expectation.eq_ignore_ascii_case(b"100-continue") => Expectation::Continue,
                _ => Expectation::Other,
            };
        }
    }

    /// Judges them.
    pub fn decide(&self, version: Version, max_body_bytes: u64) -> Result<FramingDecision, Rejection> {
        let framing = self.framing(version, max_body_bytes)?;
        match (self.hosts, version) {
            (1, _) | (0, Version::Http10) => {}
            (0, Version::Http11) => return Err(Rejection::bad("a request of HTTP/1.1 needs a Host field")),
            _ => return Err(Rejection::bad("more than one Host field")),
        }
        let is_11 = version == Version::Http11;
        // A client of HTTP/1.0 does not wait for a 100, and has no upgrades.
        let expects_continue = match self.expectation {
            Expectation::Continue => is_11 && framing.has_body(),
            Expectation::Other if is_11 => {
                return Err(Rejection::new(417, "the only expectation that can be met is 100-continue"));
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
        match (&self.coding, &self.length) {
            (Coding::Absent, Length::Absent) => Ok(RequestFraming::None),
            (Coding::Absent, &Length::Bytes(bytes)) if bytes > max_body_bytes => {
                Err(Rejection::new(413, "the body is longer than this server takes"))
            }
            (Coding::Absent, &Length::Bytes(bytes)) => Ok(RequestFraming::Length(bytes)),
            (Coding::Absent, &Length::Invalid(reason)) => Err(Rejection::bad(reason)),
            (_, Length::Bytes(_) | Length::Invalid(_)) => {
                Err(Rejection::bad("Content-Length together with Transfer-Encoding: send one of them"))
            }
            _ if version == Version::Http10 => Err(Rejection::bad("HTTP/1.0 has no Transfer-Encoding")),
            (Coding::Chunked, _) => Ok(RequestFraming::Chunked),
            (Coding::UnknownThenChunked, _) => {
                Err(Rejection::new(501, "the only transfer coding that is understood is chunked"))
            }
            (Coding::Unknown, _) => Err(Rejection::bad(
                "a Transfer-Encoding that does not end in chunked: where the body ends is not known",
            )),
            (Coding::Invalid, _) => Err(Rejection::bad(
                "a Transfer-Encoding that is no list of codings with chunked once, at its end",
            )),
        }
    }
}

impl Length {
    /// This one and another.
    fn merge(&self, value: &[u8]) -> Self {
        if !matches!(self, Self::Absent) {
            // Equal ones, too: somebody on the way put them together, and may have taken either.
            return Self::Invalid("more than one Content-Length");
        }
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Self::Invalid("a Content-Length that is not a number of decimal digits alone");
        }
        let digit = |bytes: u64, digit: &u8| bytes.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        match value.iter().try_fold(0, digit) {
            Some(bytes) => Self::Bytes(bytes),
            None => Self::Invalid("a Content-Length that no body can have"),
        }
    }
}

impl Coding {
    /// Adds a coding behind the others.
    fn push(&mut self, coding: &[u8]) {
        let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
        // Its parameters may be anything.
        let name = trim(coding.split(|&byte| byte == b';').next().unwrap_or_default());
        *self = match self {
            Self::Chunked | Self::UnknownThenChunked | Self::Invalid => Self::Invalid,
            // That coding has no parameters.
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
        if !self.note_one(value) {
            self.note_list(value);
        }
    }

    #[cold]
    fn note_list(&mut self, value: &[u8]) {
        for option in elements(value) {
            self.note_one(option);
        }
    }

    /// Whether it is an option that matters.
    #[inline]
    fn note_one(&mut self, option: &[u8]) -> bool {
        match option.len() {
            5 if is_name(option, b"close") => self.close = true,
            7 if is_name(option, b"upgrade") => self.upgrade = true,
            10 if is_name(option, b"keep-alive") => self.keep_alive = true,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(version: Version, fields: &[(&str, &str)]) -> Result<FramingDecision, u16> {
        let mut framing_fields = FramingFields::default();
        for (index, (name, value)) in fields.iter().enumerate() {
            framing_fields.record(index as u32, name.as_bytes(), value.as_bytes());
        }
        framing_fields.decide(version, 1000).map_err(|rejection| rejection.status)
    }

    fn framing(fields: &[(&str, &str)]) -> Result<RequestFraming, u16> {
        let with_host = [&[("Host", "h")][..], fields].concat();
        decide(Version::Http11, &with_host).map(|decision| decision.framing)
    }

    #[test]
    fn codings_make_one_list_over_all_fields() {
        let codings = |values: &[&str]| {
            framing(&values.iter().map(|value| ("Transfer-Encoding", *value)).collect::<Vec<_>>())
        };
        for one in ["chunked", "CHUNKED", "Chunked"] {
            assert_eq!(codings(&[one]), Ok(RequestFraming::Chunked));
        }
        for unknown in [&["gzip, chunked"][..], &["gzip", "chunked"], &["br;q=\"x\"", "gzip,chunked"]] {
            assert_eq!(codings(unknown), Err(501), "{unknown:?}");
        }
        for refused in [
            &["gzip"][..],
            &["chunked, gzip"],
            &["chunked", "gzip"],
            &["chunked, chunked"],
            &["chunked", "chunked"],
            &[""],
            &[","],
            &["chunked,"],
            &[",chunked"],
            &["chunked;a=b"],
            &["chunked ;a"],
            &["identity"],
            &["xchunked"],
            &["chun ked"],
            &["\"chunked\""],
            &["gzip,,chunked"],
            &["chunked\u{b}"],
        ] {
            assert_eq!(codings(refused), Err(400), "{refused:?}");
        }
    }

    #[test]
    fn lengths_are_digits_and_there_is_one() {
        for (text, expected) in
            [("0", Ok(0)), ("7", Ok(7)), ("1000", Ok(1000)), ("007", Ok(7)), ("1001", Err(413))]
        {
            assert_eq!(framing(&[("Content-Length", text)]), expected.map(RequestFraming::Length), "{text}");
        }
        for text in [
            "",
            "+1",
            "-1",
            "1,1",
            "1, 1",
            "0x1",
            "1 1",
            "1.0",
            "1e2",
            "١",
            "99999999999999999999",
            "18446744073709551616",
        ] {
            assert_eq!(framing(&[("Content-Length", text)]), Err(400), "{text}");
        }
        assert_eq!(framing(&[("Content-Length", "18446744073709551615")]), Err(413));
        assert_eq!(framing(&[("Content-Length", "1"), ("content-length", "1")]), Err(400));
    }

    #[test]
    fn who_stays_and_who_leaves() {
        let keeps = |version, options: &[&str]| {
            let fields: Vec<_> =
                options.iter().map(|value| ("Connection", *value)).chain([("Host", "h")]).collect();
            decide(version, &fields).unwrap().keeps_alive
        };
        use Version::{Http10, Http11};
        assert!(keeps(Http11, &[]) && keeps(Http11, &["keep-alive"]) && keeps(Http11, &["closed, TE"]));
        assert!(!keeps(Http11, &["close"]) && !keeps(Http11, &["keep-alive", "te, CLOSE"]));
        assert!(
            !keeps(Http10, &[]) && keeps(Http10, &["Keep-Alive"]) && !keeps(Http10, &["keep-alive, close"])
        );
    }

    #[test]
    fn expectations_and_upgrades_are_of_1_1() {
        use Version::{Http10, Http11};
        let post = [("Host", "h"), ("Content-Length", "1")];
        let with = |name, value| [&post[..], &[(name, value)]].concat();
        let waits = |version, value| {
            decide(version, &with("Expect", value)).map(|decision| decision.expects_continue)
        };
        assert_eq!(waits(Http11, "100-Continue"), Ok(true));
        assert_eq!(waits(Http11, ""), Ok(false));
        assert_eq!(waits(Http11, "100-continue, x"), Err(417));
        assert_eq!(waits(Http11, "200-ok"), Err(417));
        assert_eq!(waits(Http10, "100-continue"), Ok(false));
        assert_eq!(waits(Http10, "200-ok"), Ok(false));
        let without_body = decide(Http11, &[("Host", "h"), ("Expect", "100-continue")]).unwrap();
        assert!(!without_body.expects_continue);

        let upgrade = |version, options| {
            let fields = [("Host", "h"), ("Upgrade", "x"), ("Connection", options), ("Upgrade", "y")];
            decide(version, &fields).unwrap().upgrade
        };
        assert_eq!(upgrade(Http11, "keep-alive, Upgrade"), Some(1));
        assert_eq!(upgrade(Http11, "keep-alive"), None);
        assert_eq!(upgrade(Http10, "upgrade"), None);
    }
}
