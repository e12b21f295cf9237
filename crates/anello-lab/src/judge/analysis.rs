//! Run analysis: computes figures, ratios and verdicts from the measured slices.
//!
//! Each contender is compared with the reference and, if it names a base, with that base. The anello contenders are
//! also compared with every peer. These comparisons form three groups: peers with the same kind of I/O, async runtimes
//! with a different kind of I/O, and all other peers.
//!
//! Only clean slices count. A ratio is computed within a round, from two slices that ran in close succession and in the
//! same machine phase (slow or fast). A round yields no ratio if either contender has no clean slice or if the phase
//! changed between the two slices.

use crate::judge::cells::{analyse_cell, mark_phases, total_cpu_of};
use crate::judge::comparisons::{compare_with_bases, compare_with_peers};
use crate::judge::findings::findings;
use crate::judge::pairs::CleanSlices;
use crate::judge::verdict::{judge_measure, judge_pairs};
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Outcome, PhaseSummary, ReadError};

/// Computes the phases, cells, pair comparisons and findings of `result` from its plan, slices, latencies and failures.
pub fn analyse(result: &mut LabResult) {
    let phases: Vec<Option<PhaseSummary>> =
        (0..result.plan.cells.len()).map(|cell| mark_phases(result, cell)).collect();
    let slices = CleanSlices::of(result);
    let cells = phases.into_iter().enumerate().map(|(cell, phases)| analyse_cell(&slices, cell, phases));
    let cells: Vec<CellResult> = cells.collect();
    let [peer_comparisons, runtime_comparisons, other_comparisons] = compare_with_peers(&slices, &cells);
    let base_comparisons = compare_with_bases(&slices, &cells);
    *result = LabResult {
        cells,
        peer_comparisons,
        runtime_comparisons,
        other_comparisons,
        base_comparisons,
        ..std::mem::take(result)
    };
    Measure::ALL.into_iter().for_each(|measure| judge_measure(result, measure));
    result.findings = findings(result);
}

/// Adds to a stored run what older versions did not compute: the comparisons with other servers, and the combined CPU
/// time of server and load generator. Leaves everything else unchanged, including the findings.
pub fn backfill(result: &mut LabResult) {
    if result.other_comparisons.is_empty() {
        let [.., mut others] = compare_with_peers(&CleanSlices::of(result), &result.cells);
        Measure::ALL.into_iter().for_each(|measure| judge_pairs(&result.cells, &mut others, measure));
        result.other_comparisons = others;
    }
    let mut rows = result.cells.iter().flat_map(|cell| &cell.rows);
    let is_filled = rows.any(|row| row.figure(Measure::TotalCpu).is_some());
    if !is_filled && result.plan.cells.iter().any(|cell| Measure::TotalCpu.applies(cell)) {
        fill_total_cpu(result);
        judge_measure(result, Measure::TotalCpu);
    }
}

/// Computes the figures and ratios of [`Measure::TotalCpu`] for rows and pair comparisons.
fn fill_total_cpu(result: &mut LabResult) {
    let mut filled = result.clone();
    let slices = CleanSlices::of(result);
    let ratio = |cell: usize, contender: usize, other: &str| {
        let other = result.original_index(other).filter(|&other| other != contender)?;
        Measure::TotalCpu
            .applies(&result.plan.cells[cell])
            .then(|| slices.ratio(cell, contender, other, Measure::TotalCpu))?
    };
    for (index, cell) in filled.cells.iter_mut().enumerate() {
        let measured = cell.rows.iter_mut().enumerate().filter(|(_, row)| row.outcome == Outcome::Measured);
        for (contender, row) in measured {
            row.comparison.total_cpu_ratio = ratio(index, contender, &result.plan.reference);
            if let Some(figures) = &mut row.figures {
                figures.total_cpu_ns = total_cpu_of(&slices, index, contender);
            }
        }
    }
    for pair in filled.pair_lists_mut().into_iter().flatten() {
        let cell = result.plan.cells.iter().position(|cell| *cell == pair.cell);
        let contender = result.original_index(&pair.contender);
        pair.comparison.total_cpu_ratio =
            cell.zip(contender).and_then(|(cell, contender)| ratio(cell, contender, &pair.peer));
    }
    *result = filled;
}

impl LabResult {
    /// Parses a result in the format of [`render_json`](crate::render_json). A checkpoint contains slices but no
    /// figures. This function computes the figures, so that the checkpoint of a crashed run can be read like the result
    /// of an interrupted run.
    ///
    /// # Errors
    /// Returns [`ReadError`] if the text is not JSON, has another schema or version, or is inconsistent.
    pub fn from_json(text: &str) -> Result<LabResult, ReadError> {
        let mut result = LabResult::as_written(text)?;
        if result.cells.is_empty() {
            analyse(&mut result);
        }
        Ok(result)
    }
}
