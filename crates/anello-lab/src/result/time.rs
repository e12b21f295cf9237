//! Times in UTC as text.

/// Seconds since 1970 as 20261121T210703Z, for file names.
pub fn compact_time(unix_s: u64) -> String {
    let (year, month, day, second) = calendar(unix_s);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Seconds since 1970 as 2026-11-21 21:07 UTC.
pub fn readable_time(unix_s: u64) -> String {
    let (year, month, day, second) = calendar(unix_s);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Year, month, day and second of the day, in UTC. Counts in eras of 400 years that begin in March, so that the leap
/// day comes last.
fn calendar(unix_s: u64) -> (u64, u64, u64, u64) {
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day, unix_s % 86_400)
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
