//! Counters of the echo server. `docs/reference/http-metrics.md` lists the metrics.

use std::sync::Arc;

use anello::exposition::Value::Integer;
use anello::exposition::{Counter, Exposition, FamilyKind, ProcessFiles, PublishedEntries};

/// Why a connection was closed.
#[derive(Clone, Copy)]
pub(super) enum CloseReason {
    /// The peer closed the connection.
    Peer,
    /// The idle timeout expired.
    Idle,
    /// The connection failed.
    Aborted,
    /// The server is shutting down.
    Drain,
}

/// Values of the label `reason`, in the order of the variants of [`CloseReason`].
const CLOSE_REASONS: [&str; 4] = ["peer", "idle", "aborted", "drain"];

/// Counters that one worker writes and every scrape reads. Aligned to two cache lines, because processors prefetch cache
/// lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct WorkerMetrics {
    pub(super) accepted: Counter,
    pub(super) moved: Counter,
    /// Connections that were closed because the maximum number was reached.
    pub(super) rejected: Counter,
    pub(super) received_bytes: Counter,
    pub(super) sent_bytes: Counter,
    pub(super) driver: PublishedEntries,
    closed: [Counter; CLOSE_REASONS.len()],
}

impl WorkerMetrics {
    pub(super) fn connection_closed(&self, reason: CloseReason) {
        self.closed[reason as usize].add(1);
    }
}

/// The counters of all workers.
pub struct ServerMetrics {
    workers: Vec<Arc<WorkerMetrics>>,
    process: ProcessFiles,
}

impl ServerMetrics {
    /// Creates the counters of this number of workers.
    pub fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| Arc::default()).collect(), process: ProcessFiles::open() }
    }

    /// Returns the counters that the worker with this index alone may write.
    pub fn worker(&self, index: usize) -> Option<Arc<WorkerMetrics>> {
        self.workers.get(index).cloned()
    }

    /// Appends all metrics to `text`.
    pub fn render(&self, text: &mut Vec<u8>) {
        let mut out = Exposition::new(text);
        let sum = |counter: &dyn Fn(&WorkerMetrics) -> &Counter| -> u64 {
            self.workers.iter().map(|worker| counter(worker).get()).sum()
        };
        // Read first, so that a connection that opens and closes during the scrape does not make the number of open
        // connections negative.
        let closed: [u64; CLOSE_REASONS.len()] =
            std::array::from_fn(|reason| sum(&|worker| &worker.closed[reason]));
        let accepted = sum(&|worker| &worker.accepted);
        let open = accepted.saturating_sub(closed.iter().sum());
        let (counter, gauge) = (FamilyKind::Counter, FamilyKind::Gauge);
        let name = "anello_echo_connections_accepted_total";
        out.single(name, counter, "Connections accepted.", Integer(accepted));
        out.single("anello_echo_connections_open", gauge, "Open connections.", Integer(open));
        let help = "Connections moved from a busy worker to another worker.";
        let moved = sum(&|worker| &worker.moved);
        out.single("anello_echo_connections_moved_total", counter, help, Integer(moved));
        let name = "anello_echo_connections_rejected_total";
        out.family(name, counter, "Connections rejected before any request was read, by reason.");
        let rejected = sum(&|worker| &worker.rejected);
        out.sample(name, &[("reason", "max_connections")], Integer(rejected));
        let name = "anello_echo_connections_closed_total";
        out.family(name, counter, "Connections closed, by reason.");
        for (reason, closed) in CLOSE_REASONS.into_iter().zip(closed) {
            out.sample(name, &[("reason", reason)], Integer(closed));
        }
        let received = sum(&|worker| &worker.received_bytes);
        out.single("anello_echo_received_bytes_total", counter, "Bytes received.", Integer(received));
        let sent = sum(&|worker| &worker.sent_bytes);
        out.single("anello_echo_sent_bytes_total", counter, "Bytes queued for sending.", Integer(sent));
        out.published(self.workers.iter().map(|worker| &worker.driver));
        out.build_info(env!("CARGO_PKG_VERSION"), &[]);
        out.process(&self.process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_sums_counters_of_all_workers() {
        let metrics = ServerMetrics::new(2);
        assert!(metrics.worker(2).is_none());
        let [one, other] = [0, 1].map(|index| metrics.worker(index).unwrap());
        one.accepted.add(3);
        other.accepted.add(4);
        other.moved.add(1);
        one.rejected.add(2);
        one.received_bytes.add(10);
        other.sent_bytes.add(11);
        for (count, reason) in
            [CloseReason::Peer, CloseReason::Idle, CloseReason::Aborted, CloseReason::Drain]
                .into_iter()
                .enumerate()
        {
            (0..count).for_each(|_| other.connection_closed(reason));
        }
        let mut text = Vec::new();
        metrics.render(&mut text);
        let text = String::from_utf8(text).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| line.starts_with("anello_echo_")).collect();
        assert_eq!(
            samples,
            [
                "anello_echo_connections_accepted_total 7",
                "anello_echo_connections_open 1",
                "anello_echo_connections_moved_total 1",
                "anello_echo_connections_rejected_total{reason=\"max_connections\"} 2",
                "anello_echo_connections_closed_total{reason=\"peer\"} 0",
                "anello_echo_connections_closed_total{reason=\"idle\"} 1",
                "anello_echo_connections_closed_total{reason=\"aborted\"} 2",
                "anello_echo_connections_closed_total{reason=\"drain\"} 3",
                "anello_echo_received_bytes_total 10",
                "anello_echo_sent_bytes_total 11",
            ]
        );
        assert!(text.contains("\nanello_build_info{version=") && text.contains("\nprocess_open_fds "));
    }
}
