//! Tests of fields to send.

use anello_http::h1::{FieldBlock, FieldName, InvalidField};

#[test]
fn rejects_non_token_and_reserved_names() {
    for name in ["", "a b", "a:", "a\r\nb", "a\0", "ä", "a\t"] {
        assert_eq!(FieldName::new(name), Err(InvalidField::Name), "{name:?}");
    }
    for name in ["connection", "CONTENT-LENGTH", "dAte", "Keep-alive", "transfer-Encoding", "Upgrade"] {
        assert_eq!(FieldName::new(name), Err(InvalidField::Reserved), "{name}");
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
