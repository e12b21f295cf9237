//! Dates of HTTP (RFC 9110, section 5.6.7).

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second that has a four-digit year.
const LAST_SECOND: u64 = 253_402_300_799;

/// A date as it is sent: `Sun, 06 Nov 1994 08:49:37 GMT`, always 29 bytes.
///
/// ```
/// use anello_http::h1::HttpDate;
///
/// assert_eq!(HttpDate::from_unix(784_111_777).as_str(), "Sun, 06 Nov 1994 08:49:37 GMT");
/// assert_eq!(HttpDate::parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDate([u8; 29]);

impl HttpDate {
    /// The date so many seconds after 1970 began. What lies behind the year 9999 becomes its last second.
    #[must_use]
    pub fn from_unix(seconds: u64) -> Self {
        let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
        let mut text = [b' '; 29];
        // Exactly as long as the text, which is always the same.
        let written = write!(&mut text[..], "{}", httpdate::HttpDate::from(time));
        debug_assert!(written.is_ok());
        Self(text)
    }

    /// The seconds since 1970 began that a date tells, in any of the three forms that HTTP has had: the present one, that
    /// of RFC 850, and that of C's `asctime`. None for any other text, for a date that does not exist, and before 1970.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<u64> {
        let time: SystemTime = httpdate::parse_http_date(str::from_utf8(text).ok()?).ok()?;
        time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
    }

    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 29] {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_read() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(HttpDate::parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
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
    fn the_first_and_the_last_second_have_a_text() {
        assert_eq!(HttpDate::from_unix(0).as_str(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(HttpDate::from_unix(u64::MAX).as_str(), "Fri, 31 Dec 9999 23:59:59 GMT");
        for seconds in (0..LAST_SECOND).step_by(86_400 * 997 + 13) {
            assert_eq!(HttpDate::parse(HttpDate::from_unix(seconds).as_bytes()), Some(seconds));
        }
    }
}
