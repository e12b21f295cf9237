//! Requests: where the bytes are cut makes no difference; what is accepted means the same to two other readers, and comes to the
//! same when it is written anew; and what is plainly right is not refused.

use anello_http::h1::{Decoder, Event, Limits, RequestFraming, Version, write_chunk_end, write_chunk_start};

use super::chunked::{self, Read};
use super::h1_support::{Outcome, Seen, feed, field_text};
use super::splits;

/// Limits that short texts go beyond.
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

/// So much of empty lines is taken before a request.
const EMPTY_LINES_BYTES: usize = 4 * 2;

/// The bytes of a connection.
pub fn check(text: &[u8]) {
    for limits in [Limits::default(), TIGHT] {
        let outcome = feed([text], limits);
        assert_agrees(text, &outcome, limits);
        for pieces in splits::split_variants(text) {
            let cut = feed(pieces.iter().copied(), limits);
            assert_eq!(cut, outcome, "{} cut as {pieces:?}", text.escape_ascii());
        }
        assert_round_trips(text, &outcome, limits);
    }
}

/// Whether the limits hold, and other readers read the same: httparse every head, a simple one all of it.
pub fn assert_agrees(text: &[u8], outcome: &Outcome, limits: Limits) {
    let shown = text.escape_ascii();
    assert!(outcome.requests.len() as u64 <= limits.max_requests_per_connection);
    let mut rest = text;
    for (index, seen) in outcome.requests.iter().enumerate() {
        assert_within_limits(seen, limits);
        rest = after_empty_lines(rest);
        let (head, behind) = rest.split_at(seen.head_bytes);
        let head = Model::read(head, limits).unwrap_or_else(|| panic!("not strict: {}", head.escape_ascii()));
        compare_with_httparse(&rest[..seen.head_bytes], seen);
        assert_eq!(head.framing(), Some(seen.framing), "{shown}");
        let Some(behind) = after_body(seen, behind, &limits) else {
            let is_last = index + 1 == outcome.requests.len();
            assert!(is_last && !seen.is_whole, "{shown}: a body that is not whole");
            return;
        };
        assert!(seen.is_whole, "{shown}: a body that is whole");
        rest = behind;
        if head.closes() || index as u64 + 1 == limits.max_requests_per_connection {
            assert_eq!((&outcome.left[..], outcome.refusal), (rest, None), "{shown}: nothing more is taken");
            return;
        }
    }
    let before = rest.len();
    let rest = after_empty_lines(rest);
    if before - rest.len() > EMPTY_LINES_BYTES {
        return;
    }
    let end = rest.windows(4).position(|four| four == b"\r\n\r\n").map(|place| place + 4);
    if let Some(head) = end.and_then(|end| Model::read(&rest[..end], limits)) {
        assert!(!head.is_plain(limits), "{shown}: {:?}", outcome.refusal);
    }
}

fn assert_within_limits(seen: &Seen, limits: Limits) {
    assert!(seen.head_bytes <= limits.max_head_bytes && seen.fields.len() <= limits.max_fields);
    assert!(
        seen.body.len() as u64 <= limits.max_body_bytes && seen.trailers.len() <= limits.max_trailer_fields
    );
}

fn after_empty_lines(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\r\n").map_or(text, after_empty_lines)
}

/// What is behind the body, which has to be the one that was seen; `None` if it is not whole.
fn after_body<'a>(seen: &Seen, text: &'a [u8], limits: &Limits) -> Option<&'a [u8]> {
    let (body, rest) = match seen.framing {
        RequestFraming::None => (Vec::new(), text),
        RequestFraming::Length(bytes) => {
            let (body, rest) = text.split_at_checked(usize::try_from(bytes).ok()?)?;
            (body.to_vec(), rest)
        }
        RequestFraming::Chunked => match chunked::read(text, limits) {
            Read::Whole { body, rest, .. } => (body, rest),
            Read::Cut | Read::RejectedCase => return None,
        },
    };
    assert_eq!(seen.body, body);
    Some(rest)
}

/// httparse accepts more, but no version above 1.1; what is accepted here, it reads in the same way.
fn compare_with_httparse(head: &[u8], seen: &Seen) {
    let mut head = head.to_vec();
    let line_end = head.windows(2).position(|two| two == b"\r\n").expect("a line");
    if head[line_end - 1] > b'1' {
        head[line_end - 1] = b'1';
    }
    let head = &head[..];
    let mut storage = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut storage);
    assert_eq!(request.parse(head), Ok(httparse::Status::Complete(head.len())));
    assert_eq!((request.method, request.path), (Some(&seen.method[..]), Some(&seen.target[..])));
    let fields: Vec<_> = request.headers.iter().map(|field| field_text((field.name, field.value))).collect();
    assert_eq!(fields, seen.fields);
}

/// A head as a simple reader reads it, by other means than the decoder's.
struct Model {
    bytes: usize,
    method: String,
    target: String,
    is_10: bool,
    /// Names in lower case, values without the blanks around them.
    fields: Vec<(String, String)>,
}

impl Model {
    /// Reads what has to be a head and nothing else; `None` if it is none, or could be read otherwise.
    fn read(head: &[u8], limits: Limits) -> Option<Self> {
        // Latin-1, so that every byte is a character.
        let text: String = head.iter().map(|&byte| char::from(byte)).collect();
        let mut lines = text.strip_suffix("\r\n\r\n")?.split("\r\n");
        let line: Vec<_> = lines.next()?.split(' ').collect();
        let [method, target, version] = line[..] else { return None };
        // A higher minor version is read as 1.1.
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
        let is_right = is_token(method)
            && is_target
            && line.join(" ").len() <= limits.max_request_line_bytes
            && (hosts == 1 || hosts == 0 && model.is_10);
        is_right.then_some(model)
    }

    fn values<'a>(&'a self, field_name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(name, _)| name == field_name).map(|(_, value)| value.as_str())
    }

    /// How the body is framed; `None` if that is not said in one way.
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

    /// Whether this is the last request that the connection has.
    fn closes(&self) -> bool {
        let says = |name: &str| {
            let options = self.values("connection").flat_map(|value| value.split(','));
            options.map(|option| option.trim_matches([' ', '\t'])).any(|o| o.eq_ignore_ascii_case(name))
        };
        says("close") || self.is_10 && !says("keep-alive")
    }

    /// Whether there is nothing about it that a server may refuse. (This is less than all that must be accepted.)
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

/// What was accepted is accepted again when it is written from what was understood, and means the same.
fn assert_round_trips(text: &[u8], outcome: &Outcome, limits: Limits) {
    // What is written may be longer: by the blank in front of a trailer's value.
    let roomy = Limits { max_head_bytes: 1 << 20, max_trailer_bytes: 1 << 20, ..limits };
    let again = rewrite(text, limits);
    let comparable = |outcome: &Outcome| -> Vec<Seen> {
        outcome.requests.iter().map(|seen| Seen { head_bytes: 0, ..seen.clone() }).collect()
    };
    let found = comparable(&feed([&again[..]], roomy));
    assert_eq!(found, comparable(outcome), "{} from {}", again.escape_ascii(), text.escape_ascii());
}

fn rewrite(text: &[u8], limits: Limits) -> Vec<u8> {
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
                // By hand: clients may send a `Date`, which is no field of an answer's program.
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
