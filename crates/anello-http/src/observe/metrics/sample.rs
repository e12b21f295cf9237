//! What a worker publishes beside what this crate counts: the counters of its driver.

use anello::DriverMetrics;

/// One value with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Letters, digits and underscores, the first no digit; samples with other names are left out of a scrape. Rendered
    /// after `anello_driver_`, and a counter before `_total`. The same name means the same thing on every worker.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub help: &'static str,
    /// Whether it may fall.
    pub kind: SampleKind,
    /// The value.
    pub value: u64,
}

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// It counts since the start.
    Counter,
    /// It is what it is now.
    Gauge,
}

impl Sample {
    /// A value that counts since the start.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: SampleKind::Counter, value }
    }

    /// A value that is what it is now.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: SampleKind::Gauge, value }
    }
}

/// The counters of a worker's driver, as [`anello::current_metrics`] gives them.
#[must_use]
pub fn driver_samples(metrics: &DriverMetrics) -> [Sample; 12] {
    [
        Sample::counter("accepted", "Connections accepted.", metrics.accepted),
        Sample::counter("refused", "Connections refused for want of descriptors.", metrics.refused),
        Sample::counter("receives", "Receives that brought bytes.", metrics.receives),
        Sample::counter("sends", "Sends that took all they were given at once.", metrics.sends),
        Sample::counter("short_sends", "Sends that were finished later.", metrics.short_sends),
        Sample::counter("zero_copy_sends", "Zero-copy sends.", metrics.zero_copy_sends),
        Sample::counter("file_bytes", "Bytes sent from files.", metrics.file_bytes),
        Sample::counter(
            "buffer_exhaustions",
            "Times the kernel found no receive buffer.",
            metrics.buffer_exhaustions,
        ),
        Sample::counter(
            "late_completions",
            "Completions whose operation had been forgotten.",
            metrics.late_completions,
        ),
        Sample::counter(
            "completion_overflows",
            "Times the completion queue overflowed.",
            metrics.completion_overflows,
        ),
        Sample::counter("turns", "System calls that submitted or waited.", metrics.turns),
        Sample::gauge("sockets", "Sockets that the driver owns.", metrics.sockets),
    ]
}
