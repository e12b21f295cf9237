//! Conversion of times.

use std::time::Duration;

/// Converts a duration to nanoseconds. Durations above 584 years saturate.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
