//! Tests for request field extraction.

use anello_http::files::fields::RequestFields;

#[test]
fn fields_match_in_any_case_among_others_of_same_length() {
    let fields: [(&str, &[u8]); 12] = [
        ("RANGE", b"1"),
        ("Accept", b"2"),
        ("Cookie", b"-"),
        ("if-match", b"4"),
        ("If-Range", b"5"),
        ("If-None-Match", b"6"),
        ("Accept-Encoding", b"7"),
        ("Accept-Language", b"-"),
        ("If-Modified-Since", b"8"),
        ("If-Unmodified-Since", b"9"),
        ("", b"-"),
        ("Accept-Encoding", b"7b"),
    ];
    let picked = RequestFields::pick(fields);
    assert_eq!(picked.range, Some(&b"1"[..]));
    assert_eq!(picked.accept.iter().collect::<Vec<_>>(), [b"2"]);
    assert_eq!(picked.if_match.iter().collect::<Vec<_>>(), [b"4"]);
    assert_eq!(picked.if_range, Some(&b"5"[..]));
    assert_eq!(picked.if_none_match.iter().collect::<Vec<_>>(), [b"6"]);
    assert_eq!(picked.accept_encoding.iter().collect::<Vec<_>>(), [&b"7"[..], b"7b"]);
    assert_eq!(picked.if_modified_since, Some(&b"8"[..]));
    assert_eq!(picked.if_unmodified_since, Some(&b"9"[..]));
}

#[test]
fn repeated_singleton_field_becomes_empty() {
    let twice: [(&str, &[u8]); 2] = [("Range", b"bytes=0-1"), ("Range", b"bytes=2-3")];
    assert_eq!(RequestFields::pick(twice).range, Some(&b""[..]));
}

#[test]
fn preconditions_are_detected_and_exclude_if_range() {
    for name in ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"] {
        assert!(RequestFields::pick([(name, &b"x"[..])]).is_conditional(), "{name}");
    }
    let others = RequestFields::pick(["If-Range", "Range", "Accept"].map(|name| (name, &b"x"[..])));
    assert!(!others.is_conditional());
}
