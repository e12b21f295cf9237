//! Measures one slice: the requests, and the resource usage of the load generator, the server and the machine.

use crate::plan::cell::Workload;
use crate::result::{Quality, Slice};
use crate::run::load::{LoadSession, SliceLoad};
use crate::run::machine::{MachineError, Usage};
use crate::run::progress::Progress;
use crate::run::runner::{CellOfContender, Runner, SliceError, SlicePosition, check, merge_latencies};

impl Runner<'_> {
    /// Runs and measures one slice of load. Its latencies are recorded only if the slice is clean.
    pub(super) fn measure(
        &mut self,
        index: usize,
        session: &mut dyn LoadSession,
        position: SlicePosition,
    ) -> Result<Quality, SliceError> {
        let pid = self.pid(index)?;
        self.announce_slice(index, position);
        let start_ns = self.since_start_ns();
        let stolen_before = self.machine.stolen_ns(&self.cores)?;
        let throttled_before_ns = self.machine.throttled_ns()?;
        let before = self.machine.usage(pid)?;
        let load_cpu_before_ns = self.machine.load_cpu_ns()?;
        let cell = &self.config.cells[position.cell];
        let share = self.config.server_share_in(cell);
        if share < 1.0 {
            match self.machine.throttle_servers(self.config.cores_of(cell), share) {
                Ok(()) => {}
                Err(lost @ MachineError::Lost(_)) => return Err(lost.into()),
                Err(reason) => self.note(format!(
                    "The CPU share of the servers could not be limited ({reason}). Servers used their full cores. \
                     Differences between servers that use less CPU than the load generator may be understated."
                )),
            }
        }
        let load = session.run_slice(self.config.timing.slice);
        self.machine.unthrottle_servers()?;
        let load = load?;
        let load_cpu_ns = self.machine.load_cpu_ns()?.saturating_sub(load_cpu_before_ns);
        check(&load)?;
        if load.reopened > 0 && matches!(cell.workload, Workload::Http { reconnect: false, .. }) {
            self.note(format!(
                "{} closed keep-alive connections ({cell}). The load generator reopened them during its slices, which \
                 therefore include the cost of connecting.",
                self.config.contenders[index].name
            ));
        }
        let after = self.machine.usage(pid)?;
        // Some kernels do not report stolen time. The environment record shows whether this kernel does.
        let stolen = stolen_before.zip(self.machine.stolen_ns(&self.cores)?);
        let stolen_ns = stolen.map_or(0, |(before, after)| after.saturating_sub(before));
        let throttled_ns = self.machine.throttled_ns()?.saturating_sub(throttled_before_ns);
        let measured = Measured { load, before, after, stolen_ns, throttled_ns, load_cpu_ns };
        let slice = self.slice_record(index, position, start_ns, &measured);
        let quality = slice.quality;
        if quality == Quality::Clean {
            let key = CellOfContender { contender: index, cell: position.cell };
            merge_latencies(&mut self.pending.latencies, key, &measured.load.latency);
        }
        self.push_slice(slice);
        session.settle()?;
        Ok(quality)
    }

    pub(super) fn announce_slice(&mut self, contender: usize, position: SlicePosition) {
        let SlicePosition { cell, round, .. } = position;
        self.observer.progress(Progress::Measuring { contender, cell, round });
    }

    pub(super) fn push_slice(&mut self, slice: Slice) {
        self.observer.progress(Progress::Measured(Box::new(slice.clone())));
        self.result.slices.push(slice);
    }

    fn note(&mut self, note: String) {
        if !self.result.notes.contains(&note) {
            self.result.notes.push(note);
        }
    }

    pub(super) fn slice_record(
        &self,
        contender: usize,
        position: SlicePosition,
        start_ns: u64,
        measured: &Measured,
    ) -> Slice {
        let Measured { load, before, after, stolen_ns, throttled_ns, load_cpu_ns } = measured;
        let cpu_ns = after.cpu_ns.checked_sub(before.cpu_ns).filter(|&cpu_ns| cpu_ns > 0);
        let switches = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        let limit_ns =
            self.config.timing.stolen_fraction_limit * load.elapsed_ns as f64 * self.cores.len() as f64;
        let quality = if load.requests == 0 || cpu_ns.is_none() {
            Quality::Invalid
        } else if *stolen_ns as f64 > limit_ns {
            Quality::Stolen
        } else if *throttled_ns as f64 > limit_ns {
            Quality::Throttled
        } else {
            Quality::Clean
        };
        let latency = |quantile| load.latency.value_at_quantile(quantile);
        Slice {
            contender,
            cell: position.cell,
            pass: position.pass,
            round: position.round,
            start_ns,
            requests: load.requests,
            elapsed_ns: load.elapsed_ns,
            cpu_ns: cpu_ns.unwrap_or(0),
            voluntary_switches: switches(before.voluntary_switches, after.voluntary_switches),
            involuntary_switches: switches(before.involuntary_switches, after.involuntary_switches),
            resident_bytes: after.resident_bytes,
            resident_before_bytes: None,
            connections_before: 0,
            load_cpu_ns: *load_cpu_ns,
            load_busy: *load_cpu_ns as f64 / load.elapsed_ns.max(1) as f64,
            stolen_ns: *stolen_ns,
            throttled_ns: *throttled_ns,
            p50_ns: latency(0.5),
            p90_ns: latency(0.9),
            p99_ns: latency(0.99),
            p999_ns: latency(0.999),
            max_ns: load.latency.max(),
            uncorrected_p99_ns: load.uncorrected.as_ref().map(|latency| latency.value_at_quantile(0.99)),
            offered: load.offered,
            late: load.late,
            unsent: load.unsent,
            phase: None,
            quality,
        }
    }
}

pub(super) struct Measured {
    pub(super) load: SliceLoad,
    pub(super) before: Usage,
    pub(super) after: Usage,
    pub(super) stolen_ns: u64,
    pub(super) throttled_ns: u64,
    pub(super) load_cpu_ns: u64,
}
