//! Comparisons between the anello contenders and peers, and between contenders and their bases.

use crate::judge::comparability::{does_same_io, is_other_runtime, is_other_server};
use crate::judge::pairs::CleanSlices;
use crate::plan::contender::Role;
use crate::plan::schedule::Random;
use crate::result::measure::Measure;
use crate::result::{CellResult, Comparison, ContenderRecord, LabResult, Outcome, PairComparison};

/// First random stream for comparisons with peers and bases. Comparisons with the reference use lower numbers.
const PAIR_STREAM_BASE: u64 = 1 << 40;

/// Compared measures, in the order in which random numbers are drawn for them.
const MEASURES: [Measure; 5] =
    [Measure::Rate, Measure::Cpu, Measure::P99, Measure::Memory, Measure::TotalCpu];

/// Returns the comparisons with peers: those with the same kind of I/O, other runtimes, and other servers.
pub(super) fn compare_with_peers(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cells: &[CellResult],
) -> [Vec<PairComparison>; 3] {
    [does_same_io, is_other_runtime, is_other_server]
        .map(|is_compared| compare_all(result, slices, cells, is_compared))
}

/// Compares each anello contender with every peer for which `is_compared` returns `true`, in every cell where both were
/// measured.
fn compare_all(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cells: &[CellResult],
    is_compared: fn(&ContenderRecord, &ContenderRecord) -> bool,
) -> Vec<PairComparison> {
    let with_role = |role: Role| {
        let records = result.contenders.iter().enumerate();
        records.filter(move |(_, record)| record.role == role && record.twin_of.is_none())
    };
    let mut versus = Vec::new();
    for (peer_index, peer) in with_role(Role::Peer) {
        for (own_index, _) in with_role(Role::Anello).filter(|(_, own)| is_compared(own, peer)) {
            versus.extend(compare_pair(result, slices, cells, (own_index, peer_index)));
        }
    }
    versus
}

/// Compares each contender that names a base with that base, in every cell where both were measured.
pub(super) fn compare_with_bases(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cells: &[CellResult],
) -> Vec<PairComparison> {
    let pairs = result.contenders.iter().enumerate().filter_map(|(own, record)| {
        let base = result.original_index(record.base.as_deref()?)?;
        (base != own).then_some((own, base))
    });
    pairs.flat_map(|pair| compare_pair(result, slices, cells, pair)).collect()
}

/// Compares two contenders in every cell where both were measured.
fn compare_pair(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cells: &[CellResult],
    (own, other): (usize, usize),
) -> Vec<PairComparison> {
    let name = |contender: usize| result.contenders[contender].name.clone();
    let is_measured = |cell: &CellResult, contender: usize| {
        cell.rows.get(contender).is_some_and(|row| row.outcome == Outcome::Measured)
    };
    let cells =
        cells.iter().enumerate().filter(|(_, cell)| is_measured(cell, own) && is_measured(cell, other));
    let compared = cells.map(|(index, cell)| {
        let row = &cell.rows[own];
        let (comparison, mixed_phase_rounds) = if name(other) == result.plan.reference {
            // Resampling the ratios of the row would give different intervals for the same pair within one report.
            (row.comparison, row.mixed_phase_rounds)
        } else {
            let stream = PAIR_STREAM_BASE + ((index as u64) << 24) + ((own as u64) << 12) + other as u64;
            let mut random = Random::stream(result.plan.seed, stream);
            slices.compare(index, (own, other), &MEASURES, &mut random)
        };
        PairComparison {
            contender: name(own),
            peer: name(other),
            cell: cell.cell,
            mixed_phase_rounds,
            comparison: Comparison { p50_ratio: None, ..comparison },
        }
    });
    compared.collect()
}
