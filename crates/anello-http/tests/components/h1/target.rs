//! Tests for request targets and hosts.

use anello_http::h1::{Decoder, Event, Head, Limits, TargetForm};

/// Decodes a head. Returns `None` if it is rejected.
fn decode(text: &str) -> Option<Head> {
    match Decoder::new(Limits::default()).decode(&mut text.as_bytes()) {
        Ok(Some(Event::Head(head))) => Some(head),
        Ok(other) => panic!("{text:?}: {other:?}"),
        Err(_) => None,
    }
}

fn is_host(host: &str) -> bool {
    decode(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_some()
}

#[test]
fn target_forms_depend_on_method() {
    for (method, target, expected) in [
        ("GET", "/", Some((TargetForm::Origin, ""))),
        ("GET", "//x?y", Some((TargetForm::Origin, ""))),
        ("OPTIONS", "*", Some((TargetForm::Asterisk, ""))),
        ("OPTIONS", "/", Some((TargetForm::Origin, ""))),
        ("GET", "*", None),
        ("OPTIONS", "**", None),
        ("GET", "http://h", Some((TargetForm::Absolute, "h"))),
        ("GET", "HTTPS://h:8/p?q", Some((TargetForm::Absolute, "h:8"))),
        ("BREW", "http://h?q", Some((TargetForm::Absolute, "h"))),
        ("GET", "http:///p", None),
        ("GET", "http://user@h/", None),
        ("GET", "http://", None),
        ("GET", "http:/h", None),
        ("GET", "ftp://h/", None),
        ("GET", "index.html", None),
        ("GET", "?q", None),
        ("GET", "h:80", None),
        ("CONNECT", "h:80", Some((TargetForm::Authority, "h:80"))),
        ("CONNECT", "[::1]:443", Some((TargetForm::Authority, "[::1]:443"))),
        ("CONNECT", "h", None),
        ("CONNECT", "h:", None),
        ("CONNECT", ":80", None),
        ("CONNECT", "/", None),
        ("CONNECT", "*", None),
        ("CONNECT", "http://h:80", None),
    ] {
        let head = decode(&format!("{method} {target} HTTP/1.1\r\nHost: of-field\r\n\r\n"));
        let host =
            |head: &Head| head.host().filter(|host| *host != "of-field").unwrap_or_default().to_owned();
        assert_eq!(
            head.map(|head| (head.target_form(), host(&head))),
            expected.map(|(form, host): (_, &str)| (form, host.to_owned())),
            "{method} {target}"
        );
    }
}

#[test]
fn is_host_accepts_only_valid_hosts() {
    for host in [
        "",
        "h",
        "a.example",
        "A-1.example:",
        "h:0",
        "h:65535",
        "127.0.0.1:80",
        "[::1]",
        "[::ffff:1.2.3.4]:8",
        "[v1.x]:1",
        "[VaF.a:b~!]",
        "a%20b",
        "under_score",
        "h:000080",
    ] {
        assert!(is_host(host), "{host}");
    }
    for host in [
        ":",
        ":80",
        "h:65536",
        "h:8a",
        "h:-1",
        "h:80:80",
        "u@h",
        "h/",
        "h?",
        "h#",
        "a b",
        "a\tb",
        "ä",
        "[::1",
        "::1",
        "[::1]x",
        "[]",
        "[v1.]",
        "[v.x]",
        "[vg.x]",
        "[v1.x%20]",
        "[v1x]",
        "[::1%25eth0]",
        "a%2",
        "a%zz",
        "a%2z",
        "a,b:c",
        "[::1]]",
        "\\h",
        "a\"b",
        "a<b",
        "h:80, i",
    ] {
        assert!(!is_host(host), "{host}");
    }
}
