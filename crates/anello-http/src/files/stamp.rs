//! File metadata from the kernel that reveals changes to a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Last second of the year 9999.
const LAST_SECOND: i64 = 253_402_300_799;

/// Minimum age of the last change at which timestamps are sure to distinguish later changes from it. It covers the
/// granularity of the kernel tick (1 to 10 ms) and of most file systems (up to one second). The granularity of FAT, two
/// seconds, does not justify a longer delay.
const SETTLE_SECONDS: i64 = 1;

/// Point in time as returned by `fstat(2)` and `clock_gettime(CLOCK_REALTIME)`.
///
/// ```
/// use anello_http::files::stamp::Timestamp;
///
/// let earlier = Timestamp { seconds: 60, nanoseconds: 999_999_999 };
/// assert!(earlier < Timestamp { seconds: 61, nanoseconds: 0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00 UTC; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, 0 to 999,999,999, even if `seconds` is negative.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Converts the timestamp to a `SystemTime`, truncated to whole seconds and clamped to the years 1970 to 9999, the
    /// range of HTTP dates.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// use anello_http::files::stamp::Timestamp;
    ///
    /// let timestamp = Timestamp { seconds: 60, nanoseconds: 999_999_999 };
    /// assert_eq!(timestamp.to_system_time(), UNIX_EPOCH + Duration::from_secs(60));
    /// ```
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.seconds.clamp(0, LAST_SECOND).unsigned_abs())
    }
}

/// Metadata that identifies the contents of a file (`fstat(2)` on the open file). Caches compare stamps to detect
/// changes. Equal stamps prove that the contents are unchanged only if the first stamp was taken when the file was
/// settled; see [`is_settled`](Self::is_settled).
///
/// ```
/// use anello_http::files::stamp::FileStamp;
///
/// let stamp = FileStamp { size_bytes: 13, inode: 7, ..FileStamp::default() };
/// // Another file has replaced this one.
/// assert_ne!(stamp, FileStamp { inode: 8, ..stamp });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Size of the contents in bytes.
    pub size_bytes: u64,
    /// Time of the last write to the contents (`st_mtime`). Applications can set it to any value.
    pub modified: Timestamp,
    /// Time of the last change to contents or attributes (`st_ctime`), according to the kernel clock. Applications
    /// cannot set it.
    pub changed: Timestamp,
    /// Inode number (`st_ino`). A file that replaces another one under the same name has a different number.
    pub inode: u64,
    /// Device number of the file system (`st_dev`).
    pub device: u64,
}

impl FileStamp {
    /// Returns `true` if the last change was at least one second before `checked_at`, which must be from the same
    /// clock. Otherwise, the file may be written again within the same clock tick, so an equal stamp does not prove
    /// equal contents. In this case, it is not enough to revalidate data read from the file: it must be read again.
    ///
    /// Returns `false` for change times in the future.
    ///
    /// ```
    /// use anello_http::files::stamp::{FileStamp, Timestamp};
    ///
    /// let changed = Timestamp { seconds: 60, nanoseconds: 5 };
    /// let stamp = FileStamp { changed, ..FileStamp::default() };
    /// assert!(!stamp.is_settled(Timestamp { seconds: 61, nanoseconds: 0 }));
    /// assert!(stamp.is_settled(Timestamp { seconds: 61, nanoseconds: 5 }));
    /// ```
    pub fn is_settled(&self, checked_at: Timestamp) -> bool {
        let settled_at = self.changed.seconds.saturating_add(SETTLE_SECONDS);
        Timestamp { seconds: settled_at, ..self.changed } <= checked_at
    }

    /// Returns `true` if the modification time is a constant that tools set to make their output reproducible: the
    /// epoch or the following second (Nix, OSTree), or the first days of 1980 (ZIP archives, in any time zone). It
    /// then carries no information.
    pub(super) fn has_constant_modified(&self) -> bool {
        const FIRST_DAYS_OF_1980: std::ops::RangeInclusive<i64> = 315_532_800..=315_705_599;
        self.modified.seconds <= 1 || FIRST_DAYS_OF_1980.contains(&self.modified.seconds)
    }
}
