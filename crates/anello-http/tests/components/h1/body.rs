//! Tests for response body encoding.

use anello_http::h1::{
    BodyEncoder, BodyError, BodyLength, Method, RequestContext, ResponseFraming, ResponseHead, Version,
};

/// Returns the encoder for a body with this framing.
fn encoder(framing: ResponseFraming) -> BodyEncoder {
    let (version, method, length) = match framing {
        ResponseFraming::None => (Version::Http11, Method::Head, BodyLength::Unknown),
        ResponseFraming::Length(bytes) => (Version::Http11, Method::Get, BodyLength::Known(bytes)),
        ResponseFraming::Chunked => (Version::Http11, Method::Get, BodyLength::Unknown),
        ResponseFraming::UntilClose => (Version::Http10, Method::Get, BodyLength::Unknown),
        ResponseFraming::Tunnel => (Version::Http11, Method::Connect, BodyLength::Unknown),
    };
    let mut head = Vec::new();
    let context = RequestContext { version, method, keeps_alive: true };
    let encoder = ResponseHead::begin(&mut head, context, 200).unwrap().finish(length);
    assert_eq!(encoder.framing(), framing);
    encoder
}

/// Returns the encoded body for these chunks.
fn send(framing: ResponseFraming, chunks: &[&[u8]]) -> (String, Result<(), BodyError>) {
    let (mut out, mut body) = (Vec::new(), encoder(framing));
    for chunk in chunks {
        if let Err(error) = body.write(&mut out, chunk) {
            return (String::from_utf8(out).unwrap(), Err(error));
        }
    }
    let result = body.finish(&mut out);
    (String::from_utf8(out).unwrap(), result)
}

#[test]
fn chunks_are_delimited_as_announced_in_head() {
    let chunks: [&[u8]; 3] = [b"ab", b"", b"c"];
    for (framing, sent) in [
        (ResponseFraming::None, ""),
        (ResponseFraming::Length(3), "abc"),
        (ResponseFraming::Chunked, "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        (ResponseFraming::UntilClose, "abc"),
    ] {
        assert_eq!(send(framing, &chunks), (sent.to_owned(), Ok(())), "{framing:?}");
    }
}

#[test]
fn body_of_wrong_length_is_an_error() {
    let short = Err(BodyError::TooShort { bytes_left: 2 });
    assert_eq!(send(ResponseFraming::Length(3), &[b"a"]), ("a".to_owned(), short));
    assert_eq!(send(ResponseFraming::Length(3), &[b"ab", b"cd"]), ("ab".to_owned(), Err(BodyError::TooLong)));
}

#[test]
fn externally_sent_chunk_is_framed() {
    let (mut out, mut body) = (Vec::new(), encoder(ResponseFraming::Chunked));
    assert_eq!(body.begin_chunk(&mut out, 26), Ok(true));
    out.extend_from_slice(b"(sent by other means)");
    body.end_chunk(&mut out);
    body.finish(&mut out).unwrap();
    assert_eq!(out, b"1a\r\n(sent by other means)\r\n0\r\n\r\n");
    assert_eq!(encoder(ResponseFraming::None).begin_chunk(&mut out, 26), Ok(false));
}
