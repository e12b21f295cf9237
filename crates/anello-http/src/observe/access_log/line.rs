//! Formatting of access log lines.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::str::FromStr;

use super::escape::{MAX_ESCAPE_BYTES, push_hex_escaped, push_json};
use crate::h1::HttpDate;

/// Upper bound for the length of a line without its four peer-controlled fields: JSON names and punctuation (157
/// bytes), time (24), peer (47), version (8), four numbers (20 each) and four truncation marks (3 each).
const FIXED_BYTES: usize = 384;
/// Number of peer-controlled fields: method, target, referer and user agent.
const PEER_FIELDS: usize = 4;

/// Format of the log lines.
///
/// Every line consists of printable ASCII characters and a line feed, regardless of the input. Times are in UTC. In the
/// common and combined formats a missing value is written as `-`, and control bytes, quotes, backslashes and non-ASCII
/// bytes are escaped as `\xHH`.
///
/// ```
/// use anello_http::observe::access_log::LogFormat;
///
/// assert_eq!("json".parse(), Ok(LogFormat::Json));
/// assert_eq!(LogFormat::default().to_string(), "combined");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Common Log Format: `PEER - - [TIME] "METHOD TARGET VERSION" STATUS BYTES`. The peer is an IP address without a
    /// port.
    Common,
    /// Combined Log Format: [`Common`](Self::Common), followed by `"REFERER" "USER AGENT"`.
    #[default]
    Combined,
    /// One JSON object per line. Every object has all of these fields, in this order:
    ///
    /// | field | type | value |
    /// |---|---|---|
    /// | `time` | string | [`LogEntry::unix_time_ns`] in RFC 3339 format: `2026-11-22T16:27:35.042Z` |
    /// | `peer` | string | IP address and port of the peer, or `unix:` for a Unix socket |
    /// | `method` | string, null | as received; null if the request line is invalid |
    /// | `target` | string, null | as received, not decoded; null if the request line is invalid |
    /// | `version` | string, null | `HTTP/1.0` or `HTTP/1.1`; null if the request line is invalid |
    /// | `status` | number | status code of the response |
    /// | `bytes` | number | [`LogEntry::body_bytes`] |
    /// | `duration_us` | number | [`LogEntry::duration_us`] |
    /// | `referer` | string, null | null if the request has no `Referer` field |
    /// | `user_agent` | string, null | null if the request has no `User-Agent` field |
    /// | `worker` | number | index of the worker that served the request |
    ///
    /// Bytes that are not valid UTF-8 are replaced by U+FFFD.
    Json,
}

/// The data logged for one request.
///
/// ```
#[doc = access_log!()]
/// let entry = LogEntry { duration_us: 750, user_agent: Some(b"curl/8.5"), ..entry };
/// log.worker(0).record(&entry);
/// log.close()?;
/// let line = std::fs::read_to_string(path)?;
/// assert!(line.ends_with("\"GET / HTTP/1.1\" 200 5 \"-\" \"curl/8.5\"\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    /// Time at which the response was queued for sending, in nanoseconds since the Unix epoch.
    pub unix_time_ns: u64,
    /// Time from the end of the request head until [`unix_time_ns`](Self::unix_time_ns), in microseconds. 0 if the
    /// request head was rejected.
    pub duration_us: u64,
    /// Address of the peer.
    pub peer: &'a FormattedPeer,
    /// Request line, or `None` if it could not be parsed.
    pub request: Option<RequestLine<'a>>,
    /// Status code of the response.
    pub status: u16,
    /// Number of response body bytes queued for sending. Less than the length of the body if the connection failed.
    pub body_bytes: u64,
    /// Value of the request field `Referer`.
    pub referer: Option<&'a [u8]>,
    /// Value of the request field `User-Agent`.
    pub user_agent: Option<&'a [u8]>,
}

/// The request line: method, target and version.
///
/// ```
/// use anello_http::observe::access_log::RequestLine;
///
/// let line = RequestLine { method: "GET", target: b"/", version: "HTTP/1.1" };
/// let read = RequestLine::read(b"GET / HTTP/1.1").expect("the line is valid");
/// assert_eq!((read.method, read.target, read.version), (line.method, line.target, line.version));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// Method, as received.
    pub method: &'a str,
    /// Request target, as received.
    pub target: &'a [u8],
    /// `HTTP/1.0` or `HTTP/1.1`. Written without escaping.
    pub version: &'static str,
}

impl<'a> RequestLine<'a> {
    /// Parses a request line without its line ending. Returns `None` if it does not have the form `METHOD TARGET
    /// HTTP/1.x`.
    ///
    /// ```
    /// use anello_http::observe::access_log::RequestLine;
    ///
    /// let line = RequestLine::read(b"GET /about HTTP/1.1").expect("the line is valid");
    /// assert_eq!((line.method, line.target), ("GET", &b"/about"[..]));
    /// assert!(RequestLine::read(b"GET /about").is_none());
    /// ```
    pub fn read(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.split(|&byte| byte == b' ');
        let (method, target) = (str::from_utf8(parts.next()?).ok()?, parts.next()?);
        let version = match parts.next()? {
            b"HTTP/1.0" => "HTTP/1.0",
            b"HTTP/1.1" => "HTTP/1.1",
            _ => return None,
        };
        let is_valid = !method.is_empty() && !target.is_empty() && parts.next().is_none();
        is_valid.then_some(Self { method, target, version })
    }
}

/// The formatted address of a peer. Format it once per connection.
///
/// ```
/// use anello_http::observe::access_log::FormattedPeer;
///
/// let peer = FormattedPeer::new(([203, 0, 113, 9], 4711).into());
/// assert_eq!((peer.as_bytes(), peer.ip()), (&b"203.0.113.9:4711"[..], &b"203.0.113.9"[..]));
/// ```
#[derive(Clone, Debug)]
pub struct FormattedPeer {
    /// `203.0.113.9:4711`, `[2001:db8::9]:4711` or `unix:`.
    text: String,
    /// The IP address within the text, without brackets or port.
    ip: Range<usize>,
}

impl FormattedPeer {
    /// Formats an IP address and port. An IPv4-mapped IPv6 address (`::ffff:203.0.113.9`) is formatted as IPv4. The
    /// zone of a link-local address is omitted.
    ///
    /// ```
    /// use std::net::{IpAddr, Ipv6Addr};
    ///
    /// use anello_http::observe::access_log::FormattedPeer;
    ///
    /// let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xcb00, 0x7109);
    /// let peer = FormattedPeer::new((IpAddr::from(mapped), 4711).into());
    /// assert_eq!(peer.as_bytes(), b"203.0.113.9:4711");
    /// ```
    pub fn new(address: SocketAddr) -> Self {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let text = address.to_string();
        let brackets = usize::from(address.is_ipv6());
        let port_start = text.rfind(':').unwrap_or(text.len());
        Self { ip: brackets..port_start - brackets, text }
    }

    /// Creates the text `unix:` for a peer that is connected through a Unix socket and has no address.
    ///
    /// ```
    /// use anello_http::observe::access_log::FormattedPeer;
    ///
    /// assert_eq!(FormattedPeer::unix().as_bytes(), b"unix:");
    /// ```
    pub fn unix() -> Self {
        let text = "unix:".to_owned();
        Self { ip: 0..text.len(), text }
    }

    /// Returns the address with its port.
    ///
    /// ```
    /// use anello_http::observe::access_log::FormattedPeer;
    ///
    /// let peer = FormattedPeer::new(([203, 0, 113, 9], 4711).into());
    /// assert_eq!(peer.as_bytes(), b"203.0.113.9:4711");
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Returns the IP address without brackets or port.
    ///
    /// ```
    /// use anello_http::observe::access_log::FormattedPeer;
    ///
    /// let peer = FormattedPeer::new("[2001:db8::9]:4711".parse().expect("valid address"));
    /// assert_eq!(peer.ip(), b"2001:db8::9");
    /// ```
    pub fn ip(&self) -> &[u8] {
        &self.text.as_bytes()[self.ip.clone()]
    }
}

/// The names of the formats, in the order of the variants of [`LogFormat`].
const FORMAT_NAMES: [(&str, LogFormat); 3] =
    [("common", LogFormat::Common), ("combined", LogFormat::Combined), ("json", LogFormat::Json)];

impl fmt::Display for LogFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(FORMAT_NAMES[*self as usize].0)
    }
}

impl FromStr for LogFormat {
    type Err = String;

    /// Parses `common`, `combined` or `json`.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = FORMAT_NAMES.into_iter().find(|(known, _)| *known == name);
        let unknown = || format!("unknown log format {name:?} (expected common, combined or json)");
        known.map(|(_, format)| format).ok_or_else(unknown)
    }
}

#[derive(Debug)]
pub(super) struct LineWriter {
    format: LogFormat,
    max_field_bytes: usize,
    time: TimeText,
    /// The constant last part of a JSON line: the field `worker` and the closing brace.
    json_suffix: Vec<u8>,
}

impl LineWriter {
    pub(super) fn new(format: LogFormat, max_field_bytes: usize, worker: usize) -> Self {
        let json_suffix = format!(",\"worker\":{worker}}}").into_bytes();
        Self { format, max_field_bytes, time: TimeText::default(), json_suffix }
    }

    /// Returns the maximum length of a line whose peer-controlled fields are each at most `max_field_bytes` long.
    pub(super) fn max_line_bytes(max_field_bytes: usize) -> usize {
        FIXED_BYTES.saturating_add(PEER_FIELDS.saturating_mul(max_field_bytes))
    }

    /// Returns an upper bound on the length of the line for an entry. The bound assumes that every byte needs an
    /// escape, so most lines are much shorter.
    pub(super) fn max_entry_bytes(&self, entry: &LogEntry<'_>) -> usize {
        let bound = |length: usize| length.saturating_mul(MAX_ESCAPE_BYTES).min(self.max_field_bytes);
        let optional = |value: Option<&[u8]>| value.map_or(0, |value| bound(value.len()));
        let request =
            entry.request.map_or(0, |request| bound(request.method.len()) + bound(request.target.len()));
        FIXED_BYTES + request + optional(entry.referer) + optional(entry.user_agent)
    }

    pub(super) fn push(&mut self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        let start = line.len();
        match self.format {
            LogFormat::Common => self.push_common(entry, line),
            LogFormat::Combined => {
                self.push_common(entry, line);
                self.push_quoted(b" \"", entry.referer, line);
                self.push_quoted(b"\" \"", entry.user_agent, line);
                line.push(b'"');
            }
            LogFormat::Json => self.push_json(entry, line),
        }
        line.push(b'\n');
        debug_assert!(line.len() - start <= self.max_entry_bytes(entry));
        debug_assert!(self.max_entry_bytes(entry) <= Self::max_line_bytes(self.max_field_bytes));
    }

    fn push_common(&mut self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(entry.peer.ip());
        line.extend_from_slice(b" - - [");
        line.extend_from_slice(self.time.common(entry.unix_time_ns));
        line.extend_from_slice(b"] \"");
        if let Some(request) = &entry.request {
            push_hex_escaped(request.method.as_bytes(), self.max_field_bytes, line);
            line.push(b' ');
            push_hex_escaped(request.target, self.max_field_bytes, line);
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

    fn push_quoted(&self, prefix: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
        line.extend_from_slice(prefix);
        push_hex_escaped(value.unwrap_or(b"-"), self.max_field_bytes, line);
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
        line.extend_from_slice(&self.json_suffix);
    }

    /// Appends a JSON field with a string value, or `null`.
    ///
    /// `prefix` contains the name and the punctuation up to the opening quote of the value. Its length is a constant,
    /// so that the compiler can inline the copy.
    fn push_string<const LENGTH: usize>(
        &self,
        prefix: &[u8; LENGTH],
        value: Option<&[u8]>,
        line: &mut Vec<u8>,
    ) {
        line.extend_from_slice(prefix);
        let Some(value) = value else {
            // `null` replaces the opening quote.
            line.pop();
            return line.extend_from_slice(b"null");
        };
        push_json(value, self.max_field_bytes, line);
        line.push(b'"');
    }
}

fn push_number(number: impl itoa::Integer, line: &mut Vec<u8>) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Timestamps in UTC. The date and time up to the second are formatted once per second, the milliseconds once per line.
#[derive(Clone, Debug, Default)]
struct TimeText {
    /// The most recently formatted second since the Unix epoch.
    second: Option<u64>,
    /// RFC 3339: `2026-11-22T16:27:35.042Z`.
    rfc3339: [u8; 24],
    /// Common log format: `22/Nov/2026:16:27:35 +0000`.
    common: [u8; 26],
}

impl TimeText {
    fn rfc3339(&mut self, unix_time_ns: u64) -> &[u8; 24] {
        self.set_second(unix_time_ns / 1_000_000_000);
        let milliseconds = (unix_time_ns / 1_000_000 % 1000) as u16;
        let digits = [milliseconds / 100, milliseconds / 10 % 10, milliseconds % 10];
        self.rfc3339[20..23].copy_from_slice(&digits.map(|digit| b'0' + digit as u8));
        &self.rfc3339
    }

    fn common(&mut self, unix_time_ns: u64) -> &[u8; 26] {
        self.set_second(unix_time_ns / 1_000_000_000);
        &self.common
    }

    fn set_second(&mut self, second: u64) {
        if self.second != Some(second) {
            self.second = Some(second);
            self.format(second);
        }
    }

    /// Formats `second` in both formats, using the parts of an HTTP date (`Sun, 22 Nov 2026 16:27:35 GMT`).
    #[cold]
    fn format(&mut self, second: u64) {
        // A 64-bit nanosecond count reaches only to the year 2554, which is within the range of HTTP dates.
        let date = HttpDate::from_unix(second);
        let text = date.as_str();
        let (day, month, year, time) = (&text[5..7], &text[8..11], &text[12..16], &text[17..25]);
        let month_number =
            "JanFebMarAprMayJunJulAugSepOctNovDec".find(month).map_or(0, |start| start / 3 + 1);
        let rfc3339 = format!("{year}-{month_number:02}-{day}T{time}.000Z");
        self.rfc3339 = rfc3339.as_bytes().try_into().unwrap_or(self.rfc3339);
        let common = format!("{day}/{month}/{year}:{time} +0000");
        self.common = common.as_bytes().try_into().unwrap_or(self.common);
    }
}
