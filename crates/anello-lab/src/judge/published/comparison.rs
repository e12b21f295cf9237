//! Comparison of published ratios with the measured ratios of a run.
//!
//! A published ratio refers to two servers and a cell. If the run has the same cell (workload, connections, cores,
//! offered rate) and contenders that correspond to the two servers, the measured ratio and its interval are compared
//! with the published ratio. [`judge()`] decides whether the run confirms it:
//!
//! ```text
//!  published 1.50        1 ......... 1.22 ............ 1.50 ........
//!  refuted           |--|                                              less than half the difference (on a log scale)
//!  confirmed                            |------|                       in the same direction, and at least half of it
//!  inconclusive        |------------------------|                      the interval allows either result
//! ```

use crate::judge::pairs::CleanSlices;
use crate::judge::published::sources::{Claim, SOURCES, Source};
use crate::judge::published::table::{Figure, PublishedCell, parse, same_name};
use crate::judge::statistics::extremes;
use crate::plan::cell::Cell;
use crate::result::measure::Measure;
use crate::result::unique::unique;
use crate::result::{LabResult, Ratio};

/// A published ratio within this factor of 1 counts as a claim that the two servers are equal.
const MAX_LEVEL_RATIO: f64 = 1.05;

/// Two servers of a run count as equal only if the whole interval of their ratio is within this factor of 1.
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
    /// Corresponding cell of the run: the same cell (with a similar offered rate), or one load generator core's share
    /// of the published cell.
    pub cell: Cell,
    /// Published figures of the two servers; `None` for a measurement that failed or was not published.
    pub(crate) published_figures: (Option<f64>, Option<f64>),
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
    pub(crate) figures: (Option<f64>, Option<f64>),
    /// Ratio of the two contenders; `None` if one of them was not measured.
    pub ratio: Option<Ratio>,
    /// `true` if the load generator limited both rates, in which case their ratio says nothing about the servers.
    pub(crate) load_bound: bool,
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
    pub(crate) inconclusive: usize,
    /// Smallest and largest ratio in the run; `None` if no cell has both ratios.
    pub here: Option<(f64, f64)>,
    /// Smallest and largest published ratio in the same cells.
    pub published: Option<(f64, f64)>,
    /// `true` if the load generator limited both rates in a cell.
    pub load_bound: bool,
}

impl ClaimResult {
    /// Returns the judgement over all cells, or `None` if some cells confirm the claim and others refute it.
    pub(crate) fn judgement(&self) -> Option<Judgement> {
        let (confirmed, refuted) = (self.holds > 0, self.does_not_hold > 0);
        (!(confirmed && refuted)).then(|| judgement(confirmed, refuted))
    }
}

fn judgement(is_confirmed: bool, is_refuted: bool) -> Judgement {
    match (is_confirmed, is_refuted) {
        (true, _) => Judgement::Confirmed,
        (_, true) => Judgement::Refuted,
        _ => Judgement::Inconclusive,
    }
}

/// Compares the run with all published tables for which it has cells and contenders. The table that the scenario
/// reproduces comes first.
#[must_use]
pub fn compare_with_published(result: &LabResult) -> Vec<PublishedComparison> {
    let slices = CleanSlices::of(result);
    let mut comparisons: Vec<PublishedComparison> =
        SOURCES.iter().filter_map(|source| compare_with_source(&slices, source)).collect();
    comparisons.sort_by_key(|comparison| comparison.source.key != result.plan.scenario.name);
    comparisons
}

fn compare_with_source(slices: &CleanSlices<'_>, source: &'static Source) -> Option<PublishedComparison> {
    // The tables are compiled in and the tests parse all of them, so parsing does not fail here.
    let figures = parse(source.table()).ok()?;
    let mut comparisons = Vec::new();
    for (index, pair) in source.pairs.iter().enumerate() {
        for &measure in &pair.measures {
            let published = pair.figures(&figures).into_iter();
            comparisons
                .extend(published.filter_map(|(one, to)| compare(slices, source, index, measure, one, to)));
        }
    }
    let claims = source.claims.iter().flat_map(|claim| judge_claim(claim, &comparisons)).collect();
    (!comparisons.is_empty()).then_some(PublishedComparison { source, comparisons, claims })
}

/// Returns `None` if the run lacks the cell or the contenders.
fn compare(
    slices: &CleanSlices<'_>,
    source: &Source,
    pair: usize,
    measure: Measure,
    published: &Figure,
    published_to: &Figure,
) -> Option<Comparison> {
    let cell = matching_cell(slices.result, source, &published.cell)?;
    let value = |figure: &Figure| match measure {
        Measure::Rate => figure.requests_per_second,
        Measure::Cpu => figure.cpu_ns_per_request(),
        Measure::P50 | Measure::P99 => figure.latency_mean_us.map(|us| us * 1e3),
        Measure::Memory | Measure::TotalCpu => None,
    };
    let published_figures = (value(published), value(published_to));
    let both = published_figures.0.zip(published_figures.1);
    let published_ratio = both.filter(|(_, to)| *to > 0.0).map(|(one, to)| one / to);
    let ours = source.pairs[pair].ours.iter();
    let ours: Vec<LocalResult> =
        ours.filter_map(|ours| local_result(slices, cell, ours, measure, published_ratio)).collect();
    (!ours.is_empty()).then(|| Comparison {
        pair,
        measure,
        published_cell: published.cell,
        cell: slices.result.plan.cells[cell],
        published_figures,
        published_ratio,
        ours,
    })
}

/// Returns the index of the cell in the run that matches the published cell. If no cell does, divides the published
/// connections and rate by the number of load generator cores, and tries again. If several cells differ only in the
/// offered rate, returns the one with the closest rate.
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
    nearest(1).or_else(|| nearest(source.load_cores.unwrap_or(1)))
}

fn local_result(
    slices: &CleanSlices<'_>,
    cell: usize,
    (contender, to): &(String, String),
    measure: Measure,
    published: Option<f64>,
) -> Option<LocalResult> {
    let result = slices.result;
    let index_of = |name: &str| result.contenders.iter().position(|record| same_name(&record.name, name));
    let (one, other) = (index_of(contender)?, index_of(to)?);
    let rows = &result.cells.get(cell)?.rows;
    let both = [rows.get(one)?, rows.get(other)?];
    let is_measured = both.iter().all(|row| row.figures.is_some());
    let ratio = if is_measured { slices.ratio(cell, one, other, measure) } else { None };
    let load_bound = measure == Measure::Rate
        && both.iter().all(|row| row.figures.as_ref().is_some_and(|figures| figures.load_bottleneck));
    let [figure, figure_to] = both.map(|row| row.figure(measure).map(|figure| figure.median));
    Some(LocalResult {
        contender: both[0].contender.clone(),
        to: both[1].contender.clone(),
        figures: (figure, figure_to),
        ratio,
        load_bound,
        judgement: match published.zip(ratio) {
            None => Judgement::NotComparable,
            // Two servers that both wait for the load generator have equal rates, regardless of their capacity.
            Some(_) if load_bound => Judgement::Inconclusive,
            Some((published, ratio)) => judge(published, ratio),
        },
    })
}

/// Judges whether the measured `ratio` confirms a published ratio.
///
/// A published ratio within 5 % of 1 claims that two servers are equal. It is confirmed if the whole interval is within
/// 10 % of 1 and the estimate within 5 %, and refuted if the whole interval differs from 1 by more than 5 %.
///
/// Any other published ratio claims that one server is ahead. It is confirmed if the interval is on the same side of 1
/// and the estimate is at least half as far from 1 as the published ratio (on a logarithmic scale). It is refuted if
/// the whole interval is less than half as far from 1.
#[must_use]
pub fn judge(published: f64, ratio: Ratio) -> Judgement {
    let is_within = |max_ratio: f64, ratio: f64| (1.0 / max_ratio..=max_ratio).contains(&ratio);
    if is_within(MAX_LEVEL_RATIO, published) {
        let is_narrow =
            [ratio.low, ratio.high].iter().all(|bound| is_within(MAX_LEVEL_INTERVAL_RATIO, *bound));
        let is_refuted = ratio.low > MAX_LEVEL_RATIO || ratio.high < 1.0 / MAX_LEVEL_RATIO;
        return judgement(is_narrow && is_within(MAX_LEVEL_RATIO, ratio.estimate), is_refuted);
    }
    let (published, low, estimate, high) = if published > 1.0 {
        (published, ratio.low, ratio.estimate, ratio.high)
    } else {
        (1.0 / published, 1.0 / ratio.high, 1.0 / ratio.estimate, 1.0 / ratio.low)
    };
    let half = published.sqrt();
    judgement(low > 1.0 && estimate >= half, high < half)
}

fn judge_claim(claim: &'static Claim, comparisons: &[Comparison]) -> Vec<ClaimResult> {
    let concerned = comparisons.iter().filter(|comparison| {
        (comparison.pair, comparison.measure) == (claim.pair, claim.measure)
            && claim.concerns(&comparison.published_cell)
    });
    let cells: Vec<(&Comparison, &LocalResult)> =
        concerned.flat_map(|comparison| comparison.ours.iter().map(move |ours| (comparison, ours))).collect();
    let judged = |ours: &LocalResult| match ours.ratio {
        Some(Ratio { low, high, .. }) if claim.level_or_ahead && !ours.load_bound => {
            // The claim holds if the first server is within 5 % of the second or ahead of it.
            let is_rate = claim.measure.more_is_better();
            let (low, high) = if is_rate { (low, high) } else { (1.0 / high, 1.0 / low) };
            judgement(low >= 1.0 / MAX_LEVEL_RATIO, high < 1.0 / MAX_LEVEL_RATIO)
        }
        _ => ours.judgement,
    };
    let claim_result = |(contender, to): (&String, &String)| {
        let of_pair = cells.iter().filter(|(_, ours)| (&ours.contender, &ours.to) == (contender, to));
        let count = |judgement| of_pair.clone().filter(|(_, ours)| judged(ours) == judgement).count();
        let ratios =
            of_pair.clone().filter_map(|(of, ours)| Some((of.published_ratio?, ours.ratio?.estimate)));
        ClaimResult {
            claim,
            contender: contender.clone(),
            to: to.clone(),
            holds: count(Judgement::Confirmed),
            does_not_hold: count(Judgement::Refuted),
            inconclusive: count(Judgement::Inconclusive),
            here: extremes(ratios.clone().map(|(_, here)| here)),
            published: extremes(ratios.map(|(published, _)| published)),
            load_bound: of_pair.clone().any(|(_, ours)| ours.load_bound),
        }
    };
    let pairs = unique(cells.iter().map(|(_, ours)| (&ours.contender, &ours.to)));
    pairs.into_iter().map(claim_result).collect()
}
