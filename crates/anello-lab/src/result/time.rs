//! UTC times as text.

use std::time::{Duration, UNIX_EPOCH};

/// Returns seconds since 1970 as 20261121T210703Z, for file names.
pub fn compact_time(unix_s: u64) -> String {
    rfc3339(unix_s).replace(['-', ':'], "")
}

/// Returns seconds since 1970 as 2026-11-21 21:07 UTC.
pub fn readable_time(unix_s: u64) -> String {
    let text = rfc3339(unix_s);
    let minutes = text.rsplit_once(':').map_or(text.as_str(), |(minutes, _)| minutes);
    format!("{} UTC", minutes.replace('T', " "))
}

/// Returns the time as 2026-11-21T21:07:03Z. Times that cannot be represented are shown as the start of 1970.
fn rfc3339(unix_s: u64) -> String {
    // One second after the latest time that RFC 3339 can express.
    let seconds = if unix_s < 253_402_300_800 { unix_s } else { 0 };
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(compact_time(0), "19700101T000000Z");
        assert_eq!(compact_time(951_782_400), "20000229T000000Z");
        assert_eq!(readable_time(1_795_295_223), "2026-11-21 21:07 UTC");
        assert_eq!(readable_time(4_107_542_399), "2100-02-28 23:59 UTC");
        assert_eq!(readable_time(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}
