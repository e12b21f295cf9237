//! Tests for preconditions.

use anello_http::files::conditional::Outcome::{NotModified, PreconditionFailed, Proceed};
use anello_http::files::conditional::{Outcome, applicable_range, evaluate};
use anello_http::files::fields::RequestFields;
use anello_http::files::stamp::{FileStamp, Timestamp};
use anello_http::files::validator::Validator;
use anello_http::h1::HttpDate;

use proptest::prelude::*;

/// Modification time of the test file: 2026-09-21 14:13:20 UTC, a Monday.
const MODIFIED: i64 = 1_790_000_000;
const TAG: &str = "\"6ab13b80-0-d\"";
const WEAK: &str = "W/\"6ab13b80-0-d\"";
const MODIFIED_AT: &str = "Mon, 21 Sep 2026 14:13:20 GMT";
const BEFORE: &str = "Mon, 21 Sep 2026 14:13:19 GMT";
const AFTER: &str = "Mon, 21 Sep 2026 14:13:21 GMT";

/// Validator of a file that was checked this long after its last change.
fn validator_checked_after(after_nanoseconds: i64) -> Validator {
    let modified = Timestamp { seconds: MODIFIED, nanoseconds: 0 };
    let stamp = FileStamp { size_bytes: 13, modified, changed: modified, ..FileStamp::default() };
    let (seconds, nanoseconds) = (after_nanoseconds / 1_000_000_000, after_nanoseconds % 1_000_000_000);
    let now = Timestamp { seconds: MODIFIED + seconds, nanoseconds: nanoseconds as u32 };
    Validator::of(&stamp, None, now)
}

fn settled() -> Validator {
    validator_checked_after(60_000_000_000)
}

fn outcome_of(fields: &[(&str, &str)], validator: &Validator) -> Outcome {
    let fields = fields.iter().map(|&(name, value)| (name, value.as_bytes()));
    evaluate(&RequestFields::pick(fields), validator)
}

fn outcome(fields: &[(&str, &str)]) -> Outcome {
    outcome_of(fields, &settled())
}

#[test]
fn test_validator_matches_constants() {
    assert_eq!(settled().tag.as_str(), TAG);
    assert_eq!(HttpDate::parse(MODIFIED_AT.as_bytes()), Some(MODIFIED as u64));
    assert_eq!(outcome(&[]), Proceed);
}

#[test]
fn if_none_match_uses_weak_comparison() {
    let long = format!("{}{TAG}", "\"x\", ".repeat(1000));
    let matching = [
        TAG,
        WEAK,
        "*",
        " * ",
        "\"a\", \"6ab13b80-0-d\"",
        "\"a\",W/\"6ab13b80-0-d\" ,\"b\"",
        ",, \"6ab13b80-0-d\",",
        "\"a,b\", \"6ab13b80-0-d\"",
        "nonsense, \"6ab13b80-0-d\"",
        "\"\",\"6ab13b80-0-d\"",
        &long,
    ];
    for value in matching {
        assert_eq!(outcome(&[("If-None-Match", value)]), NotModified, "{value}");
    }
    let others = [
        "",
        "\"a\"",
        "6ab13b80-0-d",
        "\"6ab13b80-0-d",
        "\"6ab13b80-0-d\"x",
        "w/\"6ab13b80-0-d\"",
        "\"6AB13B80-0-D\"",
        "\"a\" \"6ab13b80-0-d\"",
        "*, \"a\"",
        "\"a,\"6ab13b80-0-d\"",
        "\"6ab13b80-0-d-br\"",
    ];
    for value in others {
        assert_eq!(outcome(&[("If-None-Match", value)]), Proceed, "{value}");
    }
    let spread = [("If-None-Match", "\"a\""), ("Host", "b"), ("if-none-match", TAG)];
    assert_eq!(outcome(&spread), NotModified, "lines form one list");
}

#[test]
fn if_match_uses_strong_comparison() {
    for value in [TAG, "*", "\"a\", \"6ab13b80-0-d\""] {
        assert_eq!(outcome(&[("If-Match", value)]), Proceed, "{value}");
    }
    for value in [WEAK, "\"a\"", "", "nonsense"] {
        assert_eq!(outcome(&[("If-Match", value)]), PreconditionFailed, "{value}");
    }
    let unsettled = validator_checked_after(999_999_999);
    assert_eq!(outcome_of(&[("If-Match", TAG)], &unsettled), PreconditionFailed);
    assert_eq!(outcome_of(&[("If-Match", WEAK)], &unsettled), PreconditionFailed);
    assert_eq!(outcome_of(&[("If-None-Match", TAG)], &unsettled), NotModified);
}

#[test]
fn dates_in_all_three_formats_are_compared_by_second() {
    assert_eq!(outcome(&[("If-Modified-Since", BEFORE)]), Proceed);
    assert_eq!(outcome(&[("If-Modified-Since", MODIFIED_AT)]), NotModified);
    assert_eq!(outcome(&[("If-Modified-Since", AFTER)]), NotModified);
    assert_eq!(outcome(&[("If-Modified-Since", "Monday, 21-Sep-26 14:13:20 GMT")]), NotModified);
    assert_eq!(outcome(&[("If-Modified-Since", "Mon Sep 21 14:13:20 2026")]), NotModified);
    assert_eq!(outcome(&[("If-Unmodified-Since", BEFORE)]), PreconditionFailed);
    assert_eq!(outcome(&[("If-Unmodified-Since", MODIFIED_AT)]), Proceed);
    assert_eq!(outcome(&[("If-Unmodified-Since", AFTER)]), Proceed);
}

#[test]
fn invalid_dates_are_ignored() {
    let no_day = "Mon, 31 Feb 2026 14:13:20 GMT";
    for value in ["", "yesterday", "1790000000", no_day, "Mon, 21 Sep 2026 14:13:20", "\u{fe}"] {
        assert_eq!(outcome(&[("If-Modified-Since", value)]), Proceed, "{value}");
        assert_eq!(outcome(&[("If-Unmodified-Since", value)]), Proceed, "{value}");
    }
    let twice = [("If-Modified-Since", MODIFIED_AT), ("If-Modified-Since", MODIFIED_AT)];
    assert_eq!(outcome(&twice), Proceed);
}

#[test]
fn tags_precede_dates_and_if_match_precedes_if_none_match() {
    let cases: [(&[(&str, &str)], Outcome); 8] = [
        (&[("If-Match", TAG), ("If-Unmodified-Since", BEFORE)], Proceed),
        (&[("If-Match", "\"a\""), ("If-Unmodified-Since", AFTER)], PreconditionFailed),
        (&[("If-None-Match", TAG), ("If-Modified-Since", BEFORE)], NotModified),
        (&[("If-None-Match", "\"a\""), ("If-Modified-Since", AFTER)], Proceed),
        (&[("If-Match", TAG), ("If-None-Match", TAG)], NotModified),
        (&[("If-Match", "\"a\""), ("If-None-Match", TAG)], PreconditionFailed),
        (&[("If-Unmodified-Since", BEFORE), ("If-None-Match", TAG)], PreconditionFailed),
        (&[("If-Unmodified-Since", AFTER), ("If-Modified-Since", AFTER)], NotModified),
    ];
    for (fields, expected) in cases {
        assert_eq!(outcome(fields), expected, "{fields:?}");
    }
}

#[test]
fn dates_are_ignored_without_last_modified() {
    let unsettled = validator_checked_after(0);
    assert_eq!(outcome_of(&[("If-Modified-Since", AFTER)], &unsettled), Proceed);
    assert_eq!(outcome_of(&[("If-Unmodified-Since", BEFORE)], &unsettled), Proceed);
}

fn range_of<'a>(if_range: &'a str, validator: &Validator) -> Option<&'a [u8]> {
    let fields = [("Range", &b"bytes=0-1"[..]), ("If-Range", if_range.as_bytes())];
    applicable_range(&RequestFields::pick(fields), validator)
}

#[test]
fn range_applies_only_if_if_range_matches() {
    for value in [TAG, MODIFIED_AT, "Monday, 21-Sep-26 14:13:20 GMT"] {
        assert_eq!(range_of(value, &settled()), Some(&b"bytes=0-1"[..]), "{value}");
    }
    for value in ["", WEAK, "\"a\"", "*", BEFORE, AFTER, "\"6ab13b80-0-d\", \"a\"", "6ab13b80-0-d"] {
        assert_eq!(range_of(value, &settled()), None, "{value}");
    }
    let without = RequestFields::pick([("Range", &b"bytes=0-1"[..])]);
    assert_eq!(applicable_range(&without, &settled()), Some(&b"bytes=0-1"[..]));
    assert_eq!(applicable_range(&RequestFields::default(), &settled()), None);
}

#[test]
fn if_range_never_matches_within_second_of_change() {
    for after_nanoseconds in [0, 1, 999_999_999] {
        for value in [TAG, WEAK, MODIFIED_AT] {
            assert_eq!(range_of(value, &validator_checked_after(after_nanoseconds)), None, "{value}");
        }
    }
    assert!(range_of(MODIFIED_AT, &validator_checked_after(1_000_000_000)).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_values_do_not_panic(value in any::<Vec<u8>>(), text in "[ ,*\"Wa/0-9MonSepGT:-]{0,60}") {
        for value in [&value[..], text.as_bytes()] {
            for name in ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"] {
                let fields = RequestFields::pick([(name, value)]);
                let outcome = evaluate(&fields, &settled());
                prop_assert!(!name.contains("None") || outcome != PreconditionFailed);
            }
            prop_assert!(HttpDate::parse(value).is_none_or(|date| date < 253_402_300_800));
        }
    }

    #[test]
    fn tag_matches_at_every_list_position(
        before in prop::collection::vec("(W/)?\"[!#-~]{0,9}\"", 0..5),
        after in prop::collection::vec("(W/)?\"[!#-~]{0,9}\"", 0..5),
        comma in " {0,2},[ \t]{0,2}",
    ) {
        let mut tags = before;
        tags.push(TAG.to_owned());
        tags.extend(after);
        prop_assert_eq!(outcome(&[("If-None-Match", &tags.join(&comma))]), NotModified);
        prop_assert_eq!(outcome(&[("If-Match", &tags.join(&comma))]), Proceed);
    }
}
