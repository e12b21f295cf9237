//! A switch that pauses the schedule of an open loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pauses and resumes an open loop that is running. Clones refer to the same switch.
///
/// While an open loop or a sweep is paused, requests that become due are skipped: they are neither sent nor counted as
/// offered. Requests that were due before are still sent, and the end of the measurement does not move. The report
/// lists the [pauses](crate::Report::pauses). The switch has no effect on a closed loop.
#[derive(Clone, Debug, Default)]
pub struct PauseSwitch(Arc<AtomicBool>);

impl PauseSwitch {
    /// Pauses (`true`) or resumes (`false`) the load.
    pub fn set(&self, is_paused: bool) {
        self.0.store(is_paused, Ordering::Relaxed);
    }

    /// Returns whether the load is paused.
    pub fn is_paused(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
