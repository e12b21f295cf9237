//! Properties of chunked bodies: an encoded body is decoded to the same bytes, and the decoder agrees with a simple
//! reference parser regardless of how the input is split.

use anello_http::h1::{
    BodyLength, ChunkedDecoder, ChunkedEvent, Limits, Method, Rejection, RequestContext, ResponseHead,
    Version,
};

use super::splits;

/// Limits that short inputs can exceed.
const TIGHT: Limits = Limits {
    max_request_line_bytes: 0,
    max_head_bytes: 0,
    max_fields: 0,
    max_body_bytes: 20,
    max_chunk_extension_bytes: 6,
    max_trailer_bytes: 24,
    max_trailer_fields: 2,
    max_requests_per_connection: 1,
};

/// Checks the properties for an input, both as received bytes and as a body to send.
pub fn check(data: &[u8]) {
    for limits in [Limits::default(), TIGHT] {
        let decoded = decode(&[data], limits);
        assert_agrees(data, &decoded, &limits);
        for parts in splits::split_variants(data) {
            assert_eq!(decode(&parts, limits), decoded, "{} split into {parts:?}", data.escape_ascii());
        }
    }
    assert_round_trips(data);
}

/// Output of the decoder.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    body: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The body is complete. Contains the trailers, and the bytes after the body.
    Complete(Vec<(String, Vec<u8>)>, Vec<u8>),
    /// More bytes are needed.
    Incomplete,
    Rejected(Rejection),
}

fn decode(parts: &[&[u8]], limits: Limits) -> Decoded {
    let mut decoder = ChunkedDecoder::new(limits);
    let mut body = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let mut input = *part;
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(ChunkedEvent::Data(data))) => {
                    assert!(!data.is_empty(), "empty data event");
                    body.extend_from_slice(data);
                }
                Ok(Some(ChunkedEvent::End(trailers))) => {
                    assert!(matches!(decoder.decode(&mut input), Ok(None)), "event after the end");
                    let field = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
                    let trailers =
                        trailers.iter().flat_map(|trailers| trailers.fields().map(field)).collect();
                    let unread = [input, &parts[index + 1..].concat()].concat();
                    return Decoded { body, end: End::Complete(trailers, unread) };
                }
                Ok(None) => break,
                Err(rejection) => return Decoded { body, end: End::Rejected(rejection) },
            }
            assert!(
                body.len() as u64 <= limits.max_body_bytes
                    && decoder.buffered_bytes() <= limits.max_trailer_bytes
            );
        }
        assert!(input.is_empty(), "unread input before the end");
    }
    Decoded { body, end: End::Incomplete }
}

/// Checks that the reference parser agrees with the decoder.
fn assert_agrees(text: &[u8], decoded: &Decoded, limits: &Limits) {
    let escaped = text.escape_ascii();
    match (parse(text, limits), &decoded.end) {
        (Parsed::Complete { body, trailers, rest }, End::Complete(kept, unread)) => {
            assert_eq!((&decoded.body, &unread[..]), (&body, rest), "{escaped}");
            let mut trailers = trailers.into_iter();
            assert!(kept.iter().all(|kept| trailers.any(|trailer| trailer == *kept)), "{escaped}: {kept:?}");
            let is_framing = |name: &str| {
                ["host", "content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase())
            };
            assert!(!kept.iter().any(|(name, _)| is_framing(name)), "{escaped}: {kept:?}");
        }
        // The decoder can reject an incomplete line early; the reference parser only checks complete lines.
        (Parsed::Rejected | Parsed::Incomplete, End::Rejected(rejection)) => {
            assert!(matches!(rejection.status, 400 | 413 | 431), "{escaped}: {rejection}");
        }
        (Parsed::Incomplete, End::Incomplete) => {}
        (parsed, end) => panic!("{escaped}: {end:?} instead of {parsed:?}"),
    }
}

/// Checks that an encoded body is decoded to the same bytes.
fn assert_round_trips(body: &[u8]) {
    for parts in splits::split_variants(body) {
        let context = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };
        let mut text = Vec::new();
        let head = ResponseHead::begin(&mut text, context, 200).expect("valid status");
        let mut encoder = head.finish(BodyLength::Unknown);
        text.clear();
        for part in &parts {
            encoder.write(&mut text, part).expect("chunked body accepts any length");
        }
        encoder.finish(&mut text).expect("chunked body can end after any length");
        let expected = Decoded { body: body.to_vec(), end: End::Complete(vec![], vec![]) };
        assert_eq!(decode(&[&text], Limits::default()), expected, "{}", text.escape_ascii());
        let parsed = parse(&text, &Limits::default());
        assert!(
            matches!(&parsed, Parsed::Complete { body: parsed, rest: [], .. } if parsed == body),
            "{parsed:?}"
        );
    }
}

/// Result of the reference parser.
#[derive(Debug)]
pub enum Parsed<'a> {
    Complete {
        body: Vec<u8>,
        trailers: Vec<(String, Vec<u8>)>,
        rest: &'a [u8],
    },
    /// The body is incomplete.
    Incomplete,
    Rejected,
}

/// Parses a chunked body line by line. This is the reference parser.
pub fn parse<'a>(text: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let (mut body, mut rest, mut extension_bytes) = (Vec::new(), text, 0);
    loop {
        let Some((line, tail)) = line_of(rest) else { return Parsed::Incomplete };
        let Some((size, extension)) = size_line(line) else { return Parsed::Rejected };
        extension_bytes += extension.len();
        if extension_bytes > limits.max_chunk_extension_bytes {
            return Parsed::Rejected;
        }
        if size == 0 {
            return trailers(body, tail, limits);
        }
        if u128::from(size) + body.len() as u128 > u128::from(limits.max_body_bytes) {
            return Parsed::Rejected;
        }
        let Some((data, tail)) = tail.split_at_checked(size as usize) else { return Parsed::Incomplete };
        body.extend_from_slice(data);
        rest = match tail {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Parsed::Incomplete,
            _ => return Parsed::Rejected,
        };
    }
}

/// Splits off the first line. Returns it without its line ending, and the remaining text.
fn line_of(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.windows(2).position(|window| window == b"\r\n")?;
    Some((&text[..end], &text[end + 2..]))
}

/// Parses the first line of a chunk. Returns the size and the extensions.
fn size_line(line: &[u8]) -> Option<(u64, &[u8])> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extension) = line.split_at(digits);
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 16)?;
    let first = extension.iter().find(|byte| !b" \t".contains(byte));
    let is_extension = extension.is_empty() || first == Some(&b';');
    let is_text = extension.iter().all(|&byte| is_text(byte));
    Some((u64::from_str_radix(digits, 16).ok()?, extension)).filter(|_| is_extension && is_text)
}

fn trailers<'a>(body: Vec<u8>, section: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let (mut fields, mut rest) = (Vec::new(), section);
    loop {
        let Some((line, tail)) = line_of(rest) else { return Parsed::Incomplete };
        rest = tail;
        if section.len() - rest.len() > limits.max_trailer_bytes {
            return Parsed::Rejected;
        }
        if line.is_empty() {
            return Parsed::Complete { body, trailers: fields, rest };
        }
        match field(line) {
            Some(field) if fields.len() < limits.max_trailer_fields => fields.push(field),
            _ => return Parsed::Rejected,
        }
    }
}

fn field(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]);
    let is_name = !name.is_empty() && name.chars().all(super::request::is_token_character);
    let blank = |byte: &u8| b" \t".contains(byte);
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    (is_name && value.iter().all(|&byte| is_text(byte)))
        .then(|| (name.to_owned(), value[start..end].to_vec()))
}

/// Returns `true` if a byte is a tab or is not a control byte.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}
