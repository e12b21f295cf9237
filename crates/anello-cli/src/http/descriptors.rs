//! How the limit of open files is divided: the process's own descriptors, open files, refusals, and connections.
//!
//! ```text
//!   RLIMIT_NOFILE ── own ─────────── 24 + 10 for each worker
//!                 ├─ files ───────── a quarter of the limit, at most 512 for each worker and half of what is left
//!                 ├─ refusals ────── a sixteenth of what is left then, at most 64 for each worker
//!                 ├─ /metrics ────── the same, at most 64, if it is served
//!                 └─ connections ─── the rest, at most 10,000 by default
//! ```

use anello_http::ServerOptions;
use anello_http::server::Eviction;
use rustix::process::{Resource, getrlimit};

/// Standard streams, listening sockets, signals, the log, the metrics' thread and what a handover needs for a while.
const BASE_DESCRIPTORS: usize = 24;

/// Driver, wake-ups, signals, the served folder, a duplicate of each listening socket.
const DESCRIPTORS_PER_WORKER: usize = 10;

/// Files that a worker keeps open at most.
const MAX_FILES_PER_WORKER: usize = 512;

/// Clients at `/metrics` and `/health`: they are few.
const MAX_METRICS_CONNECTIONS: usize = 64;

/// Connections below which a limit of open files makes no server.
const MIN_CONNECTIONS: usize = 4;

/// The shares of a limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    limit: usize,
    workers: usize,
    own: usize,
    files: usize,
    /// Of each worker.
    refusals: usize,
    /// Connections to `/metrics` and `/health`.
    pub metrics: usize,
    connections: usize,
}

impl Descriptors {
    /// Divides the limit of this process.
    pub fn of_process(workers: usize, has_metrics: bool) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Self::divide(limit, workers.max(1), has_metrics)
    }

    fn divide(limit: usize, workers: usize, has_metrics: bool) -> Self {
        let own = BASE_DESCRIPTORS + DESCRIPTORS_PER_WORKER * workers;
        let left = limit.saturating_sub(own);
        let files = (limit / 4).min(MAX_FILES_PER_WORKER * workers).min(left / 2);
        let left = left - files;
        let refusals = (left / 16 / workers).clamp(1, ServerOptions::default().refusals);
        let metrics = if has_metrics { (left / 16).clamp(2, MAX_METRICS_CONNECTIONS) } else { 0 };
        let connections = left.saturating_sub(refusals * workers + metrics);
        Self { limit, workers, own, files, refusals, metrics, connections }
    }

    /// Fits the options of the workers: idle connections are closed where there are more than this limit has room for, and
    /// unless the command line says how many there may be, further clients are refused.
    pub fn fit(&self, options: &mut ServerOptions, max_connections: Option<usize>) {
        let room = self.connections.max(1);
        options.max_connections = max_connections.unwrap_or(options.max_connections.min(room));
        options.refusals = self.refusals;
        options.eviction = Eviction::Idle { threshold: room };
    }

    /// What does not fit: too few descriptors for a server, or for as many connections as the command line wants.
    pub fn problem(&self, max_connections: Option<usize>) -> Option<String> {
        let Self { limit, workers, own, files, connections, .. } = self;
        let requested = max_connections.unwrap_or(MIN_CONNECTIONS);
        if requested <= *connections {
            return None;
        }
        let others = limit.saturating_sub(*connections).saturating_sub(*own).saturating_sub(*files);
        let required =
            requested.saturating_mul(2).saturating_add(limit.saturating_sub(*connections)).max(own * 2);
        Some(format!(
            "{requested} connections do not fit the limit of open files ({limit}): {workers} workers need {own} for \
             themselves, {files} are reserved for files and {others} for refusals and metrics, which leaves \
             {connections}: raise the limit (ulimit -Hn {required}, LimitNOFILE={required}), or have fewer workers (--cores) or \
             connections (--max-connections)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_together_fit_the_limit() {
        for workers in [1, 2, 8, 100] {
            for limit in [0, 1, 16, 48, 64, 100, 256, 1024, 4096, 20_000, 1 << 20, usize::MAX] {
                for has_metrics in [false, true] {
                    let shares = Descriptors::divide(limit, workers, has_metrics);
                    let sum = [
                        shares.own,
                        shares.files,
                        shares.refusals * workers,
                        shares.metrics,
                        shares.connections,
                    ];
                    let sum: usize = sum.into_iter().sum();
                    assert!(sum <= limit || shares.connections == 0, "{shares:?}");
                    assert_eq!(
                        shares.connections >= MIN_CONNECTIONS,
                        shares.problem(None).is_none(),
                        "{shares:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn defaults_of_usual_limits() {
        let connections = |limit, workers| {
            let mut options = ServerOptions::default();
            Descriptors::divide(limit, workers, false).fit(&mut options, None);
            options.max_connections
        };
        assert_eq!([64, 1024, 4096, 11_195].map(|limit| connections(limit, 2)), [8, 680, 2900, 9999]);
        assert_eq!(
            [(11_196, 2), (20_000, 2), (1 << 20, 64)].map(|(limit, workers)| connections(limit, workers)),
            [10_000; 3]
        );
    }

    #[test]
    fn given_number_of_connections_counts_and_idle_ones_still_make_room() {
        let (mut options, shares) = (ServerOptions::default(), Descriptors::divide(64, 2, false));
        shares.fit(&mut options, Some(1000));
        assert_eq!(options.max_connections, 1000);
        assert_eq!(options.eviction, Eviction::Idle { threshold: shares.connections });
        let problem = shares.problem(Some(1000)).expect("it does not fit");
        assert!(problem.contains("1000 connections") && problem.contains("(64)"), "{problem}");
        assert_eq!(shares.problem(Some(shares.connections)), None);
        assert_eq!(shares.problem(None), None);
    }
}
