//! What the kernel says of a file, as far as one can tell by it whether the file has changed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second that can be written with a year of four digits.
const LAST_SECOND: i64 = 253_402_300_799;

/// How long a file must have been left alone before its times tell changes apart: they have the granularity of the
/// kernel's tick (1 to 10 ms) or of the file system (up to a second, but for FAT, whose two are not worth a wait).
const SETTLE_SECONDS: i64 = 1;

/// A moment, as `fstat(2)` and `clock_gettime(CLOCK_REALTIME)` tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00 UTC; below zero before it.
    pub seconds: i64,
    /// Nanoseconds since then, 0 to 999,999,999, always counted forward.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The moment as the standard library has it, in whole seconds. What lies outside of the years 1970 to 9999, which
    /// no text of HTTP can say, is moved to their edge.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.seconds.clamp(0, LAST_SECOND).unsigned_abs())
    }

    fn plus_seconds(self, seconds: i64) -> Self {
        Self { seconds: self.seconds.saturating_add(seconds), ..self }
    }
}

/// What identifies the contents of a file (`fstat(2)` of the open one). Two stamps are equal when nothing tells that the
/// contents differ, so this is what a cache compares; see [`is_settled`](Self::is_settled) for when it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Length of the contents, in bytes.
    pub size_bytes: u64,
    /// When the contents were last written (`st_mtime`), or what a program set it to.
    pub modified: Timestamp,
    /// When contents or attributes last changed (`st_ctime`), by the kernel's clock: no program can set it.
    pub changed: Timestamp,
    /// Number of the file within its file system (`st_ino`). Another file under the same name has another one.
    pub inode: u64,
    /// The file system (`st_dev`).
    pub device: u64,
}

impl FileStamp {
    /// Whether the file had been left alone for a second when it was looked at, by the same clock. If not, it may be
    /// written again within the same tick of the clock that its times are taken from: an equal stamp does not tell
    /// then that the contents are equal. What was read of it at that time must be read again, not only looked at.
    ///
    /// Times that lie in the future are not settled either.
    #[must_use]
    pub fn is_settled(&self, checked_at: Timestamp) -> bool {
        self.changed.plus_seconds(SETTLE_SECONDS) <= checked_at
    }

    /// Whether the time of modification tells nothing, because a tool sets the same one on every file to have its
    /// output reproducible: the epoch or the second after it (Nix, OSTree), or the first days of 1980 (ZIP archives,
    /// in whichever time zone).
    pub(super) fn has_constant_modified(&self) -> bool {
        const FIRST_DAYS_OF_1980: std::ops::RangeInclusive<i64> = 315_532_800..=315_705_599;
        self.modified.seconds <= 1 || FIRST_DAYS_OF_1980.contains(&self.modified.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    #[test]
    fn a_file_settles_a_second_after_its_last_change() {
        let stamp = FileStamp { changed: at(100, 500), modified: at(7, 0), ..FileStamp::default() };
        assert!(!stamp.is_settled(at(100, 500)));
        assert!(!stamp.is_settled(at(101, 499)));
        assert!(stamp.is_settled(at(101, 500)));
        assert!(!stamp.is_settled(at(-5, 0)), "a change in the future");
        let last = FileStamp { changed: at(i64::MAX, 0), ..stamp };
        assert!(!last.is_settled(at(200, 0)), "no overflow");
    }

    #[test]
    fn moments_that_no_text_can_say_are_moved_to_the_edge() {
        assert_eq!(at(i64::MIN, 1).to_system_time(), UNIX_EPOCH);
        assert_eq!(at(12, 999).to_system_time(), UNIX_EPOCH + Duration::from_secs(12));
        let last = humantime::format_rfc3339_seconds(at(i64::MAX, 0).to_system_time());
        assert_eq!(last.to_string(), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn times_that_tools_set_on_everything_are_known() {
        let modified = |seconds| FileStamp { modified: at(seconds, 0), ..FileStamp::default() };
        for seconds in [-1, 0, 1, 315_532_800, 315_619_200] {
            assert!(modified(seconds).has_constant_modified(), "{seconds}");
        }
        for seconds in [2, 315_532_799, 315_705_600, 1_790_000_000] {
            assert!(!modified(seconds).has_constant_modified(), "{seconds}");
        }
    }
}
