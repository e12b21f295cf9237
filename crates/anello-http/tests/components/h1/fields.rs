//! Tests for trailers and for fields to send.

use anello_http::h1::{ChunkedDecoder, ChunkedEvent, FieldBlock, FieldName, InvalidField, Limits, Trailers};

#[test]
fn rejects_non_token_and_reserved_names() {
    for name in ["", "a b", "a:", "a\r\nb", "a\0", "ä", "a\t"] {
        assert_eq!(FieldName::new(name), Err(InvalidField::Name), "{name:?}");
    }
    for name in ["connection", "CONTENT-LENGTH", "dAte", "Keep-alive", "transfer-Encoding", "Upgrade"] {
        assert_eq!(FieldName::new(name), Err(InvalidField::Reserved), "{name}");
    }
    // Names as long as a reserved one, and names that start with one or are its start.
    for name in ["Vary", "Warning", "Set-Cookie", "Accept-Charset", "If-Modified-Since", "Dates", "Dat"] {
        assert_eq!(FieldName::new(name).map(|name| name.as_str()), Ok(name));
    }
}

#[test]
fn rejects_values_with_control_bytes_without_output() {
    let mut block = FieldBlock::default();
    for value in [&b"a\r"[..], b"\n", b"a\0b", b"\x7f", b"a long value, and then\x1b"] {
        assert_eq!(block.push(FieldName::VARY, value), Err(InvalidField::Value));
    }
    assert_eq!(block.as_bytes(), b"");
    block.push(FieldName::VARY, b"tab\tand \xff").unwrap();
    assert_eq!(block.as_bytes(), b"Vary: tab\tand \xff\r\n");
}

/// Decodes a trailer section after an empty body.
fn decode(section: &[u8]) -> Option<Trailers> {
    let body = [b"0\r\n", section].concat();
    match ChunkedDecoder::new(Limits::default()).decode(&mut &body[..]) {
        Ok(Some(ChunkedEvent::End(trailers))) => trailers,
        other => panic!("{other:?}"),
    }
}

#[test]
fn forbidden_trailers_are_omitted() {
    let section = b"A: 1 \r\nContent-length: 5\r\nb:\t 2 3\t\r\nEmpty:\r\nBlank:  \r\na:3\r\nHOST: x\r\n\r\n";
    let trailers = decode(section).unwrap();
    let fields: Vec<_> = trailers.fields().collect();
    let expected: [(&str, &[u8]); 5] =
        [("A", b"1"), ("b", b"2 3"), ("Empty", b""), ("Blank", b""), ("a", b"3")];
    assert_eq!(fields, expected);
    assert_eq!(trailers.field("B"), Some(&b"2 3"[..]));
    assert_eq!(trailers.fields_named("a").collect::<Vec<_>>(), [b"1", b"3"]);
    assert_eq!(trailers.field("content-length"), None);
    assert!(decode(b"\r\n").is_none() && !trailers.is_empty());
}

#[test]
fn values_are_checked_at_every_offset() {
    let is_value = |value: &[u8]| FieldBlock::default().push(FieldName::VARY, value).is_ok();
    for length in 1..20 {
        for offset in 0..length {
            for byte in 0..=255 {
                let mut text = vec![b'x'; length];
                text[offset] = byte;
                assert_eq!(is_value(&text), matches!(byte, b'\t' | b' '..=b'~' | 0x80..), "{text:?}");
            }
        }
    }
    assert!(is_value(b"") && is_value(b"a\tb"));
}
