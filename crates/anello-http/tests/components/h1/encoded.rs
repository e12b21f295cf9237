//! Tests for responses that are encoded in advance.

use anello_http::h1::{
    BodyLength, EncodedResponse, FieldBlock, FieldName, HttpDate, Method, RequestContext, ResponseHead,
    Version,
};

/// Returns the same response, encoded step by step.
fn encode_directly(context: RequestContext, fields: &FieldBlock, body: &[u8], date: &HttpDate) -> Vec<u8> {
    let mut out = Vec::new();
    let mut head = ResponseHead::begin(&mut out, context, 200).unwrap();
    head.date(date).block(fields);
    let mut encoder = head.finish(BodyLength::Known(body.len() as u64));
    encoder.write(&mut out, body).unwrap();
    encoder.finish(&mut out).unwrap();
    out
}

#[test]
fn encoded_response_matches_stepwise_encoding() {
    let mut fields = FieldBlock::default();
    fields.push(FieldName::CONTENT_TYPE, b"text/plain").unwrap();
    let date = HttpDate::from_unix(1_790_000_000);
    for body in [&b""[..], b"ciao", &[7; 5000]] {
        let encoded = EncodedResponse::new(fields.clone(), body);
        assert_eq!((encoded.body_bytes(), &encoded.body()[..]), (body.len(), body));
        for method in [Method::Get, Method::Head, Method::Post, Method::Options, Method::Connect] {
            for version in [Version::Http10, Version::Http11] {
                for keeps_alive in [false, true] {
                    let context = RequestContext { version, method, keeps_alive };
                    let mut out = b"before".to_vec();
                    let sent = encoded.write(&mut out, context, &date);
                    let is_plain = keeps_alive && version == Version::Http11 && method != Method::Connect;
                    assert_eq!(sent.is_some(), is_plain);
                    let expected = encode_directly(context, &fields, body, &date);
                    assert_eq!(&out[6..], if is_plain { &expected[..] } else { b"" });
                    let expected_body_bytes = if method == Method::Head { 0 } else { body.len() };
                    assert!(sent.is_none_or(|sent| sent == expected_body_bytes));
                }
            }
        }
    }
}
