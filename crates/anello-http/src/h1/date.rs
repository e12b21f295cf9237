//! HTTP dates (RFC 9110, section 5.6.7).

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A date in IMF-fixdate format, as it is sent: `Sun, 06 Nov 1994 08:49:37 GMT`, always 29 bytes.
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
    /// Creates the date from Unix time in seconds. A time after the year 9999 is replaced with the last second of that
    /// year.
    ///
    /// ```
    /// use anello_http::h1::HttpDate;
    ///
    /// assert_eq!(HttpDate::from_unix(0).as_str(), "Thu, 01 Jan 1970 00:00:00 GMT");
    /// assert_eq!(HttpDate::from_unix(u64::MAX).as_str(), "Fri, 31 Dec 9999 23:59:59 GMT");
    /// ```
    pub fn from_unix(seconds: u64) -> Self {
        let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
        let mut text = [b' '; 29];
        // The buffer has exactly the length of the text, which is constant.
        let written = write!(&mut text[..], "{}", httpdate::HttpDate::from(time));
        debug_assert!(written.is_ok());
        Self(text)
    }

    /// Parses a date and returns its Unix time in seconds.
    ///
    /// Accepts all three HTTP formats: IMF-fixdate, RFC 850 and C's `asctime`. Returns `None` for any other text, for a
    /// date that does not exist, and for dates before 1970.
    ///
    /// ```
    /// use anello_http::h1::HttpDate;
    ///
    /// assert_eq!(HttpDate::parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
    /// assert_eq!(HttpDate::parse(b"Sun Nov  6 08:49:37 1994"), Some(784_111_777));
    /// assert_eq!(HttpDate::parse(b"yesterday"), None);
    /// ```
    pub fn parse(text: &[u8]) -> Option<u64> {
        let time: SystemTime = httpdate::parse_http_date(str::from_utf8(text).ok()?).ok()?;
        time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
    }

    /// Returns the date in IMF-fixdate format.
    ///
    /// ```
    /// use anello_http::h1::HttpDate;
    ///
    /// assert_eq!(HttpDate::from_unix(784_111_777).as_bytes(), b"Sun, 06 Nov 1994 08:49:37 GMT");
    /// ```
    pub fn as_bytes(&self) -> &[u8; 29] {
        &self.0
    }

    /// Returns the date in IMF-fixdate format.
    ///
    /// ```
    /// use anello_http::h1::HttpDate;
    ///
    /// assert_eq!(HttpDate::from_unix(784_111_777).as_str(), "Sun, 06 Nov 1994 08:49:37 GMT");
    /// ```
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}
