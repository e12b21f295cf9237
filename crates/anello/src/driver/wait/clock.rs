//! The clocks of the drivers. They can be read while the driver is borrowed, because the destructor of a waker may read
//! the time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of reads that take no virtual time, as long as the clock shows the same time.
const MAX_FREE_READS: u32 = 1000;

/// Virtual duration of each further read in nanoseconds.
const READ_NS: u64 = 50;

/// Number of turns that take no virtual time, as long as the clock shows the same time.
const MAX_FREE_TURNS: u32 = 100;

/// Wall-clock time at which a simulation starts by default: 2000-01-01 00:00 UTC.
///
/// It is in the past so that real files are never older than they seem: a program that compares a timestamp of a file
/// with the clock must not take a file that has just been written for an old one.
const DEFAULT_START: Duration = Duration::from_secs(946_684_800);

const MILLION: i128 = 1_000_000;

#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The Linux monotonic clock, relative to the given instant.
    Monotonic(Instant),
    /// The clock of a simulated host.
    Virtual(Rc<VirtualClock>),
}

impl Clock {
    /// Returns the nanoseconds since the driver was opened.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic(started) => u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Self::Virtual(clock) => clock.read(),
        }
    }

    /// Returns the time on the simulated network at which this clock shows a time. A real clock has no such difference.
    pub fn network_ns(&self, local_ns: u64) -> u64 {
        match self {
            Self::Monotonic(_) => local_ns,
            Self::Virtual(clock) => clock.network_ns(local_ns),
        }
    }
}

/// The monotonic clock and the wall clock of a simulated host. They follow the clock of the simulated network, and can
/// run faster or slower than it.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    /// The clock of the network, which all hosts share, in nanoseconds.
    network_ns: Rc<Cell<u64>>,
    /// Parts per million by which this clock runs faster than that of the network.
    drift_ppm: Cell<i32>,
    /// Times on both clocks when the drift was set.
    set_at: Cell<(u64, u64)>,
    reads: Uses,
    turns: Uses,
    /// Wall-clock time in nanoseconds since 1970 when the monotonic clock shows zero.
    wall_start_ns: Cell<i128>,
}

/// Uses of the clock that take no time, so that timers are exact. If there are too many without another event, they take
/// time, which must pass also for code that only reads the clock or yields.
#[derive(Debug, Default)]
struct Uses(Cell<(u64, u32)>);

impl Uses {
    /// Returns the time after another use at `now_ns`.
    fn next_ns(&self, now_ns: u64, max_free: u32, duration_ns: u64) -> u64 {
        let (last_ns, count) = self.0.get();
        let count = if last_ns == now_ns { count } else { 0 };
        let next_ns = if count < max_free { now_ns } else { now_ns.saturating_add(duration_ns) };
        self.0.set((next_ns, max_free.min(count + 1)));
        next_ns
    }
}

impl VirtualClock {
    pub fn new(network_ns: Rc<Cell<u64>>, start: Option<SystemTime>) -> Self {
        let clock = Self {
            network_ns,
            drift_ppm: Cell::new(0),
            set_at: Cell::new((0, 0)),
            reads: Uses::default(),
            turns: Uses::default(),
            wall_start_ns: Cell::new(DEFAULT_START.as_nanos() as i128),
        };
        if let Some(start) = start {
            clock.wall_start_ns.set(unix_ns(start));
        }
        clock
    }

    /// Returns the time on the network.
    pub fn network_now_ns(&self) -> u64 {
        self.network_ns.get()
    }

    /// Sets the time on the network, unless it is later.
    pub fn advance_network(&self, to_ns: u64) {
        self.network_ns.set(self.network_ns.get().max(to_ns));
    }

    /// Reads the monotonic clock.
    fn read(&self) -> u64 {
        self.network_ns.set(self.reads.next_ns(self.network_ns.get(), MAX_FREE_READS, READ_NS));
        self.local_ns(self.network_ns.get())
    }

    /// Returns the time on the network after another turn of the driver, whose system call takes `turn_ns`.
    pub fn next_turn_ns(&self, turn_ns: u64) -> u64 {
        self.turns.next_ns(self.network_ns.get(), MAX_FREE_TURNS, turn_ns)
    }

    /// Returns the time that the monotonic clock shows at a time on the network.
    pub fn local_ns(&self, network_ns: u64) -> u64 {
        let (set_network_ns, set_local_ns) = self.set_at.get();
        let elapsed_ns = i128::from(network_ns) - i128::from(set_network_ns);
        let elapsed_ns = match self.drift_ppm.get() {
            0 => elapsed_ns,
            ppm => elapsed_ns * (MILLION + i128::from(ppm)) / MILLION,
        };
        clamp(i128::from(set_local_ns) + elapsed_ns)
    }

    /// Returns the first time on the network at which the monotonic clock shows at least `local_ns`.
    pub fn network_ns(&self, local_ns: u64) -> u64 {
        let (set_network_ns, set_local_ns) = self.set_at.get();
        let elapsed_ns = i128::from(local_ns) - i128::from(set_local_ns);
        let elapsed_ns = match self.drift_ppm.get() {
            0 => elapsed_ns,
            ppm => {
                let rate = MILLION + i128::from(ppm);
                (elapsed_ns * MILLION + rate - 1).div_euclid(rate)
            }
        };
        clamp(i128::from(set_network_ns) + elapsed_ns)
    }

    pub fn set_drift(&self, ppm: i32) {
        let network_ns = self.network_ns.get();
        self.set_at.set((network_ns, self.local_ns(network_ns)));
        self.drift_ppm.set(ppm);
    }

    pub fn system_time(&self) -> SystemTime {
        let ns = self.wall_start_ns.get() + i128::from(self.local_ns(self.network_ns.get()));
        let distance = Duration::from_nanos(clamp(ns.abs()));
        if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    }

    pub fn set_system_time(&self, time: SystemTime) {
        let local_ns = self.local_ns(self.network_ns.get());
        self.wall_start_ns.set(unix_ns(time) - i128::from(local_ns));
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new(Rc::default(), None)
    }
}

fn clamp(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

/// Returns the nanoseconds since 1970, limited to 584 years before and after.
fn unix_ns(time: SystemTime) -> i128 {
    let ns = |duration: Duration| i128::from(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => ns(since),
        Err(error) => -ns(error.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_changes_the_rate_from_now_on() {
        let network_ns = Rc::new(Cell::new(0));
        let clock = VirtualClock::new(Rc::clone(&network_ns), Some(UNIX_EPOCH));
        for (ppm, local_ns) in [(0, 1_000_000), (1_000_000, 3_000_000), (-500_000, 3_500_000)] {
            clock.set_drift(ppm);
            network_ns.set(network_ns.get() + 1_000_000);
            assert_eq!(clock.local_ns(network_ns.get()), local_ns);
            assert_eq!(clock.network_ns(local_ns), network_ns.get());
        }
        assert_eq!(clock.system_time(), UNIX_EPOCH + Duration::from_nanos(3_500_000));
    }

    #[test]
    fn converted_deadlines_are_never_early() {
        let clock = VirtualClock::new(Rc::default(), None);
        for ppm in [-999_999, -333_333, -7, 3, 142_857, 2_000_000] {
            clock.set_drift(ppm);
            for local_ns in [1, 2, 3, 999, 1_000_003, 17_000_000_019] {
                let network_ns = clock.network_ns(local_ns);
                assert!(clock.local_ns(network_ns) >= local_ns, "{ppm} {local_ns}");
                assert!(clock.local_ns(network_ns - 1) < local_ns, "{ppm} {local_ns}");
            }
        }
    }

    #[test]
    fn wall_clock_can_be_set_to_any_time() {
        let network_ns = Rc::new(Cell::new(5_000_000_000));
        let clock = VirtualClock::new(Rc::clone(&network_ns), None);
        for time in [UNIX_EPOCH - Duration::from_secs(1), UNIX_EPOCH + Duration::from_secs(4_000_000_000)] {
            clock.set_system_time(time);
            assert_eq!(clock.system_time(), time);
        }
    }
}
