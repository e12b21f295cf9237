//! Samples that a worker publishes in addition to this crate's metrics, such as its driver's counters.

use anello::DriverMetrics;

/// A named value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Metric name, rendered as `anello_driver_NAME`, with the suffix `_total` for a counter. Consists of ASCII letters,
    /// digits and underscores and does not start with a digit; a scrape omits samples with an invalid name. A name must
    /// have the same meaning on all workers.
    pub name: &'static str,
    /// Description for the `# HELP` line, as one sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: SampleKind,
    /// Current value.
    pub value: u64,
}

/// Type of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// A count since startup, which never decreases.
    Counter,
    /// A current value, which can increase and decrease.
    Gauge,
}

impl Sample {
    /// Creates a counter sample.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: SampleKind::Counter, value }
    }

    /// Creates a gauge sample.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: SampleKind::Gauge, value }
    }
}

/// Converts a worker's driver metrics, as returned by [`anello::current_metrics`], to samples.
pub fn driver_samples(metrics: &DriverMetrics) -> [Sample; 12] {
    let counters = [
        ("accepted", "Connections accepted.", metrics.accepted),
        ("refused", "Connections rejected because no file descriptors were left.", metrics.refused),
        ("receives", "Receive operations that returned data.", metrics.receives),
        ("sends", "Sends completed in one operation.", metrics.sends),
        ("short_sends", "Sends that were not accepted in full at first.", metrics.short_sends),
        ("zero_copy_sends", "Zero-copy sends.", metrics.zero_copy_sends),
        ("file_bytes", "Bytes sent from files.", metrics.file_bytes),
        (
            "buffer_exhaustions",
            "Receive operations for which no receive buffer was free.",
            metrics.buffer_exhaustions,
        ),
        (
            "late_completions",
            "Completions of operations that had already been released.",
            metrics.late_completions,
        ),
        ("completion_overflows", "Completion queue overflows.", metrics.completion_overflows),
        ("turns", "System calls to submit operations or wait for completions.", metrics.turns),
        ("sockets", "Sockets owned by the driver.", metrics.sockets),
    ];
    let mut samples = counters.map(|(name, help, value)| Sample::counter(name, help, value));
    samples[counters.len() - 1].kind = SampleKind::Gauge;
    samples
}
