//! Tests for dates.

use anello_http::h1::HttpDate;

#[test]
fn parses_all_three_formats() {
    for text in
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
    {
        assert_eq!(HttpDate::parse(text.as_bytes()), Some(784_111_777), "{text}");
    }
}

#[test]
fn rejects_invalid_dates() {
    for text in [
        "",
        "0",
        "Mon, 06 Nov 1994 08:49:37 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 +0100",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMTx",
    ] {
        assert_eq!(HttpDate::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(HttpDate::parse(b"\xff"), None);
}

#[test]
fn formats_first_and_last_second() {
    assert_eq!(HttpDate::from_unix(0).as_str(), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(HttpDate::from_unix(u64::MAX).as_str(), "Fri, 31 Dec 9999 23:59:59 GMT");
    for seconds in (0..253_402_300_799).step_by(86_400 * 997 + 13) {
        assert_eq!(HttpDate::parse(HttpDate::from_unix(seconds).as_bytes()), Some(seconds));
    }
}
