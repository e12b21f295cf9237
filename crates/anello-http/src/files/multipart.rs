//! Multiple ranges in one response: `multipart/byteranges` (RFC 9110, section 14.6).
//!
//! ```text
//!  --boundary                        ┐
//!  Content-Type: text/plain          │ header of a part, including the CRLF
//!  Content-Range: bytes 0-9/10000    │ that ends the previous part
//!                                    ┘
//!  (10 bytes of the file)
//!  --boundary--                        closing delimiter
//! ```
//!
//! All part headers are built before the first byte is sent, so the response has an exact `Content-Length`.

use std::ops::Range;

use super::range::{ByteRange, ContentRange};

/// Delimiter between parts. It is random, so that authors of file contents cannot predict it.
///
/// ```
/// use anello_http::files::multipart::Boundary;
///
/// // A server passes random bits.
/// assert_ne!(Boundary::from_random(1), Boundary::from_random(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary([u8; 32]);

impl Boundary {
    /// Creates a boundary from 128 random bits.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    ///
    /// let multipart = Multipart::new(&[], 1000, "text/plain", Boundary::from_random(0xa));
    /// assert_eq!(
    ///     multipart.content_type(),
    ///     "multipart/byteranges; boundary=a0000000000000000000000000000000"
    /// );
    /// ```
    pub fn from_random(random: u128) -> Self {
        Self(std::array::from_fn(|index| b"0123456789abcdef"[(random >> (4 * index)) as usize & 15]))
    }

    fn as_str(&self) -> &str {
        // All bytes are hexadecimal digits.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Framing of a response with multiple ranges.
///
/// ```
/// use anello_http::files::multipart::{Boundary, Multipart};
/// use anello_http::files::range::ByteRange;
/// let ranges = [ByteRange { first: 0, last: 0 }, ByteRange { first: 500, last: 501 }];
/// let multipart = Multipart::new(&ranges, 1000, "text/plain", Boundary::from_random(7));
/// let mut sent_bytes = multipart.end().len() as u64;
/// for (head, range) in multipart.parts() {
///     sent_bytes += head.len() as u64 + range.length_bytes();
/// }
/// assert_eq!(sent_bytes, 239);
/// ```
#[derive(Clone, Debug)]
pub struct Multipart {
    boundary: Boundary,
    /// Headers of all parts, followed by the closing delimiter.
    text: String,
    /// For each part, the position of its header in `text` and its byte range.
    parts: Vec<(Range<usize>, ByteRange)>,
}

impl Multipart {
    /// Creates the framing for these ranges of a file with this size and media type.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    /// use anello_http::files::range::ByteRange;
    ///
    /// let ranges = [ByteRange { first: 0, last: 0 }, ByteRange { first: 500, last: 501 }];
    /// let multipart = Multipart::new(&ranges, 1000, "text/plain", Boundary::from_random(7));
    /// assert_eq!(multipart.parts().len(), 2);
    /// ```
    pub fn new(ranges: &[ByteRange], size_bytes: u64, media_type: &str, boundary: Boundary) -> Self {
        let mut text = String::with_capacity(ranges.len() * (140 + media_type.len()) + 40);
        let mut parts = Vec::with_capacity(ranges.len());
        let delimiter = boundary.as_str();
        for &range in ranges {
            let (start, line_end) = (text.len(), if text.is_empty() { "" } else { "\r\n" });
            let content_range = ContentRange::of(range, size_bytes);
            text += &format!(
                "{line_end}--{delimiter}\r\nContent-Type: {media_type}\r\nContent-Range: {content_range}\r\n\r\n"
            );
            parts.push((start..text.len(), range));
        }
        text += &format!("\r\n--{delimiter}--\r\n");
        Self { boundary, text, parts }
    }

    /// Returns the `Content-Type` of the response.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    ///
    /// let multipart = Multipart::new(&[], 1000, "text/plain", Boundary::from_random(7));
    /// assert!(multipart.content_type().starts_with("multipart/byteranges; boundary=7"));
    /// ```
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary.as_str())
    }

    /// Returns the header and the byte range of each part, in sending order.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    /// use anello_http::files::range::ByteRange;
    ///
    /// let ranges = [ByteRange { first: 500, last: 501 }];
    /// let multipart = Multipart::new(&ranges, 1000, "text/plain", Boundary::from_random(7));
    /// let (header, range) = multipart.parts().next().expect("there is a part");
    /// assert_eq!(range, ranges[0]);
    /// assert!(header.ends_with(b"\r\nContent-Range: bytes 500-501/1000\r\n\r\n"));
    /// ```
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (&[u8], ByteRange)> {
        self.parts.iter().map(|(head, range)| (&self.text.as_bytes()[head.clone()], *range))
    }

    /// Returns the length of the body in bytes: all part headers, their ranges and the closing delimiter.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    /// use anello_http::files::range::ByteRange;
    ///
    /// let ranges = [ByteRange { first: 0, last: 0 }, ByteRange { first: 500, last: 501 }];
    /// let multipart = Multipart::new(&ranges, 1000, "text/plain", Boundary::from_random(7));
    /// assert_eq!(multipart.length_bytes(), 239);
    /// ```
    pub fn length_bytes(&self) -> u64 {
        let ranges = self.parts.iter().map(|(_, range)| range.length_bytes());
        ranges.fold(self.text.len() as u64, u64::saturating_add)
    }

    /// Returns the closing delimiter, to be sent after the last part.
    ///
    /// ```
    /// use anello_http::files::multipart::{Boundary, Multipart};
    ///
    /// let multipart = Multipart::new(&[], 1000, "text/plain", Boundary::from_random(7));
    /// assert_eq!(multipart.end(), b"\r\n--70000000000000000000000000000000--\r\n");
    /// ```
    pub fn end(&self) -> &[u8] {
        &self.text.as_bytes()[self.parts.last().map_or(0, |(head, _)| head.end)..]
    }
}
