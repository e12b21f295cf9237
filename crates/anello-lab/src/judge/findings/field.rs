//! The peers that count in the headline of an anello contender, and the words for them.

use crate::judge::comparability::driver_family;
use crate::result::{ContenderRecord, LabResult, PairComparison};

/// Returns the comparisons that decide whether a peer is better than an anello contender. For HTTP workloads, these are
/// the comparisons with all peers, because users choose HTTP servers regardless of their kind of I/O. For other
/// workloads, these are the comparisons with peers that use the same kind of I/O.
pub fn decisive<'a>(result: &'a LabResult, name: &'a str) -> Vec<&'a PairComparison> {
    let others = result.runtime_versus.iter().chain(&result.other_versus);
    let others = others.filter(|versus| versus.cell.workload.target().is_some());
    result.versus.iter().chain(others).filter(|versus| versus.contender == name).collect()
}

/// Returns the number of peers in these comparisons and the words for them: "peers", or "peers on io_uring" if peers
/// with a different kind of I/O are excluded.
pub fn counted_peers(
    result: &LabResult,
    own: &ContenderRecord,
    pairs: &[&PairComparison],
) -> (usize, String) {
    let mut peers: Vec<&str> = pairs.iter().map(|versus| versus.peer.as_str()).collect();
    peers.sort_unstable();
    peers.dedup();
    let all = if peers.len() == 1 { "peer" } else { "peers" };
    let mut others = result.all_pair_comparisons().filter(|versus| versus.contender == own.name);
    let has_excluded = others.any(|versus| !peers.contains(&versus.peer.as_str()));
    let Some(family) = driver_family(own).filter(|_| has_excluded) else {
        return (peers.len(), all.to_owned());
    };
    let mut records = result.contenders.iter().filter(|record| peers.contains(&record.name.as_str()));
    if records.all(|record| driver_family(record) == Some(family)) {
        return (peers.len(), format!("{all} on {family}"));
    }
    // The driver of some peers is unknown or in neither family.
    let other = if family == "epoll" { "io_uring" } else { "epoll" };
    (peers.len(), format!("{all} not on {other}"))
}
