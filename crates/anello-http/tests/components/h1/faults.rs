//! Rejection of invalid requests, for all protocol faults in the fault list. Each case is decoded both whole and byte
//! by byte, and both outcomes must be the same.

use crate::properties::h1_support::cases::{self, RejectedCase, chunked, post};
use crate::properties::h1_support::{Outcome, feed, feed_whole};
use anello_http::h1::{Decoder, Event, Limits, RequestFraming};

/// Decodes the input both whole and byte by byte, and checks that the outcomes are equal.
fn feed_whole_and_bytewise(text: impl AsRef<[u8]>) -> Outcome {
    let text = text.as_ref();
    let outcome = feed_whole(text);
    let bytewise = feed(text.chunks(1), Limits::default());
    assert_eq!(bytewise, outcome, "{}", text.escape_ascii());
    outcome
}

/// Checks that each case is rejected with its status.
fn assert_all_rejected(cases: Vec<RejectedCase>) {
    for (text, status) in cases {
        assert_rejected_with(text, status);
    }
}

/// Checks that the input is rejected with this status before any request in it is complete.
fn assert_rejected_with(text: impl AsRef<[u8]>, status: u16) {
    let outcome = feed_whole_and_bytewise(&text);
    let escaped = text.as_ref().escape_ascii();
    assert_eq!(outcome.status(), status, "{escaped}: {outcome:?}");
    assert!(outcome.requests.iter().all(|request| !request.is_complete), "{escaped}: {outcome:?}");
}

#[test]
fn fault_24_ten_thousand_pipelined_requests_are_decoded_in_order() {
    let text: String = (0..10_000).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
    let expected: Vec<_> = (0..10_000).map(|n| format!("GET /{n} ")).collect();
    for part_bytes in [text.len(), 16 * 1024, 1] {
        let outcome = feed(text.as_bytes().chunks(part_bytes), Limits::default());
        assert!(outcome.rejection.is_none() && outcome.lines() == expected, "parts of {part_bytes} bytes");
    }
}

#[test]
fn fault_25_exceeded_limits_are_rejected_with_their_status() {
    let limits = Limits::default();
    assert_all_rejected(cases::too_long_or_too_many());
    let longest_target =
        format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(limits.max_request_line_bytes - 14));
    let max_fields = format!("{} / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A".repeat(32), "A: b\r\n".repeat(99));
    for text in [longest_target, max_fields] {
        assert!(feed_whole_and_bytewise(&text).requests[0].is_complete, "{text}");
    }
}

#[test]
fn fault_26_conflicting_framing_is_rejected() {
    assert_all_rejected(cases::conflicting_framing());
    let outcome = feed_whole_and_bytewise(post("Transfer-Encoding:\tChunKed \r\n", "3\r\nabc\r\n0\r\n\r\n"));
    assert_eq!((outcome.lines(), outcome.eof_result), (vec!["POST /form abc".to_owned()], Ok(())));
}

#[test]
fn fault_27_invalid_or_duplicate_content_length_is_rejected() {
    assert_all_rejected(cases::bad_lengths());
    let outcome = feed_whole_and_bytewise(post("Content-Length:003\t\r\n", "abc"));
    assert_eq!(
        (outcome.requests[0].framing, &outcome.requests[0].body[..]),
        (RequestFraming::Length(3), &b"abc"[..])
    );
}

#[test]
fn fault_28_invalid_chunks_are_rejected() {
    assert_all_rejected(cases::bad_chunks());
    let extended = feed_whole_and_bytewise(chunked(
        "3;a=b;c=\"d;e\" ; f\r\nabc\r\n0;last\r\nSum: 1\r\nHost: evil\r\nContent-Length: 9\r\n\r\n",
    ));
    assert_eq!((extended.lines(), extended.eof_result), (vec!["POST /form abc".to_owned()], Ok(())));
    assert_eq!(extended.requests[0].trailers, ["Sum=1"]);
}

#[test]
fn fault_29_invalid_fields_are_rejected() {
    assert_all_rejected(cases::bad_fields());
    let outcome = feed_whole_and_bytewise(post("A!#$%&'*+-.^_`|~9:\t \u{e4}, b\t \r\nB:\r\nC:  \r\n", ""));
    let expected = r#"["Host=h", "A!#$%&'*+-.^_`|~9=\\xc3\\xa4, b", "B=", "C="]"#;
    assert!(outcome.requests[0].head.ends_with(expected), "{}", outcome.requests[0].head);
}

#[test]
fn fault_30_body_is_never_decoded_as_request() {
    let smuggled = "GET /secret HTTP/1.1\r\nHost: h\r\n\r\n";
    let bodies = [
        format!("GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{smuggled}", smuggled.len()),
        format!(
            "GET /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n",
            smuggled.len()
        ),
    ];
    for body in bodies {
        let outcome = feed_whole_and_bytewise(format!("{body}GET /b HTTP/1.1\r\nHost: h\r\n\r\n"));
        let expected = [format!("GET /a {}", smuggled.as_bytes().escape_ascii()), "GET /b ".to_owned()];
        assert_eq!((outcome.lines(), outcome.eof_result), (expected.to_vec(), Ok(())));
        // The same applies to a truncated body.
        let truncated = feed_whole_and_bytewise(&body[..body.len() - 8]);
        assert!(truncated.rejection.is_none());
        assert!(truncated.requests.len() == 1 && !truncated.requests[0].is_complete);
        assert_eq!(truncated.eof_result.unwrap_err().status, 400);
    }
}

#[test]
fn ambiguous_hosts_and_targets_are_rejected() {
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET http://h/ HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: http://a\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a b\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET index.html HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET file:///etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http:// HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http://a@b/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n",
        "CONNECT h HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /  HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\tHTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\u{7f} HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\u{e4} HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /#top HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
        "GET / http/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1,1\r\nHost: h\r\n\r\n",
        "GET / HTTP/11\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.10\r\nHost: h\r\n\r\n",
        "GET / HTTP/01.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.\r\nHost: h\r\n\r\n",
        "GET /\r\n",
        "GET\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "G@T / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\r\rGET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ] {
        assert_rejected_with(text, 400);
    }
}

#[test]
fn other_protocols_are_rejected_with_specific_reason() {
    for (text, status, word) in [
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0"[..], 505, "HTTP/2"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 400, "request line"),
        (b"\x80\x2e\x01\x03", 400, "method"),
        (b"\nGET / HTTP/1.1\r\n", 400, "line feed"),
        (b"GET / HTTP/2.0\r\n", 505, "HTTP/2"),
        (b"GET / HTTP/0.9\r\n", 505, "version"),
        (b"GET / HTTP/9.9\r\n", 505, "version"),
        // Complete heads are parsed in place.
        (b"GET / HTTP/9.9\r\nHost: h\r\n\r\n", 505, "version"),
        (b"GET / HTTP/9.1\r\nHost: h\r\n\r\n", 505, "version"),
        (b"GET / HTTP/9.0\r\nHost: h\r\n\r\n", 505, "version"),
    ] {
        let outcome = feed_whole_and_bytewise(text);
        assert_eq!(outcome.status(), status, "{}", text.escape_ascii());
        let reason = outcome.rejection.unwrap().reason;
        assert!(reason.contains(word), "{}: {reason}", text.escape_ascii());
    }
    for expectation in ["200-ok", "100-continue, 200-ok", "100", "x"] {
        assert_rejected_with(post(&format!("Expect: {expectation}\r\nContent-Length: 1\r\n"), "a"), 417);
    }
}

/// The decoder examines each byte of a head once, even if the head arrives byte by byte. Otherwise, this test would
/// take hours.
#[test]
fn fault_31_head_in_a_million_parts_is_decoded_in_linear_time() {
    let limits = Limits { max_head_bytes: 1 << 21, ..Limits::default() };
    let text = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "a".repeat(1 << 20));
    let mut decoder = Decoder::new(limits);
    let (last, others) = text.as_bytes().split_last().unwrap();
    for byte in others {
        assert!(decoder.decode(&mut std::slice::from_ref(byte)).unwrap().is_none());
    }
    let last = [*last];
    let Ok(Some(Event::Head(head))) = decoder.decode(&mut &last[..]) else { panic!("no head") };
    assert_eq!(head.head_bytes(), text.len());
}
