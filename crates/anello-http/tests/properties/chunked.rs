//! Bodies in chunks: what was encoded is decoded to the same, and any bytes come to what a simple reader makes of them, however
//! they are cut.

use anello_http::h1::{
    BodyLength, ChunkedDecoder, ChunkedEvent, Limits, Method, Rejection, RequestContext, ResponseHead,
    Version,
};

use super::splits;

/// Limits that short texts go beyond.
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

/// The bytes as they come from the network, and as a body to be sent.
pub fn check(data: &[u8]) {
    for limits in [Limits::default(), TIGHT] {
        let decoded = decode(&[data], limits);
        assert_agrees(data, &decoded, &limits);
        for pieces in splits::split_variants(data) {
            assert_eq!(decode(&pieces, limits), decoded, "{} cut as {pieces:?}", data.escape_ascii());
        }
    }
    assert_round_trips(data);
}

/// What a decoder made of a text.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    body: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// With the trailers, and what is behind them.
    Whole(Vec<(String, Vec<u8>)>, Vec<u8>),
    /// More bytes are needed.
    Cut,
    RejectedCase(Rejection),
}

fn decode(pieces: &[&[u8]], limits: Limits) -> Decoded {
    let mut decoder = ChunkedDecoder::new(limits);
    let mut body = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut input = *piece;
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(ChunkedEvent::Data(data))) => {
                    assert!(!data.is_empty(), "a piece of nothing");
                    body.extend_from_slice(data);
                }
                Ok(Some(ChunkedEvent::End(trailers))) => {
                    assert!(matches!(decoder.decode(&mut input), Ok(None)), "something behind the end");
                    let field = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
                    let trailers =
                        trailers.iter().flat_map(|trailers| trailers.fields().map(field)).collect();
                    let left = [input, &pieces[index + 1..].concat()].concat();
                    return Decoded { body, end: End::Whole(trailers, left) };
                }
                Ok(None) => break,
                Err(refusal) => return Decoded { body, end: End::RejectedCase(refusal) },
            }
            assert!(
                body.len() as u64 <= limits.max_body_bytes
                    && decoder.buffered_bytes() <= limits.max_trailer_bytes
            );
        }
        assert!(input.is_empty(), "all is taken until the end");
    }
    Decoded { body, end: End::Cut }
}

/// Whether the simple reader reads the same.
fn assert_agrees(text: &[u8], decoded: &Decoded, limits: &Limits) {
    let shown = text.escape_ascii();
    match (read(text, limits), &decoded.end) {
        (Read::Whole { body, trailers, rest }, End::Whole(kept, left)) => {
            assert_eq!((&decoded.body, &left[..]), (&body, rest), "{shown}");
            let mut all = trailers.into_iter();
            assert!(kept.iter().all(|kept| all.any(|given| given == *kept)), "{shown}: {kept:?}");
            let is_framing = |name: &str| {
                ["host", "content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase())
            };
            assert!(!kept.iter().any(|(name, _)| is_framing(name)), "{shown}: {kept:?}");
        }
        // The simple reader sees only whole lines; what is wrong in one that is not whole yet is refused at once.
        (Read::RejectedCase, End::RejectedCase(refusal)) | (Read::Cut, End::RejectedCase(refusal)) => {
            assert!(matches!(refusal.status, 400 | 413 | 431), "{shown}: {refusal}");
        }
        (Read::Cut, End::Cut) => {}
        (read, end) => panic!("{shown}: {end:?} instead of {read:?}"),
    }
}

/// What is sent is received.
fn assert_round_trips(body: &[u8]) {
    for pieces in splits::split_variants(body) {
        let exchange = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };
        let mut text = Vec::new();
        let head = ResponseHead::begin(&mut text, exchange, 200).expect("a status");
        let mut encoder = head.finish(BodyLength::Unknown);
        text.clear();
        for piece in &pieces {
            encoder.write(&mut text, piece).expect("a body in chunks may be of any length");
        }
        encoder.finish(&mut text).expect("and end anywhere");
        let expected = Decoded { body: body.to_vec(), end: End::Whole(vec![], vec![]) };
        assert_eq!(decode(&[&text], Limits::default()), expected, "{}", text.escape_ascii());
        let read = read(&text, &Limits::default());
        assert!(matches!(&read, Read::Whole { body: read, rest: [], .. } if read == body), "{read:?}");
    }
}

/// What a simple reader makes of a body in chunks.
#[derive(Debug)]
pub enum Read<'a> {
    Whole {
        body: Vec<u8>,
        trailers: Vec<(String, Vec<u8>)>,
        rest: &'a [u8],
    },
    /// It is not there as a whole.
    Cut,
    RejectedCase,
}

/// Reads a body in chunks, line by line, all at once.
pub fn read<'a>(text: &'a [u8], limits: &Limits) -> Read<'a> {
    let (mut body, mut rest, mut extension_bytes) = (Vec::new(), text, 0);
    loop {
        let Some((line, behind)) = line_of(rest) else { return Read::Cut };
        let Some((size, extension)) = size_line(line) else { return Read::RejectedCase };
        extension_bytes += extension.len();
        if extension_bytes > limits.max_chunk_extension_bytes {
            return Read::RejectedCase;
        }
        if size == 0 {
            return trailers(body, behind, limits);
        }
        if u128::from(size) + body.len() as u128 > u128::from(limits.max_body_bytes) {
            return Read::RejectedCase;
        }
        let Some((data, behind)) = behind.split_at_checked(size as usize) else { return Read::Cut };
        body.extend_from_slice(data);
        rest = match behind {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Read::Cut,
            _ => return Read::RejectedCase,
        };
    }
}

/// A line, without its end, and what is behind it.
fn line_of(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.windows(2).position(|two| two == b"\r\n")?;
    Some((&text[..end], &text[end + 2..]))
}

/// The size, and what stands behind its digits.
fn size_line(line: &[u8]) -> Option<(u64, &[u8])> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extension) = line.split_at(digits);
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 16)?;
    let first = extension.iter().find(|byte| !b" \t".contains(byte));
    let is_extension = extension.is_empty() || first == Some(&b';');
    let is_text = extension.iter().all(|&byte| is_text(byte));
    Some((u64::from_str_radix(digits, 16).ok()?, extension)).filter(|_| is_extension && is_text)
}

fn trailers<'a>(body: Vec<u8>, section: &'a [u8], limits: &Limits) -> Read<'a> {
    let (mut fields, mut rest) = (Vec::new(), section);
    loop {
        let Some((line, behind)) = line_of(rest) else { return Read::Cut };
        rest = behind;
        if section.len() - rest.len() > limits.max_trailer_bytes {
            return Read::RejectedCase;
        }
        if line.is_empty() {
            return Read::Whole { body, trailers: fields, rest };
        }
        match field(line) {
            Some(field) if fields.len() < limits.max_trailer_fields => fields.push(field),
            _ => return Read::RejectedCase,
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

/// Whether this is no control byte, or a tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}
