//! Rendering of all metrics in the Prometheus text format.

use std::sync::Arc;

use anello::exposition::Value::{Integer, Nanoseconds};
use anello::exposition::{Counter, Exposition, FamilyKind, ProcessFiles};

use super::kinds::{CloseReason, METHODS, ParseErrorKind, RejectReason, STATUS_CLASSES};
use super::worker::{BOUNDS, Block, bound_ns};
use crate::observe::access_log::LogStats;

pub(super) fn render(
    blocks: &[Arc<Block>],
    build_labels: &[(&'static str, String)],
    log: Option<&LogStats>,
    process: &ProcessFiles,
    text: &mut Vec<u8>,
) {
    let mut families = Families { blocks, out: Exposition::new(text) };
    families.requests();
    families.connections();
    families.bytes();
    families.parse_errors();
    families.cache();
    if let Some(log) = log {
        families.access_log(log);
    }
    families.out.published(blocks.iter().map(|block| &block.published));
    families.out.build_info(env!("CARGO_PKG_VERSION"), build_labels);
    families.out.process(process);
}

struct Families<'a> {
    blocks: &'a [Arc<Block>],
    out: Exposition<'a>,
}

impl<'a> Families<'a> {
    fn requests(&mut self) {
        let name = "anello_http_requests_total";
        self.out.family(
            name,
            FamilyKind::Counter,
            "Requests completed or rejected, by method and status class.",
        );
        for (method_index, method) in METHODS.into_iter().enumerate() {
            for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
                let count = self.sum(|block| &block.requests[method_index][class]);
                self.out.sample(name, &[("method", method), ("status", status)], Integer(count));
            }
        }
        self.out.family(
            "anello_http_request_duration_seconds",
            FamilyKind::Histogram,
            "Time from the end of the request head until the response has been queued for sending. Small responses \
             are sent shortly after that. Rejected requests are not included.",
        );
        let name = "anello_http_request_duration_seconds_bucket";
        let mut cumulative = 0u64;
        for bucket in 0..=BOUNDS {
            cumulative = cumulative.wrapping_add(self.sum(|block| &block.durations.buckets[bucket]));
            let bound =
                if bucket < BOUNDS { Nanoseconds(bound_ns(bucket)).to_string() } else { "+Inf".to_owned() };
            self.out.sample(name, &[("le", &bound)], Integer(cumulative));
        }
        let sum_ns = self.sum(|block| &block.durations.sum_ns);
        self.out.sample("anello_http_request_duration_seconds_sum", &[], Nanoseconds(sum_ns));
        // By construction, this value equals that of the last bucket, even though the workers keep counting during the
        // scrape.
        self.out.sample("anello_http_request_duration_seconds_count", &[], Integer(cumulative));
    }

    fn connections(&mut self) {
        // Read the counters of closed connections first: a connection that opens and closes during the scrape must not
        // make the difference negative.
        let closed: [u64; CloseReason::COUNT] =
            std::array::from_fn(|reason| self.sum(|block| &block.closed[reason]));
        let accepted = self.sum(|block| &block.accepted);
        let open = Integer(accepted.saturating_sub(closed.iter().sum()));
        let name = "anello_http_connections_accepted_total";
        self.out.single(name, FamilyKind::Counter, "Connections accepted.", Integer(accepted));
        self.out.single("anello_http_connections_open", FamilyKind::Gauge, "Open connections.", open);
        let help = "Connections moved from a busy worker to another worker.";
        self.counter("anello_http_connections_moved_total", help, |block| &block.moved);
        let name = "anello_http_connections_rejected_total";
        let help = "Connections rejected before any request was read, by reason.";
        self.out.family(name, FamilyKind::Counter, help);
        for (reason, label) in RejectReason::LABELS.split(' ').enumerate() {
            let rejected = self.sum(|block| &block.rejected[reason]);
            self.out.sample(name, &[("reason", label)], Integer(rejected));
        }
        let name = "anello_http_connections_closed_total";
        self.out.family(name, FamilyKind::Counter, "Connections closed, by reason.");
        for (closed, label) in closed.into_iter().zip(CloseReason::LABELS.split(' ')) {
            self.out.sample(name, &[("reason", label)], Integer(closed));
        }
    }

    fn bytes(&mut self) {
        let help =
            "Bytes received in heads, bodies and rejected data. With TLS, plaintext bytes are counted.";
        self.counter("anello_http_received_bytes_total", help, |block| &block.received_bytes);
        let help = "Response body bytes queued for sending, without heads, counted when the response ends. With TLS, \
            these are plaintext bytes.";
        self.counter("anello_http_sent_bytes_total", help, |block| &block.sent_bytes);
    }

    fn parse_errors(&mut self) {
        let name = "anello_http_parse_errors_total";
        self.out.family(name, FamilyKind::Counter, "Requests rejected with a parse error, by kind.");
        for (kind, label) in ParseErrorKind::LABELS.split(' ').enumerate() {
            let errors = self.sum(|block| &block.parse_errors[kind]);
            self.out.sample(name, &[("kind", label)], Integer(errors));
        }
    }

    fn cache(&mut self) {
        self.counter("anello_http_cache_hits_total", "Files served from the cache.", |block| {
            &block.cache_hits
        });
        let help = "Cacheable files that were not in the cache or whose entry was outdated.";
        self.counter("anello_http_cache_misses_total", help, |block| &block.cache_misses);
        let bytes = Integer(self.sum(|block| &block.cache_bytes));
        self.out.single(
            "anello_http_cache_bytes",
            FamilyKind::Gauge,
            "Total size of the caches of all workers.",
            bytes,
        );
    }

    fn access_log(&mut self, log: &LogStats) {
        let dropped_help = "Access log lines dropped because all buffers were full, or lost at shutdown.";
        for (name, help, count) in [
            ("anello_http_log_lines_written_total", "Access log lines written.", log.written_lines),
            ("anello_http_log_lines_dropped_total", dropped_help, log.dropped_lines),
            ("anello_http_log_bytes_written_total", "Access log bytes written.", log.written_bytes),
            ("anello_http_log_errors_total", "Failed attempts to write or open the access log.", log.errors),
            ("anello_http_log_reopens_total", "Number of access log reopens.", log.reopens),
        ] {
            self.out.single(name, FamilyKind::Counter, help, Integer(count));
        }
    }

    /// Sums one counter over all workers.
    fn sum(&self, counter: impl Fn(&'a Block) -> &'a Counter) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.wrapping_add(counter(block).get()))
    }

    fn counter(&mut self, name: &str, help: &str, counter: impl Fn(&'a Block) -> &'a Counter) {
        self.out.single(name, FamilyKind::Counter, help, Integer(self.sum(counter)));
    }
}
