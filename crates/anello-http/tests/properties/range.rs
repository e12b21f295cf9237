//! Properties of range selection: the selected ranges lie within the file, do not exceed its size in total, and cover
//! the requested bytes.

use anello_http::files::multipart::{Boundary, Multipart};
use anello_http::files::range::{ByteRange, COALESCE_GAP_BYTES, MAX_RANGES, Selection, select};

/// Checks the properties for an input, which consists of the size of the file, a line feed, and the value of the
/// `Range` field. Without a line feed, the input is the field value, and the file has 1000 bytes.
pub fn check(data: &[u8]) {
    let (size_bytes, range) = match data.iter().position(|&byte| byte == b'\n') {
        Some(position) => (number(&latin_1(&data[..position])).unwrap_or(0), &data[position + 1..]),
        None => (1000, data),
    };
    let selection = select(range, size_bytes);
    let requested = parse_ranges(&latin_1(range), size_bytes);
    let escaped = range.escape_ascii();
    let ranges = match &selection {
        Selection::Whole => {
            assert_eq!(requested, None, "{escaped} of {size_bytes}");
            return;
        }
        Selection::Unsatisfiable => vec![],
        Selection::One(range) => vec![*range],
        Selection::Several(ranges) => {
            assert!(ranges.len() > 1, "{escaped} of {size_bytes}");
            ranges.clone()
        }
    };
    let Some(requested) = requested else {
        panic!("{escaped} of {size_bytes}: {selection:?} instead of the whole file")
    };
    assert_within_limits(&ranges, size_bytes);
    assert_eq!(ranges, coalesced(&requested), "{escaped} of {size_bytes}");
    if size_bytes <= 2048 {
        assert_eq!(
            to_byte_map(&ranges, size_bytes),
            close_gaps(to_byte_map(&requested, size_bytes)),
            "{escaped} of {size_bytes}"
        );
    }
    if ranges.len() > 1 {
        assert_multipart_matches(&ranges, size_bytes);
    }
}

/// Checks that the ranges lie within the file, are not close to each other, and do not exceed the maximum number.
fn assert_within_limits(ranges: &[ByteRange], size_bytes: u64) {
    assert!(ranges.len() <= MAX_RANGES);
    assert!(ranges.iter().all(|range| range.first <= range.last && range.last < size_bytes), "{ranges:?}");
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.first);
    assert!(
        sorted.windows(2).all(|pair| pair[1].first - pair[0].last > COALESCE_GAP_BYTES + 1),
        "{ranges:?}"
    );
    let sum: u128 = ranges.iter().map(|range| u128::from(range.length_bytes())).sum();
    assert!(sum <= u128::from(size_bytes), "{ranges:?}");
}

/// Checks that a multipart response describes each part in its header.
fn assert_multipart_matches(ranges: &[ByteRange], size_bytes: u64) {
    let response = Multipart::new(ranges, size_bytes, "text/plain", Boundary::from_random(7));
    let boundary = response.content_type().split_once("boundary=").expect("boundary").1.to_owned();
    for ((head, range), expected) in response.parts().zip(ranges) {
        let head = std::str::from_utf8(head).expect("UTF-8 head");
        let content_range = format!("Content-Range: bytes {}-{}/{size_bytes}\r\n", range.first, range.last);
        assert!(range == *expected && head.contains(&content_range) && head.ends_with("\r\n\r\n"), "{head}");
        assert!(head.contains(&format!("--{boundary}\r\n")), "{head}");
    }
    assert_eq!(response.parts().len(), ranges.len());
    assert_eq!(response.end(), format!("\r\n--{boundary}--\r\n").as_bytes());
}

/// Parses the requested ranges and returns those that overlap the file. Returns `None` if the whole file must be sent.
fn parse_ranges(range: &str, size_bytes: u64) -> Option<Vec<ByteRange>> {
    let (unit, set) = range.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") || size_bytes == 0 {
        return None;
    }
    let blank = [' ', '\t'];
    let specs: Vec<_> =
        set.split(',').map(|spec| spec.trim_matches(blank)).filter(|spec| !spec.is_empty()).collect();
    if specs.is_empty() || specs.len() > MAX_RANGES {
        return None;
    }
    let mut ranges = Vec::new();
    for spec in specs {
        let (start, end) = spec.split_once('-')?;
        let (first, last) = match (start, end) {
            ("", length) => (size_bytes.saturating_sub(number(length)?), size_bytes - 1),
            (first, "") => (number(first)?, u64::MAX),
            (first, last) => (number(first)?, number(last)?),
        };
        if !start.is_empty() && last < first {
            return None;
        }
        if first < size_bytes {
            ranges.push(ByteRange { first, last: last.min(size_bytes - 1) });
        }
    }
    Some(ranges)
}

/// Merges ranges until no two of them overlap or are close. A merged range takes the position of its earliest part.
fn coalesced(requested: &[ByteRange]) -> Vec<ByteRange> {
    let mut ranges = requested.to_vec();
    let is_near = |one: ByteRange, other: ByteRange| {
        let (low, high) = if one.first <= other.first { (one, other) } else { (other, one) };
        u128::from(high.first) <= u128::from(low.last) + u128::from(COALESCE_GAP_BYTES) + 1
    };
    'merge: loop {
        for first in 0..ranges.len() {
            for second in first + 1..ranges.len() {
                if is_near(ranges[first], ranges[second]) {
                    let other = ranges.remove(second);
                    let merged = &mut ranges[first];
                    merged.first = merged.first.min(other.first);
                    merged.last = merged.last.max(other.last);
                    continue 'merge;
                }
            }
        }
        return ranges;
    }
}

/// For each byte of the file, returns whether a range contains it.
fn to_byte_map(ranges: &[ByteRange], size_bytes: u64) -> Vec<bool> {
    (0..size_bytes)
        .map(|byte| ranges.iter().any(|range| (range.first..=range.last).contains(&byte)))
        .collect()
}

/// Fills the gaps that are small enough for the ranges around them to be coalesced.
fn close_gaps(mut byte_map: Vec<bool>) -> Vec<bool> {
    let mut last = None;
    for index in 0..byte_map.len() {
        if !byte_map[index] {
            continue;
        }
        if let Some(last) = last.filter(|last| index - last <= COALESCE_GAP_BYTES as usize + 1) {
            byte_map[last..index].fill(true);
        }
        last = Some(index);
    }
    byte_map
}

/// Parses a decimal number. A number that exceeds 64 bits is returned as `u64::MAX`.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_start_matches('0');
    match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        true if digits.is_empty() => Some(0),
        true => Some(digits.parse().unwrap_or(u64::MAX)),
        false => None,
    }
}

/// Decodes Latin-1, in which every byte is one character.
fn latin_1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}
