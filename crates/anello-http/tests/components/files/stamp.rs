//! Tests for file stamps.

use std::time::{Duration, UNIX_EPOCH};

use anello_http::files::stamp::{FileStamp, Timestamp};
use anello_http::files::validator::Validator;

fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

#[test]
fn file_settles_one_second_after_last_change() {
    let stamp = FileStamp { changed: at(100, 500), modified: at(7, 0), ..FileStamp::default() };
    assert!(!stamp.is_settled(at(100, 500)));
    assert!(!stamp.is_settled(at(101, 499)));
    assert!(stamp.is_settled(at(101, 500)));
    assert!(!stamp.is_settled(at(-5, 0)), "change time in the future");
    let last = FileStamp { changed: at(i64::MAX, 0), ..stamp };
    assert!(!last.is_settled(at(200, 0)), "no overflow");
}

#[test]
fn times_out_of_range_are_clamped() {
    assert_eq!(at(i64::MIN, 1).to_system_time(), UNIX_EPOCH);
    assert_eq!(at(12, 999).to_system_time(), UNIX_EPOCH + Duration::from_secs(12));
    let last = humantime::format_rfc3339_seconds(at(i64::MAX, 0).to_system_time());
    assert_eq!(last.to_string(), "9999-12-31T23:59:59Z");
}

#[test]
fn constant_modification_times_are_detected() {
    // If the modification time is a constant, the tag contains the change time instead.
    let is_constant = |seconds| {
        let stamp = FileStamp { modified: at(seconds, 0), ..FileStamp::default() };
        Validator::of(&stamp, None, at(1_800_000_000, 0)).tag.as_str().starts_with("\"c")
    };
    for seconds in [-1, 0, 1, 315_532_800, 315_619_200] {
        assert!(is_constant(seconds), "{seconds}");
    }
    for seconds in [2, 315_532_799, 315_705_600, 1_790_000_000] {
        assert!(!is_constant(seconds), "{seconds}");
    }
}
