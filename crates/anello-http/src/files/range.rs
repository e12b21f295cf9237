//! Range requests (RFC 9110, section 14).
//!
//! A server may always ignore `Range` and send the whole file. This module does so if the value is malformed, uses a
//! unit other than bytes, or has more than [`MAX_RANGES`] ranges. Ranges that overlap are coalesced, as are ranges
//! separated by a gap of at most [`COALESCE_GAP_BYTES`]. Work is therefore bounded: a response has at most [`MAX_RANGES`]
//! parts, and their total length does not exceed the file size. If their headers make the body of the response larger
//! than the file by more than [`MAX_EXCESS_BYTES`], the whole file is sent.

use std::fmt;

use crate::h1::elements;

/// Maximum number of ranges in a request. If there are more, the whole file is sent.
///
/// ```
/// use anello_http::files::range::{MAX_RANGES, Selection, select};
///
/// let range = vec!["0-0"; MAX_RANGES + 1].join(",");
/// assert_eq!(select(format!("bytes={range}").as_bytes(), 1000), Selection::Whole);
/// ```
pub const MAX_RANGES: usize = 32;
/// Maximum gap between two ranges that are coalesced, in bytes: about the size of a part header.
///
/// ```
/// use anello_http::files::range::{ByteRange, COALESCE_GAP_BYTES, Selection, select};
///
/// let second = 1 + COALESCE_GAP_BYTES;
/// let range = format!("bytes=0-0,{second}-{second}");
/// let coalesced = ByteRange { first: 0, last: second };
/// assert_eq!(select(range.as_bytes(), 1000), Selection::One(coalesced));
/// ```
pub const COALESCE_GAP_BYTES: u64 = 128;

/// Maximum number of bytes by which the body of a response with several ranges may exceed the file: the size of two part
/// headers, so that a client gets two ranges even of a small file. If it is larger, the whole file is sent.
///
/// ```
/// use anello_http::files::multipart::{Boundary, Multipart};
/// use anello_http::files::range::{ByteRange, MAX_EXCESS_BYTES};
///
/// let ranges = [ByteRange { first: 0, last: 9 }, ByteRange { first: 150, last: 199 }];
/// let multipart = Multipart::new(&ranges, 200, "text/plain", Boundary::from_random(7));
/// assert!(multipart.length_bytes() <= 200 + MAX_EXCESS_BYTES);
/// ```
pub const MAX_EXCESS_BYTES: u64 = 2 * COALESCE_GAP_BYTES;

/// Range of bytes in a file, both ends inclusive.
///
/// ```
/// use anello_http::files::range::{ByteRange, Selection, select};
///
/// let range = ByteRange { first: 0, last: 4 };
/// assert_eq!(select(b"bytes=0-4", 1000), Selection::One(range));
/// assert_eq!(range.length_bytes(), 5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte: at least `first` and less than the size of the file.
    pub last: u64,
}

impl ByteRange {
    /// Returns the number of bytes, which is at least 1.
    ///
    /// ```
    /// use anello_http::files::range::ByteRange;
    ///
    /// assert_eq!(ByteRange { first: 0, last: 0 }.length_bytes(), 1);
    /// ```
    pub fn length_bytes(self) -> u64 {
        self.last - self.first + 1
    }
}

/// Result of evaluating `Range`.
///
/// ```
/// use anello_http::files::range::{ByteRange, Selection, select};
///
/// let (start, end) = (ByteRange { first: 0, last: 4 }, ByteRange { first: 900, last: 999 });
/// assert_eq!(select(b"bytes=0-4,-100", 1000), Selection::Several(vec![start, end]));
/// assert_eq!(select(b"lines=0-4", 1000), Selection::Whole);
/// assert_eq!(select(b"bytes=1000-", 1000), Selection::Unsatisfiable);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole file: respond with 200, as without `Range`.
    Whole,
    /// One range: respond with 206 and its [`ContentRange`].
    One(ByteRange),
    /// At least two disjoint ranges, in the order of the request: respond with 206 and a
    /// [`Multipart`](super::multipart::Multipart) body.
    Several(Vec<ByteRange>),
    /// No range overlaps the file: respond with 416 and [`ContentRange::unsatisfiable`].
    Unsatisfiable,
}

/// Selects the ranges for a GET request with this `Range` value, for a file of `size_bytes` bytes. No range of an empty
/// file is satisfiable. Such a file is nevertheless sent as a whole, so that a client that requests a prefix does not
/// get an error.
///
/// ```
/// use anello_http::files::range::{ByteRange, Selection, select};
/// assert_eq!(select(b"bytes=-100", 1000), Selection::One(ByteRange { first: 900, last: 999 }));
/// assert_eq!(select(b"bytes=1000-", 1000), Selection::Unsatisfiable);
/// ```
pub fn select(range: &[u8], size_bytes: u64) -> Selection {
    let unit_and_set = range.split_at_checked(b"bytes=".len());
    let unit_and_set =
        unit_and_set.filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes=") && size_bytes > 0);
    let Some((_, set)) = unit_and_set else { return Selection::Whole };
    let mut ranges = Vec::new();
    let mut count = 0;
    for spec in elements(set).filter(|spec| !spec.is_empty()) {
        count += 1;
        if count > MAX_RANGES {
            return Selection::Whole;
        }
        let Some(range) = parse_range(spec, size_bytes) else { return Selection::Whole };
        if let Some(range) = range {
            add_coalesced(&mut ranges, range);
        }
    }
    match ranges[..] {
        _ if count == 0 => Selection::Whole,
        [] => Selection::Unsatisfiable,
        [one] => Selection::One(one),
        _ => Selection::Several(ranges),
    }
}

/// Parses `first-last`, `first-` or `-length`. Returns `None` for other input, and `Some(None)` for a range that does not
/// overlap the file.
fn parse_range(spec: &[u8], size_bytes: u64) -> Option<Option<ByteRange>> {
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    let (start, end) = (&spec[..dash], &spec[dash + 1..]);
    let last_byte = size_bytes - 1;
    let range = if start.is_empty() {
        let length = parse_number(end)?;
        ByteRange { first: size_bytes.saturating_sub(length), last: last_byte }
    } else {
        let first = parse_number(start)?;
        let last = if end.is_empty() { u64::MAX } else { parse_number(end)? };
        if last < first {
            return None;
        }
        ByteRange { first, last: last.min(last_byte) }
    };
    // A length of zero results in a range that starts at the end.
    Some((range.first <= last_byte).then_some(range))
}

/// Parses a decimal number. Replaces values that do not fit into 64 bits with `u64::MAX`, which is beyond the end of
/// any file.
fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

/// Adds a range to `ranges`, which is in the order of the request. Coalesces the range with all ranges near it, and
/// places the result at the position of the first of them. The result cannot be near another range, because that range
/// would have been near one of the coalesced ranges.
fn add_coalesced(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    let (mut union, mut slot, mut kept) = (range, None, 0);
    let extended_end = |range: ByteRange| range.last.saturating_add(COALESCE_GAP_BYTES + 1);
    ranges.retain(|other| {
        let is_near = other.first <= extended_end(range) && range.first <= extended_end(*other);
        if is_near {
            union = ByteRange { first: union.first.min(other.first), last: union.last.max(other.last) };
            slot.get_or_insert(kept);
        } else {
            kept += 1;
        }
        !is_near
    });
    ranges.insert(slot.unwrap_or(kept), union);
}

/// Value of `Content-Range`, formatted by [`Display`](fmt::Display).
///
/// ```
/// use anello_http::files::range::{ByteRange, ContentRange};
///
/// let range = ByteRange { first: 0, last: 4 };
/// assert_eq!(ContentRange::of(range, 1000).to_string(), "bytes 0-4/1000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    range: Option<ByteRange>,
    size_bytes: u64,
}

impl ContentRange {
    /// Creates the value for a response with this range of a file of `size_bytes` bytes.
    ///
    /// ```
    /// use anello_http::files::range::{ByteRange, ContentRange};
    ///
    /// let range = ByteRange { first: 900, last: 999 };
    /// assert_eq!(ContentRange::of(range, 1000).to_string(), "bytes 900-999/1000");
    /// ```
    pub fn of(range: ByteRange, size_bytes: u64) -> Self {
        Self { range: Some(range), size_bytes }
    }

    /// Creates the value for a 416 response, which contains only the size of the file.
    ///
    /// ```
    /// use anello_http::files::range::ContentRange;
    ///
    /// assert_eq!(ContentRange::unsatisfiable(1000).to_string(), "bytes */1000");
    /// ```
    pub fn unsatisfiable(size_bytes: u64) -> Self {
        Self { range: None, size_bytes }
    }
}

impl fmt::Display for ContentRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some(ByteRange { first, last }) => write!(formatter, "bytes {first}-{last}/{}", self.size_bytes),
            None => write!(formatter, "bytes */{}", self.size_bytes),
        }
    }
}
