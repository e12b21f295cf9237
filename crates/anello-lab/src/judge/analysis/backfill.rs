//! Computes values that a stored run lacks because an older version of the analysis did not produce them.

use super::comparability::is_other_server;
use super::{SliceIndex, compare_all_pairs};
use crate::judge::pairs::CleanSlices;
use crate::judge::verdict;
use crate::result::measure::Measure;
use crate::result::{Estimate, Ratio};
use crate::result::{LabResult, Outcome, PairComparison, Row};

/// Adds the comparisons with other servers and the combined CPU time of server and load if the stored run lacks them.
/// Leaves everything else unchanged, including the findings.
pub fn backfill(result: &mut LabResult) {
    backfill_pairs(result);
    backfill_total_cpu(result);
}

fn backfill_pairs(result: &mut LabResult) {
    if !result.other_versus.is_empty() {
        return;
    }
    let mut versus = compare_all_pairs(result, &SliceIndex::of(result), &result.cells, is_other_server);
    verdict::judge_pairs(&result.cells, &mut versus);
    result.other_versus = versus;
}

fn backfill_total_cpu(result: &mut LabResult) {
    let figures = |row: &Row| row.figures.as_ref().is_some_and(|figures| figures.cpu_of_both_ns.is_some());
    let is_filled = result.cells.iter().flat_map(|cell| &cell.rows).any(figures);
    if is_filled || !result.plan.cells.iter().any(|cell| Measure::TotalCpu.applies(cell)) {
        return;
    }
    fill_total_cpu(result);
    verdict::judge_measure(result, Measure::TotalCpu);
    let LabResult { cells, versus, runtime_versus, other_versus, base_versus, .. } = result;
    for pairs in [versus, runtime_versus, other_versus, base_versus] {
        verdict::judge_pairs_by(cells, pairs, Measure::TotalCpu);
    }
}

/// Computes the figures and ratios of [`Measure::TotalCpu`] for rows and pair comparisons. Each ratio uses its own
/// random stream, so that the intervals of the other measures stay as they were before this measure was introduced.
pub(super) fn fill_total_cpu(result: &mut LabResult) {
    let slices = CleanSlices::of(result);
    let rows: Vec<Vec<_>> = (0..result.cells.len()).map(|cell| rows_of(result, &slices, cell)).collect();
    let of_pairs = |pairs: &[PairComparison]| -> Vec<Option<Ratio>> {
        pairs.iter().map(|versus| ratio_of(result, &slices, versus)).collect()
    };
    let LabResult { versus, runtime_versus, other_versus, base_versus, .. } = &*result;
    let ratios = [versus, runtime_versus, other_versus, base_versus].map(|pairs| of_pairs(pairs));
    for (cell, rows) in result.cells.iter_mut().zip(rows) {
        for (row, (estimate, ratio)) in cell.rows.iter_mut().zip(rows) {
            row.cpu_of_both_ratio = ratio;
            if let Some(figures) = &mut row.figures {
                figures.cpu_of_both_ns = estimate;
            }
        }
    }
    let LabResult { versus, runtime_versus, other_versus, base_versus, .. } = result;
    for (pairs, ratios) in [versus, runtime_versus, other_versus, base_versus].into_iter().zip(ratios) {
        pairs.iter_mut().zip(ratios).for_each(|(versus, ratio)| versus.cpu_of_both_ratio = ratio);
    }
}

/// Returns the figure of each row of a cell and its ratio to the figure of the reference.
fn rows_of(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cell: usize,
) -> Vec<(Option<Estimate>, Option<Ratio>)> {
    const MEASURE: Measure = Measure::TotalCpu;
    let cell_result = &result.cells[cell];
    let is_measured = |row: &Row| MEASURE.applies(&cell_result.cell) && row.outcome == Outcome::Measured;
    let reference = cell_result.rows.iter().position(|row| row.contender == result.plan.reference);
    let reference = reference.filter(|&index| is_measured(&cell_result.rows[index]));
    let rows = cell_result.rows.iter().enumerate().map(|(index, row)| {
        if !is_measured(row) {
            return (None, None);
        }
        let to = reference.filter(|&reference| reference != index);
        (
            Estimate::of(&slices.values(cell, index, MEASURE).concat()),
            to.and_then(|to| slices.ratio(cell, index, to, MEASURE)),
        )
    });
    rows.collect()
}

/// Returns the ratio of a pair of measured contenders. For a pair with the reference, it equals the ratio of the row,
/// because the random stream depends only on the cell, the pair and the measure.
fn ratio_of(result: &LabResult, slices: &CleanSlices<'_>, versus: &PairComparison) -> Option<Ratio> {
    let cell = result.plan.cells.iter().position(|cell| *cell == versus.cell)?;
    let index_of = |name: &str| {
        result.contenders.iter().position(|record| record.name == name && record.twin_of.is_none())
    };
    let (one, other) = (index_of(&versus.contender)?, index_of(&versus.peer)?);
    let applies = Measure::TotalCpu.applies(&versus.cell);
    applies.then(|| slices.ratio(cell, one, other, Measure::TotalCpu))?
}
