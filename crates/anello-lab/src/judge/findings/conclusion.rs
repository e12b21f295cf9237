//! Conclusion of a run: one sentence of at most 20 words.

use crate::judge::findings::peers::decision_by;
use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::{extremes, quantile};
use crate::judge::verdict::verdict_on;
use crate::plan::cell::{Workload, counted};
use crate::result::measure::Measure;
use crate::result::{CellResult, ContenderRecord, LabResult, Outcome, Ratio, Row, Verdict};

/// Returns the conclusion of a run.
#[must_use]
pub fn sentence(result: &LabResult) -> String {
    let (measure, reference) = (measure(result), &result.plan.reference);
    let cells = cells_with(result, measure);
    let is_measured = |row: &Row| row.contender == *reference && row.outcome == Outcome::Measured;
    if !cells.iter().flat_map(|cell| &cell.rows).any(is_measured) {
        return format!("{reference} was not measured, so no contender can be compared with it.");
    }
    let verdict = copies(result)
        .or_else(|| peers(result, measure))
        .or_else(|| cheapest(result, &cells, measure))
        .unwrap_or_else(|| none_cheaper(result, &cells, measure));
    let mut methods =
        cells.iter().map(|cell| result.plan.method_name(&cell.cell)).filter(|name| !name.is_empty());
    match methods.next() {
        None => format!("{verdict}."),
        Some(first) if methods.all(|name| name == first) => format!("{verdict} ({first})."),
        Some(_) => format!("{verdict} (both methods)."),
    }
}

/// Returns the measure that the conclusion is about: memory if only idle connections were measured, the CPU time of
/// server and load generator if all responses are large, otherwise the CPU time of the server.
fn measure(result: &LabResult) -> Measure {
    let all = |is: fn(Workload) -> bool| {
        !result.cells.is_empty() && result.cells.iter().all(|cell| is(cell.cell.workload))
    };
    if all(|workload| workload == Workload::Idle) {
        Measure::Memory
    } else if all(Workload::has_large_answers) {
        Measure::TotalCpu
    } else {
        Measure::Cpu
    }
}

/// Returns the cells to which the measure applies.
fn cells_with(result: &LabResult, measure: Measure) -> Vec<&CellResult> {
    result.cells.iter().filter(|cell| measure.applies(&cell.cell)).collect()
}

fn noun(result: &LabResult, measure: Measure) -> &'static str {
    match measure {
        Measure::Memory => "memory",
        Measure::TotalCpu => "total CPU",
        _ if result.workload().is_disk() => "CPU per operation",
        _ => "CPU",
    }
}

/// Returns the contenders except the reference and twins, with their indices.
fn others(result: &LabResult) -> impl Iterator<Item = (usize, &ContenderRecord)> {
    let is_other =
        |record: &ContenderRecord| record.twin_of.is_none() && record.name != result.plan.reference;
    result.contenders.iter().enumerate().filter(move |(_, record)| is_other(record))
}

/// Returns the conclusion for a run with contenders that run the same command and executables as the reference. Any
/// claimed difference is a false positive. The twin is excluded, because the noise floor is computed from it.
fn copies(result: &LabResult) -> Option<String> {
    let reference = &result.contenders[result.original_index(&result.plan.reference)?];
    // A command contains only the file name of the executable, so two builds can have the same command.
    let is_copy = |record: &ContenderRecord| {
        (&record.command, &record.executables) == (&reference.command, &reference.executables)
    };
    let copies: Vec<usize> =
        others(result).filter(|(_, record)| is_copy(record)).map(|(index, _)| index).collect();
    let verdicts = |cell: &CellResult| -> Vec<Verdict> {
        let rows = copies.iter().filter_map(|copy| cell.rows.get(*copy));
        let verdicts = rows.flat_map(|row| Measure::ALL.map(|measure| row.comparison.verdict(measure)));
        verdicts.filter(|verdict| *verdict != Verdict::NotComparable).collect()
    };
    let judged: Vec<Vec<Verdict>> =
        result.cells.iter().map(verdicts).filter(|verdicts| !verdicts.is_empty()).collect();
    let claims = |verdict: &Verdict| matches!(verdict, Verdict::More | Verdict::Less);
    let unclaimed = judged.iter().filter(|verdicts| !verdicts.iter().any(claims)).count();
    let is_noisy = |verdicts: &&Vec<Verdict>| verdicts.iter().all(|verdict| *verdict == Verdict::TooNoisy);
    (!judged.is_empty()).then(|| {
        format!(
            "{} equal {} of {}: no difference claimed in {unclaimed} of {}, {} too noisy",
            copies.len(),
            if copies.len() == 1 { "copy" } else { "copies" },
            reference.name,
            counted(judged.len(), "cell"),
            judged.iter().filter(is_noisy).count()
        )
    })
}

/// Returns the conclusion for the first anello contender that was compared with peers.
fn peers(result: &LabResult, measure: Measure) -> Option<String> {
    let decision = |own| Some((own, decision_by(result, own, &[measure])?));
    let (own, decision) = result.contenders.iter().find_map(decision)?;
    let noisy = if decision.noisy > 0 { format!(", {} unclear", decision.noisy) } else { String::new() };
    Some(format!(
        "{} beats {} on {} in {} of {}, loses {}{noisy}",
        own.name,
        decision.peers,
        noun(result, measure),
        decision.better,
        counted(decision.comparisons(), "comparison"),
        decision.lost.len()
    ))
}

/// Ratios of one contender to another, by verdict.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) better: Vec<f64>,
    pub(crate) worse: Vec<f64>,
    pub(crate) equal: usize,
    pub(crate) noisy: usize,
}

impl Tally {
    pub(crate) fn of(measure: Measure, entries: impl Iterator<Item = (Ratio, Verdict)>) -> Tally {
        let mut tally = Tally::default();
        for (ratio, verdict) in entries {
            match (measure.is_better(verdict), verdict) {
                (Some(true), _) => tally.better.push(ratio.estimate),
                (Some(false), _) => tally.worse.push(ratio.estimate),
                (None, Verdict::TooNoisy) => tally.noisy += 1,
                (None, _) => tally.equal += 1,
            }
        }
        tally
    }

    /// Returns the number of cells in which the contender is cheaper, weighted by the median saving.
    fn weight(&self) -> f64 {
        self.better.len() as f64 * (1.0 - quantile(&self.better, 0.5).unwrap_or(1.0))
    }

    /// Returns `true` if the contender is cheaper in a cell and not more expensive in any cell.
    fn is_cheaper(&self) -> bool {
        !self.better.is_empty() && self.worse.is_empty()
    }
}

/// Formats the range of the ratios' distances from 1, for example "4.0–10 %".
fn range(ratios: &[f64]) -> String {
    let distances = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 100.0);
    let (low, high) = extremes(distances).unwrap_or_default();
    let digits =
        |percent: f64| if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") };
    let (low, high) = (digits(low), digits(high));
    if low == high { format!("{high}\u{a0}%") } else { format!("{low}–{high}\u{a0}%") }
}

/// Returns the contenders that are cheaper than the reference in some cell, largest savings first.
fn ranking(result: &LabResult, cells: &[&CellResult], measure: Measure) -> Vec<(usize, Tally)> {
    let tally = |(index, _): (usize, &ContenderRecord)| {
        let comparisons = cells.iter().filter_map(|cell| Some(cell.rows.get(index)?.comparison));
        let entries = comparisons.filter_map(|of| Some((of.ratio(measure)?, of.verdict(measure))));
        (index, Tally::of(measure, entries))
    };
    let mut ranking: Vec<(usize, Tally)> = others(result).map(tally).collect();
    ranking.retain(|(_, tally)| !tally.better.is_empty());
    ranking.sort_by(|(_, left), (_, right)| right.weight().total_cmp(&left.weight()));
    ranking
}

/// Returns a conclusion about the contender with the lowest cost. Calls it the cheapest only if it is not more
/// expensive than the reference in any cell and is cheaper than the runner-up.
fn cheapest(result: &LabResult, cells: &[&CellResult], measure: Measure) -> Option<String> {
    let ranking = ranking(result, cells, measure);
    let (first, tally) = ranking.first()?;
    let second = ranking.get(1).and_then(|(second, _)| compare(result, *first, *second, measure));
    let is_cheapest = tally.is_cheaper() && second.is_none_or(|tally| tally.is_cheaper());
    Some(format!(
        "{} is {}: {} less {} than {} in {} of {}",
        result.contenders[*first].name,
        if is_cheapest { "cheapest" } else { "among the cheapest" },
        range(&tally.better),
        noun(result, measure),
        result.plan.reference,
        tally.better.len(),
        counted(cells.len(), "cell")
    ))
}

/// Returns the name of the runner-up and its comparison with the lowest-cost contender. `None` if fewer than two
/// contenders are cheaper than the reference.
pub fn runner_up(result: &LabResult) -> Option<(String, String)> {
    let measure = measure(result);
    let ranking = ranking(result, &cells_with(result, measure), measure);
    let [(first, _), (second, _), ..] = ranking[..] else { return None };
    let tally = compare(result, first, second, measure)?;
    let (noun, cells) = (noun(result, measure), |count| counted(count, "cell"));
    let mut differences = Vec::new();
    for (ratios, word) in [(&tally.better, "less"), (&tally.worse, "more")] {
        if !ratios.is_empty() {
            differences.push(format!("{} {word} {noun} in {}", range(ratios), cells(ratios.len())));
        }
    }
    let mut clauses = Vec::new();
    if !differences.is_empty() {
        clauses.push(format!("{} needs {}", result.contenders[first].name, differences.join(" and ")));
    }
    for (count, words) in [(tally.equal, "no detectable difference"), (tally.noisy, "too noisy")] {
        if count > 0 {
            clauses.push(format!("{words} in {}", cells(count)));
        }
    }
    Some((result.contenders[second].name.clone(), clauses.join("; ")))
}

/// Compares two contenders. `None` if no cell contains both.
fn compare(result: &LabResult, first: usize, second: usize, measure: Measure) -> Option<Tally> {
    let slices = CleanSlices::of(result);
    // A result that was constructed by a program can have more cells than its plan.
    let cells = result.cells.iter().take(result.plan.cells.len()).enumerate();
    let compared = cells.filter_map(|(index, cell)| {
        let rows = [cell.rows.get(first)?, cell.rows.get(second)?];
        let is_compared =
            measure.applies(&cell.cell) && rows.iter().all(|row| row.outcome == Outcome::Measured);
        let ratio = is_compared.then(|| slices.ratio(index, first, second, measure))??;
        Some((ratio, verdict_on(ratio, measure.resolution(cell))))
    });
    let compared: Vec<(Ratio, Verdict)> = compared.collect();
    (!compared.is_empty()).then(|| Tally::of(measure, compared.into_iter()))
}

/// Returns the conclusion of a run in which no contender is significantly cheaper than the reference.
fn none_cheaper(result: &LabResult, cells: &[&CellResult], measure: Measure) -> String {
    let (reference, server) = (&result.plan.reference, result.workload().server_noun());
    let noun = noun(result, measure);
    let ratio = |cell: &CellResult, index: usize| cell.rows.get(index)?.comparison.ratio(measure);
    let is_compared = |cell: &&&CellResult| others(result).any(|(index, _)| ratio(cell, index).is_some());
    let is_noisy = |cell: &&&CellResult| {
        cell.rows.iter().any(|row| row.comparison.verdict(measure) == Verdict::TooNoisy)
    };
    let alone = others(result).next().is_none();
    let missing = if alone { 0 } else { cells.len() - cells.iter().filter(is_compared).count() };
    let noisy = cells.iter().filter(is_noisy).count();
    if missing == cells.len() {
        return format!("No other {server} could be compared with {reference}");
    }
    if noisy == cells.len() {
        return format!("Too noisy to determine whether any {server} beats {reference} on {noun}");
    }
    let mut text = format!("No {server} beats {reference} on {noun} in {}", counted(cells.len(), "cell"));
    for (count, words) in [(noisy, "too noisy"), (missing, "not compared")] {
        if count > 0 {
            text += &format!(", {count} {words}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_formats_distances_from_one() {
        for (ratios, expected) in
            [([0.96, 0.9], "4.0–10 %"), ([1.04, 1.04], "4.0 %"), ([1.2, 2.5], "20–150 %")]
        {
            assert_eq!(range(&ratios).replace('\u{a0}', " "), expected);
        }
    }
}
