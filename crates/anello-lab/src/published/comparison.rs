//! Published ratios beside those of a run, and whether a claim holds here.
//!
//! A published ratio names two servers and a cell. Where the run has the same cell (what was asked, connections, cores,
//! offered rate) and contenders that stand for the two, its own ratio with its interval stands beside the published
//! one. [`judge()`] says what follows:
//!
//! ```text
//!  published 1.50        1 ......... 1.22 ............ 1.50 ........
//!  does not hold     |--|                                              less than half of the difference (in factors)
//!  holds                                |------|                       in the same direction, and at least half of it
//!  cannot be told      |------------------------|                      the interval allows for both
//! ```

use std::collections::HashMap;

use crate::cell::{Cell, Workload};
use crate::measure::Measure;
use crate::pairs::CleanSlices;
use crate::published::{Claim, Expectation, Figure, Pair, PublishedCell, SOURCES, Source, parse, same_name};
use crate::result::{LabResult, Row};
use crate::statistics::Ratio;

/// Published ratios nearer to 1 than this factor say that the two are level.
const MAX_LEVEL_RATIO: f64 = 1.05;

/// Two servers are level here if the whole interval lies within this factor of 1.
const MAX_LEVEL_INTERVAL_RATIO: f64 = 1.10;

/// Offered rates that differ by less than this factor are compared.
const MAX_RATE_RATIO: f64 = 1.3;

/// One published table beside a run.
#[derive(Debug, Clone)]
pub struct PublishedComparison {
    /// The table.
    pub source: Source,
    /// Its ratios, in the order of the table, as far as the run has the cell and a pair of contenders for it.
    pub comparisons: Vec<Comparison>,
    /// Its claims, for each pair of contenders that could confirm or refute them.
    pub claims: Vec<ClaimResult>,
}

/// One published ratio, and what is found here.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Index of the published pair.
    pub pair: usize,
    /// What is compared.
    pub measure: Measure,
    /// Where it was published.
    pub published_cell: PublishedCell,
    /// The cell here: the same, or the share of it that one core of load had; the offered rate may be a near one.
    pub cell: Cell,
    /// The two published figures; none where it failed or was not published.
    pub published_figures: (Option<f64>, Option<f64>),
    /// Their ratio.
    pub published_ratio: Option<f64>,
    /// What is found here, for each pair of contenders.
    pub ours: Vec<LocalResult>,
}

/// The ratio of two contenders of the run.
#[derive(Debug, Clone)]
pub struct LocalResult {
    /// The contender whose multiple it is.
    pub contender: String,
    /// The contender it is a multiple of.
    pub to: String,
    /// The medians of the two; none for a contender that was not measured.
    pub figures: (Option<f64>, Option<f64>),
    /// The ratio; none if one of the two was not measured.
    pub ratio: Option<Ratio>,
    /// Whether the load set the pace, so that a ratio of rates says little about the servers.
    pub load_bound: bool,
    /// What follows for the published ratio.
    pub judgement: Judgement,
}

/// Whether a published ratio is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It is.
    Confirmed,
    /// It is refuted.
    Refuted,
    /// The interval allows for both.
    Inconclusive,
    /// One of the two contenders was not measured, or nothing was published to compare with.
    NotComparable,
}

/// A claim in words, and what one pair of contenders says about it.
#[derive(Debug, Clone)]
pub struct ClaimResult {
    /// The claim.
    pub claim: Claim,
    /// The contender whose multiple is given.
    pub contender: String,
    /// The contender it is a multiple of.
    pub to: String,
    /// In so many cells it holds.
    pub holds: usize,
    /// In so many cells it is refuted.
    pub does_not_hold: usize,
    /// In so many cells it cannot be told.
    pub cannot_be_told: usize,
    /// The verdict and the figures in a sentence.
    pub sentence: String,
}

impl ClaimResult {
    /// The judgement over all cells; none if some cells confirm the claim and others refute it.
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

/// The published tables that this run has something to say about; the one that its scenario repeats comes first.
#[must_use]
pub fn compare_with_published(result: &LabResult) -> Vec<PublishedComparison> {
    let slices = CleanSlices::of(result);
    let mut found: Vec<PublishedComparison> =
        SOURCES.iter().filter_map(|source| compare_with_source(result, &slices, source)).collect();
    found.sort_by_key(|beside| beside.source.key != result.plan.scenario.name);
    found
}

fn compare_with_source(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    source: &Source,
) -> Option<PublishedComparison> {
    // The tables are part of the program and are read by its tests: one that cannot be read does not get here.
    let figures = parse(source.table).ok()?;
    let mut comparisons = Vec::new();
    for (index, pair) in source.pairs.iter().enumerate() {
        for &measure in pair.measures {
            for (ours, to) in published_pairs(&figures, pair) {
                let cell = matching_cell(result, source, &ours.cell);
                comparisons.extend(
                    cell.and_then(|cell| compare(result, slices, (cell, index, pair), measure, ours, to)),
                );
            }
        }
    }
    let claims = source.claims.iter().flat_map(|claim| judge_claim(claim, &comparisons)).collect();
    (!comparisons.is_empty()).then_some(PublishedComparison { source: *source, comparisons, claims })
}

/// The figures of both servers of a pair, cell by cell.
fn published_pairs<'a>(figures: &'a [Figure], pair: &Pair) -> Vec<(&'a Figure, &'a Figure)> {
    let others: HashMap<_, _> = figures
        .iter()
        .filter(|figure| figure.server == pair.to)
        .map(|figure| ((figure.cell, figure.column), figure))
        .collect();
    let ones = figures.iter().filter(|figure| figure.server == pair.server);
    ones.filter_map(|one| Some((one, *others.get(&(one.cell, one.column))?))).collect()
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
        .filter_map(|names| our_ratio(result, slices, cell, *names, measure, published_ratio))
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

/// The cell of the run that is the published one, or the share of it that one core of load had. Where rates were
/// offered, the one with the nearest rate.
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
    let judgement = match (published, ratio) {
        (Some(published), Some(ratio)) => match judge(published, ratio) {
            // Two servers that both wait for the load look level, whatever they could do.
            Judgement::Refuted | Judgement::Confirmed if load_bound => Judgement::Inconclusive,
            judgement => judgement,
        },
        _ => Judgement::NotComparable,
    };
    Some(LocalResult {
        contender: row.contender.clone(),
        to: row_to.contender.clone(),
        figures: (median_of(row, measure), median_of(row_to, measure)),
        ratio,
        load_bound,
        judgement,
    })
}

/// The contender that goes by this name, whatever the letters' case and the signs between them.
fn contender_named(result: &LabResult, name: &str) -> Option<usize> {
    result.contenders.iter().position(|contender| same_name(&contender.name, name))
}

fn median_of(row: &Row, measure: Measure) -> Option<f64> {
    let figures = row.figures.as_ref()?;
    Some(match measure {
        Measure::Rate => figures.requests_per_second.median,
        Measure::Cpu => figures.cpu_ns.median,
        Measure::P50 => figures.p50_ns.median,
        Measure::P99 => figures.p99_ns.median,
        Measure::Memory => row.memory_per_connection_bytes?.median,
        Measure::TotalCpu => figures.cpu_of_both_ns?.median,
    })
}

/// Whether the interval found here confirms a published ratio.
///
/// A published ratio within 5 % of 1 says that two servers are level; that holds if the whole interval lies within 10 %
/// of 1, and is refuted if it lies beyond 5 %. Any other says that one is ahead; that holds if the interval lies on the
/// same side of 1 and the estimate is at least half as far from it (in factors), and is refuted if the whole interval
/// is less than half as far.
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

/// Whether the first of two servers is level with the second, within 5 %, or ahead of it.
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

/// What each pair of contenders says about a claim.
fn judge_claim(claim: &Claim, comparisons: &[Comparison]) -> Vec<ClaimResult> {
    let concerned: Vec<&Comparison> = comparisons
        .iter()
        .filter(|comparison| {
            comparison.pair == claim.pair
                && comparison.measure == claim.measure
                && (claim.concerns)(&comparison.published_cell)
        })
        .collect();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for ours in concerned.iter().flat_map(|comparison| &comparison.ours) {
        let pair = (ours.contender.as_str(), ours.to.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let found = |(contender, to): (&str, &str)| {
        let cells = concerned.iter().filter_map(|comparison| {
            let ours = comparison.ours.iter().find(|ours| ours.contender == contender && ours.to == to)?;
            Some((*comparison, ours))
        });
        claim_found(claim, contender, to, &cells.collect::<Vec<_>>())
    };
    pairs.into_iter().map(found).collect()
}

fn claim_found(
    claim: &Claim,
    contender: &str,
    to: &str,
    cells: &[(&Comparison, &LocalResult)],
) -> ClaimResult {
    let judged_as = |ours: &LocalResult| match (claim.expects, ours.ratio) {
        (Expectation::LevelOrAhead, Some(ratio)) if !ours.load_bound => {
            judge_level_or_ahead(ratio, claim.measure)
        }
        _ => ours.judgement,
    };
    let count = |judgement| cells.iter().filter(|(_, ours)| judged_as(ours) == judgement).count();
    let mut found = ClaimResult {
        claim: *claim,
        contender: contender.to_owned(),
        to: to.to_owned(),
        holds: count(Judgement::Confirmed),
        does_not_hold: count(Judgement::Refuted),
        cannot_be_told: count(Judgement::Inconclusive),
        sentence: String::new(),
    };
    let judged = found.holds + found.does_not_hold + found.cannot_be_told;
    let verdict = match (found.judgement(), found.holds + found.does_not_hold == judged) {
        _ if judged == 0 => "cannot be told here: it was not measured".to_owned(),
        (Some(Judgement::Confirmed), true) => "holds here".to_owned(),
        (Some(Judgement::Refuted), true) => "does not hold here".to_owned(),
        (Some(Judgement::Confirmed), _) => {
            format!("holds here in {} of {judged} cells, the others cannot be told", found.holds)
        }
        (Some(Judgement::Refuted), _) => {
            format!(
                "does not hold here in {} of {judged} cells, the others cannot be told",
                found.does_not_hold
            )
        }
        (None, _) => {
            format!("holds here in {} of {judged} cells and does not in {}", found.holds, found.does_not_hold)
        }
        (Some(_), _) => "cannot be told here".to_owned(),
    };
    let ratios = |ratios: Vec<f64>| -> Option<String> {
        let least = ratios.iter().copied().min_by(f64::total_cmp)?;
        let most = ratios.iter().copied().max_by(f64::total_cmp)?;
        let (least, most) = (format!("{least:.2}"), format!("{most:.2}"));
        Some(if least == most { least } else { format!("{least} to {most}") })
    };
    let compared = || {
        cells.iter().filter(|(comparison, ours)| comparison.published_ratio.is_some() && ours.ratio.is_some())
    };
    let here = ratios(compared().filter_map(|(_, ours)| Some(ours.ratio?.estimate)).collect());
    let there = ratios(compared().filter_map(|(comparison, _)| comparison.published_ratio).collect());
    let figures = match (here, there) {
        (Some(here), Some(there)) => {
            let workload = cells.first().map_or(Workload::Idle, |(comparison, _)| comparison.cell.workload);
            let figure = claim.measure.name(workload);
            format!(": {contender} against {to} {here} in {figure}, published {there}")
        }
        _ => String::new(),
    };
    let bound = if cells.iter().any(|(_, ours)| ours.load_bound) {
        "; the load set the pace in some cells"
    } else {
        ""
    };
    found.sentence = format!("{verdict}{figures}{bound}");
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Target;

    fn ratio(low: f64, estimate: f64, high: f64) -> Ratio {
        Ratio { estimate, low, high, pairs: 9, passes: 9, stretch: 1.0 }
    }

    #[test]
    fn a_claim_to_be_ahead_needs_half_of_the_difference() {
        assert_eq!(judge(1.5, ratio(1.40, 1.45, 1.60)), Judgement::Confirmed);
        assert_eq!(judge(1.5, ratio(1.80, 1.90, 2.00)), Judgement::Confirmed, "more than was claimed");
        assert_eq!(judge(1.5, ratio(1.18, 1.25, 1.30)), Judgement::Confirmed, "more than half");
        assert_eq!(judge(1.5, ratio(0.99, 1.02, 1.05)), Judgement::Refuted);
        assert_eq!(judge(1.5, ratio(1.10, 1.12, 1.15)), Judgement::Refuted, "beyond doubt, but little");
        assert_eq!(judge(1.5, ratio(0.60, 0.70, 0.80)), Judgement::Refuted, "the other way round");
        assert_eq!(judge(1.5, ratio(0.90, 1.20, 1.55)), Judgement::Inconclusive);
    }

    #[test]
    fn a_claim_to_be_behind_is_the_same_seen_from_the_other_side() {
        for (low, estimate, high) in
            [(1.40, 1.45, 1.60), (0.99, 1.02, 1.05), (0.60, 0.70, 0.80), (0.90, 1.20, 1.55), (1.1, 1.2, 1.3)]
        {
            let forward = judge(1.5, ratio(low, estimate, high));
            assert_eq!(judge(1.0 / 1.5, ratio(1.0 / high, 1.0 / estimate, 1.0 / low)), forward);
        }
    }

    #[test]
    fn a_claim_to_be_level_needs_a_narrow_interval() {
        assert_eq!(judge(1.02, ratio(0.97, 1.01, 1.05)), Judgement::Confirmed);
        assert_eq!(judge(0.97, ratio(1.06, 1.20, 1.30)), Judgement::Refuted);
        assert_eq!(judge(1.00, ratio(0.80, 1.00, 1.20)), Judgement::Inconclusive);
    }

    #[test]
    fn published_ratios_are_those_worked_out_by_hand() {
        let find = |key: &str, pair: usize, connections: usize, bytes: usize, measure: Measure| {
            let source = SOURCES.iter().find(|source| source.key == key).unwrap();
            let figures = parse(source.table).unwrap();
            let pairs = published_pairs(&figures, &source.pairs[pair]);
            let wanted = |(one, _): &&(&Figure, &Figure)| {
                one.cell.connections == connections
                    && one.cell.workload == Workload::Echo { message_bytes: bytes }
                    && one.cell.server_cores == 1
            };
            let (one, other) = pairs.iter().find(wanted).unwrap();
            match measure {
                Measure::Cpu => one.cpu_ns_per_request().unwrap() / other.cpu_ns_per_request().unwrap(),
                _ => one.requests_per_second.unwrap() / other.requests_per_second.unwrap(),
            }
        };
        let near = |found: f64, by_hand: f64| assert!((found - by_hand).abs() < 5e-4, "{found} {by_hand}");
        near(find("frevib", 0, 300, 128, Measure::Rate), 1.4887); // 216637 / 145517
        near(find("frevib", 0, 500, 128, Measure::Rate), 1.6848); // 211280 / 125402
        near(find("frevib", 0, 1, 1000, Measure::Rate), 1.0647); // 14024 / 13172
        near(find("joakimthun", 0, 512, 1024, Measure::Rate), 0.8744); // 354244 / 405133
        near(find("monoio-peak", 0, 560, 1024, Measure::Rate), 1.1691); // 223168 / 190892
        near(find("monoio-fixed", 0, 1000, 1024, Measure::Cpu), 0.9427); // 21.4 / 22.7 at 40000 each
        near(find("go-uring", 0, 100, 128, Measure::Rate), 0.2578); // 34202 / 132664
        near(find("go-uring", 1, 500, 128, Measure::Rate), 0.9152); // 134863 / 147362
    }

    #[test]
    fn published_ratios_about_http_are_those_worked_out_by_hand() {
        let ratios = |key: &str, pair: usize| -> Vec<(Target, f64)> {
            let source = SOURCES.iter().find(|source| source.key == key).unwrap();
            let figures = parse(source.table).unwrap();
            let ratio = |(one, other): (&Figure, &Figure)| {
                (
                    one.cell.workload.target().unwrap(),
                    one.requests_per_second.unwrap() / other.requests_per_second.unwrap(),
                )
            };
            published_pairs(&figures, &source.pairs[pair]).into_iter().map(ratio).collect()
        };
        assert_eq!(ratios("chen622", 0), [(Target::Fixed, 717.7 / 1878.5)]);
        assert_eq!(ratios("chen622", 1), [(Target::Page, 615.0 / 592.8), (Target::Fixed, 713.7 / 717.7)]);
        assert_eq!(ratios("chen622", 2), [(Target::Fixed, 713.7 / 1878.5)]);
        assert_eq!(ratios("chen622-nginx", 0), [(Target::Large, 322.0 / 346.0)]);
        assert_eq!(ratios("chen622-nginx", 1), [(Target::Large, 321.0 / 346.0)]);
    }

    #[test]
    fn columns_of_the_same_heading_are_kept_apart() {
        let source = SOURCES.iter().find(|source| source.key == "go-uring").unwrap();
        let figures = parse(source.table).unwrap();
        let rates: Vec<f64> = published_pairs(&figures, &source.pairs[0])
            .iter()
            .filter(|(one, _)| one.cell.connections == 1000)
            .filter(|(one, _)| one.cell.workload == Workload::Echo { message_bytes: 128 })
            .filter_map(|(one, other)| Some(one.requests_per_second? / other.requests_per_second?))
            .collect();
        assert_eq!(rates.len(), 2);
        assert!(
            (rates[0] - 139_313.0 / 139_171.0).abs() < 1e-9
                && (rates[1] - 158_483.0 / 133_480.0).abs() < 1e-9
        );
    }

    #[test]
    fn who_stands_for_a_published_server_does_io_as_it_did() {
        let ways = [("io_uring", "epoll"), ("epoll", "io_uring")];
        for pair in SOURCES.iter().flat_map(|source| source.pairs) {
            let stand_ins = pair.ours.iter().flat_map(|(one, to)| [(one, pair.server), (to, pair.to)]);
            for (ours, published) in stand_ins {
                let other = ways.iter().find(|(way, _)| *way == published).map(|(_, other)| *other);
                assert!(other.is_none_or(|other| !ours.contains(other)), "{ours} for {published}");
            }
        }
    }

    #[test]
    fn every_claim_concerns_cells_of_its_table_and_agrees_with_them() {
        for source in SOURCES {
            let figures = parse(source.table).unwrap();
            for claim in source.claims {
                let pairs = published_pairs(&figures, &source.pairs[claim.pair]);
                assert!(pairs.iter().any(|(one, _)| (claim.concerns)(&one.cell)), "{}", claim.words);
                assert!(source.pairs[claim.pair].measures.contains(&claim.measure), "{}", claim.words);
            }
        }
    }
}
