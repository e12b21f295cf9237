//! From slices to figures: what each contender did in each cell, and how it compares with the reference.
//!
//! Only clean slices count. A ratio is taken within a round, between slices that ran moments apart; a round in which
//! either side has no clean slice gives none.

use crate::result::{CellResult, Consequence, Figures, LabResult, Outcome, Quality, Row, Slice, Verdict};
use crate::scenario::{Cell, LabConfig};
use crate::schedule::Random;
use crate::statistics::{Estimate, Ratio, quantile};
use crate::verdict;

/// Fills in the cells and findings of `result` from its slices and failures.
pub fn analyse(config: &LabConfig, result: &mut LabResult) {
    let cells = config.cells().into_iter().enumerate();
    result.cells = cells.map(|(index, cell)| analyse_cell(config, result, cell, index as u64)).collect();
    verdict::judge(result);
}

fn analyse_cell(config: &LabConfig, result: &LabResult, cell: Cell, cell_index: u64) -> CellResult {
    let reference = config.reference_index();
    let mut rows = Vec::with_capacity(config.contenders.len());
    for (index, contender) in config.contenders.iter().enumerate() {
        let all = slices_of(result, cell, index);
        let count = |quality| all.iter().filter(|slice| slice.quality == quality).count();
        let failures_here = || {
            result
                .failures
                .iter()
                .filter(|failure| failure.contender == contender.name && failure.cell == Some(cell))
        };
        let outcome = outcome_of(result, cell, index, count(Quality::Clean));
        let measured = outcome == Outcome::Measured;
        // Every comparison draws from its own stream, so that adding a contender does not shift the others' intervals.
        let mut random = Random::stream(config.seed, 1000 + cell_index * 1000 + index as u64);
        let mut ratio = |value: fn(&Slice) -> f64| {
            let reference = reference.filter(|&reference| measured && reference != index)?;
            Ratio::of(&paired_ratios(config, result, cell, index, reference, value), &mut random)
        };
        rows.push(Row {
            contender: contender.name.clone(),
            clean_slices: count(Quality::Clean),
            stolen_slices: count(Quality::Stolen),
            spoilt_slices: count(Quality::Spoilt),
            restarts: failures_here().filter(|failure| failure.consequence == Consequence::Restarted).count(),
            figures: if measured { figures_of(&all) } else { None },
            rate_ratio: ratio(Slice::requests_per_second),
            cpu_ratio: ratio(Slice::cpu_ns_per_request),
            outcome,
            rate_verdict: Verdict::NotComparable,
            cpu_verdict: Verdict::NotComparable,
        });
    }
    CellResult { cell, rate_resolution: None, cpu_resolution: None, rows }
}

fn slices_of(result: &LabResult, cell: Cell, contender: usize) -> Vec<&Slice> {
    result.slices.iter().filter(|slice| slice.cell == cell && slice.contender == contender).collect()
}

fn outcome_of(result: &LabResult, cell: Cell, contender: usize, clean_slices: usize) -> Outcome {
    let record = &result.contenders[contender];
    let failures: Vec<_> =
        result.failures.iter().filter(|failure| failure.contender == record.name).collect();
    let broken = failures.iter().find(|failure| {
        failure.cell == Some(cell)
            && matches!(failure.consequence, Consequence::LeftOut | Consequence::Disqualified)
    });
    if let Some(failure) = broken {
        return Outcome::Failed(failure.what.clone());
    }
    if clean_slices > 0 {
        return Outcome::Measured;
    }
    match failures.iter().find(|failure| failure.consequence == Consequence::SkippedPass) {
        Some(failure) => Outcome::Skipped(failure.what.clone()),
        None => Outcome::NotMeasured,
    }
}

fn figures_of(slices: &[&Slice]) -> Option<Figures> {
    let values = |value: fn(&Slice) -> f64| -> Vec<f64> {
        slices.iter().filter(|slice| slice.quality == Quality::Clean).map(|slice| value(slice)).collect()
    };
    let cpu_ns = values(Slice::cpu_ns_per_request);
    Some(Figures {
        requests_per_second: Estimate::of(&values(Slice::requests_per_second))?,
        p50_ns: Estimate::of(&values(|slice| slice.p50_ns as f64))?,
        p99_ns: Estimate::of(&values(|slice| slice.p99_ns as f64))?,
        cpu_ns: Estimate::of(&cpu_ns)?,
        cpu_low_decile_ns: quantile(&cpu_ns, 0.1)?,
        server_busy: quantile(&values(|slice| slice.cpu_ns as f64 / slice.elapsed_ns.max(1) as f64), 0.5)?,
    })
}

/// The ratios of contender to reference by pass, one for each round in which both have a clean slice.
fn paired_ratios(
    config: &LabConfig,
    result: &LabResult,
    cell: Cell,
    contender: usize,
    reference: usize,
    value: fn(&Slice) -> f64,
) -> Vec<Vec<f64>> {
    let clean = |index: usize, pass: usize, round: usize| {
        let in_round = |slice: &&Slice| {
            slice.cell == cell && slice.contender == index && slice.pass == pass && slice.round == round
        };
        result.slices.iter().filter(in_round).find(|slice| slice.quality == Quality::Clean).map(value)
    };
    let ratio = |pass: usize, round: usize| {
        let ratio = clean(contender, pass, round)? / clean(reference, pass, round)?;
        ratio.is_finite().then_some(ratio)
    };
    (0..config.passes)
        .map(|pass| (0..config.rounds).filter_map(|round| ratio(pass, round)).collect())
        .collect()
}
