//! Tests for validators.

use anello_http::files::conditional::{Outcome, applicable_range, evaluate};
use anello_http::files::fields::RequestFields;
use anello_http::files::negotiate::Coding;
use anello_http::files::stamp::{FileStamp, Timestamp};
use anello_http::files::validator::{EntityTag, Validator};
use proptest::prelude::*;

fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

const LATER: Timestamp = Timestamp { seconds: 2_000_000_000, nanoseconds: 0 };

fn stamp(modified: Timestamp, size_bytes: u64) -> FileStamp {
    FileStamp { size_bytes, modified, changed: modified, inode: 7, device: 8 }
}

fn tag(stamp: &FileStamp) -> String {
    Validator::of(stamp, None, LATER).tag.as_str().to_owned()
}

#[test]
fn tag_depends_on_time_and_size_but_not_on_inode() {
    let file = stamp(at(1_790_000_000, 123_456_789), 0x1f4);
    assert_eq!(tag(&file), "\"6ab13b80-75bcd15-1f4\"");
    assert_ne!(tag(&file), tag(&FileStamp { size_bytes: 0x1f5, ..file }));
    assert_ne!(tag(&file), tag(&FileStamp { modified: at(1_790_000_000, 123_456_790), ..file }));
    let copy = FileStamp { inode: 1, device: 2, changed: at(1_800_000_000, 0), ..file };
    assert_eq!(tag(&file), tag(&copy));
}

#[test]
fn variants_have_distinct_tags() {
    let file = stamp(at(1_790_000_000, 0), 1);
    let tags = [None, Some(Coding::Brotli), Some(Coding::Zstandard), Some(Coding::Gzip)]
        .map(|coding| Validator::of(&file, coding, LATER).tag.as_str().to_owned());
    assert_eq!(
        tags,
        ["\"6ab13b80-0-1\"", "\"6ab13b80-0-1-br\"", "\"6ab13b80-0-1-zstd\"", "\"6ab13b80-0-1-gzip\""]
    );
}

#[test]
fn recently_changed_file_has_weak_tag_and_no_date() {
    let modified = at(1000, 500_000_000);
    let file = stamp(modified, 1);
    for checked_at in [modified, at(1001, 499_999_999), at(900, 0)] {
        let validator = Validator::of(&file, None, checked_at);
        assert_eq!(validator.tag.as_str(), "W/\"3e8-1dcd6500-1\"");
        assert_eq!(validator.last_modified_seconds, None);
    }
    let validator = Validator::of(&file, None, at(1001, 500_000_000));
    assert_eq!(validator.tag.as_str(), "\"3e8-1dcd6500-1\"");
    assert_eq!(validator.last_modified_seconds, Some(1000));
}

#[test]
fn future_date_is_not_sent() {
    let file = FileStamp { changed: at(1000, 0), ..stamp(at(5000, 0), 1) };
    assert_eq!(Validator::of(&file, None, at(5000, 999_999_999)).last_modified_seconds, None);
    assert_eq!(Validator::of(&file, None, at(5001, 0)).last_modified_seconds, Some(5000));
}

#[test]
fn constant_modification_time_is_replaced_by_change_time() {
    for constant in [-3, 0, 1, 315_532_800] {
        let first = FileStamp { changed: at(1000, 1), ..stamp(at(constant, 0), 1) };
        let second = FileStamp { changed: at(1000, 2), ..first };
        assert_eq!(tag(&first), "\"c3e8-1-1\"");
        assert_ne!(tag(&first), tag(&second));
        assert_eq!(Validator::of(&first, None, LATER).last_modified_seconds, None);
    }
}

fn field<'a>(name: &'a str, value: &'a str) -> [(&'a str, &'a [u8]); 2] {
    [(name, value.as_bytes()), ("Range", b"bytes=0-1")]
}

/// Compares a request tag with the tag of a file by evaluating `If-None-Match`.
fn matches_weakly(request_tag: &str, tag: EntityTag) -> bool {
    let validator = Validator { tag, last_modified_seconds: None };
    evaluate(&RequestFields::pick(field("If-None-Match", request_tag)), &validator) == Outcome::NotModified
}

/// Compares a request tag with the tag of a file by evaluating `If-Match` and `If-Range`.
fn matches_strongly(request_tag: &str, tag: EntityTag) -> bool {
    let validator = Validator { tag, last_modified_seconds: None };
    let fields = RequestFields::pick(field("If-Range", request_tag));
    let matches = applicable_range(&fields, &validator).is_some();
    if request_tag != "*" {
        let outcome = evaluate(&RequestFields::pick(field("If-Match", request_tag)), &validator);
        assert_eq!(outcome == Outcome::Proceed, matches, "{request_tag} {tag:?}");
    }
    matches
}

#[test]
fn request_tags_are_compared_as_in_rfc_9110() {
    let strong = Validator::of(&stamp(at(1000, 0), 1), None, LATER).tag;
    let weak = Validator::of(&stamp(at(1000, 0), 1), None, at(1000, 0)).tag;
    for not_a_tag in ["", "abc", "\"abc", "W/", "W/abc", "w/\"a\"", "w/\"3e8-0-1\"", "*", "'a'", "3e8-0-1"] {
        assert!(!matches_strongly(not_a_tag, strong), "{not_a_tag}");
        assert!(not_a_tag == "*" || !matches_weakly(not_a_tag, strong), "{not_a_tag}");
    }
    // Table in RFC 9110, section 8.8.3.2.
    let (request_strong, request_weak, other) = ("\"3e8-0-1\"", "W/\"3e8-0-1\"", "\"3e8-0-2\"");
    for (request_tag, tag, strongly, weakly) in [
        (request_weak, weak, false, true),
        (request_strong, weak, false, true),
        (request_weak, strong, false, true),
        (request_strong, strong, true, true),
        (other, strong, false, false),
    ] {
        assert_eq!(matches_strongly(request_tag, tag), strongly, "{request_tag} {tag:?}");
        assert_eq!(matches_weakly(request_tag, tag), weakly, "{request_tag} {tag:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_tag_fits_buffer_and_can_be_parsed(
        (seconds, changed, size_bytes) in (any::<i64>(), any::<i64>(), any::<u64>()),
        nanoseconds in any::<u32>(),
        coding in prop::sample::select(vec![None, Some(Coding::Brotli), Some(Coding::Zstandard)]),
        checked_at in any::<i64>(),
    ) {
        let file = FileStamp {
            changed: at(changed, nanoseconds),
            ..stamp(at(seconds, nanoseconds), size_bytes)
        };
        let tag = Validator::of(&file, coding, at(checked_at, 0)).tag;
        prop_assert!(matches_weakly(tag.as_str(), tag));
        prop_assert_eq!(matches_strongly(tag.as_str(), tag), tag.is_strong());
    }
}
