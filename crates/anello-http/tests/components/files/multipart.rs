//! Tests for multipart bodies.

use anello_http::files::multipart::{Boundary, Multipart};
use anello_http::files::range::ByteRange;

/// Returns the body as the client receives it.
fn body(multipart: &Multipart, file: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, range) in multipart.parts() {
        body.extend_from_slice(head);
        body.extend_from_slice(&file[range.first as usize..=range.last as usize]);
    }
    body.extend_from_slice(multipart.end());
    body
}

#[test]
fn body_has_format_of_rfc_9110() {
    let ranges = [ByteRange { first: 1, last: 2 }, ByteRange { first: 0, last: 0 }];
    let multipart = Multipart::new(&ranges, 5, "text/plain", Boundary::from_random(0x10));
    let boundary = "01000000000000000000000000000000";
    assert_eq!(multipart.content_type(), format!("multipart/byteranges; boundary={boundary}"));
    let expected = format!(
        "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 1-2/5\r\n\r\nbc\r\n\
         --{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/5\r\n\r\na\r\n\
         --{boundary}--\r\n"
    );
    assert_eq!(String::from_utf8(body(&multipart, b"abcde")).unwrap(), expected);
}

#[test]
fn boundary_depends_on_every_bit() {
    let all_ones = Boundary::from_random(u128::MAX);
    let multipart = Multipart::new(&[], 5, "text/plain", all_ones);
    assert!(multipart.content_type().ends_with(&format!("boundary={}", "f".repeat(32))));
    for bit in 0..128 {
        assert_ne!(Boundary::from_random(1 << bit), Boundary::from_random(0), "{bit}");
    }
}
