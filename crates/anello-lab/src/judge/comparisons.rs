//! Comparisons between the anello contenders and peers, and between contenders and their bases.

use crate::judge::pairs::CleanSlices;
use crate::plan::contender::{Kind, Role};
use crate::plan::schedule::Random;
use crate::result::measure::Measure;
use crate::result::{CellResult, Comparison, ContenderRecord, Outcome, PairComparison};

/// First random stream for comparisons with peers and bases. Comparisons with the reference use lower numbers.
const PAIR_STREAM_BASE: u64 = 1 << 40;

/// Returns the driver family of a contender, "io_uring" or "epoll". `None` for any other driver, or if it is unknown.
pub fn driver_family(record: &ContenderRecord) -> Option<&'static str> {
    let driver = record.driver.as_deref()?;
    let families = [("uring", "io_uring"), ("epoll", "epoll")];
    families.into_iter().find(|(part, _)| driver.contains(part)).map(|(_, family)| family)
}

/// Compares each anello contender with every peer, in every cell where both were measured. Returns the comparisons with
/// peers that use the same kind of I/O, with other runtimes, and with other servers.
pub(super) fn compare_with_peers(slices: &CleanSlices<'_>, cells: &[CellResult]) -> [Vec<PairComparison>; 3] {
    let with_role = |role: Role| {
        let records = slices.result.contenders.iter().enumerate();
        records.filter(move |(_, record)| record.role == role && record.twin_of.is_none())
    };
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    for (peer_index, peer) in with_role(Role::Peer) {
        for (own_index, own) in with_role(Role::Anello) {
            // A peer whose driver is unknown or in neither family counts as having the same kind of I/O.
            let families = driver_family(own).zip(driver_family(peer));
            let list = match peer.kind {
                _ if families.is_none_or(|(own, peer)| own == peer) => 0,
                Some(Kind::Runtime) => 1,
                _ => 2,
            };
            lists[list].extend(compare_pair(slices, cells, own_index, peer_index));
        }
    }
    lists
}

/// Compares each contender that names a base with that base, in every cell where both were measured.
pub(super) fn compare_with_bases(slices: &CleanSlices<'_>, cells: &[CellResult]) -> Vec<PairComparison> {
    let pairs = slices.result.contenders.iter().enumerate().filter_map(|(own, record)| {
        let base = slices.result.original_index(record.base.as_deref()?)?;
        (base != own).then_some((own, base))
    });
    pairs.flat_map(|(own, base)| compare_pair(slices, cells, own, base)).collect()
}

/// Compares two contenders in every cell where both were measured.
fn compare_pair(
    slices: &CleanSlices<'_>,
    cells: &[CellResult],
    own: usize,
    other: usize,
) -> Vec<PairComparison> {
    let plan = &slices.result.plan;
    let name = |contender: usize| slices.result.contenders[contender].name.clone();
    let compare = |(index, cell): (usize, &CellResult)| {
        let (row, other_row) = (cell.rows.get(own)?, cell.rows.get(other)?);
        if [row, other_row].iter().any(|row| row.outcome != Outcome::Measured) {
            return None;
        }
        let (comparison, mixed_phase_rounds) = if name(other) == plan.reference {
            // Reuse the ratios of the row: resampling would give a second, different interval for the same pair in one
            // report.
            (row.comparison, row.mixed_phase_rounds)
        } else {
            let stream = PAIR_STREAM_BASE + ((index as u64) << 24) + ((own as u64) << 12) + other as u64;
            let measures = Measure::ALL.into_iter().filter(|measure| *measure != Measure::P50);
            slices.compare(index, own, other, measures, &mut Random::stream(plan.seed, stream))
        };
        Some(PairComparison {
            contender: name(own),
            peer: name(other),
            cell: cell.cell,
            mixed_phase_rounds,
            comparison: Comparison { p50_ratio: None, ..comparison },
        })
    };
    cells.iter().enumerate().filter_map(compare).collect()
}
