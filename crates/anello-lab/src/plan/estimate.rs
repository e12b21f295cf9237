//! Estimate of a run's duration, based on the times that individual steps took in earlier runs.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::plan::cell::{Cell, Workload};
use crate::plan::config::LabConfig;
use crate::plan::limits::supports;

// Durations that were measured in earlier runs, per contender, cell, connection or slice.
const SERVER_START_TIME: Duration = Duration::from_millis(60);
const CHECK_TIME: Duration = Duration::from_millis(1300);
/// Time to set up a contender for a cell. Includes measuring its CPU usage while idle, but not the time to connect.
const CONNECT_TURN_TIME: Duration = Duration::from_millis(12);
const CONNECT_TIME: Duration = Duration::from_micros(55);
const HANDSHAKE_TIME: Duration = Duration::from_micros(200);
/// Time to read the counters before and after a slice.
const SLICE_OVERHEAD_TIME: Duration = Duration::from_millis(2);

/// Time to complete each echo or HTTP request that is in flight at the end of a slice.
const IN_FLIGHT_MESSAGE_TIME: Duration = Duration::from_micros(10);
const IN_FLIGHT_RESPONSE_TIME: Duration = Duration::from_micros(25);

/// Approximate throughput of a core that receives and verifies responses.
const BYTES_PER_SECOND: f64 = 2.5e9;
const TLS_BYTES_PER_SECOND: f64 = 2e9;

impl LabConfig {
    /// Returns the number of slices in the whole run, provided that nothing fails or is repeated.
    pub fn slice_count(&self) -> usize {
        self.cells.iter().map(|cell| self.slices_in(cell)).sum::<usize>() * self.timing.passes
    }

    /// Returns the number of slices in a cell per pass: one for each participant in each round.
    pub(crate) fn slices_in(&self, cell: &Cell) -> usize {
        self.participants_in(cell) * self.timing.rounds
    }

    fn participants_in(&self, cell: &Cell) -> usize {
        self.contenders.iter().filter(|contender| supports(contender, cell)).count()
    }

    fn sum_over_participants(&self, time_of_cell: impl Fn(&Cell) -> Duration) -> Duration {
        let participants =
            |cell: &Cell| saturating_u32(self.participants_in(cell).saturating_mul(self.timing.passes));
        self.cells.iter().map(|cell| time_of_cell(cell).saturating_mul(participants(cell))).sum()
    }

    /// Returns the duration of all slices and warm-ups, including the contenders' own warm-ups, but excluding startup
    /// and connecting.
    pub fn load_time(&self) -> Duration {
        let own_warm_ups: Duration = self.contenders.iter().map(|contender| contender.warm_up).sum();
        let slices = saturating_u32(self.timing.rounds + 1);
        self.timing.slice * saturating_u32(self.slice_count())
            + self.sum_over_participants(|cell| self.timing.warm_up + in_flight_bytes_time(cell) * slices)
            + own_warm_ups * saturating_u32(self.timing.passes * self.core_counts())
    }

    /// Returns the number of different server core counts, ignoring idle cells. All contenders are restarted for each
    /// count.
    fn core_counts(&self) -> usize {
        let timed = self.cells.iter().filter(|cell| cell.workload != Workload::Idle);
        timed.map(|cell| cell.server_cores).collect::<BTreeSet<_>>().len()
    }

    /// Returns the estimated duration of the whole run: slices, warm-ups, checks, starting and connecting.
    pub fn estimated_time(&self) -> Duration {
        let contenders = saturating_u32(self.contenders.len());
        let passes = saturating_u32(self.timing.passes);
        let idle = self.cells.iter().filter(|cell| cell.workload == Workload::Idle).count();
        let disk = self.cells.iter().any(|cell| cell.workload.is_disk());
        let starts_in_pass = saturating_u32(self.core_counts() + idle * self.timing.rounds);
        let starts = starts_in_pass.saturating_mul(contenders).saturating_mul(passes);
        let checks = if self.check && !disk { contenders } else { 0 };
        let slices = saturating_u32(self.timing.rounds + 1);
        self.load_time()
            + SERVER_START_TIME * starts
            + CHECK_TIME * checks
            + self.sum_over_participants(|cell| time_to_connect(cell) + in_flight_request_time(cell) * slices)
            + SLICE_OVERHEAD_TIME * saturating_u32(self.slice_count())
    }
}

fn time_to_connect(cell: &Cell) -> Duration {
    let each = match cell.workload {
        Workload::Disk { .. } => Duration::ZERO,
        workload if workload.cipher().is_some() => CONNECT_TIME + HANDSHAKE_TIME,
        _ => CONNECT_TIME,
    };
    CONNECT_TURN_TIME + each.saturating_mul(saturating_u32(cell.connections))
}

/// Returns how long a closed-loop slice is extended to complete the requests in flight, excluding the transfer of data.
fn in_flight_request_time(cell: &Cell) -> Duration {
    let (each, pipelining) = match cell.workload {
        _ if !cell.is_closed_loop() => return Duration::ZERO,
        Workload::Http { pipelining, reconnect, cipher, .. } => {
            let handshake = if reconnect && cipher.is_some() { HANDSHAKE_TIME } else { Duration::ZERO };
            (IN_FLIGHT_RESPONSE_TIME + handshake, pipelining)
        }
        _ => (IN_FLIGHT_MESSAGE_TIME, 1),
    };
    each.saturating_mul(saturating_u32(cell.connections.saturating_mul(pipelining)))
}

/// Returns how long a slice is extended to transfer the responses in flight at its end.
fn in_flight_bytes_time(cell: &Cell) -> Duration {
    let Workload::Http { target, pipelining, cipher, .. } = cell.workload else { return Duration::ZERO };
    let requests = cell.connections.saturating_mul(pipelining);
    let rate = if cipher.is_some() { TLS_BYTES_PER_SECOND } else { BYTES_PER_SECOND };
    Duration::from_secs_f64(requests as f64 * target.bytes() as f64 / rate)
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
