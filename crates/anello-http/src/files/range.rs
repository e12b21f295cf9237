//! Range requests (RFC 9110, section 14).
//!
//! A server may always ignore `Range` and send the whole file. This module does so if the value is malformed, uses
//! another unit than bytes, or has more than [`MAX_RANGES`] ranges. Ranges that overlap are coalesced, and so are
//! ranges with a gap that is smaller than the overhead of another part. Both work and response size are therefore
//! bounded: a response has at most [`MAX_RANGES`] parts, and their total length does not exceed the file size, not
//! counting the part headers.

use std::fmt;

use crate::h1::trim;

/// Maximum number of ranges in a request. If there are more, the whole file is sent.
pub const MAX_RANGES: usize = 32;

/// Maximum gap between two ranges that are coalesced, in bytes: about the size of the header of a multipart part.
pub const COALESCE_GAP_BYTES: u64 = 128;

/// Range of bytes in a file, both ends inclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte: at least `first` and less than the size of the file.
    pub last: u64,
}

impl ByteRange {
    /// Returns the number of bytes, which is at least one.
    #[must_use]
    pub fn length_bytes(self) -> u64 {
        self.last - self.first + 1
    }

    /// Returns `true` if the ranges overlap or the gap between them is at most [`COALESCE_GAP_BYTES`].
    fn should_coalesce(self, other: Self) -> bool {
        let extended_end = |range: Self| range.last.saturating_add(COALESCE_GAP_BYTES + 1);
        self.first <= extended_end(other) && other.first <= extended_end(self)
    }

    fn union(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// Result of evaluating `Range`.
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

/// Selects the ranges for a GET request with this value of `Range`, for a file of `size_bytes` bytes. For an empty
/// file, no range is satisfiable; it is sent as a whole because a client that requests a prefix should not get an
/// error.
///
/// ```
/// use anello_http::files::range::{ByteRange, Selection, select};
/// assert_eq!(select(b"bytes=-100", 1000), Selection::One(ByteRange { first: 900, last: 999 }));
/// assert_eq!(select(b"bytes=1000-", 1000), Selection::Unsatisfiable);
/// ```
#[must_use]
pub fn select(range: &[u8], size_bytes: u64) -> Selection {
    let Some(set) = range_set(range).filter(|_| size_bytes > 0) else { return Selection::Whole };
    let mut coalesced = CoalescedRanges::default();
    let mut count = 0;
    for spec in set.split(|&byte| byte == b',').map(trim).filter(|spec| !spec.is_empty()) {
        count += 1;
        if count > MAX_RANGES {
            return Selection::Whole;
        }
        match RangeSpec::parse(spec, size_bytes) {
            Some(RangeSpec::Satisfiable(range)) => coalesced.add(range),
            Some(RangeSpec::Unsatisfiable) => {}
            None => return Selection::Whole,
        }
    }
    match coalesced.ranges() {
        _ if count == 0 => Selection::Whole,
        [] => Selection::Unsatisfiable,
        &[one] => Selection::One(one),
        several => Selection::Several(several.to_vec()),
    }
}

/// Returns the part after `bytes=`, which is matched case-insensitively.
fn range_set(range: &[u8]) -> Option<&[u8]> {
    const UNIT: &[u8] = b"bytes=";
    let (unit, set) = range.split_at_checked(UNIT.len())?;
    unit.eq_ignore_ascii_case(UNIT).then_some(set)
}

/// A well-formed range of a request.
enum RangeSpec {
    Satisfiable(ByteRange),
    Unsatisfiable,
}

impl RangeSpec {
    /// Parses `first-last`, `first-` or `-length`. Returns `None` for other input.
    fn parse(spec: &[u8], size_bytes: u64) -> Option<Self> {
        let dash = spec.iter().position(|&byte| byte == b'-')?;
        let (start, end) = (&spec[..dash], &spec[dash + 1..]);
        let last_byte = size_bytes - 1;
        let range = if start.is_empty() {
            match parse_number(end)? {
                0 => return Some(Self::Unsatisfiable),
                length => ByteRange { first: size_bytes.saturating_sub(length), last: last_byte },
            }
        } else {
            let first = parse_number(start)?;
            let last = if end.is_empty() { u64::MAX } else { parse_number(end)? };
            if last < first {
                return None;
            }
            ByteRange { first, last: last.min(last_byte) }
        };
        Some(if range.first > last_byte { Self::Unsatisfiable } else { Self::Satisfiable(range) })
    }
}

/// Parses a decimal number. Values that do not fit are replaced by `u64::MAX`, which is beyond the end of any file.
fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

/// Ranges in the order of the request, coalesced.
#[derive(Default)]
struct CoalescedRanges {
    ranges: [ByteRange; MAX_RANGES],
    count: usize,
}

impl CoalescedRanges {
    fn ranges(&self) -> &[ByteRange] {
        &self.ranges[..self.count]
    }

    /// Adds a range and coalesces it with all ranges that are near it, at the position of the first of them. The
    /// result cannot be near another range, because that range would have been near one of the parts.
    fn add(&mut self, mut range: ByteRange) {
        let mut slot = None;
        let mut next_index = 0;
        for index in 0..self.count {
            let other = self.ranges[index];
            if other.should_coalesce(range) {
                range = range.union(other);
                if slot.is_some() {
                    continue;
                }
                slot = Some(next_index);
            }
            self.ranges[next_index] = other;
            next_index += 1;
        }
        let slot = slot.unwrap_or_else(|| {
            next_index += 1;
            next_index - 1
        });
        self.ranges[slot] = range;
        self.count = next_index;
    }
}

/// Value of `Content-Range`, formatted by [`Display`](fmt::Display).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    range: Option<ByteRange>,
    size_bytes: u64,
}

impl ContentRange {
    /// Creates the value for a response with this range of a file of `size_bytes` bytes.
    #[must_use]
    pub fn of(range: ByteRange, size_bytes: u64) -> Self {
        Self { range: Some(range), size_bytes }
    }

    /// Creates the value for a 416 response, which contains only the size of the file.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(first: u64, last: u64) -> Selection {
        Selection::One(ByteRange { first, last })
    }

    fn several(ranges: &[(u64, u64)]) -> Selection {
        Selection::Several(ranges.iter().map(|&(first, last)| ByteRange { first, last }).collect())
    }

    #[test]
    fn single_ranges_are_parsed_in_every_form() {
        let cases = [
            ("bytes=0-499", one(0, 499)),
            ("bytes=500-999", one(500, 999)),
            ("bytes=0-0", one(0, 0)),
            ("bytes=999-999", one(999, 999)),
            ("bytes=0-", one(0, 999)),
            ("bytes=999-", one(999, 999)),
            ("bytes=-1", one(999, 999)),
            ("bytes=-1000", one(0, 999)),
            ("bytes=-5000", one(0, 999)),
            ("bytes=990-5000", one(990, 999)),
            ("BYTES=0-1", one(0, 1)),
            ("bytes= 0-1 ", one(0, 1)),
            ("bytes=,,0-1,,", one(0, 1)),
            ("bytes=007-008", one(7, 8)),
            ("bytes=0-1,5000-", one(0, 1)),
        ];
        for (range, selection) in cases {
            assert_eq!(select(range.as_bytes(), 1000), selection, "{range}");
        }
    }

    #[test]
    fn ranges_beyond_end_are_unsatisfiable() {
        for range in
            ["bytes=1000-", "bytes=1000-1001", "bytes=-0", "bytes=5000-6000,-0", "bytes=1000-1000,2000-"]
        {
            assert_eq!(select(range.as_bytes(), 1000), Selection::Unsatisfiable, "{range}");
        }
        assert_eq!(ContentRange::unsatisfiable(1000).to_string(), "bytes */1000");
        assert_eq!(ContentRange::of(ByteRange { first: 5, last: 9 }, 10).to_string(), "bytes 5-9/10");
    }

    #[test]
    fn malformed_ranges_and_other_units_are_ignored() {
        let ranges = [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=--1",
            "bytes=1",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=0x1-2",
            "bytes=+1-2",
            "bytes=0-1;2-3",
            "bytes=0 -1",
            "bytes=0-1,x",
            "bytes=5-2,0-1",
            "bytes=1-2-3",
            "bytes =0-1",
            "items=0-1",
            "bytes:0-1",
            "byte=0-10",
            "bytes=\u{661}-2",
        ];
        for range in ranges {
            assert_eq!(select(range.as_bytes(), 1000), Selection::Whole, "{range}");
        }
    }

    #[test]
    fn empty_file_is_sent_whole() {
        for range in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
            assert_eq!(select(range.as_bytes(), 0), Selection::Whole, "{range}");
        }
    }

    #[test]
    fn multiple_ranges_keep_request_order() {
        // A coalesced range takes the position of its first part.
        assert_eq!(select(b"bytes=9000-9001, 0-1,4000-", 10_000), several(&[(4000, 9999), (0, 1)]));
        assert_eq!(select(b"bytes=5000-5001,0-1,-1", 10_000), several(&[(5000, 5001), (0, 1), (9999, 9999)]));
    }

    #[test]
    fn fault_36_overflowing_numbers_are_clamped() {
        let max = u64::MAX;
        let cases = [
            (format!("bytes=0-{max}"), one(0, 999)),
            (format!("bytes={max}-"), Selection::Unsatisfiable),
            (format!("bytes={max}-{max}"), Selection::Unsatisfiable),
            (format!("bytes=-{max}"), one(0, 999)),
            (format!("bytes=0-{max}0"), one(0, 999)),
            (format!("bytes={max}9-{max}0"), Selection::Unsatisfiable),
            (format!("bytes=0-{}", "9".repeat(8000)), one(0, 999)),
            (format!("bytes=-{}", "9".repeat(8000)), one(0, 999)),
        ];
        for (range, selection) in cases {
            assert_eq!(select(range.as_bytes(), 1000), selection, "{range}");
        }
        assert_eq!(select(format!("bytes=0-{max}").as_bytes(), max), one(0, max - 1));
        assert_eq!(select(b"bytes=-1", max), one(max - 1, max - 1));
        let near_the_end = format!("bytes={}-,0-0", max - 2);
        assert_eq!(select(near_the_end.as_bytes(), max), several(&[(max - 2, max - 1), (0, 0)]));
    }

    #[test]
    fn fault_36_too_many_ranges_select_whole_file() {
        let many = |count: u64| {
            let specs: Vec<_> =
                (0..count).map(|index| format!("{}-{}", index * 1000, index * 1000)).collect();
            format!("bytes={}", specs.join(","))
        };
        assert_eq!(select(many(1000).as_bytes(), 1 << 30), Selection::Whole);
        assert_eq!(select(many(MAX_RANGES as u64 + 1).as_bytes(), 1 << 30), Selection::Whole);
        match select(many(MAX_RANGES as u64).as_bytes(), 1 << 30) {
            Selection::Several(ranges) => assert_eq!(ranges.len(), MAX_RANGES),
            other => panic!("{other:?}"),
        }
        let beyond = format!("bytes={}", "5000-,".repeat(1000));
        assert_eq!(select(beyond.as_bytes(), 1000), Selection::Whole);
    }

    #[test]
    fn fault_36_overlapping_ranges_are_coalesced() {
        let cases = [
            ("bytes=0-,0-,0-,0-", one(0, 9999)),
            ("bytes=0-99,50-149", one(0, 149)),
            ("bytes=50-149,0-99", one(0, 149)),
            ("bytes=0-99,100-199", one(0, 199)),
            ("bytes=0-0,2-2,4-4,6-6", one(0, 6)),
            ("bytes=0-0,129-129", one(0, 129)),
            ("bytes=0-0,130-130", several(&[(0, 0), (130, 130)])),
            ("bytes=0-9,1000-1009,500-509,5-1004", one(0, 1009)),
            ("bytes=0-9,5000-5009,1000-1009,4990-4999", several(&[(0, 9), (4990, 5009), (1000, 1009)])),
        ];
        for (range, selection) in cases {
            assert_eq!(select(range.as_bytes(), 10_000), selection, "{range}");
        }
    }

    fn specs() -> impl Strategy<Value = String> {
        prop_oneof![
            (0..1200_u64, 0..1200_u64).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            (0..1200_u64).prop_map(|first| format!("{first}-")),
            (0..1200_u64).prop_map(|length| format!("-{length}")),
        ]
    }

    /// Returns which bytes of a file of `size` bytes are requested.
    fn requested_bytes(specs: &[String], size: usize) -> Vec<bool> {
        let mut is_requested = vec![false; size];
        for spec in specs {
            let (before, after) = spec.split_once('-').unwrap();
            let (first, end) = match (before.parse::<usize>(), after.parse::<usize>()) {
                (Ok(first), Ok(last)) => (first, last + 1),
                (Ok(first), Err(_)) => (first, size),
                (Err(_), length) => (size.saturating_sub(length.unwrap()), size),
            };
            (first..end.min(size)).for_each(|index| is_requested[index] = true);
        }
        is_requested
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn requested_bytes_are_sent_once_with_small_gaps(
            specs in prop::collection::vec(specs(), 1..8),
            size in 1..1000_usize,
        ) {
            let requested_bytes = requested_bytes(&specs, size);
            let ranges = match select(format!("bytes={}", specs.join(",")).as_bytes(), size as u64) {
                Selection::Whole => return Err(TestCaseError::fail("well-formed ranges were ignored")),
                Selection::Unsatisfiable => vec![],
                Selection::One(range) => vec![range],
                Selection::Several(ranges) => ranges,
            };
            let mut sent = vec![0; size];
            for range in &ranges {
                prop_assert!(range.first <= range.last && range.last < size as u64);
                (range.first..=range.last).for_each(|index| sent[index as usize] += 1);
            }
            for (index, (&sent, &is_requested)) in sent.iter().zip(&requested_bytes).enumerate() {
                prop_assert!(sent <= 1, "byte {index} is sent twice");
                prop_assert!(!is_requested || sent == 1, "byte {index} is missing");
            }
            // Bytes that were not requested are sent only to coalesce two ranges.
            let runs = requested_bytes.chunk_by(|a, b| a == b).scan(0, |offset, run| {
                let start = *offset;
                *offset += run.len();
                Some((start, run))
            });
            for (start, run) in runs {
                if !run[0] && sent[start] == 1 {
                    prop_assert!(run.len() as u64 <= COALESCE_GAP_BYTES, "{} unrequested bytes at {start}", run.len());
                }
            }
            for (index, range) in ranges.iter().enumerate() {
                prop_assert!(ranges[..index].iter().all(|other| !other.should_coalesce(*range)));
            }
        }

        #[test]
        fn arbitrary_values_do_not_panic(range in any::<Vec<u8>>(), size in any::<u64>()) {
            let with_unit = [b"bytes=", &range[..]].concat();
            for value in [range, with_unit] {
                if let Selection::One(range) = select(&value, size) {
                    prop_assert!(range.first <= range.last && range.last < size);
                }
            }
        }
    }
}
