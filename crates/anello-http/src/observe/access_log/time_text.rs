//! Cached formatting of timestamps, in UTC. The date and time up to the second are formatted once per second;
//! milliseconds are formatted for each line.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

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

    /// Returns the time in RFC 3339 format, with milliseconds.
    pub(super) fn rfc3339(&mut self, unix_time_ns: u64) -> &[u8; 24] {
        self.set_second(unix_time_ns / 1_000_000_000);
        let milliseconds = (unix_time_ns / 1_000_000 % 1000) as u16;
        let digits = [milliseconds / 100, milliseconds / 10 % 10, milliseconds % 10];
        self.rfc3339[20..23].copy_from_slice(&digits.map(|digit| b'0' + digit as u8));
        &self.rfc3339
    }

    /// Returns the time as in the common log format.
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

    /// Formats the second in both formats, from the parts of an HTTP date (`Sun, 22 Nov 2026 16:27:35 GMT`).
    #[cold]
    fn format(&mut self, second: u64) {
        // A 64-bit nanosecond count ends in the year 2554; HTTP dates are valid up to the year 9999.
        let date = HttpDate::from(UNIX_EPOCH + Duration::from_secs(second));
        let mut text = [b' '; 29];
        if write!(&mut text[..], "{date}").is_err() {
            // A date of a different length would be a bug in `httpdate`. A line with an outdated time is better than
            // none.
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &mut TimeText, unix_time_ns: u64) -> (String, String) {
        let rfc3339 = String::from_utf8(text.rfc3339(unix_time_ns).to_vec()).unwrap();
        (rfc3339, String::from_utf8(text.common(unix_time_ns).to_vec()).unwrap())
    }

    #[test]
    fn time_is_formatted_in_both_formats() {
        // Expected values from `date -u -d @SECONDS`.
        let cases = [
            (0, "1970-01-01T00:00:00.000Z", "01/Jan/1970:00:00:00 +0000"),
            (951_782_400_999_999_999, "2000-02-29T00:00:00.999Z", "29/Feb/2000:00:00:00 +0000"),
            (1_795_364_855_042_000_000, "2026-11-22T16:27:35.042Z", "22/Nov/2026:16:27:35 +0000"),
            (1_798_761_599_007_999_999, "2026-12-31T23:59:59.007Z", "31/Dec/2026:23:59:59 +0000"),
            (u64::MAX, "2554-07-21T23:34:33.709Z", "21/Jul/2554:23:34:33 +0000"),
        ];
        let mut text = TimeText::new();
        for (unix_time_ns, rfc3339, common) in cases {
            assert_eq!(both(&mut text, unix_time_ns), (rfc3339.into(), common.into()));
        }
        // The clock can be set back.
        for (unix_time_ns, rfc3339, common) in cases.into_iter().rev() {
            assert_eq!(both(&mut text, unix_time_ns), (rfc3339.into(), common.into()));
        }
    }

    #[test]
    fn all_months_are_formatted() {
        let mut text = TimeText::new();
        for month in 0..12u64 {
            // The middle of each month of 2027, which has 365 days.
            let second = 1_798_761_600 + month * 365 * 86_400 / 12 + 15 * 86_400;
            let (rfc3339, common) = both(&mut text, second * 1_000_000_000);
            assert_eq!(&rfc3339[5..7], format!("{:02}", month + 1));
            let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
            assert_eq!(&common[3..6], names[month as usize]);
        }
    }
}
