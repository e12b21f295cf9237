//! Bounds of a plan, and limits of its contenders.

use std::time::Duration;

use thiserror::Error;

use crate::plan::cell::{Cell, Workload};
use crate::plan::contender::{Contender, Serves};
use crate::plan::site::SupportedTargets;

/// Maximum number of passes. This and the following bounds catch typos and are far above practical values.
const MAX_PASSES: usize = 100_000;
const MAX_ROUNDS: usize = 100_000;
const MAX_SLICES: usize = 100_000_000;
pub(crate) const MAX_SLICE_DURATION: Duration = Duration::from_secs(3600);
/// Maximum number of connections or requests per second, queue depth, and message or block size in bytes.
const MAX_COUNT: usize = 1 << 30;
/// Maximum number of requests in flight on one connection.
const MAX_PIPELINING: usize = 1024;

/// Minimum CPU share of servers. With a smaller share, a server mostly waits for its core.
pub(crate) const MIN_SERVER_CPU_SHARE: f64 = 0.1;

/// Problem in a configuration, with its remedy.
#[derive(Debug, Clone, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
#[non_exhaustive]
pub enum ConfigError {
    #[error("the reference \"{0}\" is not among the contenders (choose one of {list})", list = .1.join(", "))]
    UnknownReference(String, Vec<String>),
    #[error("duplicate contender \"{0}\" (rename one)")]
    DuplicateContender(String),
    #[error(
        "the base of \"{name}\" is \"{base}\", which is {} (use the contender that differs only in the property under \
         test, or remove the key; the choices are {})",
        if base == name { "the contender itself" } else { "not among the contenders" },
        others.join(", ")
    )]
    Base { name: String, base: String, others: Vec<String> },
    #[error("{key} must be at least 1 and at most {max}, not {number}")]
    Count { key: &'static str, number: usize, max: usize },
    #[error("more than {MAX_SLICES} slices (reduce passes, rounds or cells)")]
    TooManySlices,
    #[error("slice must be longer than 0")]
    EmptySlice,
    #[error("slice and warm_up must be at most {}s", MAX_SLICE_DURATION.as_secs())]
    LongSlice,
    #[error("server_share must be from {MIN_SERVER_CPU_SHARE} to 1, not {0}")]
    ServerShare(f64),
    #[error("stolen time limit must be a non-negative fraction")]
    StolenLimit,
    #[error("the servers and the load generator each need at least one core")]
    NoCores,
    #[error("nothing to measure (add at least one cell)")]
    NoCells,
    #[error(
        "disk workers cannot be measured across hosts, because no network is involved (run the lab on the host with the \
         disk, without --server-host and --load-host)"
    )]
    DiskAcrossHosts,
    #[error("{0}: {1}")]
    Cell(Cell, CellError),
    #[error("duplicate cell \"{0}\" (remove one)")]
    DuplicateCell(Cell),
    #[error(
        "contender {0} does not serve TLS, which this scenario requires (add the file path placeholders \
         {{certificate}} and {{key}} to its command)"
    )]
    NoTls(String),
}

/// Problem in a cell, with its remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
#[non_exhaustive]
pub enum CellError {
    #[error("connections (or depth in disk cells) must be at least 1")]
    NoConnections,
    #[error("connections, depth, bytes, requests in flight and rate must be at most {MAX_COUNT}")]
    TooLarge,
    #[error("server_cores must be from 1 to {1} on this machine, not {0}")]
    ServerCores(usize, usize),
    #[error("the message size must be at least 1 byte")]
    EmptyMessage,
    #[error("the block size must be at least 1 byte")]
    EmptyBlock,
    #[error("pipelining must be from 1 (none) to {MAX_PIPELINING}")]
    Pipelining,
    #[error(
        "reconnect and pipelining cannot be combined: a connection that carries only one request cannot pipeline \
         requests (list cells of both kinds as individual [[cells]])"
    )]
    PipeliningReconnect,
    #[error("an offered rate requires an echo or http workload")]
    RateWithoutRequests,
    #[error("the offered rate must be at least 1")]
    NoRate,
}

pub(crate) fn check_extent(
    passes: usize,
    rounds: usize,
    cells: usize,
    contenders: usize,
) -> Result<(), ConfigError> {
    for (key, number, max) in [("passes", passes, MAX_PASSES), ("rounds", rounds, MAX_ROUNDS)] {
        if !(1..=max).contains(&number) {
            return Err(ConfigError::Count { key, number, max });
        }
    }
    let slices = [passes, rounds, cells, contenders].into_iter().try_fold(1usize, usize::checked_mul);
    slices.filter(|&slices| slices <= MAX_SLICES).map(|_| ()).ok_or(ConfigError::TooManySlices)
}

/// Returns the names of all contenders except twins, which are compared only with their originals.
pub(crate) fn names_without_twins(contenders: &[Contender]) -> Vec<&str> {
    let others = contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).collect()
}

/// Checks that `base`, the base of the contender `name`, is in `names` and is not the contender itself.
pub(crate) fn check_base(name: &str, base: &str, names: &[&str]) -> Result<(), ConfigError> {
    let others = || names.iter().copied().filter(|other| *other != name);
    if others().any(|other| other == base) {
        return Ok(());
    }
    let others = others().map(str::to_owned).collect();
    Err(ConfigError::Base { name: name.to_owned(), base: base.to_owned(), others })
}

/// Checks the numbers of a cell on a machine with this many server cores.
pub(crate) fn check_cell(cell: &Cell, server_cores: usize) -> Result<(), CellError> {
    let bytes = match cell.workload {
        Workload::Echo { message_bytes } => message_bytes,
        Workload::Disk { block_bytes, .. } => block_bytes,
        Workload::Http { pipelining, .. } => pipelining.saturating_mul(cell.connections),
        Workload::Idle => 0,
    };
    if cell.connections == 0 {
        return Err(CellError::NoConnections);
    }
    if cell.connections.max(bytes) > MAX_COUNT || cell.offered_per_second > Some(MAX_COUNT as u64) {
        return Err(CellError::TooLarge);
    }
    if !(1..=server_cores).contains(&cell.server_cores) {
        return Err(CellError::ServerCores(cell.server_cores, server_cores));
    }
    match cell.workload {
        Workload::Echo { message_bytes: 0 } => Err(CellError::EmptyMessage),
        Workload::Disk { block_bytes: 0, .. } => Err(CellError::EmptyBlock),
        Workload::Http { pipelining, .. } if !(1..=MAX_PIPELINING).contains(&pipelining) => {
            Err(CellError::Pipelining)
        }
        Workload::Http { pipelining: 2.., reconnect: true, .. } => Err(CellError::PipeliningReconnect),
        Workload::Idle | Workload::Disk { .. } if cell.offered_per_second.is_some() => {
            Err(CellError::RateWithoutRequests)
        }
        _ if cell.offered_per_second == Some(0) => Err(CellError::NoRate),
        _ => Ok(()),
    }
}

/// Returns the reason why the limits of a contender exclude it from a cell. `None` if they do not.
pub(crate) fn limit_reason(limit: Option<usize>, takes_cores: bool, cell: &Cell) -> Option<String> {
    match limit {
        Some(limit) if cell.connections > limit && !matches!(cell.workload, Workload::Disk { .. }) => {
            Some(format!("it supports at most {limit} connections"))
        }
        _ if cell.server_cores > 1 && !takes_cores => Some("it uses only one core".to_owned()),
        _ => None,
    }
}

/// Returns why a contender that supports only `serves` cannot process the requests of a cell. `None` if it can.
pub(crate) fn unsupported_reason(serves: &[Serves], cell: &Cell) -> Option<String> {
    let target = cell.workload.target()?;
    (!SupportedTargets::of(serves).has(target)).then(|| format!("it does not serve {target}"))
}

pub(crate) fn supports(contender: &Contender, cell: &Cell) -> bool {
    unsupported_reason(&contender.serves, cell).is_none()
        && limit_reason(contender.connections_limit, contender.takes_cores(), cell).is_none()
}
