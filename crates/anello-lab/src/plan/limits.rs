//! Bounds of a plan, and the limits of contenders.

use std::time::Duration;

use crate::plan::cell::{Cell, Workload};
use crate::plan::contender::{Contender, Serves};
use crate::plan::site::SupportedTargets;

/// Maximum number of passes. This and the following bounds detect typing errors and are far above practical values.
const MAX_PASSES: usize = 100_000;
const MAX_ROUNDS: usize = 100_000;
const MAX_SLICES: usize = 100_000_000;
pub(crate) const MAX_SLICE_DURATION: Duration = Duration::from_secs(3600);
/// Maximum number of connections, bytes, queue depth, and requests per second.
const MAX_COUNT: usize = 1 << 30;
/// Maximum number of requests in flight on one connection.
const MAX_PIPELINING: usize = 1024;

/// Checks that a run of this size has at least one pass and round, and stays within the upper bounds.
pub(crate) fn check_extent(
    passes: usize,
    rounds: usize,
    cells: usize,
    contenders: usize,
) -> Result<(), String> {
    for (name, number, max) in [("passes", passes, MAX_PASSES), ("rounds", rounds, MAX_ROUNDS)] {
        if !(1..=max).contains(&number) {
            return Err(format!("{name} must be at least 1 and at most {max}, not {number}"));
        }
    }
    let slices = [passes, rounds, cells, contenders].into_iter().try_fold(1usize, usize::checked_mul);
    match slices {
        Some(..=MAX_SLICES) => Ok(()),
        _ => Err(format!("more than {MAX_SLICES} slices (reduce passes, rounds or cells)")),
    }
}

/// Returns the names of all contenders except twins, which are compared only with their original.
pub(crate) fn names_without_twins(contenders: &[Contender]) -> Vec<&str> {
    let others = contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).collect()
}

/// Checks that `base`, the base of the contender called `name`, is a different one of `names`.
pub(crate) fn check_base(name: &str, base: &str, names: &[&str]) -> Result<(), String> {
    let others: Vec<&str> = names.iter().copied().filter(|other| *other != name).collect();
    if others.contains(&base) {
        return Ok(());
    }
    let problem = if base == name { "which is itself" } else { "which is not among the contenders" };
    Err(format!(
        "the base of \"{name}\" is \"{base}\", {problem} (use the contender that differs only in the property under test, \
         one of {}, or remove the key)",
        others.join(", ")
    ))
}

pub(crate) fn check_cell(cell: &Cell, server_cores: usize) -> Result<(), String> {
    if cell.connections == 0 {
        return Err("connections (disk: depth) must be at least 1".to_owned());
    }
    let bytes = match cell.workload {
        Workload::Echo { message_bytes } => message_bytes,
        Workload::Disk { block_bytes, .. } => block_bytes,
        Workload::Http { pipelining, .. } => pipelining.saturating_mul(cell.connections),
        Workload::Idle => 0,
    };
    if cell.connections.max(bytes) > MAX_COUNT || cell.offered_per_second > Some(MAX_COUNT as u64) {
        return Err(format!(
            "connections, depth, bytes, requests in flight and rate must be at most {MAX_COUNT}"
        ));
    }
    if !(1..=server_cores).contains(&cell.server_cores) {
        return Err(format!(
            "server_cores must be from 1 to {server_cores} on this machine, not {}",
            cell.server_cores
        ));
    }
    match cell.workload {
        Workload::Echo { message_bytes: 0 } => Err("the message size must be at least 1 byte".to_owned()),
        Workload::Disk { block_bytes: 0, .. } => Err("the block size must be at least 1 byte".to_owned()),
        Workload::Http { pipelining, .. } if !(1..=MAX_PIPELINING).contains(&pipelining) => {
            Err(format!("pipelining must be from 1 (none) to {MAX_PIPELINING}"))
        }
        Workload::Http { pipelining: 2.., reconnect: true, .. } => Err(
            "reconnect and pipelining cannot be combined: a connection with one request has none to pipeline (list cells of \
             both kinds as single [[cells]])"
                .to_owned(),
        ),
        Workload::Idle | Workload::Disk { .. } if cell.offered_per_second.is_some() => {
            Err("an offered rate requires an echo or http workload".to_owned())
        }
        _ if cell.offered_per_second == Some(0) => Err("the offered rate must be at least 1".to_owned()),
        _ => Ok(()),
    }
}

/// Returns why a contender is skipped in a cell because of its limits. `None` if it is not.
#[must_use]
pub fn limit_reason(limit: Option<usize>, takes_cores: bool, cell: &Cell) -> Option<String> {
    match limit {
        Some(limit) if cell.connections > limit && !matches!(cell.workload, Workload::Disk { .. }) => {
            Some(format!("it supports at most {limit} connections"))
        }
        _ if cell.server_cores > 1 && !takes_cores => Some("it uses only one core".to_owned()),
        _ => None,
    }
}

/// Returns why a contender that serves `serves` cannot process the requests of a cell. `None` if it can.
#[must_use]
pub fn unsupported_reason(serves: &[Serves], cell: &Cell) -> Option<String> {
    let target = cell.workload.target()?;
    (!SupportedTargets::of(serves).has(target)).then(|| format!("it does not serve {target}"))
}
