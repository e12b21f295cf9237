//! Conclusion of a run: one sentence of at most 20 words.

use crate::judge::findings::method;
use crate::judge::findings::peers::decision_by;
use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::quantile;
use crate::judge::verdict::verdict_on;
use crate::plan::cell::Workload;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Outcome, Row, Verdict};

/// Returns the conclusion of a run.
#[must_use]
pub fn sentence(result: &LabResult) -> String {
    let (measure, reference) = (measure(result), &result.plan.reference);
    let cells: Vec<&CellResult> = result.cells.iter().filter(|cell| measure.applies(&cell.cell)).collect();
    let is_measured = |row: &Row| row.contender == *reference && row.outcome == Outcome::Measured;
    if !cells.iter().flat_map(|cell| &cell.rows).any(is_measured) {
        return format!("{reference} was not measured, so no contender can be compared with it.");
    }
    let verdict = copies(result)
        .or_else(|| peers(result, measure))
        .or_else(|| cheapest(result, &cells, measure))
        .unwrap_or_else(|| none_cheaper(result, &cells, measure));
    match method::summary(&result.plan, cells.iter().map(|cell| &cell.cell)) {
        "" => format!("{verdict}."),
        method => format!("{verdict} ({method})."),
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

/// Returns a short name for the measure.
fn noun(result: &LabResult, measure: Measure) -> &'static str {
    match measure {
        Measure::Memory => "memory",
        Measure::TotalCpu => "total CPU",
        _ if result.workload().is_disk() => "CPU per operation",
        _ => "CPU",
    }
}

/// Returns the conclusion for a run with copies of the reference, where any claimed difference is a false positive. A
/// copy runs the same command with the same executables. The twin does not count: the noise floor is computed from it.
fn copies(result: &LabResult) -> Option<String> {
    let reference = result.contenders.iter().find(|record| record.name == result.plan.reference)?;
    let others =
        result.contenders.iter().filter(|record| record.twin_of.is_none() && record.name != reference.name);
    // A command contains only the file name of the executable, so two builds can have the same command.
    let copies: Vec<&str> = others
        .filter(|record| record.command == reference.command && record.executables == reference.executables)
        .map(|record| record.name.as_str())
        .collect();
    let verdicts = |cell: &CellResult| -> Vec<Verdict> {
        let rows = cell.rows.iter().filter(|row| copies.contains(&row.contender.as_str()));
        let verdicts = rows.flat_map(|row| Measure::ALL.map(|measure| measure.verdict(row)));
        verdicts.filter(|verdict| *verdict != Verdict::NotComparable).collect()
    };
    let judged: Vec<Vec<Verdict>> =
        result.cells.iter().map(verdicts).filter(|verdicts| !verdicts.is_empty()).collect();
    let claimed = |verdicts: &&Vec<Verdict>| {
        verdicts.iter().any(|verdict| matches!(verdict, Verdict::More | Verdict::Less))
    };
    let noisy = |verdicts: &&Vec<Verdict>| verdicts.iter().all(|verdict| *verdict == Verdict::TooNoisy);
    (!judged.is_empty()).then(|| {
        format!(
            "{} of {}: no difference claimed in {} of {}, {} too noisy",
            counted(copies.len(), "equal copy", "equal copies"),
            reference.name,
            judged.len() - judged.iter().filter(claimed).count(),
            counted(judged.len(), "cell", "cells"),
            judged.iter().filter(noisy).count()
        )
    })
}

/// Returns the conclusion for the first anello contender that was compared with peers.
fn peers(result: &LabResult, measure: Measure) -> Option<String> {
    let decision = |own| Some((own, decision_by(result, own, &[measure])?));
    let (own, decision) = result.contenders.iter().find_map(decision)?;
    let noisy = if decision.noisy > 0 { format!(", {} unclear", decision.noisy) } else { String::new() };
    Some(format!(
        "{} beats {} by {} in {} of {}, loses {}{noisy}",
        own.name,
        decision.peers,
        noun(result, measure),
        decision.better,
        counted(decision.comparisons(), "comparison", "comparisons"),
        decision.lost.len()
    ))
}

/// Ratios of one contender to another, by verdict.
#[derive(Debug, Default)]
struct Tally {
    better: Vec<f64>,
    worse: Vec<f64>,
    equal: usize,
    noisy: usize,
}

impl Tally {
    fn of(measure: Measure, entries: impl Iterator<Item = (Ratio, Verdict)>) -> Tally {
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

    /// Returns the tally of a contender against the reference.
    fn against_reference(cells: &[&CellResult], name: &str, measure: Measure) -> Tally {
        let rows = cells.iter().flat_map(|cell| &cell.rows).filter(|row| row.contender == name);
        Tally::of(measure, rows.filter_map(|row| Some((measure.ratio(row)?, measure.verdict(row)))))
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

/// Formats the range of the ratios' distances from 1: "4.0–10 %".
fn range(ratios: &[f64]) -> String {
    let distances = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 100.0);
    let (low, high) =
        distances.fold((f64::MAX, 0.0f64), |(low, high), distance| (low.min(distance), high.max(distance)));
    let digits =
        |percent: f64| if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") };
    let (low, high) = (digits(low), digits(high));
    if low == high { format!("{high}\u{a0}%") } else { format!("{low}–{high}\u{a0}%") }
}

/// Returns the contender with the largest savings compared with the reference, and the runner-up.
fn ranking<'a>(result: &'a LabResult, cells: &[&CellResult], measure: Measure) -> Vec<(&'a str, Tally)> {
    let others = result.contenders.iter().filter(|record| record.twin_of.is_none());
    let others = others.map(|record| record.name.as_str()).filter(|name| *name != result.plan.reference);
    let tallies = others.map(|name| (name, Tally::against_reference(cells, name, measure)));
    let mut ranking: Vec<(&str, Tally)> = tallies.filter(|(_, tally)| !tally.better.is_empty()).collect();
    ranking.sort_by(|(_, left), (_, right)| right.weight().total_cmp(&left.weight()));
    ranking
}

/// Returns the contender with the lowest cost. The sentence calls it the cheapest only if it is not more expensive than
/// the reference in any cell, and cheaper than the runner-up.
fn cheapest(result: &LabResult, cells: &[&CellResult], measure: Measure) -> Option<String> {
    let ranking = ranking(result, cells, measure);
    let (first, tally) = ranking.first()?;
    let second = ranking.get(1).and_then(|(second, _)| against_runner_up(result, first, second, measure));
    let is_cheapest = tally.is_cheaper() && second.is_none_or(|tally| tally.is_cheaper());
    Some(format!(
        "{first} is {}: {} less {} than {} in {} of {}",
        if is_cheapest { "cheapest" } else { "among the cheapest" },
        range(&tally.better),
        noun(result, measure),
        result.plan.reference,
        tally.better.len(),
        counted(cells.len(), "cell", "cells")
    ))
}

/// Compares the lowest-cost contender with the runner-up. Returns the name of the runner-up and the comparison in
/// words. `None` if fewer than two contenders are cheaper than the reference.
pub fn runner_up(result: &LabResult) -> Option<(String, String)> {
    let measure = measure(result);
    let cells: Vec<&CellResult> = result.cells.iter().filter(|cell| measure.applies(&cell.cell)).collect();
    let ranking = ranking(result, &cells, measure);
    let [(first, _), (second, _), ..] = ranking[..] else { return None };
    let tally = against_runner_up(result, first, second, measure)?;
    let mut clauses = Vec::new();
    for (ratios, word) in [(&tally.better, "less"), (&tally.worse, "more")] {
        if !ratios.is_empty() {
            clauses.push(format!("{} {word} in {}", range(ratios), counted(ratios.len(), "cell", "cells")));
        }
    }
    for (count, words) in [(tally.equal, "no detectable difference"), (tally.noisy, "too noisy")] {
        if count > 0 {
            clauses.push(format!("{words} in {}", counted(count, "cell", "cells")));
        }
    }
    Some((second.to_owned(), format!("{first} needs {} {}", clauses.join(", "), noun(result, measure))))
}

/// Compares the two cheapest contenders. `None` if no cell contains both.
fn against_runner_up(result: &LabResult, first: &str, second: &str, measure: Measure) -> Option<Tally> {
    let index_of = |name: &str| result.contenders.iter().position(|record| record.name == name);
    let (first, second) = (index_of(first)?, index_of(second)?);
    let slices = CleanSlices::of(result);
    let is_measured = |cell: &CellResult, index: usize| {
        cell.rows.get(index).is_some_and(|row| row.outcome == Outcome::Measured)
    };
    // A result that was constructed by a program can have more cells than its plan.
    let cells = result.cells.iter().take(result.plan.cells.len()).enumerate();
    let entries: Vec<(Ratio, Verdict)> = cells
        .filter(|(_, cell)| {
            measure.applies(&cell.cell) && is_measured(cell, first) && is_measured(cell, second)
        })
        .filter_map(|(index, cell)| {
            let ratio = slices.ratio(index, first, second, measure)?;
            Some((ratio, verdict_on(ratio, measure.resolution(cell))))
        })
        .collect();
    (!entries.is_empty()).then(|| Tally::of(measure, entries.into_iter()))
}

/// Returns the conclusion of a run in which no contender is significantly cheaper than the reference.
fn none_cheaper(result: &LabResult, cells: &[&CellResult], measure: Measure) -> String {
    let (reference, server, noun) =
        (&result.plan.reference, result.workload().server_noun(), noun(result, measure));
    let is_twin = |row: &Row| {
        result.contenders.iter().any(|record| record.name == row.contender && record.twin_of.is_some())
    };
    let is_compared =
        |cell: &&&CellResult| cell.rows.iter().any(|row| measure.ratio(row).is_some() && !is_twin(row));
    let is_noisy =
        |cell: &&&CellResult| cell.rows.iter().any(|row| measure.verdict(row) == Verdict::TooNoisy);
    let alone = result.contenders.iter().all(|record| record.twin_of.is_some() || record.name == *reference);
    let missing = if alone { 0 } else { cells.len() - cells.iter().filter(is_compared).count() };
    let noisy = cells.iter().filter(is_noisy).count();
    if missing == cells.len() {
        return format!("No other {server} could be compared with {reference}");
    }
    if noisy == cells.len() {
        return format!("Too noisy: it is unknown whether any {server} beats {reference} by {noun}");
    }
    let mut text =
        format!("No {server} beats {reference} by {noun} in {}", counted(cells.len(), "cell", "cells"));
    for (count, words) in [(noisy, "too noisy"), (missing, "not compared")] {
        if count > 0 {
            text += &format!(", {count} {words}");
        }
    }
    text
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_formats_distances_from_one() {
        let plain = |ratios: &[f64]| range(ratios).replace('\u{a0}', " ");
        assert_eq!(plain(&[0.96, 0.9]), "4.0–10 %");
        assert_eq!(plain(&[1.04]), "4.0 %");
        assert_eq!(plain(&[1.2, 2.5]), "20–150 %");
    }
}
