//! Tests for the request decoder.

use anello_http::h1::{Decoder, Event, Head, Limits, Method};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

fn decode_head(decoder: &mut Decoder, input: &mut &[u8]) -> Head {
    match decoder.decode(input) {
        Ok(Some(Event::Head(head))) => head,
        other => panic!("{other:?}"),
    }
}

fn decode_end(decoder: &mut Decoder, input: &mut &[u8]) -> bool {
    matches!(decoder.decode(input), Ok(Some(Event::End(None))))
}

#[test]
fn is_idle_only_between_requests() {
    let mut decoder = Decoder::new(Limits::default());
    assert!(decoder.is_idle() && decoder.finish_eof().is_ok());
    let text = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab\r\n";
    for (index, byte) in text.iter().enumerate() {
        let mut input = std::slice::from_ref(byte);
        while decoder.decode(&mut input).unwrap().is_some() {}
        // The decoder is idle after the body and after the empty line that follows the body.
        let is_end = index + 3 == text.len() || index + 1 == text.len();
        assert_eq!(decoder.is_idle(), is_end, "byte {index}");
        assert_eq!(decoder.is_in_body(), index + 5 == text.len() || index + 4 == text.len());
        let is_in_head = index + 5 < text.len();
        assert_eq!(decoder.buffered_bytes(), if is_in_head { index + 1 } else { 0 });
    }
    assert!(decoder.finish_eof().is_ok());
    decoder.decode(&mut &b"G"[..]).unwrap();
    assert_eq!(decoder.finish_eof().unwrap_err().status, 400);
    assert!(decoder.decode(&mut &GET[1..]).is_err());
}

#[test]
fn incomplete_trailer_is_buffered() {
    let mut decoder = Decoder::new(Limits::default());
    let mut input =
        &b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nSum: 1"[..];
    while decoder.decode(&mut input).unwrap().is_some() {}
    assert_eq!(decoder.buffered_bytes(), "Sum: 1".len());
}

#[test]
fn rejected_head_keeps_first_line_at_every_split() {
    let limits = Limits { max_request_line_bytes: 20, max_fields: 2, ..Limits::default() };
    let first_line = |text: &str, split: usize| {
        let mut decoder = Decoder::new(limits);
        for mut part in [&text.as_bytes()[..split], &text.as_bytes()[split..]] {
            while matches!(decoder.decode(&mut part), Ok(Some(_))) {}
        }
        assert!(decoder.finish_eof().is_err() && decoder.buffered_bytes() == 0);
        decoder.first_line().map(|line| String::from_utf8_lossy(line).into_owned())
    };
    for (text, line) in [
        ("\r\nGET /host HTTP/1.1\r\nA: b\r\n\r\n", Some("GET /host HTTP/1.1")),
        ("GET /many HTTP/1.1\r\nA: b\r\nA: b\r\nA: b\r\n\r\n", Some("GET /many HTTP/1.1")),
        ("GET /field HTTP/1.1\r\nA b\r\n\r\n", Some("GET /field HTTP/1.1")),
        ("GET /ends HTTP/1.1\r\nHost: h\r\n", Some("GET /ends HTTP/1.1")),
        ("no request\r\n\r\n", Some("no request")),
        ("GET /limit_ HTTP/1.1\r\nA b\r\n\r\n", Some("GET /limit_ HTTP/1.1")),
        ("GET /longer/than/that HTTP/1.1\r\nHost: h\r\n\r\n", None),
        ("GET /cut HT", None),
    ] {
        for split in 0..text.len() {
            // Nothing after the first invalid byte of a request line is read.
            let is_kept = !(text.starts_with("no request\r") && split == "no request\r".len());
            assert_eq!(first_line(text, split).as_deref(), line.filter(|_| is_kept), "{text:?} at {split}");
        }
    }
}

#[test]
fn rejected_head_keeps_method_at_every_split() {
    // No method is longer.
    let longest = format!("{} /\x01", "X".repeat(32));
    for (text, method) in [
        ("HEAD /\x01", Method::Head),
        ("HEAD /a HTTP/1.1\r\nA b\r\n\r\n", Method::Head),
        (&longest, Method::Other),
        ("HEAD\x01", Method::Get),
    ] {
        for split in 0..text.len() {
            let mut decoder = Decoder::new(Limits::default());
            for mut part in [&text.as_bytes()[..split], &text.as_bytes()[split..]] {
                decoder.decode(&mut part).ok();
            }
            assert!(decoder.finish_eof().is_err());
            assert_eq!(decoder.rejected_method(), method, "{text:?} at {split}");
        }
    }
}

#[test]
fn eof_in_body_is_reported() {
    for body in ["Content-Length: 2\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n2\r\na"] {
        let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{body}");
        let (mut decoder, mut input) = (Decoder::new(Limits::default()), text.as_bytes());
        assert_eq!(decoder.body_bytes_left(), Some(0));
        while decoder.decode(&mut input).unwrap().is_some() {}
        assert_eq!(decoder.body_bytes_left(), body.starts_with("Content").then_some(1));
        assert!(decoder.finish_eof().unwrap_err().reason.contains("body"));
    }
}

#[test]
fn bytes_after_last_request_are_not_consumed() {
    for last in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"] {
        let text = format!("{last}not http");
        let (mut decoder, mut input) = (Decoder::new(Limits::default()), text.as_bytes());
        assert!(!decode_head(&mut decoder, &mut input).keeps_alive());
        assert!(!decoder.is_closed() && decode_end(&mut decoder, &mut input) && decoder.is_closed());
        assert!(decoder.decode(&mut input).unwrap().is_none());
        assert_eq!(input, b"not http");
        assert!(decoder.is_idle() && decoder.finish_eof().is_ok());
    }
}

#[test]
fn last_request_within_limit_is_not_kept_alive() {
    let mut decoder = Decoder::new(Limits { max_requests_per_connection: 2, ..Limits::default() });
    let text = GET.repeat(3);
    let mut input = &text[..];
    assert!(decode_head(&mut decoder, &mut input).keeps_alive() && decode_end(&mut decoder, &mut input));
    assert!(!decode_head(&mut decoder, &mut input).keeps_alive() && decode_end(&mut decoder, &mut input));
    assert!(decoder.decode(&mut input).unwrap().is_none() && input == GET);
    // A limit of 0 would allow no requests.
    let mut decoder = Decoder::new(Limits { max_requests_per_connection: 0, ..Limits::default() });
    assert!(!decode_head(&mut decoder, &mut &GET[..]).keeps_alive());
}

#[test]
fn bytes_after_upgrade_are_returned() {
    let text = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n\x01\x02";
    let (mut decoder, mut input) = (Decoder::new(Limits::default()), &text[..]);
    assert_eq!(decode_head(&mut decoder, &mut input).upgrade(), Some("chat"));
    assert!(decode_end(&mut decoder, &mut input));
    assert_eq!(decoder.begin_upgrade(), b"");
    assert!(decoder.decode(&mut input).unwrap().is_none() && input == b"\x01\x02");

    let mut decoder = Decoder::new(Limits::default());
    let mut input = &text[..text.len() - 2];
    decode_head(&mut decoder, &mut input);
    assert!(decode_end(&mut decoder, &mut input));
    assert!(decoder.decode(&mut &b"\r\n\r\nPRI"[..]).unwrap().is_none());
    assert_eq!(decoder.begin_upgrade(), b"\r\n\r\nPRI");
    assert_eq!(decoder.begin_upgrade(), b"");
}

#[test]
fn rejection_is_final() {
    let mut decoder = Decoder::new(Limits::default());
    let rejection = decoder.decode(&mut &b"GET / HTTP/3.0\r\n"[..]).unwrap_err();
    assert_eq!(rejection.status, 505);
    assert_eq!(decoder.decode(&mut &GET[..]).unwrap_err(), rejection);
    assert_eq!(decoder.finish_eof(), Err(rejection));
    assert!(!decoder.is_idle());
}

#[test]
fn recycled_head_uses_own_limits() {
    let text = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
    for (text, limits) in [
        (&text[..], Limits { max_body_bytes: 4, ..Limits::default() }),
        (GET, Limits { max_fields: 0, ..Limits::default() }),
        (GET, Limits { max_head_bytes: GET.len() - 1, ..Limits::default() }),
        (GET, Limits { max_request_line_bytes: "GET / HTTP/1.1".len() - 1, ..Limits::default() }),
    ] {
        let (mut donor, mut decoder) = (Decoder::new(Limits::default()), Decoder::new(limits));
        decoder.recycle(decode_head(&mut donor, &mut &text[..]));
        assert!(decoder.decode(&mut &text[..]).is_err(), "{limits:?}");
    }
}

#[test]
fn method_names_are_case_sensitive() {
    for (name, method) in [("GET", Method::Get), ("get", Method::Other), ("Get", Method::Other)] {
        let text = format!("{name} / HTTP/1.1\r\nHost: h\r\n\r\n");
        let head = decode_head(&mut Decoder::new(Limits::default()), &mut text.as_bytes());
        assert_eq!((head.method(), head.method_text()), (method, name));
    }
}
