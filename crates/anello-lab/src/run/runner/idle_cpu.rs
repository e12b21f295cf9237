//! Contenders that use CPU while idle: a polling kernel thread, a periodic timer, a busy loop.
//!
//! All contenders share the server cores, and idle ones should sleep. A contender that does not sleep takes CPU
//! time and cache from the contender being measured. Each contender is therefore sampled while idle after its
//! warm-up in a cell. A busy sample is repeated once, in case work from the warm-up was still unfinished. A contender
//! that is busy in both samples is suspended (SIGSTOP) outside its own slices from then on, and the report says so.

use std::time::Duration;

use crate::run::runner::Runner;

/// Duration of one sample.
const IDLE_SAMPLE_DURATION: Duration = Duration::from_millis(10);

/// Maximum number of samples. Sampling ends with the first sample that is not busy.
const MAX_IDLE_SAMPLES: usize = 2;

/// Maximum fraction of a core that a contender may use while idle.
const MAX_IDLE_CPU_FRACTION: f64 = 0.02;

impl Runner<'_> {
    /// Detects whether a contender uses CPU while idle.
    pub(super) fn measure_idle_cpu(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index) {
            return;
        }
        let Ok(pid) = self.pid(index) else { return };
        let mut fraction = 0.0;
        for _ in 0..MAX_IDLE_SAMPLES {
            fraction = self.sample_idle_cpu(pid).unwrap_or(0.0);
            if fraction <= MAX_IDLE_CPU_FRACTION {
                return;
            }
        }
        self.busy_when_idle.insert(index);
        self.result.contenders[index].idle_cpu_fraction.get_or_insert(fraction);
    }

    /// Returns the fraction of a core that a process uses during one sample.
    fn sample_idle_cpu(&mut self, pid: u32) -> Option<f64> {
        let before = self.machine.usage(pid).ok()?;
        self.machine.sleep(IDLE_SAMPLE_DURATION);
        let after = self.machine.usage(pid).ok()?;
        Some(after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / IDLE_SAMPLE_DURATION.as_nanos() as f64)
    }

    /// Resumes a contender that may be suspended.
    pub(super) fn resume_idle_spinner(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index)
            && let Ok(pid) = self.pid(index)
        {
            self.machine.resume(pid);
        }
    }

    /// Suspends a contender that uses CPU while idle.
    pub(super) fn suspend_idle_spinner(&mut self, index: usize) {
        if self.busy_when_idle.contains(&index)
            && let Ok(pid) = self.pid(index)
        {
            self.machine.pause(pid);
        }
    }
}
