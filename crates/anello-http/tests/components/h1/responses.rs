//! Encoded responses are unambiguous for all requests, fields and bodies.

use anello_http::h1::{
    BodyLength, FieldBlock, FieldName, HttpDate, Method, Rejection, RequestContext, ResponseFraming,
    ResponseHead, Version, reason_phrase,
};
use proptest::prelude::*;
use proptest::sample::select;

/// A response as parsed by a client.
#[derive(Debug, PartialEq, Eq)]
struct ClientResponse {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    closes: bool,
}

/// Parses the response at the start of `input` (RFC 9112, section 6.3) and removes it. Independent of the encoder.
fn parse_response(input: &mut &[u8], method: Method) -> ClientResponse {
    let mut storage = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut storage);
    let httparse::Status::Complete(head_bytes) = response.parse(input).unwrap() else {
        panic!("incomplete head")
    };
    let status = response.code.unwrap();
    let fields: Vec<_> =
        response.headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect();
    *input = &input[head_bytes..];
    let find = |name: &str| {
        let mut values =
            fields.iter().filter(|(field_name, _)| field_name == name).map(|(_, value)| &value[..]);
        let value = values.next();
        assert!(values.next().is_none(), "duplicate field {name}");
        value
    };
    let length = find("Content-Length").map(|value| str::from_utf8(value).unwrap().parse::<usize>().unwrap());
    let chunked = find("Transfer-Encoding").is_some_and(|value| value == b"chunked");
    assert!(!(chunked && length.is_some()));
    let closes = find("Connection") == Some(b"close");
    let bodyless = method == Method::Head || matches!(status, 204 | 304);
    let body = match length {
        _ if bodyless => Vec::new(),
        _ if chunked => read_chunks(input),
        Some(bytes) => take(input, bytes),
        None => take(input, input.len()),
    };
    assert!(bodyless || chunked || length.is_some() || closes && input.is_empty());
    ClientResponse { status, fields, body, closes }
}

fn read_chunks(input: &mut &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = take(input, input.iter().position(|&byte| byte == b'\n').unwrap() + 1);
        let size =
            usize::from_str_radix(str::from_utf8(&line).unwrap().trim_end_matches("\r\n"), 16).unwrap();
        body.extend(take(input, size));
        assert_eq!(take(input, 2), b"\r\n");
        if size == 0 {
            return body;
        }
    }
}

fn take(input: &mut &[u8], bytes: usize) -> Vec<u8> {
    let (first, rest) = input.split_at(bytes);
    *input = rest;
    first.to_vec()
}

/// A generated response, and the request that it belongs to.
#[derive(Clone, Debug)]
struct SentResponse {
    context: RequestContext,
    status: u16,
    parts: Vec<Vec<u8>>,
    has_known_length: bool,
}

fn sent_response() -> impl Strategy<Value = SentResponse> {
    let version = select(vec![Version::Http11, Version::Http11, Version::Http10]);
    let method = select(vec![Method::Get, Method::Head, Method::Post, Method::Other]);
    let context = (version, method, prop::bool::weighted(0.9))
        .prop_map(|(version, method, keeps_alive)| RequestContext { version, method, keeps_alive });
    let status = prop_oneof![select(vec![200, 204, 205, 206, 304, 404, 500]), 200..=999u16];
    let parts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4);
    (context, status, parts, any::<bool>()).prop_map(|(context, status, parts, has_known_length)| {
        SentResponse { context, status, parts, has_known_length }
    })
}

/// Encodes a response. Returns whether another response may follow on the connection.
fn write(sent: &SentResponse, out: &mut Vec<u8>) -> bool {
    let mut head = ResponseHead::begin(out, sent.context, sent.status).unwrap();
    head.date(&HttpDate::from_unix(0)).field(FieldName::SERVER, b"test").unwrap();
    let length: usize = sent.parts.iter().map(Vec::len).sum();
    let length = if sent.has_known_length { BodyLength::Known(length as u64) } else { BodyLength::Unknown };
    let mut body = head.finish(length);
    let keeps_alive = body.keeps_alive();
    for part in &sent.parts {
        body.write(out, part).unwrap();
    }
    body.finish(out).unwrap();
    keeps_alive
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn responses_in_one_buffer_are_parsed_one_by_one(
        responses in prop::collection::vec(sent_response(), 1..6),
    ) {
        let mut out = Vec::new();
        let mut written = 0;
        for response in &responses {
            written += 1;
            if !write(response, &mut out) {
                break;
            }
        }
        let mut input = &out[..];
        for (index, sent) in responses[..written].iter().enumerate() {
            let response = parse_response(&mut input, sent.context.method);
            prop_assert_eq!(response.status, sent.status);
            let bodyless = sent.context.method == Method::Head || matches!(sent.status, 204 | 205 | 304);
            let body = if bodyless { Vec::new() } else { sent.parts.concat() };
            prop_assert_eq!(response.body, body);
            let was_last = index + 1 == written && written < responses.len();
            prop_assert!(!was_last || response.closes, "close is not announced");
            prop_assert!(index + 1 == written || !response.closes, "response after an announced close");
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn field_values_cannot_inject_fields(
        fields in prop::collection::vec(("[ -~\r\n\0\u{e4}]{0,10}", prop::collection::vec(any::<u8>(), 0..20)), 0..6),
    ) {
        let context = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };
        let (mut out, mut accepted) = (Vec::new(), Vec::new());
        let mut head = ResponseHead::begin(&mut out, context, 200).unwrap();
        for (name, value) in &fields {
            let Ok(field) = FieldName::new(name) else { continue };
            if head.field(field, value).is_ok() {
                accepted.push((name.clone(), value.trim_ascii().to_vec()));
            }
        }
        head.finish(BodyLength::Known(0)).finish(&mut Vec::new()).unwrap();
        accepted.push(("Content-Length".to_owned(), b"0".to_vec()));
        let mut input = &out[..];
        prop_assert_eq!(parse_response(&mut input, Method::Get).fields, accepted);
        prop_assert!(input.is_empty());
    }
}

#[test]
fn field_block_encodes_like_single_fields() {
    let context = RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };
    let fields: [(FieldName<'_>, &[u8]); 3] = [
        (FieldName::CONTENT_TYPE, b"text/html; charset=utf-8"),
        (FieldName::LAST_MODIFIED, b"Sun, 06 Nov 1994 08:49:37 GMT"),
        (FieldName::ETAG, b"\"13-1a2b3c\""),
    ];
    let (mut with_fields, mut with_block, mut block) = (Vec::new(), Vec::new(), FieldBlock::default());
    let mut head = ResponseHead::begin(&mut with_fields, context, 200).unwrap();
    for (name, value) in fields {
        head.field(name, value).unwrap();
        block.push(name, value).unwrap();
    }
    assert_eq!(head.finish(BodyLength::Known(13)).framing(), ResponseFraming::Length(13));
    let mut head = ResponseHead::begin(&mut with_block, context, 200).unwrap();
    head.block(&block);
    assert_eq!(head.finish(BodyLength::Known(13)).framing(), ResponseFraming::Length(13));
    assert_eq!(with_fields, with_block);
}

#[test]
fn rejections_are_valid_responses_and_close() {
    for status in [400, 408, 413, 414, 417, 431, 501, 503, 505] {
        let mut out = Vec::new();
        Rejection::new(status, "because").write(&mut out, Method::Get, None);
        let mut input = &out[..];
        let response = parse_response(&mut input, Method::Get);
        assert!(response.status == status && response.closes && input.is_empty());
        assert!(String::from_utf8(response.body).unwrap().ends_with(": because\n"));
    }
}

#[test]
fn reason_phrases_are_those_of_rfc_9110() {
    for (status, phrase) in [
        (203, "Non-Authoritative Information"),
        (404, "Not Found"),
        (413, "Content Too Large"),
        (422, "Unprocessable Content"),
        (799, ""),
    ] {
        assert_eq!(reason_phrase(status), phrase);
    }
}
