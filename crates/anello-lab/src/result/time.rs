//! UTC times as text.

use std::time::{Duration, UNIX_EPOCH};

/// Formats seconds since 1970 as `2026-11-21 21:07 UTC`.
pub fn readable_time(unix_s: u64) -> String {
    format!("{} UTC", rfc3339(unix_s)[..16].replace('T', " "))
}

/// Formats the time as `2026-11-21T21:07:03Z`. Times that cannot be represented are shown as the start of 1970.
pub fn rfc3339(unix_s: u64) -> String {
    // One second after the latest time that RFC 3339 can express.
    let seconds = if unix_s < 253_402_300_800 { unix_s } else { 0 };
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}
