//! Decoding of valid requests, in all forms defined by RFC 9110 and RFC 9112.

use crate::properties::h1_support::{feed, feed_whole};
use anello_http::h1::{Decoder, Event, Head, Limits, Method, RequestFraming, TargetForm, Version};
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn head(text: &str) -> Head {
    let mut input = text.as_bytes();
    match Decoder::new(Limits::default()).decode(&mut input) {
        Ok(Some(Event::Head(head))) => head,
        other => panic!("{text:?}: {other:?}"),
    }
}

#[test]
fn decodes_browser_request() {
    let head = head(
        "GET /docs/index.html?lang=it HTTP/1.1\r\nHost: example.com:8080\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n\
         accept-encoding: gzip, br\r\nCookie: a=1\r\ncookie: b=2\r\nConnection: keep-alive\r\nIf-None-Match: \"x\"\r\n\r\n",
    );
    assert_eq!((head.method(), head.method_text(), head.version()), (Method::Get, "GET", Version::Http11));
    assert_eq!(
        (head.target(), head.path(), head.query()),
        ("/docs/index.html?lang=it", "/docs/index.html", Some("lang=it"))
    );
    assert_eq!((head.target_form(), head.host()), (TargetForm::Origin, Some("example.com:8080")));
    assert_eq!(
        (head.framing(), head.keeps_alive(), head.expects_continue()),
        (RequestFraming::None, true, false)
    );
    assert_eq!(head.field("Accept-Encoding"), Some(&b"gzip, br"[..]));
    assert_eq!(head.fields_named("COOKIE").collect::<Vec<_>>(), [b"a=1", b"b=2"]);
    assert_eq!(
        (head.field("Range"), head.fields_named("range").count(), head.fields().count()),
        (None, 0, 8)
    );
    assert_eq!(head.fields().next(), Some(("Host", &b"example.com:8080"[..])));
}

#[test]
fn methods_are_recognized_case_sensitively() {
    for (text, method) in [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("PATCH", Method::Patch),
        ("TRACE", Method::Trace),
        ("get", Method::Other),
        ("PROPFIND", Method::Other),
        ("M-SEARCH", Method::Other),
        ("X", Method::Other),
    ] {
        let head = head(&format!("{text} / HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!((head.method(), head.method_text()), (method, text));
    }
}

#[test]
fn decodes_targets_of_every_form() {
    for (method, target, form, path, query, host) in [
        ("GET", "/", TargetForm::Origin, "/", None, "h"),
        ("GET", "//a/../%2e?", TargetForm::Origin, "//a/../%2e", Some(""), "h"),
        ("GET", "/?a?b", TargetForm::Origin, "/", Some("a?b"), "h"),
        ("GET", "/a|b^{c}`\\\"<>[]@:", TargetForm::Origin, "/a|b^{c}`\\\"<>[]@:", None, "h"),
        ("GET", "http://a.example", TargetForm::Absolute, "/", None, "a.example"),
        ("GET", "HTTPS://a:8443/p/q?r", TargetForm::Absolute, "/p/q", Some("r"), "a:8443"),
        ("POST", "http://[::1]:80?r", TargetForm::Absolute, "/", Some("r"), "[::1]:80"),
        ("OPTIONS", "*", TargetForm::Asterisk, "", None, "h"),
        ("OPTIONS", "/a", TargetForm::Origin, "/a", None, "h"),
        ("CONNECT", "a.example:443", TargetForm::Authority, "", None, "a.example:443"),
    ] {
        let head = head(&format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!((head.target(), head.target_form()), (target, form));
        assert_eq!((head.path(), head.query(), head.host()), (path, query, Some(host)), "{target}");
    }
    assert_eq!(head("GET / HTTP/1.0\r\n\r\n").host(), None);
    assert_eq!(head("GET / HTTP/1.1\r\nHost:\r\n\r\n").host(), Some(""));
}

#[test]
fn recognizes_expect_continue_and_upgrade() {
    let expecting = head("PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n");
    assert!(expecting.expects_continue());
    let upgrade =
        head("GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!((upgrade.upgrade(), upgrade.keeps_alive()), (Some("websocket"), true));
    let without_connection_option = head("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\n\r\n");
    assert_eq!(without_connection_option.upgrade(), None);
}

#[test]
fn decodes_heads_with_many_fields() {
    for fields in [1, 47, 48, 49, 99, 100] {
        let lines: String = (1..fields).map(|n| format!("X-{n}: {n}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
        let outcome = feed_whole(&text);
        assert_eq!((outcome.rejection, outcome.requests[0].fields.len()), (None, fields));
        assert_eq!(feed(text.as_bytes().chunks(7), Limits::default()), outcome);
    }
    let limits = Limits { max_fields: 5000, max_head_bytes: 1 << 20, ..Limits::default() };
    let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A:\r\n".repeat(4999));
    assert_eq!(feed([text.as_bytes()], limits).requests[0].fields.len(), 5000);
}

#[test]
fn recycled_head_keeps_nothing_of_previous_request() {
    let mut decoder = Decoder::new(Limits::default());
    let first = "POST http://a/p HTTP/1.0\r\nHost: a\r\nX-One: 1\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n";
    let second = "GET /q HTTP/1.1\r\nHost: b\r\n\r\n";
    let text = [first, second].concat();
    let mut input = text.as_bytes();
    let mut heads = 0;
    while let Some(event) = decoder.decode(&mut input).unwrap() {
        if let Event::Head(head) = event {
            heads += 1;
            if heads == 2 {
                assert!(head.field("x-one").is_none() && head.head_bytes() == second.len());
                assert_eq!(
                    (head.host(), head.path(), head.framing()),
                    (Some("b"), "/q", RequestFraming::None)
                );
                assert_eq!(
                    (head.method(), head.version(), head.fields().count()),
                    (Method::Get, Version::Http11, 1)
                );
            }
            decoder.recycle(head);
        }
    }
    assert_eq!(heads, 2);
}

/// A generated request, which [`Request::text`] encodes.
#[derive(Clone, Debug)]
struct Request {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    None,
    Length(Vec<u8>),
    Chunked(Vec<Vec<u8>>, Vec<(String, String)>),
}

fn request() -> impl Strategy<Value = Request> {
    let field = || ("X-[A-Za-z0-9!#$%&'*+.^_`|~-]{0,12}", "([!-~\u{e4}]([ -~\t\u{e4}]{0,20}[!-~\u{e4}])?)?");
    let bytes = || prop::collection::vec(any::<u8>(), 1..40);
    let body = prop_oneof![
        3 => Just(Body::None),
        2 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Body::Length),
        2 => (prop::collection::vec(bytes(), 0..4), prop::collection::vec(field(), 0..3))
            .prop_map(|(chunks, trailers)| Body::Chunked(chunks, trailers)),
    ];
    let method =
        prop_oneof![3 => select(vec!["GET", "POST", "PUT"]).prop_map(str::to_owned), 1 => "[A-Z]{1,32}"];
    // CONNECT requires a target in authority form.
    let method = method.prop_filter("CONNECT requires authority form", |method| method != "CONNECT");
    let target = "/[!\"$-~]{0,40}";
    (method, target, prop::collection::vec(field(), 0..60), body)
        .prop_map(|(method, target, fields, body)| Request { method, target, fields, body })
}

impl Request {
    /// Encodes the request, with `blanks` around field values.
    fn text(&self, blanks: &str) -> Vec<u8> {
        let mut text =
            format!("{} {} HTTP/1.1\r\nHoSt:{blanks}h{blanks}\r\n", self.method, self.target).into_bytes();
        let lines = |fields: &[(String, String)]| -> String {
            fields.iter().map(|(name, value)| format!("{name}:{blanks}{value}{blanks}\r\n")).collect()
        };
        text.extend(lines(&self.fields).into_bytes());
        match &self.body {
            Body::None => text.extend(b"\r\n"),
            Body::Length(bytes) => {
                text.extend(format!("content-length:{blanks}{}\r\n\r\n", bytes.len()).into_bytes());
                text.extend(bytes);
            }
            Body::Chunked(chunks, trailers) => {
                text.extend(format!("TRANSFER-ENCODING:{blanks}Chunked{blanks}\r\n\r\n").into_bytes());
                for chunk in chunks {
                    text.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                    text.extend(chunk);
                    text.extend(b"\r\n");
                }
                text.extend(format!("0\r\n{}\r\n", lines(trailers)).into_bytes());
            }
        }
        text
    }

    fn body(&self) -> Vec<u8> {
        match &self.body {
            Body::None => Vec::new(),
            Body::Length(bytes) => bytes.clone(),
            Body::Chunked(chunks, _) => chunks.concat(),
        }
    }
}

fn field_texts(fields: &[(String, String)]) -> Vec<String> {
    fields.iter().map(|(name, value)| format!("{name}={}", value.as_bytes().escape_ascii())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoder_returns_encoded_requests(
        requests in prop::collection::vec(request(), 1..5),
        blanks in "[ \t]{0,3}",
        splits in prop::collection::vec(any::<Index>(), 0..5),
    ) {
        let text: Vec<u8> = requests.iter().flat_map(|request| request.text(&blanks)).collect();
        let mut offsets: Vec<_> = splits.iter().map(|split| split.index(text.len())).collect();
        offsets.sort_unstable();
        let mut parts = Vec::new();
        let mut start = 0;
        for offset in offsets.into_iter().chain([text.len()]) {
            parts.push(&text[start..offset]);
            start = offset;
        }
        let outcome = feed(parts, Limits::default());
        prop_assert_eq!(outcome.rejection, None);
        prop_assert_eq!(outcome.eof_result, Ok(()));
        prop_assert_eq!(outcome.requests.len(), requests.len());
        for (received, sent) in outcome.requests.iter().zip(&requests) {
            prop_assert!(received.is_complete);
            prop_assert_eq!(
                (&received.method, &received.target, &received.body),
                (&sent.method, &sent.target, &sent.body())
            );
            let mut fields = vec!["HoSt=h".to_owned()];
            fields.extend(field_texts(&sent.fields));
            match &sent.body {
                Body::None => {}
                Body::Length(bytes) => fields.push(format!("content-length={}", bytes.len())),
                Body::Chunked(_, trailers) => {
                    fields.push("TRANSFER-ENCODING=Chunked".to_owned());
                    prop_assert_eq!(&received.trailers, &field_texts(trailers));
                }
            }
            prop_assert!(received.head.ends_with(&format!("{fields:?}")), "{} {:?}", received.head, fields);
        }
    }
}
