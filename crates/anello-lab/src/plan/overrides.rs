//! Changes to the configuration of a resolved scenario.

use std::time::Duration;

use crate::plan::cell::{Cell, Workload};
use crate::plan::config::LabConfig;
use crate::plan::contender::Contender;

impl LabConfig {
    /// Measures other connection counts (disk: queue depths), other message sizes, or both. An empty list leaves the
    /// values of the cells unchanged.
    pub fn override_cells(&mut self, connections: &[usize], message_bytes: &[usize]) {
        let mut overridden: Vec<Cell> = Vec::new();
        for &cell in &self.cells {
            let workloads = match cell.workload {
                Workload::Echo { .. } if !message_bytes.is_empty() => {
                    message_bytes.iter().map(|&message_bytes| Workload::Echo { message_bytes }).collect()
                }
                workload => vec![workload],
            };
            let counts = if connections.is_empty() { &[cell.connections] } else { connections };
            for workload in workloads {
                overridden.extend(counts.iter().map(|&connections| Cell { workload, connections, ..cell }));
            }
        }
        overridden.sort();
        overridden.dedup();
        self.cells = overridden;
    }

    /// Sets the number of passes such that their slices and warm-ups take about `time`.
    pub fn fit_passes(&mut self, time: Duration) {
        self.timing.passes = 1;
        let passes = time.as_secs_f64() / self.load_time().as_secs_f64().max(1e-3);
        self.timing.passes = (passes.round() as usize).clamp(1, 100_000);
    }

    /// Adds contenders, configured for the protocol of the cells.
    ///
    /// # Errors
    /// Returns the name of a contender whose command has no certificate or key although a cell uses TLS.
    pub fn add_contenders(&mut self, contenders: &[Contender]) -> Result<(), String> {
        let is_http = self.cells.iter().any(|cell| cell.workload.target().is_some());
        let is_secure = self.cells.iter().any(|cell| cell.workload.cipher().is_some());
        if let Some(plain) = contenders.iter().find(|contender| is_secure && !contender.serves_tls()) {
            return Err(plain.name.clone());
        }
        let contenders = contenders.iter().cloned();
        self.contenders.extend(
            contenders.map(|contender| if is_http { contender.serving_by_command() } else { contender }),
        );
        Ok(())
    }
}
