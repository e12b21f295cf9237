//! File descriptor budget: divides the open-file limit between the server itself, files, rejections and connections.
//!
//! ```text
//!   RLIMIT_NOFILE ── own ─────────── 24 + 10 per worker
//!                 ├─ files ───────── a quarter of the limit, at most 512 per worker and half of the rest
//!                 ├─ rejections ──── a sixteenth of the rest, at most 64 per worker
//!                 ├─ /metrics ────── the same, at most 64, if enabled
//!                 └─ connections ─── the remainder, at most 10,000 by default
//! ```

use anello_http::ServerOptions;
use anello_http::server::Eviction;

use crate::common::{admin, process};

const MAX_FILES_PER_WORKER: usize = 512;

/// Minimum number of connections for a usable server.
const MIN_CONNECTIONS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    limit: usize,
    workers: usize,
    own: usize,
    files: usize,
    /// Reserved per worker for connections that are accepted only to be rejected.
    refusals: usize,
    /// Reserved for connections to `/metrics` and `/health`.
    pub metrics: usize,
    connections: usize,
}

impl Descriptors {
    pub fn of_process(workers: usize, has_metrics: bool) -> Self {
        Self::divide(process::open_file_limit(), workers.max(1), has_metrics)
    }

    fn divide(limit: usize, workers: usize, has_metrics: bool) -> Self {
        let own = process::own_descriptors(workers);
        let remaining = limit.saturating_sub(own);
        let files = (limit / 4).min(MAX_FILES_PER_WORKER * workers).min(remaining / 2);
        let remaining = remaining - files;
        let refusals = (remaining / 16 / workers).clamp(1, ServerOptions::default().refusals);
        let metrics = if has_metrics { (remaining / 16).clamp(2, admin::MAX_CONNECTIONS) } else { 0 };
        let connections = remaining.saturating_sub(refusals * workers + metrics);
        Self { limit, workers, own, files, refusals, metrics, connections }
    }

    /// Adapts the workers' options to the budget. Idle connections are closed if the budget is exceeded. The connection
    /// limit is reduced to the budget, unless the command line sets it.
    pub fn fit(&self, options: &mut ServerOptions, max_connections: Option<usize>) {
        let capacity = self.connections.max(1);
        options.max_connections = max_connections.unwrap_or(options.max_connections.min(capacity));
        options.refusals = self.refusals;
        options.eviction = Eviction::Idle { threshold: capacity };
    }

    /// Returns a message if the limit is too low for the requested connections or, if no number is given, for a usable
    /// server.
    pub fn problem(&self, max_connections: Option<usize>) -> Option<String> {
        let Self { limit, workers, own, files, connections, .. } = self;
        let requested = max_connections.unwrap_or(MIN_CONNECTIONS);
        if requested <= *connections {
            return None;
        }
        let other = limit.saturating_sub(*connections).saturating_sub(*own).saturating_sub(*files);
        let required =
            requested.saturating_mul(2).saturating_add(limit.saturating_sub(*connections)).max(own * 2);
        Some(format!(
            "open-file limit {limit} is too low for {requested} connections: {workers} workers need {own}, {files} are \
             reserved for files and {other} for rejections and metrics, leaving {connections} (raise the limit with \
             ulimit -Hn {required} or LimitNOFILE={required}, or reduce --cores or --max-connections)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_shares_does_not_exceed_limit() {
        for workers in [1, 2, 8, 100] {
            for limit in [0, 1, 16, 48, 64, 100, 256, 1024, 4096, 20_000, 1 << 20, usize::MAX] {
                for has_metrics in [false, true] {
                    let shares = Descriptors::divide(limit, workers, has_metrics);
                    let Descriptors { own, files, refusals, metrics, connections, .. } = shares;
                    let sum = own + files + refusals * workers + metrics + connections;
                    assert!(sum <= limit || connections == 0, "{shares:?}");
                    assert_eq!(connections >= MIN_CONNECTIONS, shares.problem(None).is_none(), "{shares:?}");
                }
            }
        }
    }

    #[test]
    fn default_connections_for_common_limits() {
        let connections = |limit, workers| {
            let mut options = ServerOptions::default();
            Descriptors::divide(limit, workers, false).fit(&mut options, None);
            options.max_connections
        };
        let limits = [64, 1024, 4096, 11_195, 11_196, 20_000];
        assert_eq!(limits.map(|limit| connections(limit, 2)), [8, 680, 2900, 9999, 10_000, 10_000]);
        assert_eq!(connections(1 << 20, 64), 10_000);
    }

    #[test]
    fn explicit_connection_limit_applies_and_idle_connections_are_evicted() {
        let (mut options, shares) = (ServerOptions::default(), Descriptors::divide(64, 2, false));
        shares.fit(&mut options, Some(1000));
        assert_eq!(options.max_connections, 1000);
        assert_eq!(options.eviction, Eviction::Idle { threshold: shares.connections });
        let problem = shares.problem(Some(1000)).expect("it does not fit");
        assert!(problem.contains("1000 connections") && problem.contains("limit 64"), "{problem}");
        assert_eq!(shares.problem(Some(shares.connections)), None);
        assert_eq!(shares.problem(None), None);
    }
}
