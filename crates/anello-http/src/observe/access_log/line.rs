//! One line of the access log.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::str::FromStr;

use super::escape::{MAX_ESCAPE_BYTES, push_hex_escaped, push_json};
use super::time_text::TimeText;

/// Room for all of a line but the four fields that a peer fills: names and punctuation of JSON (157 bytes), time (24), peer
/// (47), version (8), four numbers (20 each), and the marks of four cuts (3 each).
const FRAME_BYTES: usize = 384;

/// Fields that a peer fills: method, target, referer, user agent.
const PEER_FIELDS: usize = 4;

/// How a line is written. Every line is printable ASCII and ends in a line feed, whatever a peer sent.
///
/// The times are UTC. In common and combined lines an absent value is `-`; there control bytes, quotes, backslashes and
/// what is not ASCII are written as `\xHH`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The format of the first web servers: `PEER - - [TIME] "METHOD TARGET VERSION" STATUS BYTES`. The peer is an IP
    /// address without its port.
    Common,
    /// [`Common`](Self::Common), then `"REFERER" "USER AGENT"`.
    #[default]
    Combined,
    /// One object a line, with these fields, always all of them and in this order:
    ///
    /// | field | type | what |
    /// |---|---|---|
    /// | `time` | string | [`LogEntry::unix_time_ns`] as RFC 3339 in UTC with milliseconds: `2026-11-22T16:27:35.042Z` |
    /// | `peer` | string | IP address and port of the peer, `unix:` for a Unix socket |
    /// | `method` | string, null | as received; null when the first line could not be read, like the next two |
    /// | `target` | string, null | as received, not decoded |
    /// | `version` | string, null | `HTTP/1.1` |
    /// | `status` | number | of the answer |
    /// | `bytes` | number | [`LogEntry::body_bytes`] |
    /// | `duration_us` | number | [`LogEntry::duration_us`] |
    /// | `referer` | string, null | null when the request had none |
    /// | `user_agent` | string, null | null when the request had none |
    /// | `worker` | number | the worker that answered |
    ///
    /// Bytes of a value that are not UTF-8 are written as U+FFFD.
    Json,
}

/// What one request comes to.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    /// When the answer had been handed over to be sent, in nanoseconds since the Unix epoch.
    pub unix_time_ns: u64,
    /// From when the head of the request had been read to that moment, in microseconds; 0 for what is refused before it is a
    /// request.
    pub duration_us: u64,
    /// Who asked.
    pub peer: &'a FormattedPeer,
    /// What was asked; none when the first line could not be read.
    pub request: Option<RequestLine<'a>>,
    /// Status of the answer.
    pub status: u16,
    /// Bytes of the answer's body that were handed over to be sent: fewer than it has when the connection broke.
    pub body_bytes: u64,
    /// The field `Referer` of the request.
    pub referer: Option<&'a [u8]>,
    /// The field `User-Agent` of the request.
    pub user_agent: Option<&'a [u8]>,
}

/// The first line of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// As received.
    pub method: &'a str,
    /// As received.
    pub target: &'a [u8],
    /// `HTTP/1.0` or `HTTP/1.1`: the server's own text, which is written as it is.
    pub version: &'static str,
}

impl<'a> RequestLine<'a> {
    /// Reads a line that was received, without its end. None when it is not of the form `METHOD TARGET HTTP/1.x`.
    #[must_use]
    pub fn read(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.split(|&byte| byte == b' ');
        let (method, target) = (str::from_utf8(parts.next()?).ok()?, parts.next()?);
        let version = match parts.next()? {
            b"HTTP/1.0" => "HTTP/1.0",
            b"HTTP/1.1" => "HTTP/1.1",
            _ => return None,
        };
        let is_whole = !method.is_empty() && !target.is_empty() && parts.next().is_none();
        is_whole.then_some(Self { method, target, version })
    }
}

/// The address of a peer as lines have it, formatted once a connection.
#[derive(Clone, Copy)]
pub struct FormattedPeer {
    /// `203.0.113.9:4711`, `[2001:db8::9]:4711` or `unix:`.
    bytes: [u8; Self::MAX_BYTES],
    length: u8,
    /// Where in it the address without port and brackets is.
    ip_start: u8,
    ip_end: u8,
}

impl FormattedPeer {
    /// Eight groups of four digits, brackets and a port.
    const MAX_BYTES: usize = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".len();

    /// The text of an address. IPv4 in IPv6 (`::ffff:203.0.113.9`) is written as IPv4; the zone of a link-local address is
    /// left out.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let mut bytes = [0; Self::MAX_BYTES];
        let mut rest = &mut bytes[..];
        if write!(rest, "{address}").is_err() {
            // No address is longer; should one be, its end is missing.
            rest = &mut [];
        }
        let length = Self::MAX_BYTES - rest.len();
        let port_start = bytes[..length].iter().rposition(|&byte| byte == b':').unwrap_or(length);
        let brackets = usize::from(address.is_ipv6());
        Self {
            bytes,
            length: length as u8,
            ip_start: brackets as u8,
            ip_end: port_start.saturating_sub(brackets) as u8,
        }
    }

    /// The text of a peer that has no address: one on a Unix socket.
    #[must_use]
    pub fn unix() -> Self {
        let text = b"unix:";
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..text.len()].copy_from_slice(text);
        Self { bytes, length: text.len() as u8, ip_start: 0, ip_end: text.len() as u8 }
    }

    /// Address and port.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The address alone.
    #[must_use]
    pub fn ip(&self) -> &[u8] {
        &self.bytes[usize::from(self.ip_start)..usize::from(self.ip_end)]
    }
}

impl fmt::Debug for FormattedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FormattedPeer({})", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Common => "common",
            Self::Combined => "combined",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    /// Reads `common`, `combined` or `json`.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "common" => Ok(Self::Common),
            "combined" => Ok(Self::Combined),
            "json" => Ok(Self::Json),
            _ => Err(format!("there is no log format {name:?}: choose common, combined or json")),
        }
    }
}

/// Writes the lines of one worker.
#[derive(Debug)]
pub(super) struct LineWriter {
    format: LogFormat,
    field_bytes: usize,
    time: TimeText,
    /// The end of a JSON line: the field `worker`, which never changes.
    json_end: Vec<u8>,
}

impl LineWriter {
    pub(super) fn new(format: LogFormat, field_bytes: usize, worker: usize) -> Self {
        let json_end = format!(",\"worker\":{worker}}}\n").into_bytes();
        Self { format, field_bytes, time: TimeText::new(), json_end }
    }

    /// The longest line with fields of at most so many bytes.
    pub(super) fn max_line_bytes(field_bytes: usize) -> usize {
        FRAME_BYTES.saturating_add(PEER_FIELDS.saturating_mul(field_bytes))
    }

    /// What the line of an entry takes at most. Most lines take far less: escapes are rare.
    pub(super) fn bound_bytes(&self, entry: &LogEntry<'_>) -> usize {
        let bound = |length: usize| length.saturating_mul(MAX_ESCAPE_BYTES).min(self.field_bytes);
        let optional = |value: Option<&[u8]>| value.map_or(0, |value| bound(value.len()));
        let request =
            entry.request.map_or(0, |request| bound(request.method.len()) + bound(request.target.len()));
        FRAME_BYTES + request + optional(entry.referer) + optional(entry.user_agent)
    }

    /// Appends the line of an entry.
    pub(super) fn push(&mut self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        match self.format {
            LogFormat::Common => self.push_common(entry, line),
            LogFormat::Combined => {
                self.push_common(entry, line);
                self.push_quoted(b" \"", entry.referer, line);
                self.push_quoted(b"\" \"", entry.user_agent, line);
                line.push(b'"');
            }
            LogFormat::Json => return self.push_json(entry, line),
        }
        line.push(b'\n');
    }

    fn push_common(&mut self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(entry.peer.ip());
        line.extend_from_slice(b" - - [");
        line.extend_from_slice(self.time.common(entry.unix_time_ns));
        line.extend_from_slice(b"] \"");
        if let Some(request) = &entry.request {
            push_hex_escaped(request.method.as_bytes(), self.field_bytes, line);
            line.push(b' ');
            push_hex_escaped(request.target, self.field_bytes, line);
            line.push(b' ');
            line.extend_from_slice(request.version.as_bytes());
        } else {
            line.push(b'-');
        }
        line.extend_from_slice(b"\" ");
        push_number(entry.status, line);
        line.push(b' ');
        push_number(entry.body_bytes, line);
    }

    fn push_quoted(&self, before: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
        line.extend_from_slice(before);
        push_hex_escaped(value.unwrap_or(b"-"), self.field_bytes, line);
    }

    fn push_json(&mut self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(b"{\"time\":\"");
        line.extend_from_slice(self.time.rfc3339(entry.unix_time_ns));
        line.extend_from_slice(b"\",\"peer\":\"");
        line.extend_from_slice(entry.peer.as_bytes());
        let request = entry.request.as_ref();
        self.push_string(b"\",\"method\":\"", request.map(|request| request.method.as_bytes()), line);
        self.push_string(b",\"target\":\"", request.map(|request| request.target), line);
        match request {
            Some(request) => {
                line.extend_from_slice(b",\"version\":\"");
                line.extend_from_slice(request.version.as_bytes());
                line.extend_from_slice(b"\",\"status\":");
            }
            None => line.extend_from_slice(b",\"version\":null,\"status\":"),
        }
        push_number(entry.status, line);
        line.extend_from_slice(b",\"bytes\":");
        push_number(entry.body_bytes, line);
        line.extend_from_slice(b",\"duration_us\":");
        push_number(entry.duration_us, line);
        self.push_string(b",\"referer\":\"", entry.referer, line);
        self.push_string(b",\"user_agent\":\"", entry.user_agent, line);
        line.extend_from_slice(&self.json_end);
    }

    /// Appends the name of a field with its punctuation up to the first quote of its value, and the value. The length of the
    /// former is known when this is compiled, so that it is copied in place.
    fn push_string<const LENGTH: usize>(
        &self,
        before: &[u8; LENGTH],
        value: Option<&[u8]>,
        line: &mut Vec<u8>,
    ) {
        line.extend_from_slice(before);
        let Some(value) = value else {
            // In the place of the quote.
            line.pop();
            return line.extend_from_slice(b"null");
        };
        push_json(value, self.field_bytes, line);
        line.push(b'"');
    }
}

fn push_number(number: impl itoa::Integer, line: &mut Vec<u8>) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const TIME_NS: u64 = 1_795_364_855_042_000_000;

    fn line(format: LogFormat, field_bytes: usize, entry: &LogEntry<'_>) -> String {
        let mut writer = LineWriter::new(format, field_bytes, 3);
        let mut line = Vec::new();
        writer.push(entry, &mut line);
        assert!(line.len() <= writer.bound_bytes(entry), "{} bytes", line.len());
        assert!(writer.bound_bytes(entry) <= LineWriter::max_line_bytes(field_bytes));
        String::from_utf8(line).unwrap()
    }

    fn entry<'a>(peer: &'a FormattedPeer, target: &'a [u8], user_agent: Option<&'a [u8]>) -> LogEntry<'a> {
        LogEntry {
            unix_time_ns: TIME_NS,
            duration_us: 87,
            peer,
            request: Some(RequestLine { method: "GET", target, version: "HTTP/1.1" }),
            status: 200,
            body_bytes: 13,
            referer: None,
            user_agent,
        }
    }

    fn peer() -> FormattedPeer {
        FormattedPeer::new("203.0.113.9:4711".parse().unwrap())
    }

    #[test]
    fn peers_are_written_with_and_without_their_port() {
        let cases = [
            ("203.0.113.9:4711", "203.0.113.9:4711", "203.0.113.9"),
            ("[2001:db8::9]:1", "[2001:db8::9]:1", "2001:db8::9"),
            ("[::ffff:203.0.113.9]:80", "203.0.113.9:80", "203.0.113.9"),
            ("[fe80::1%7]:80", "[fe80::1]:80", "fe80::1"),
            (
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            ),
        ];
        for (address, whole, ip) in cases {
            let text = FormattedPeer::new(address.parse().unwrap());
            assert_eq!((text.as_bytes(), text.ip()), (whole.as_bytes(), ip.as_bytes()));
        }
        assert_eq!(
            (FormattedPeer::unix().as_bytes(), FormattedPeer::unix().ip()),
            (&b"unix:"[..], &b"unix:"[..])
        );
        assert_eq!(format!("{:?}", peer()), "FormattedPeer(203.0.113.9:4711)");
    }

    #[test]
    fn lines_have_the_documented_form() {
        let peer = peer();
        let mut entry = entry(&peer, b"/a?b=c", Some(b"curl/8"));
        let common = "203.0.113.9 - - [22/Nov/2026:16:27:35 +0000] \"GET /a?b=c HTTP/1.1\" 200 13";
        assert_eq!(line(LogFormat::Common, 100, &entry), format!("{common}\n"));
        assert_eq!(line(LogFormat::Combined, 100, &entry), format!("{common} \"-\" \"curl/8\"\n"));
        assert_eq!(
            line(LogFormat::Json, 100, &entry),
            "{\"time\":\"2026-11-22T16:27:35.042Z\",\"peer\":\"203.0.113.9:4711\",\"method\":\"GET\",\"target\":\"/a?b=c\",\
             \"version\":\"HTTP/1.1\",\"status\":200,\"bytes\":13,\"duration_us\":87,\"referer\":null,\
             \"user_agent\":\"curl/8\",\"worker\":3}\n"
        );
        entry.request = None;
        entry.referer = Some(b"http://x/");
        let combined = line(LogFormat::Combined, 100, &entry);
        assert!(combined.ends_with("] \"-\" 200 13 \"http://x/\" \"curl/8\"\n"), "{combined}");
        let json: Value = serde_json::from_str(&line(LogFormat::Json, 100, &entry)).unwrap();
        assert_eq!(
            (&json["method"], &json["target"], &json["version"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
    }

    #[test]
    fn a_line_is_bounded_whatever_a_peer_sends() {
        let peer = FormattedPeer::new("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap());
        let hostile = [1u8; 10_000];
        for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
            // Multiples of an escape fill a field to the last byte.
            for field_bytes in [0, 1, 6, 600, 4096, 100_000] {
                let long = std::str::from_utf8(&hostile).unwrap();
                let entry = LogEntry {
                    unix_time_ns: u64::MAX,
                    duration_us: u64::MAX,
                    peer: &peer,
                    request: Some(RequestLine { method: long, target: &hostile, version: "HTTP/1.1" }),
                    status: u16::MAX,
                    body_bytes: u64::MAX,
                    referer: Some(&hostile),
                    user_agent: Some(&hostile),
                };
                let mut writer = LineWriter::new(format, field_bytes, usize::MAX);
                let mut line = Vec::new();
                writer.push(&entry, &mut line);
                assert!(line.len() <= LineWriter::max_line_bytes(field_bytes), "{} bytes", line.len());
                assert!(line.len() <= writer.bound_bytes(&entry));
            }
        }
    }

    #[test]
    fn formats_are_read_by_the_name_that_they_write() {
        for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("apache".parse::<LogFormat>().unwrap_err().contains("choose common"));
    }

    proptest! {
        #[test]
        fn a_json_line_parses_back_to_the_same_values(
            method: String, target: Vec<u8>, referer: Option<String>,
            user_agent: Option<Vec<u8>>, status: u16, body_bytes: u64, duration_us: u64,
        ) {
            let peer = peer();
            let entry = LogEntry {
                unix_time_ns: TIME_NS, duration_us, peer: &peer, status, body_bytes,
                request: Some(RequestLine { method: &method, target: &target, version: "HTTP/1.0" }),
                referer: referer.as_deref().map(str::as_bytes), user_agent: user_agent.as_deref(),
            };
            let line = line(LogFormat::Json, usize::MAX, &entry);
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            let json: Value = serde_json::from_str(&line).unwrap();
            let lossy = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
            prop_assert_eq!(&json["method"], &Value::from(method));
            prop_assert_eq!(&json["target"], &lossy(&target));
            prop_assert_eq!(&json["version"], &Value::from("HTTP/1.0"));
            prop_assert_eq!(&json["referer"], &Value::from(referer));
            prop_assert_eq!(&json["user_agent"], &user_agent.as_deref().map_or(Value::Null, lossy));
            prop_assert_eq!(&json["status"], &Value::from(status));
            prop_assert_eq!(&json["bytes"], &Value::from(body_bytes));
            prop_assert_eq!(&json["duration_us"], &Value::from(duration_us));
            prop_assert_eq!(json.as_object().unwrap().len(), 11);
        }

        #[test]
        fn a_combined_line_stays_one_line_of_nine_fields(target: Vec<u8>, referer: Vec<u8>, user_agent: Vec<u8>) {
            let peer = peer();
            let mut entry = entry(&peer, &target, Some(&user_agent));
            entry.referer = Some(&referer);
            let line = line(LogFormat::Combined, usize::MAX, &entry);
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            prop_assert!(line.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            // Three quoted fields, and no quote within them.
            let parts: Vec<&str> = line.split('"').collect();
            prop_assert_eq!(parts.len(), 7);
            prop_assert_eq!((parts[2], parts[4], parts[6]), (" 200 13 ", " ", "\n"));
        }
    }
}
