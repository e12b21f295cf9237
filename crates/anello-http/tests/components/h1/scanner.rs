//! Tests for the bytewise scanner: the decoder receives each head byte by byte.

use anello_http::h1::{Decoder, Limits, Rejection};

/// Maximum length of a method.
const MAX_METHOD_BYTES: usize = 32;

/// Returns the length of the head, or the index of the first invalid byte and its rejection.
fn scan(text: &[u8], limits: &Limits) -> Result<Option<usize>, (usize, Rejection)> {
    let mut decoder = Decoder::new(*limits);
    for (index, byte) in text.iter().enumerate() {
        match decoder.decode(&mut std::slice::from_ref(byte)) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(Some(index + 1)),
            Err(rejection) => return Err((index, rejection)),
        }
    }
    Ok(None)
}

#[test]
fn rejects_at_first_invalid_byte() {
    for (text, index, status) in [
        (&b" GET"[..], 0, 400),
        (b"\x16\x03\x01", 0, 400),
        (b"G(T", 1, 400),
        (b"GET  /", 4, 400),
        (b"GET /\r\n", 5, 400),
        (b"GET /\xc3", 5, 400),
        (b"GET /#", 5, 400),
        (b"GET /\0", 5, 400),
        (b"GET / http", 6, 400),
        (b"GET / HTTP/11", 12, 400),
        (b"GET / HTTP/1.x", 13, 400),
        (b"GET / HTTP/0.9", 13, 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 13, 505),
        (b"GET / HTTP/1.1 ", 14, 400),
        (b"GET / HTTP/1.1\n", 14, 400),
        (b"GET / HTTP/1.1\r\r", 15, 400),
        (b"GET / HTTP/1.1\r\n a", 16, 400),
        (b"GET / HTTP/1.1\r\n:", 16, 400),
        (b"GET / HTTP/1.1\r\n\n", 16, 400),
        (b"GET / HTTP/1.1\r\n\rG", 17, 400),
        (b"GET / HTTP/1.1\r\nA :", 17, 400),
        (b"GET / HTTP/1.1\r\nA\r\n", 17, 400),
        (b"GET / HTTP/1.1\r\nA\xe4", 17, 400),
        (b"GET / HTTP/1.1\r\nA:\n", 18, 400),
        (b"GET / HTTP/1.1\r\nA:\0", 18, 400),
        (b"GET / HTTP/1.1\r\nA:b\rc", 20, 400),
        (b"GET / HTTP/1.1\r\nA:b\r\n c", 21, 400),
    ] {
        let result = scan(text, &Limits::default()).map_err(|(index, rejection)| (index, rejection.status));
        assert_eq!(result, Err((index, status)), "{:?}", text.escape_ascii().to_string());
    }
}

#[test]
fn reason_depends_on_position() {
    for (text, reason) in [
        ("\x16\x03\x01", "TLS handshake on a plain HTTP port (use http://)"),
        ("G\x16", "invalid byte in the method"),
        ("GET / HTTP/1.1\r\n A: b", "whitespace before the first field name"),
        ("GET / HTTP/1.1\r\n\tA: b", "whitespace before the first field name"),
        ("GET / HTTP/1.1\r\nA: b\r\n c", "folded field (send it on one line)"),
        ("GET / HTTP/1.1\r\nA: b\r\nC: d\r\n\te", "folded field (send it on one line)"),
    ] {
        let (_, rejection) = scan(text.as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(rejection.reason, reason, "{text:?}");
    }
}

#[test]
fn limits_are_exact() {
    let text = b"PUT /abc HTTP/1.0\r\nA: b\r\nC: d\r\n\r\n";
    let exact =
        Limits { max_request_line_bytes: 17, max_head_bytes: text.len(), max_fields: 2, ..Limits::default() };
    assert_eq!(scan(text, &exact), Ok(Some(text.len())));
    let status = |limits: Limits| scan(text, &limits).unwrap_err().1.status;
    assert_eq!(status(Limits { max_request_line_bytes: 16, ..exact }), 414);
    assert_eq!(status(Limits { max_head_bytes: text.len() - 1, ..exact }), 431);
    assert_eq!(status(Limits { max_fields: 1, ..exact }), 431);
    let method = |bytes| scan("M".repeat(bytes).as_bytes(), &exact).is_ok();
    assert!(method(17) && !method(18));
    let long = "M".repeat(MAX_METHOD_BYTES + 1);
    assert_eq!(scan(&long.as_bytes()[1..], &Limits::default()), Ok(None));
    assert_eq!(scan(long.as_bytes(), &Limits::default()).unwrap_err().1.status, 501);
}

#[test]
fn skips_few_empty_lines() {
    // Returns whether the decoder is between two requests, and the number of bytes of the next head.
    let skip = |text: &str| {
        let mut decoder = Decoder::new(Limits::default());
        let event = decoder.decode(&mut text.as_bytes());
        event.map(|event| {
            assert!(event.is_none(), "{event:?}");
            (decoder.is_idle(), decoder.buffered_bytes())
        })
    };
    assert_eq!(skip("\r\n\r\n\r\n\r\nGET"), Ok((false, 3)));
    assert_eq!(skip("\r\n\r"), Ok((false, 0)));
    for text in ["\r\n\r\n\r\n\r\n\r\n", "\n", "\rG", "\r\r"] {
        assert_eq!(skip(text).unwrap_err().status, 400, "{text:?}");
    }
}
