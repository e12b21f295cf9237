//! Whom anello is judged against, and how they are called.

use crate::analysis::driver_family;
use crate::result::{ContenderRecord, LabResult, PairComparison};

/// The comparisons of one of anello's contenders that decide whether it is beaten. Among HTTP servers people choose
/// whatever their way of doing I/O, so that these are all; else those with peers of its own way.
pub fn decisive<'a>(result: &'a LabResult, name: &'a str) -> Vec<&'a PairComparison> {
    let others = result.runtime_versus.iter().chain(&result.other_versus);
    let others = others.filter(|versus| versus.cell.workload.target().is_some());
    result.versus.iter().chain(others).filter(|versus| versus.contender == name).collect()
}

/// How many peers these comparisons are with, and how they are called: "peers", or, where some were left aside because they
/// do I/O in another way, "peers on io_uring".
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
    let is_left_aside = others.any(|versus| !peers.contains(&versus.peer.as_str()));
    let Some(kin) = driver_family(own).filter(|_| is_left_aside) else {
        return (peers.len(), all.to_owned());
    };
    let mut records = result.contenders.iter().filter(|record| peers.contains(&record.name.as_str()));
    if records.all(|record| driver_family(record) == Some(kin)) {
        return (peers.len(), format!("{all} on {kin}"));
    }
    // Some do it in neither way, or do not say how.
    let other = if kin == "epoll" { "io_uring" } else { "epoll" };
    (peers.len(), format!("{all} not on {other}"))
}
