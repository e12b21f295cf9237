//! Tests for response heads.

use anello_http::h1::{
    BodyLength, FieldBlock, FieldName, HttpDate, InvalidField, InvalidStatus, Method, Rejection,
    RequestContext, ResponseFraming, ResponseHead, Version,
};

const GET: RequestContext =
    RequestContext { version: Version::Http11, method: Method::Get, keeps_alive: true };

/// Returns the lines after the status line, the framing of the body, and whether the connection is kept alive.
fn finish(context: RequestContext, status: u16, body: BodyLength) -> (String, ResponseFraming, bool) {
    let mut out = Vec::new();
    let encoder = ResponseHead::begin(&mut out, context, status).unwrap().finish(body);
    let text = String::from_utf8(out).unwrap();
    let (_, fields) = text.strip_suffix("\r\n\r\n").unwrap().split_once("\r\n").unwrap_or_default();
    (fields.replace("\r\n", "|"), encoder.framing(), encoder.keeps_alive())
}

#[test]
fn framing_follows_from_request_status_and_length() {
    use BodyLength::{Known, Unknown};
    use ResponseFraming::{Chunked, Length, None, Tunnel, UntilClose};
    let with = |method| RequestContext { method, ..GET };
    let http_10 = RequestContext { version: Version::Http10, ..GET };
    let closing = RequestContext { keeps_alive: false, ..GET };
    for (context, status, body, fields, framing, keeps_alive) in [
        (GET, 200, Known(0), "Content-Length: 0", Length(0), true),
        (GET, 404, Known(u64::MAX), "Content-Length: 18446744073709551615", Length(u64::MAX), true),
        (GET, 200, Unknown, "Transfer-Encoding: chunked", Chunked, true),
        (GET, 204, Known(3), "", None, true),
        (GET, 204, Unknown, "", None, true),
        (GET, 205, Known(3), "Content-Length: 0", None, true),
        (GET, 304, Known(3), "", None, true),
        (GET, 304, Unknown, "", None, true),
        (with(Method::Head), 200, Known(3), "Content-Length: 3", None, true),
        (with(Method::Head), 200, Unknown, "", None, true),
        (with(Method::Head), 304, Known(3), "", None, true),
        (with(Method::Connect), 200, Known(3), "", Tunnel, false),
        (with(Method::Connect), 405, Known(3), "Content-Length: 3", Length(3), true),
        (http_10, 200, Known(3), "Connection: keep-alive|Content-Length: 3", Length(3), true),
        (http_10, 200, Unknown, "Connection: close", UntilClose, false),
        (closing, 200, Known(3), "Connection: close|Content-Length: 3", Length(3), false),
        (closing, 200, Unknown, "Connection: close|Transfer-Encoding: chunked", Chunked, false),
        (closing, 304, Unknown, "Connection: close", None, false),
    ] {
        let expected = (fields.to_owned(), framing, keeps_alive);
        assert_eq!(finish(context, status, body), expected, "{context:?} {status} {body:?}");
    }
}

#[test]
fn status_lines_have_three_digits_and_a_phrase() {
    for (status, line) in [
        (200, "HTTP/1.1 200 OK"),
        (404, "HTTP/1.1 404 Not Found"),
        (299, "HTTP/1.1 299 "),
        (999, "HTTP/1.1 999 "),
    ] {
        let mut out = Vec::new();
        drop(ResponseHead::begin(&mut out, GET, status).unwrap().finish(BodyLength::Known(0)));
        assert_eq!(out.split(|&byte| byte == b'\r').next(), Some(line.as_bytes()));
    }
    for status in [0, 99, 100, 103, 199, 1000] {
        assert_eq!(ResponseHead::begin(&mut Vec::new(), GET, status).err(), Some(InvalidStatus(status)));
    }
}

#[test]
fn fields_keep_order_and_reject_control_bytes() {
    let mut block = FieldBlock::default();
    block.push(FieldName::VARY, b"Accept-Encoding").unwrap();
    let mut out = b"before".to_vec();
    let mut head = ResponseHead::begin(&mut out, GET, 200).unwrap();
    head.date(&HttpDate::from_unix(0)).block(&block);
    for value in [&b"/\r\nSet-Cookie: a"[..], b"a\nb", b"a\0", b"\r"] {
        assert_eq!(head.field(FieldName::LOCATION, value).err(), Some(InvalidField::Value));
    }
    head.field(FieldName::ETAG, b"\"1\"").unwrap().close();
    drop(head.finish(BodyLength::Known(7)));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "beforeHTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nVary: Accept-Encoding\r\nETag: \"1\"\r\n\
         Connection: close\r\nContent-Length: 7\r\n\r\n"
    );
}

#[test]
fn unfinished_head_is_removed() {
    let mut out = b"before".to_vec();
    let mut head = ResponseHead::begin(&mut out, GET, 200).unwrap();
    head.field(FieldName::ETAG, b"\"1\"").unwrap();
    drop(head);
    assert_eq!(out, b"before");
}

#[test]
fn upgrade_is_listed_in_connection() {
    let upgrade = |context, status| {
        let mut out = Vec::new();
        let mut head = ResponseHead::begin(&mut out, context, status).unwrap();
        assert!(head.upgrade("a\r\n").is_err());
        head.upgrade("chat").unwrap();
        let body = head.finish(BodyLength::Known(0));
        (String::from_utf8(out).unwrap(), body.framing())
    };
    let (text, framing) = upgrade(GET, 101);
    assert_eq!(text, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: upgrade\r\n\r\n");
    assert_eq!(framing, ResponseFraming::Tunnel);
    // The request is the last one within the limit.
    assert_eq!(upgrade(RequestContext { keeps_alive: false, ..GET }, 101).0, text);
    assert!(upgrade(GET, 426).0.contains("Upgrade: chat\r\nConnection: upgrade\r\nContent-Length: 0\r\n"));
    let closing = upgrade(RequestContext { keeps_alive: false, ..GET }, 426).0;
    assert!(closing.contains("Connection: close, upgrade\r\n"), "{closing}");
}

fn encode_rejection(rejection: Rejection, date: Option<&HttpDate>) -> String {
    let mut out = b"before".to_vec();
    rejection.write(&mut out, Method::Get, date);
    String::from_utf8(out).unwrap()
}

#[test]
fn response_to_head_has_no_content() {
    let mut out = Vec::new();
    Rejection::new(400, "bad").write(&mut out, Method::Head, None);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("\r\nContent-Length: 21\r\n") && text.ends_with("\r\n\r\n"), "{text}");
}

#[test]
fn encodes_complete_response_with_close() {
    let date = HttpDate::from_unix(784_111_777);
    assert_eq!(
        encode_rejection(Rejection::new(431, "too much"), Some(&date)),
        "beforeHTTP/1.1 431 Request Header Fields Too Large\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
         Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: 46\r\n\r\n\
         431 Request Header Fields Too Large: too much\n"
    );
    assert!(
        encode_rejection(Rejection::new(100, "odd"), None)
            .starts_with("beforeHTTP/1.1 500 Internal Server Error\r\n")
    );
}
