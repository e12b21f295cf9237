//! Flags for the number of workers and their cores.

use anello::{Workers, WorkersBuilder};
use clap::Args;

use super::values::{self, Cores};

#[derive(Args, Clone, Debug)]
pub struct WorkerFlags {
    /// Number of workers, which are not pinned to cores
    ///
    /// By default, `anello echo` starts one worker, and `anello http` one for each core that the CPU affinity and the
    /// cgroup quota allow.
    #[arg(long = "workers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096), conflicts_with = "cores")]
    unpinned: Option<u16>,
    /// Cores to use, e.g. 0 or 0,2-3, or all; one worker is pinned to each core
    ///
    /// all selects every core that the CPU affinity allows: first one thread of each physical core, then the others
    /// (SMT), each node (NUMA) and shared cache together. `anello doctor` prints this order.
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
}

impl WorkerFlags {
    /// Returns the number of workers; `default` if neither flag is present.
    pub fn count(&self, default: impl FnOnce() -> usize) -> usize {
        let pinned = self.cores.as_ref().map(|cores| cores.0.len());
        pinned.or(self.unpinned.map(usize::from)).unwrap_or_else(default)
    }

    /// Returns a builder for `count` workers, which are pinned to the cores, if there are any.
    pub fn builder(&self, count: usize) -> WorkersBuilder {
        match &self.cores {
            Some(cores) => Workers::builder().cores(cores.0.clone()),
            None => Workers::builder().unpinned_workers(count),
        }
    }
}
