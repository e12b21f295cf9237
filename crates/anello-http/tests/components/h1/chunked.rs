//! Tests for the chunked transfer coding.

use anello_http::h1::{
    ChunkedDecoder, ChunkedEvent, FieldBlock, FieldName, Limits, Trailers, write_chunk_end,
    write_chunk_start, write_last_chunk,
};

/// Decodes a body that arrives in parts of `part_bytes` bytes. Returns the body, its trailers, and the number of unread
/// bytes in the last part. Returns the status of the rejection as the error, or 0 if the body is incomplete.
fn decode(text: &[u8], part_bytes: usize, limits: Limits) -> Result<(Vec<u8>, Vec<String>, usize), u16> {
    let (mut decoder, mut body) = (ChunkedDecoder::new(limits), Vec::new());
    for mut input in text.chunks(part_bytes) {
        while let Some(event) = decoder.decode(&mut input).map_err(|rejection| rejection.status)? {
            match event {
                ChunkedEvent::Data(data) => body.extend_from_slice(data),
                ChunkedEvent::End(trailers) => {
                    let text = |(name, value): (&str, &[u8])| format!("{name}={}", value.escape_ascii());
                    let trailers = trailers.iter().flat_map(Trailers::fields).map(text).collect();
                    return Ok((body, trailers, input.len()));
                }
            }
        }
    }
    Err(0)
}

fn decode_split(text: &str, limits: Limits) -> Result<(String, Vec<String>), u16> {
    let unsplit = decode(text.as_bytes(), text.len(), limits);
    for part_bytes in 1..text.len() {
        let split = decode(text.as_bytes(), part_bytes, limits);
        let same = |decoded: (Vec<u8>, Vec<String>, usize)| (decoded.0, decoded.1);
        assert_eq!(split.map(same), unsplit.clone().map(same), "{text:?} in parts of {part_bytes}");
    }
    unsplit.map(|(body, trailers, _)| (String::from_utf8(body).unwrap(), trailers))
}

#[test]
fn decodes_chunked_bodies() {
    let limits = Limits::default();
    for (text, body, trailers) in [
        ("0\r\n\r\n", "", &[][..]),
        ("3\r\nabc\r\n0\r\n\r\n", "abc", &[]),
        ("3 ;x\r\nabc\r\n00a\t; y=\"z;\u{e4}\"\r\n0123456789\r\n000;last\r\n\r\n", "abc0123456789", &[]),
        ("A\r\n0123456789\r\n0\r\nA: b\r\nHost: x\r\nC:\r\n\r\n", "0123456789", &["A=b", "C="]),
        ("0\r\nHost: x\r\n\r\n", "", &[]),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", &[]),
    ] {
        let trailers = trailers.iter().map(ToString::to_string).collect();
        assert_eq!(decode_split(text, limits), Ok((body.to_owned(), trailers)), "{text:?}");
    }
    assert_eq!(decode(b"1\r\na\r\n0\r\n\r\nrest", 100, limits), Ok((b"a".to_vec(), vec![], 4)));
}

#[test]
fn rejects_malformed_chunks() {
    for text in [
        "\r\n",
        " ",
        ";a\r\n",
        " 1\r\n",
        "g\r\n",
        "-1\r\n",
        "+1\r\n",
        "0x1\r\n",
        "1\n",
        "1 \r\n",
        "1\r\r",
        "1;a\n",
        "1;\0",
        "1;a\r;",
        "1\r\nab",
        "1\r\na\n",
        "1\r\na\rb",
        "1 2\r\n",
        "00000000000000001\r\n",
        "fffffffffffffffff\r\n",
        "0\r\n\n",
        "0\r\nA\r\n",
        "0\r\nA : b\r\n",
        "0\r\n b\r\n",
        "0\r\nA: b\r\n c\r\n",
        "0\r\nA: b\n",
        "0\r\n:\r\n",
        "1\r\na\r\n\r\n",
    ] {
        assert_eq!(decode_split(text, Limits::default()), Err(400), "{text:?}");
    }
    assert_eq!(decode_split("ffffffffffffffff\r\n", Limits::default()), Err(413));
}

#[test]
fn incomplete_trailers_are_buffered() {
    let mut decoder = ChunkedDecoder::new(Limits::default());
    assert!(decoder.decode(&mut &b"0\r\nSum: "[..]).unwrap().is_none());
    assert_eq!(decoder.buffered_bytes(), 5);
    assert!(decoder.decode(&mut &b"1\r\n"[..]).unwrap().is_none());
    assert_eq!(decoder.buffered_bytes(), 8);
    assert!(matches!(decoder.decode(&mut &b"\r\n"[..]), Ok(Some(ChunkedEvent::End(Some(_))))));
    assert_eq!(decoder.buffered_bytes(), 0);
}

#[test]
fn limits_are_exact() {
    let text = "1;ab\r\na\r\n2 ;\r\nbc\r\n0;\r\nA: b\r\nC: d\r\n\r\n";
    let exact = Limits {
        max_body_bytes: 3,
        max_chunk_extension_bytes: 6,
        max_trailer_bytes: 14,
        max_trailer_fields: 2,
        ..Limits::default()
    };
    assert!(decode_split(text, exact).is_ok());
    assert_eq!(decode_split(text, Limits { max_body_bytes: 2, ..exact }), Err(413));
    assert_eq!(decode_split(text, Limits { max_chunk_extension_bytes: 5, ..exact }), Err(400));
    assert_eq!(decode_split(text, Limits { max_trailer_bytes: 13, ..exact }), Err(431));
    assert_eq!(decode_split(text, Limits { max_trailer_fields: 1, ..exact }), Err(431));
    // The sum of the sizes exceeds 64 bits.
    let all = Limits { max_body_bytes: u64::MAX, ..Limits::default() };
    assert_eq!(decode_split("1\r\na\r\nffffffffffffffff\r\n", all), Err(413));
}

#[test]
fn decodes_encoded_chunks() {
    let mut trailers = FieldBlock::default();
    trailers.push(FieldName::constant("Sum"), b"1").unwrap();
    let mut out = Vec::new();
    for bytes in [1, 15, 16, 255, 256, 70_000] {
        write_chunk_start(&mut out, bytes);
        out.resize(out.len() + bytes, b'x');
        write_chunk_end(&mut out);
    }
    write_last_chunk(&mut out, &trailers);
    let decoded = decode(&out, 1000, Limits::default()).unwrap();
    assert_eq!((decoded.0.len(), decoded.1), (70_543, vec!["Sum=1".to_owned()]));
    let mut out = Vec::new();
    write_chunk_start(&mut out, usize::MAX);
    assert_eq!(out, b"ffffffffffffffff\r\n");
}
