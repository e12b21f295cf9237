//! Contenders that cannot rest: a polling kernel thread, a timer that never ends, a loop that spins.
//!
//! All contenders share one core, and the idle ones should sleep. One that does not would take time and cache from
//! whoever has its turn. So each is looked at after its warm-up in a cell, with nothing to do, and whoever is busy a second
//! time, when the last of the warm-up is through. Whoever used its core then, too, is halted (SIGSTOP) outside its own
//! turns from there on, and the report says so.

use std::time::Duration;

use crate::runner::Runner;

/// How long a contender is looked at.
const IDLE_SAMPLE_DURATION: Duration = Duration::from_millis(10);

/// How often a busy one is looked at.
const MAX_IDLE_SAMPLES: usize = 2;

/// Part of a core that a contender may use while it has nothing to do.
const MAX_IDLE_CPU_FRACTION: f64 = 0.02;

impl Runner<'_> {
    /// Finds out whether a contender rests that has nothing to do.
    pub(super) fn measure_idle_cpu(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index) {
            return;
        }
        let Ok(pid) = self.pid(index) else { return };
        let mut used = 0.0;
        for _ in 0..MAX_IDLE_SAMPLES {
            used = self.sample_idle_cpu(pid).unwrap_or(0.0);
            if used <= MAX_IDLE_CPU_FRACTION {
                return;
            }
        }
        self.busy_when_idle.insert(index);
        self.result.contenders[index].idle_cpu_fraction.get_or_insert(used);
    }

    /// Part of a core that a process uses for a while.
    fn sample_idle_cpu(&mut self, pid: u32) -> Option<f64> {
        let before = self.machine.usage(pid).ok()?;
        self.machine.sleep(IDLE_SAMPLE_DURATION);
        let after = self.machine.usage(pid).ok()?;
        Some(after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / IDLE_SAMPLE_DURATION.as_nanos() as f64)
    }

    /// Lets a contender run that may have been halted.
    pub(super) fn resume_idle_spinner(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index)
            && let Ok(pid) = self.pid(index)
        {
            self.machine.resume(pid);
        }
    }

    /// Halts a contender that would not rest.
    pub(super) fn suspend_idle_spinner(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index)
            && let Ok(pid) = self.pid(index)
        {
            self.machine.pause(pid);
        }
    }
}
