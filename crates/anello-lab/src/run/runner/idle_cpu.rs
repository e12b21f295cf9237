//! Contenders that use CPU while idle, for example because of a polling kernel thread, a timer or a busy loop.
//!
//! A contender that does not sleep while idle takes CPU time and cache from the contender being measured. Each
//! contender is therefore sampled while idle, after its warm-up in a cell. If the contender is busy, the sample is
//! repeated once, because work from the warm-up may still be in progress. A contender that is busy in both samples is
//! suspended (SIGSTOP) outside its own slices from then on, and the report says so.

use std::time::Duration;

use crate::run::machine::{MachineError, unless_lost};
use crate::run::runner::Runner;

const IDLE_SAMPLE_DURATION: Duration = Duration::from_millis(10);

/// Sampling ends with the first sample that is not busy.
const MAX_IDLE_SAMPLES: usize = 2;

/// Fraction of a core. A contender that uses more than this while idle counts as busy.
const MAX_IDLE_CPU_FRACTION: f64 = 0.02;

impl Runner<'_> {
    /// Detects whether a contender uses CPU while idle.
    pub(super) fn measure_idle_cpu(&mut self, index: usize) -> Result<(), MachineError> {
        if self.busy_when_idle.contains(&index) {
            return Ok(());
        }
        let Ok(pid) = self.pid(index) else { return Ok(()) };
        let mut fraction = 0.0;
        for _ in 0..MAX_IDLE_SAMPLES {
            fraction = unless_lost(self.sample_idle_cpu(pid))?.unwrap_or(0.0);
            if fraction <= MAX_IDLE_CPU_FRACTION {
                return Ok(());
            }
        }
        self.busy_when_idle.insert(index);
        self.result.contenders[index].idle_cpu_fraction.get_or_insert(fraction);
        Ok(())
    }

    /// Returns the fraction of a core that a process uses while idle.
    fn sample_idle_cpu(&mut self, pid: u32) -> Result<f64, MachineError> {
        let before = self.machine.usage(pid)?;
        self.machine.sleep(IDLE_SAMPLE_DURATION);
        let after = self.machine.usage(pid)?;
        Ok(after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / IDLE_SAMPLE_DURATION.as_nanos() as f64)
    }

    /// Suspends or resumes a contender that uses CPU while idle.
    pub(super) fn set_paused(&mut self, index: usize, is_paused: bool) -> Result<(), MachineError> {
        match self.pid(index) {
            Ok(pid) if self.busy_when_idle.contains(&index) => self.machine.set_paused(pid, is_paused),
            _ => Ok(()),
        }
    }
}
