//! Tests of file stamps.

use std::time::{Duration, UNIX_EPOCH};

use anello_http::files::stamp::{FileStamp, Timestamp};

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
