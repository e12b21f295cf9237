//! Properties of request decoding: the outcome does not depend on how the input is split, two other parsers agree on
//! accepted requests, re-encoded requests are decoded to the same result, and clearly valid requests are accepted.

use anello_http::h1::{Decoder, Event, Limits, RequestFraming, Version, write_chunk_end, write_chunk_start};

use super::chunked::{self, Parsed};
use super::h1_support::{Outcome, RecordedRequest, feed, field_text};
use super::splits;

/// Limits that short inputs can exceed.
pub const TIGHT: Limits = Limits {
    max_request_line_bytes: 40,
    max_head_bytes: 120,
    max_fields: 3,
    max_body_bytes: 20,
    max_chunk_extension_bytes: 6,
    max_trailer_bytes: 24,
    max_trailer_fields: 2,
    max_requests_per_connection: 3,
};

/// Maximum total size in bytes of the empty lines accepted before a request.
const MAX_EMPTY_LINES_BYTES: usize = 4 * 2;

/// Checks the properties for the bytes received on one connection.
pub fn check(text: &[u8]) {
    for limits in [Limits::default(), TIGHT] {
        let outcome = feed([text], limits);
        assert_agrees(text, &outcome, limits);
        for parts in splits::split_variants(text) {
            let split_outcome = feed(parts.iter().copied(), limits);
            assert_eq!(split_outcome, outcome, "{} split into {parts:?}", text.escape_ascii());
        }
        assert_round_trips(text, &outcome, limits);
    }
}

/// Checks that the limits hold and that other parsers agree: `httparse` for each head, and a simple reference parser
/// for the whole input.
pub fn assert_agrees(text: &[u8], outcome: &Outcome, limits: Limits) {
    let escaped = text.escape_ascii();
    assert!(outcome.requests.len() as u64 <= limits.max_requests_per_connection);
    let mut rest = text;
    for (index, request) in outcome.requests.iter().enumerate() {
        assert_within_limits(request, limits);
        rest = skip_empty_lines(rest);
        let (head, tail) = rest.split_at(request.head_bytes);
        let head = Model::parse(head, limits)
            .unwrap_or_else(|| panic!("accepted an invalid head: {}", head.escape_ascii()));
        compare_with_httparse(&rest[..request.head_bytes], request);
        assert_eq!(head.framing(), Some(request.framing), "{escaped}");
        let Some(tail) = skip_body(request, tail, &limits) else {
            let is_last = index + 1 == outcome.requests.len();
            assert!(is_last && !request.is_complete, "{escaped}: accepted an incomplete body");
            return;
        };
        assert!(request.is_complete, "{escaped}: did not accept a complete body");
        rest = tail;
        if head.closes() || index as u64 + 1 == limits.max_requests_per_connection {
            assert_eq!(
                (&outcome.unread[..], outcome.rejection),
                (rest, None),
                "{escaped}: input consumed after the last request"
            );
            return;
        }
    }
    let remaining_bytes = rest.len();
    let rest = skip_empty_lines(rest);
    if remaining_bytes - rest.len() > MAX_EMPTY_LINES_BYTES {
        return;
    }
    let head_bytes = rest.windows(4).position(|window| window == b"\r\n\r\n").map(|position| position + 4);
    if let Some(head) = head_bytes.and_then(|head_bytes| Model::parse(&rest[..head_bytes], limits)) {
        assert!(!head.is_plain(limits), "{escaped}: {:?}", outcome.rejection);
    }
}

fn assert_within_limits(request: &RecordedRequest, limits: Limits) {
    assert!(request.head_bytes <= limits.max_head_bytes && request.fields.len() <= limits.max_fields);
    assert!(
        request.body.len() as u64 <= limits.max_body_bytes
            && request.trailers.len() <= limits.max_trailer_fields
    );
}

fn skip_empty_lines(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\r\n").map_or(text, skip_empty_lines)
}

/// Checks that `text` starts with the recorded body, and returns the text after it. Returns `None` if the body is
/// incomplete.
fn skip_body<'a>(request: &RecordedRequest, text: &'a [u8], limits: &Limits) -> Option<&'a [u8]> {
    let (body, rest) = match request.framing {
        RequestFraming::None => (Vec::new(), text),
        RequestFraming::Length(bytes) => {
            let (body, rest) = text.split_at_checked(usize::try_from(bytes).ok()?)?;
            (body.to_vec(), rest)
        }
        RequestFraming::Chunked => match chunked::parse(text, limits) {
            Parsed::Complete { body, rest, .. } => (body, rest),
            Parsed::Incomplete | Parsed::Rejected => return None,
        },
    };
    assert_eq!(request.body, body);
    Some(rest)
}

/// Checks that `httparse` parses an accepted head in the same way. `httparse` rejects minor versions above 1, so these
/// are replaced.
fn compare_with_httparse(head: &[u8], recorded: &RecordedRequest) {
    let mut head = head.to_vec();
    let line_end = head.windows(2).position(|window| window == b"\r\n").expect("request line");
    if head[line_end - 1] > b'1' {
        head[line_end - 1] = b'1';
    }
    let head = &head[..];
    let mut storage = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut storage);
    assert_eq!(request.parse(head), Ok(httparse::Status::Complete(head.len())));
    assert_eq!((request.method, request.path), (Some(&recorded.method[..]), Some(&recorded.target[..])));
    let fields: Vec<_> = request.headers.iter().map(|field| field_text((field.name, field.value))).collect();
    assert_eq!(fields, recorded.fields);
}

/// A request head as parsed by a simple reference parser, independent of the decoder.
struct Model {
    bytes: usize,
    method: String,
    target: String,
    is_10: bool,
    /// Names in lower case, and values without surrounding whitespace.
    fields: Vec<(String, String)>,
}

impl Model {
    /// Parses a complete head. Returns `None` if it is invalid or ambiguous.
    fn parse(head: &[u8], limits: Limits) -> Option<Self> {
        // Decoded as Latin-1, so that every byte is one character.
        let text: String = head.iter().map(|&byte| char::from(byte)).collect();
        let mut lines = text.strip_suffix("\r\n\r\n")?.split("\r\n");
        let line: Vec<_> = lines.next()?.split(' ').collect();
        let [method, target, version] = line[..] else { return None };
        // A higher minor version is handled as 1.1.
        let minor = version.strip_prefix("HTTP/1.")?;
        if minor.len() != 1 || !minor.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let is_target = !target.is_empty() && target.chars().all(|c| c.is_ascii_graphic() && c != '#');
        let is_value = |text: &str| text.chars().all(|c| c == '\t' || !c.is_ascii_control());
        let fields: Option<Vec<_>> = lines
            .map(|line| {
                let (name, value) = line.split_once(':')?;
                let field = (name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned());
                (is_token(name) && is_value(value)).then_some(field)
            })
            .collect();
        let model = Self {
            bytes: head.len(),
            method: method.to_owned(),
            target: target.to_owned(),
            is_10: version == "HTTP/1.0",
            fields: fields?,
        };
        let hosts = model.values("host").count();
        let is_valid = is_token(method)
            && is_target
            && line.join(" ").len() <= limits.max_request_line_bytes
            && (hosts == 1 || hosts == 0 && model.is_10);
        is_valid.then_some(model)
    }

    fn values<'a>(&'a self, field_name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(name, _)| name == field_name).map(|(_, value)| value.as_str())
    }

    /// Returns the framing of the body, or `None` if it is ambiguous.
    fn framing(&self) -> Option<RequestFraming> {
        let codings: Vec<_> = self.values("transfer-encoding").collect();
        let lengths: Vec<_> = self.values("content-length").collect();
        match (&codings[..], &lengths[..]) {
            ([], []) => Some(RequestFraming::None),
            ([], [length]) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().ok().map(RequestFraming::Length)
            }
            ([coding], []) if coding.eq_ignore_ascii_case("chunked") && !self.is_10 => {
                Some(RequestFraming::Chunked)
            }
            _ => None,
        }
    }

    /// Returns whether this is the last request on the connection.
    fn closes(&self) -> bool {
        let has_option = |name: &str| {
            let options = self.values("connection").flat_map(|value| value.split(','));
            options.map(|option| option.trim_matches([' ', '\t'])).any(|o| o.eq_ignore_ascii_case(name))
        };
        has_option("close") || self.is_10 && !has_option("keep-alive")
    }

    /// Returns `true` if a server has no reason to reject the head. (Not all heads that must be accepted satisfy this
    /// condition.)
    fn is_plain(&self, limits: Limits) -> bool {
        let is_plain_host = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
        let is_plain_body = match self.framing() {
            Some(RequestFraming::Length(bytes)) => bytes <= limits.max_body_bytes,
            framing => framing.is_some(),
        };
        self.method != "CONNECT"
            && self.method.len() <= 32
            && self.target.starts_with('/')
            && self.bytes <= limits.max_head_bytes
            && self.fields.len() <= limits.max_fields
            && self.values("host").all(is_plain_host)
            && self.values("expect").next().is_none()
            && is_plain_body
    }
}

pub fn is_token_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_token_character)
}

/// Checks that the decoded requests, when encoded again, are decoded to the same result.
fn assert_round_trips(text: &[u8], outcome: &Outcome, limits: Limits) {
    // The new text can be longer, because of the spaces before trailer values.
    let relaxed_limits = Limits { max_head_bytes: 1 << 20, max_trailer_bytes: 1 << 20, ..limits };
    let encoded = reencode(text, limits);
    let comparable = |outcome: &Outcome| -> Vec<RecordedRequest> {
        let requests = outcome.requests.iter();
        requests.map(|request| RecordedRequest { head_bytes: 0, ..request.clone() }).collect()
    };
    let decoded = comparable(&feed([&encoded[..]], relaxed_limits));
    assert_eq!(decoded, comparable(outcome), "{} from {}", encoded.escape_ascii(), text.escape_ascii());
}

/// Decodes requests and encodes them again.
fn reencode(text: &[u8], limits: Limits) -> Vec<u8> {
    let (mut decoder, mut input, mut out) = (Decoder::new(limits), text, Vec::new());
    let mut framing = RequestFraming::None;
    while let Ok(Some(event)) = decoder.decode(&mut input) {
        match event {
            Event::Head(head) => {
                framing = head.framing();
                let version = if head.version() == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" };
                out.extend(format!("{} {} {version}\r\n", head.method_text(), head.target()).bytes());
                for (name, value) in head.fields() {
                    out.extend([name.as_bytes(), b":", value, b"\r\n"].concat());
                }
                out.extend(b"\r\n");
            }
            Event::Data(data) if framing == RequestFraming::Chunked => {
                write_chunk_start(&mut out, data.len());
                out.extend(data);
                write_chunk_end(&mut out);
            }
            Event::Data(data) => out.extend(data),
            Event::End(trailers) if framing == RequestFraming::Chunked => {
                // The trailers are written directly, because clients can send a `Date` trailer, which the response
                // encoder reserves for itself.
                out.extend(b"0\r\n");
                for (name, value) in trailers.iter().flat_map(|trailers| trailers.fields()) {
                    out.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
                }
                out.extend(b"\r\n");
            }
            Event::End(_) => {}
        }
    }
    out
}
