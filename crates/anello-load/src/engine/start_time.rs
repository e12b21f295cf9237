//! Start of a load at a time of the system clock, so that processes on several machines start together.
//!
//! ```text
//!        start_at - connect_timeout             start_at
//!  waiting ──────┼── connections are opened, waiting ─┼── warm-up, measurement
//! ```
//!
//! All other times are those of the monotonic clock. The start time is converted when the load starts, so a clock that
//! is corrected during the wait has no effect.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::config::LoadConfig;
use crate::model::report::ClockReport;
use crate::system::{machine, nanoseconds};

/// Maximum delay of a load with a start time, such as that of a process that is started late. After a longer delay, the
/// load would consist mainly of late requests.
pub(crate) const MAX_START_DELAY: Duration = Duration::from_secs(1);

/// Maximum time until the start of a load. A later time is a mistake, such as milliseconds in place of seconds.
const MAX_START_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Returns the time until `at`; zero if it has passed.
pub(crate) fn until(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Returns the time until the connections are opened.
pub(crate) fn until_opening(load: &LoadConfig) -> Duration {
    let opening = load.start_at.and_then(|start_at| start_at.checked_sub(load.connect_timeout));
    opening.map_or(Duration::ZERO, until)
}

/// Returns nanoseconds since the Unix epoch; 0 for earlier times.
pub(crate) fn unix_ns(at: SystemTime) -> u64 {
    nanoseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Checks that a start time ([`LoadConfig::start_at`]) is neither too far in the past nor too far in the future.
///
/// # Errors
/// Returns `InvalidInput` if it has passed more than one second ago, or is more than a week in the future.
pub fn check(start_at: SystemTime) -> io::Result<()> {
    let problem = match start_at.duration_since(SystemTime::now()) {
        Ok(wait) if wait > MAX_START_WAIT => {
            format!("is {} days in the future (at most 7 are possible)", wait.as_secs() / (24 * 3600))
        }
        Err(passed) if passed.duration() > MAX_START_DELAY => {
            let seconds = passed.duration().as_secs_f64();
            format!("passed {seconds:.1} s ago (choose a later time, or check the clock of this machine)")
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("cannot start the load: its start time {problem}"),
    ))
}

/// Readings of both clocks at the start of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockStart {
    system: SystemTime,
    monotonic: Instant,
}

impl ClockStart {
    pub fn now() -> Self {
        Self { system: SystemTime::now(), monotonic: Instant::now() }
    }

    /// Converts a time of the system clock to nanoseconds since `origin`; 0 for earlier times.
    pub fn to_monotonic_ns(self, at: SystemTime, origin: Instant) -> u64 {
        let now_ns = nanoseconds(self.monotonic.saturating_duration_since(origin));
        match at.duration_since(self.system) {
            Ok(ahead) => now_ns.saturating_add(nanoseconds(ahead)),
            Err(passed) => now_ns.saturating_sub(nanoseconds(passed.duration())),
        }
    }

    /// Converts nanoseconds since `origin` to nanoseconds since the Unix epoch.
    pub fn to_unix_ns(self, ns: u64, origin: Instant) -> u64 {
        let now_ns = nanoseconds(self.monotonic.saturating_duration_since(origin));
        unix_ns(self.system).saturating_add(ns).saturating_sub(now_ns)
    }

    /// Returns the report at the end of the load.
    pub fn report(&self, start_at: Option<SystemTime>) -> ClockReport {
        let delay = |start_at| self.system.duration_since(start_at).unwrap_or_default();
        let expected_ns = i128::from(unix_ns(self.system)) + self.monotonic.elapsed().as_nanos() as i128;
        let step_ns = i128::from(unix_ns(SystemTime::now())) - expected_ns;
        ClockReport {
            name: "CLOCK_REALTIME".to_owned(),
            source: machine::clock_source(),
            step_ns: i64::try_from(step_ns).unwrap_or(i64::MAX),
            start_at_unix_ns: start_at.map(unix_ns),
            start_delay_ns: start_at.map_or(0, |start_at| nanoseconds(delay(start_at))),
        }
    }
}
