//! Tests for range selection.

use anello_http::files::range::{ByteRange, COALESCE_GAP_BYTES, ContentRange, MAX_RANGES, Selection, select};

use proptest::prelude::*;

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
    for range in ["bytes=1000-", "bytes=1000-1001", "bytes=-0", "bytes=5000-6000,-0", "bytes=1000-1000,2000-"]
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
        let specs: Vec<_> = (0..count).map(|index| format!("{}-{}", index * 1000, index * 1000)).collect();
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

/// For each byte of a file of `size` bytes, returns whether it is requested.
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
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
        // Bytes that were not requested are sent only where two ranges are coalesced.
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
            let end = |range: &ByteRange| range.last + COALESCE_GAP_BYTES + 1;
                let is_separate = |other: &ByteRange| range.first > end(other) || other.first > end(range);
                prop_assert!(ranges[..index].iter().all(is_separate));
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
