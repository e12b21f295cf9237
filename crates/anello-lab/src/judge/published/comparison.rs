//! Comparison of published ratios with the measured ratios of a run.
//!
//! A published ratio refers to two servers and a cell. If the run has the same cell (workload, connections, cores,
//! offered rate) and contenders that correspond to the two servers, the measured ratio and its interval are compared
//! with the published ratio. [`judge()`] decides whether the run confirms it:
//!
//! ```text
//!  published 1.50        1 ......... 1.22 ............ 1.50 ........
//!  refuted           |--|                                              less than half the difference (in factors)
//!  confirmed                            |------|                       in the same direction, and at least half of it
//!  inconclusive        |------------------------|                      the interval allows either result
//! ```

use crate::judge::pairs::CleanSlices;
use crate::judge::published::sources::{Claim, Pair, SOURCES, Source};
use crate::judge::published::table::{Figure, PublishedCell, parse, same_name};
use crate::plan::cell::Cell;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{LabResult, Row};

/// Published ratios within this factor of 1 count as a claim that the two servers are equal.
const MAX_LEVEL_RATIO: f64 = 1.05;

/// Two servers of a run are equal if the whole interval is within this factor of 1.
const MAX_LEVEL_INTERVAL_RATIO: f64 = 1.10;

/// Maximum factor between the published and the local offered rate of comparable cells.
const MAX_RATE_RATIO: f64 = 1.3;

/// Comparison of a run with one published table.
#[derive(Debug, Clone)]
pub struct PublishedComparison {
    /// Published table.
    pub source: &'static Source,
    /// Compared ratios, in table order. Contains only the ratios for which the run has a cell and a pair of contenders.
    pub comparisons: Vec<Comparison>,
    /// Results for the claims of the table, one for each claim and pair of contenders.
    pub claims: Vec<ClaimResult>,
}

/// Comparison of one published ratio with the run.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Index of the published pair.
    pub pair: usize,
    /// Compared measure.
    pub measure: Measure,
    /// Cell of the published ratio.
    pub published_cell: PublishedCell,
    /// Cell of the run: the same cell, or the share of a single load generator core. The offered rate can differ
    /// slightly.
    pub cell: Cell,
    /// Published figures of the two servers; `None` for a measurement that failed or was not published.
    pub published_figures: (Option<f64>, Option<f64>),
    /// Ratio of the published figures.
    pub published_ratio: Option<f64>,
    /// The run's result for each pair of contenders.
    pub ours: Vec<LocalResult>,
}

/// Ratio of two contenders in the run.
#[derive(Debug, Clone)]
pub struct LocalResult {
    /// Contender in the numerator of the ratio.
    pub contender: String,
    /// Contender in the denominator of the ratio.
    pub to: String,
    /// Medians of the two contenders; `None` for a contender that was not measured.
    pub figures: (Option<f64>, Option<f64>),
    /// Ratio of the two contenders; `None` if one of them was not measured.
    pub ratio: Option<Ratio>,
    /// `true` if the load generator limited both rates, so that their ratio does not compare the servers.
    pub load_bound: bool,
    /// Judgement on the published ratio.
    pub judgement: Judgement,
}

/// Judgement on a published ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The run confirms the published ratio.
    Confirmed,
    /// The run refutes the published ratio.
    Refuted,
    /// The interval of the run allows either result.
    Inconclusive,
    /// One of the two contenders was not measured, or no ratio was published.
    NotComparable,
}

/// Result for a published claim and one pair of contenders.
#[derive(Debug, Clone)]
pub struct ClaimResult {
    /// The published claim.
    pub claim: &'static Claim,
    /// Contender in the numerator of the ratios.
    pub contender: String,
    /// Contender in the denominator of the ratios.
    pub to: String,
    /// Number of cells that confirm the claim.
    pub holds: usize,
    /// Number of cells that refute the claim.
    pub does_not_hold: usize,
    /// Number of inconclusive cells.
    pub cannot_be_told: usize,
    /// Smallest and largest ratio in the run; `None` if no cell has both ratios.
    pub here: Option<(f64, f64)>,
    /// Smallest and largest published ratio in the same cells.
    pub published: Option<(f64, f64)>,
    /// `true` if the load generator limited both rates in a cell.
    pub load_bound: bool,
}

impl ClaimResult {
    /// Returns the judgement over all cells, or `None` if some cells confirm the claim and others refute it.
    #[must_use]
    pub fn judgement(&self) -> Option<Judgement> {
        match (self.holds, self.does_not_hold) {
            (0, 0) => Some(Judgement::Inconclusive),
            (_, 0) => Some(Judgement::Confirmed),
            (0, _) => Some(Judgement::Refuted),
            _ => None,
        }
    }
}

/// Compares the run with all published tables for which it has cells and contenders. The table that the scenario
/// reproduces comes first.
#[must_use]
pub fn compare_with_published(result: &LabResult) -> Vec<PublishedComparison> {
    let slices = CleanSlices::of(result);
    let mut comparisons: Vec<PublishedComparison> =
        SOURCES.iter().filter_map(|source| compare_with_source(result, &slices, source)).collect();
    comparisons.sort_by_key(|comparison| comparison.source.key != result.plan.scenario.name);
    comparisons
}

fn compare_with_source(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    source: &'static Source,
) -> Option<PublishedComparison> {
    // The tables are compiled in and the tests parse all of them, so parsing does not fail here.
    let figures = parse(source.table()).ok()?;
    let mut comparisons = Vec::new();
    for (index, pair) in source.pairs.iter().enumerate() {
        for &measure in &pair.measures {
            for (ours, to) in pair.figures(&figures) {
                let cell = matching_cell(result, source, &ours.cell);
                comparisons.extend(
                    cell.and_then(|cell| compare(result, slices, (cell, index, pair), measure, ours, to)),
                );
            }
        }
    }
    let claims = source.claims.iter().flat_map(|claim| judge_claim(claim, &comparisons)).collect();
    (!comparisons.is_empty()).then_some(PublishedComparison { source, comparisons, claims })
}

fn compare(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    (cell, pair_index, pair): (usize, usize, &Pair),
    measure: Measure,
    published: &Figure,
    published_to: &Figure,
) -> Option<Comparison> {
    let value = |figure: &Figure| match measure {
        Measure::Rate => figure.requests_per_second,
        Measure::Cpu => figure.cpu_ns_per_request(),
        Measure::P50 | Measure::P99 => figure.latency_mean_us.map(|us| us * 1e3),
        Measure::Memory | Measure::TotalCpu => None,
    };
    let published_figures = (value(published), value(published_to));
    let published_ratio = match published_figures {
        (Some(one), Some(other)) if other > 0.0 => Some(one / other),
        _ => None,
    };
    let ours: Vec<LocalResult> = pair
        .ours
        .iter()
        .filter_map(|(contender, to)| {
            our_ratio(result, slices, cell, (contender, to), measure, published_ratio)
        })
        .collect();
    (!ours.is_empty()).then(|| Comparison {
        pair: pair_index,
        measure,
        published_cell: published.cell,
        cell: result.plan.cells[cell],
        published_figures,
        published_ratio,
        ours,
    })
}

/// Returns the index of the run's cell that matches the published cell, or that matches the share of a single
/// load generator core. Among cells with an offered rate, returns the one with the closest rate.
fn matching_cell(result: &LabResult, source: &Source, published: &PublishedCell) -> Option<usize> {
    let distance = |cell: &Cell, share: usize| {
        let same = cell.workload == published.workload
            && cell.connections * share == published.connections
            && cell.server_cores == published.server_cores;
        match (cell.offered_per_second, published.offered_per_second) {
            (None, None) if same => Some(0.0),
            (Some(here), Some(there)) if same => {
                let factor = (here as f64 * share as f64 / there.max(1) as f64).ln().abs();
                (factor < MAX_RATE_RATIO.ln()).then_some(factor)
            }
            _ => None,
        }
    };
    let nearest = |share: usize| {
        let cells = result.plan.cells.iter().enumerate();
        let near = cells.filter_map(|(index, cell)| Some((index, distance(cell, share)?)));
        near.min_by(|left, right| left.1.total_cmp(&right.1)).map(|(index, _)| index)
    };
    nearest(1).or_else(|| nearest(source.load_cores))
}

fn our_ratio(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cell: usize,
    (contender, to): (&str, &str),
    measure: Measure,
    published: Option<f64>,
) -> Option<LocalResult> {
    let (one, other) = (contender_named(result, contender)?, contender_named(result, to)?);
    let rows = &result.cells.get(cell)?.rows;
    let (row, row_to) = (rows.get(one)?, rows.get(other)?);
    let measured = row.figures.is_some() && row_to.figures.is_some();
    let ratio = if measured { slices.ratio(cell, one, other, measure) } else { None };
    let load_bound = measure == Measure::Rate
        && [row, row_to]
            .iter()
            .all(|row| row.figures.as_ref().is_some_and(|figures| figures.load_bottleneck));
    let median = |row: &Row| row.figure(measure).map(|figure| figure.median);
    let judgement = match (published, ratio) {
        (Some(published), Some(ratio)) => match judge(published, ratio) {
            // Two servers that both wait for the load generator have equal rates, regardless of their capacity.
            Judgement::Refuted | Judgement::Confirmed if load_bound => Judgement::Inconclusive,
            judgement => judgement,
        },
        _ => Judgement::NotComparable,
    };
    Some(LocalResult {
        contender: row.contender.clone(),
        to: row_to.contender.clone(),
        figures: (median(row), median(row_to)),
        ratio,
        load_bound,
        judgement,
    })
}

/// Returns the index of the contender with this name, ignoring case and punctuation.
fn contender_named(result: &LabResult, name: &str) -> Option<usize> {
    result.contenders.iter().position(|contender| same_name(&contender.name, name))
}

/// Judges whether the measured `ratio` confirms a published ratio.
///
/// A published ratio within 5 % of 1 claims that two servers are equal. It is confirmed if the whole interval is within
/// 10 % of 1 and the estimate within 5 %, and refuted if the whole interval differs from 1 by more than 5 %.
///
/// Any other published ratio claims that one server is ahead. It is confirmed if the interval is on the same side of 1
/// and the estimate is at least half as far from 1 (in factors). It is refuted if the whole interval is less than half
/// as far from 1.
#[must_use]
pub fn judge(published: f64, ratio: Ratio) -> Judgement {
    if (1.0 / MAX_LEVEL_RATIO..=MAX_LEVEL_RATIO).contains(&published) {
        return if ratio.low >= 1.0 / MAX_LEVEL_INTERVAL_RATIO
            && ratio.high <= MAX_LEVEL_INTERVAL_RATIO
            && is_close_to_one(ratio.estimate)
        {
            Judgement::Confirmed
        } else if ratio.low > MAX_LEVEL_RATIO || ratio.high < 1.0 / MAX_LEVEL_RATIO {
            Judgement::Refuted
        } else {
            Judgement::Inconclusive
        };
    }
    let (published, low, estimate, high) = if published > 1.0 {
        (published, ratio.low, ratio.estimate, ratio.high)
    } else {
        (1.0 / published, 1.0 / ratio.high, 1.0 / ratio.estimate, 1.0 / ratio.low)
    };
    let half = published.sqrt();
    if high < half {
        Judgement::Refuted
    } else if low > 1.0 && estimate >= half {
        Judgement::Confirmed
    } else {
        Judgement::Inconclusive
    }
}

/// Judges whether the first of two servers is equal to the second, within 5 %, or ahead of it.
fn judge_level_or_ahead(ratio: Ratio, measure: Measure) -> Judgement {
    let (low, high) =
        if measure.more_is_better() { (ratio.low, ratio.high) } else { (1.0 / ratio.high, 1.0 / ratio.low) };
    if low >= 1.0 / MAX_LEVEL_RATIO {
        Judgement::Confirmed
    } else if high < 1.0 / MAX_LEVEL_RATIO {
        Judgement::Refuted
    } else {
        Judgement::Inconclusive
    }
}

fn is_close_to_one(ratio: f64) -> bool {
    (1.0 / MAX_LEVEL_RATIO..=MAX_LEVEL_RATIO).contains(&ratio)
}

/// Returns the results for a claim, one for each pair of contenders.
fn judge_claim(claim: &'static Claim, comparisons: &[Comparison]) -> Vec<ClaimResult> {
    let concerned: Vec<&Comparison> = comparisons
        .iter()
        .filter(|comparison| {
            comparison.pair == claim.pair
                && comparison.measure == claim.measure
                && claim.concerns(&comparison.published_cell)
        })
        .collect();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for ours in concerned.iter().flat_map(|comparison| &comparison.ours) {
        let pair = (ours.contender.as_str(), ours.to.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let claim_result = |(contender, to): (&str, &str)| {
        let cells = concerned.iter().filter_map(|comparison| {
            let ours = comparison.ours.iter().find(|ours| ours.contender == contender && ours.to == to)?;
            Some((*comparison, ours))
        });
        judge_claim_for_pair(claim, contender, to, &cells.collect::<Vec<_>>())
    };
    pairs.into_iter().map(claim_result).collect()
}

fn judge_claim_for_pair(
    claim: &'static Claim,
    contender: &str,
    to: &str,
    cells: &[(&Comparison, &LocalResult)],
) -> ClaimResult {
    let judged_as = |ours: &LocalResult| match ours.ratio {
        Some(ratio) if claim.level_or_ahead && !ours.load_bound => judge_level_or_ahead(ratio, claim.measure),
        _ => ours.judgement,
    };
    let count = |judgement| cells.iter().filter(|(_, ours)| judged_as(ours) == judgement).count();
    let has_both = |(comparison, ours): &&(&Comparison, &LocalResult)| {
        comparison.published_ratio.is_some() && ours.ratio.is_some()
    };
    let both = || cells.iter().filter(has_both);
    ClaimResult {
        claim,
        contender: contender.to_owned(),
        to: to.to_owned(),
        holds: count(Judgement::Confirmed),
        does_not_hold: count(Judgement::Refuted),
        cannot_be_told: count(Judgement::Inconclusive),
        here: range(both().filter_map(|(_, ours)| Some(ours.ratio?.estimate))),
        published: range(both().filter_map(|(comparison, _)| comparison.published_ratio)),
        load_bound: cells.iter().any(|(_, ours)| ours.load_bound),
    }
}

/// Returns the smallest and the largest value.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.map(|value| (value, value)).reduce(|(low, high), (value, _)| (low.min(value), high.max(value)))
}
