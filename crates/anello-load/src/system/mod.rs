//! Information from the operating system: processes and cores.

pub mod machine;
pub mod process;

use std::time::Duration;

/// Converts a duration to nanoseconds. Saturates for durations above 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
