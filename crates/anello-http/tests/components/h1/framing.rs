//! Tests for request framing, which is derived from the header fields.

use anello_http::h1::{Decoder, Event, Head, Limits, Rejection, RequestFraming, Version};

/// Decodes a request with these fields.
fn decode(version: Version, fields: &[(&str, &str)]) -> Result<Head, Rejection> {
    let version = if version == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!("POST / {version}\r\n{fields}\r\n");
    let limits = Limits { max_body_bytes: 1000, ..Limits::default() };
    match Decoder::new(limits).decode(&mut text.as_bytes()) {
        Ok(Some(Event::Head(head))) => Ok(head),
        Ok(other) => panic!("{other:?}"),
        Err(rejection) => Err(rejection),
    }
}

/// Returns the head of a request with these fields, or the status of the rejection.
fn decide(version: Version, fields: &[(&str, &str)]) -> Result<Head, u16> {
    decode(version, fields).map_err(|rejection| rejection.status)
}

fn framing(fields: &[(&str, &str)]) -> Result<RequestFraming, u16> {
    let with_host = [&[("Host", "h")][..], fields].concat();
    decide(Version::Http11, &with_host).map(|head| head.framing())
}

#[test]
fn codings_of_all_fields_form_one_list() {
    let codings = |values: &[&str]| {
        framing(&values.iter().map(|value| ("Transfer-Encoding", *value)).collect::<Vec<_>>())
    };
    for coding in ["chunked", "CHUNKED", "Chunked"] {
        assert_eq!(codings(&[coding]), Ok(RequestFraming::Chunked));
    }
    for unknown in [&["gzip, chunked"][..], &["gzip", "chunked"], &["br;q=\"x\"", "gzip,chunked"]] {
        assert_eq!(codings(unknown), Err(501), "{unknown:?}");
    }
    for rejected in [
        &["gzip"][..],
        &["chunked, gzip"],
        &["chunked", "gzip"],
        &["chunked, chunked"],
        &["chunked", "chunked"],
        &[""],
        &[","],
        &["chunked,"],
        &[",chunked"],
        &["chunked;a=b"],
        &["chunked ;a"],
        &["identity"],
        &["xchunked"],
        &["chun ked"],
        &["\"chunked\""],
        &["gzip,,chunked"],
        &["chunked\u{b}"],
    ] {
        assert_eq!(codings(rejected), Err(400), "{rejected:?}");
    }
}

#[test]
fn reason_names_the_field() {
    const HOST: (&str, &str) = ("Host", "h");
    for (fields, reason) in [
        (&[][..], "missing Host field"),
        (&[HOST, HOST], "more than one Host field"),
        (&[HOST, ("Content-Length", "1"), ("Content-Length", "1")], "more than one Content-Length"),
        (&[HOST, ("Content-Length", "one")], "Content-Length is not a decimal number"),
        (
            &[HOST, ("Content-Length", "1"), ("Transfer-Encoding", "chunked")],
            "both Content-Length and Transfer-Encoding (send only one of them)",
        ),
    ] {
        assert_eq!(decode(Version::Http11, fields).unwrap_err().reason, reason, "{fields:?}");
    }
}

#[test]
fn content_length_is_one_decimal_number() {
    for (text, expected) in
        [("0", Ok(0)), ("7", Ok(7)), ("1000", Ok(1000)), ("007", Ok(7)), ("1001", Err(413))]
    {
        assert_eq!(framing(&[("Content-Length", text)]), expected.map(RequestFraming::Length), "{text}");
    }
    for text in [
        "",
        "+1",
        "-1",
        "1,1",
        "1, 1",
        "0x1",
        "1 1",
        "1.0",
        "1e2",
        "١",
        "99999999999999999999",
        "18446744073709551616",
    ] {
        assert_eq!(framing(&[("Content-Length", text)]), Err(400), "{text}");
    }
    assert_eq!(framing(&[("Content-Length", "18446744073709551615")]), Err(413));
    assert_eq!(framing(&[("Content-Length", "1"), ("content-length", "1")]), Err(400));
}

#[test]
fn connection_options_decide_keep_alive() {
    let keeps_alive = |version, options: &[&str]| {
        let fields: Vec<_> =
            options.iter().map(|value| ("Connection", *value)).chain([("Host", "h")]).collect();
        decide(version, &fields).unwrap().keeps_alive()
    };
    use Version::{Http10, Http11};
    assert!(
        keeps_alive(Http11, &[])
            && keeps_alive(Http11, &["keep-alive"])
            && keeps_alive(Http11, &["closed, TE"])
    );
    assert!(!keeps_alive(Http11, &["close"]) && !keeps_alive(Http11, &["keep-alive", "te, CLOSE"]));
    assert!(
        !keeps_alive(Http10, &[])
            && keeps_alive(Http10, &["Keep-Alive"])
            && !keeps_alive(Http10, &["keep-alive, close"])
    );
}

#[test]
fn names_and_options_of_equal_length_are_distinguished() {
    let fields = [
        ("Host", "h"),
        ("Date", "x"),
        ("Cookie", "200-ok"),
        ("Referer", "x"),
        ("Connection", "upgrade"),
        ("User-Agent", "close"),
        ("Accept-Charset", "1"),
        ("If-Modified-Since", "chunked"),
    ];
    let head = decide(Version::Http11, &fields).unwrap();
    assert_eq!((head.framing(), head.keeps_alive(), head.upgrade()), (RequestFraming::None, true, None));
    let head = decide(Version::Http11, &[("Host", "h"), ("Connection", "other")]).unwrap();
    assert!(head.keeps_alive());
    assert!(!decide(Version::Http10, &[("Connection", "ten-bytes!")]).unwrap().keeps_alive());
}

#[test]
fn expect_and_upgrade_require_http_1_1() {
    use Version::{Http10, Http11};
    let post = [("Host", "h"), ("Content-Length", "1")];
    let with = |name, value| [&post[..], &[(name, value)]].concat();
    let expects_continue =
        |version, value| decide(version, &with("Expect", value)).map(|head| head.expects_continue());
    assert_eq!(expects_continue(Http11, "100-Continue"), Ok(true));
    assert_eq!(expects_continue(Http11, ""), Ok(false));
    assert_eq!(expects_continue(Http11, "100-continue, x"), Err(417));
    assert_eq!(expects_continue(Http11, "200-ok"), Err(417));
    assert_eq!(expects_continue(Http10, "100-continue"), Ok(false));
    assert_eq!(expects_continue(Http10, "200-ok"), Ok(false));
    let without_body = decide(Http11, &[("Host", "h"), ("Expect", "100-continue")]).unwrap();
    assert!(!without_body.expects_continue());

    let upgrade = |version, options| {
        let fields = [("Host", "h"), ("Upgrade", "x"), ("Connection", options), ("Upgrade", "y")];
        decide(version, &fields).unwrap().upgrade().map(str::to_owned)
    };
    assert_eq!(upgrade(Http11, "keep-alive, Upgrade"), Some("x".to_owned()));
    assert_eq!(upgrade(Http11, "keep-alive"), None);
    assert_eq!(upgrade(Http11, "private"), None);
    assert_eq!(upgrade(Http10, "upgrade"), None);
}
