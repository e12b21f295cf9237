//! Cached formatting of timestamps, in UTC. The date and time up to the second are formatted once per second;
//! milliseconds are formatted for each line.

use crate::h1::HttpDate;

/// The most recently formatted second, in both formats.
#[derive(Clone, Debug)]
pub(super) struct TimeText {
    /// Seconds since the Unix epoch. `None` until the first timestamp is formatted.
    second: Option<u64>,
    /// RFC 3339: `2026-11-22T16:27:35.042Z`.
    rfc3339: [u8; 24],
    /// Common log format: `22/Nov/2026:16:27:35 +0000`.
    common: [u8; 26],
}

impl TimeText {
    pub(super) fn new() -> Self {
        Self { second: None, rfc3339: *b"0000-00-00T00:00:00.000Z", common: *b"00/Jan/0000:00:00:00 +0000" }
    }

    pub(super) fn rfc3339(&mut self, unix_time_ns: u64) -> &[u8; 24] {
        self.set_second(unix_time_ns / 1_000_000_000);
        let milliseconds = (unix_time_ns / 1_000_000 % 1000) as u16;
        let digits = [milliseconds / 100, milliseconds / 10 % 10, milliseconds % 10];
        self.rfc3339[20..23].copy_from_slice(&digits.map(|digit| b'0' + digit as u8));
        &self.rfc3339
    }

    pub(super) fn common(&mut self, unix_time_ns: u64) -> &[u8; 26] {
        self.set_second(unix_time_ns / 1_000_000_000);
        &self.common
    }

    fn set_second(&mut self, second: u64) {
        if self.second != Some(second) {
            self.second = Some(second);
            self.format(second);
        }
    }

    /// Formats the second in both formats, using the parts of an HTTP date (`Sun, 22 Nov 2026 16:27:35 GMT`).
    #[cold]
    fn format(&mut self, second: u64) {
        // A 64-bit nanosecond count reaches only to the year 2554, within the range of HTTP dates (up to the year
        // 9999).
        let date = HttpDate::from_unix(second);
        let text = date.as_bytes();
        let (day, month, year, time) = (&text[5..7], &text[8..11], &text[12..16], &text[17..25]);
        self.rfc3339[..4].copy_from_slice(year);
        const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
        let month_number = MONTHS.chunks(3).position(|name| name == month).unwrap_or_default() as u8 + 1;
        self.rfc3339[5..7].copy_from_slice(&[month_number / 10, month_number % 10].map(|digit| b'0' + digit));
        self.rfc3339[8..10].copy_from_slice(day);
        self.rfc3339[11..19].copy_from_slice(time);
        self.common[..2].copy_from_slice(day);
        self.common[3..6].copy_from_slice(month);
        self.common[7..11].copy_from_slice(year);
        self.common[12..20].copy_from_slice(time);
    }
}
