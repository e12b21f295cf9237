//! The answer in one sentence: who costs least.

use super::{Entry, counted, entries_of, listed, measure_name, range};
use crate::cell::Workload;
use crate::measure::Measure;
use crate::pairs::CleanSlices;
use crate::result::{CellResult, LabResult, Outcome, Verdict};
use crate::statistics::quantile;
use crate::verdict::verdict_on;

/// Who costs least, and what that rests on.
pub fn sentence(result: &LabResult) -> String {
    let reference = &result.plan.reference;
    let measure = headline_measure(result);
    let cells: Vec<&CellResult> = result.cells.iter().filter(|cell| measure.applies(&cell.cell)).collect();
    let measured = |cell: &&CellResult| {
        cell.rows.iter().any(|row| row.contender == *reference && row.outcome == Outcome::Measured)
    };
    if !cells.iter().any(measured) {
        return format!(
            "{reference} was not measured, so the others cannot be compared with it; the table has their figures."
        );
    }
    let better_by = |name: &str| {
        let entries = entries_of(result, name, measure);
        let better = entries.iter().filter(|entry| measure.is_better(entry.verdict) == Some(true));
        let ratios: Vec<f64> = better.map(|entry| entry.ratio.estimate).collect();
        (ratios.len(), 1.0 - quantile(&ratios, 0.5).unwrap_or(1.0))
    };
    let weight = |(cells, by): (usize, f64)| cells as f64 * by;
    let mut ranking: Vec<((usize, f64), &str)> =
        competitors(result).into_iter().map(|name| (better_by(name), name)).collect();
    ranking.sort_by(|(left, _), (right, _)| weight(*right).total_cmp(&weight(*left)));
    match ranking.first() {
        Some(&((1.., _), first)) => {
            let runner_up = ranking.get(1).filter(|((better, _), _)| *better > 0);
            cheapest(result, &cells, measure, first, runner_up.map(|(_, name)| *name))
        }
        _ => no_cheaper_contender(result, &cells, measure),
    }
}

/// The measure by which the headline judges: what a request costs the server, where all answers are large, what it costs
/// both sides, and, where nothing but idle connections was measured, what these cost.
fn headline_measure(result: &LabResult) -> Measure {
    let all = |predicate: fn(Workload) -> bool| {
        !result.cells.is_empty() && result.cells.iter().all(|cell| predicate(cell.cell.workload))
    };
    if all(|workload| workload == Workload::Idle) {
        Measure::Memory
    } else if all(Workload::has_large_answers) {
        Measure::TotalCpu
    } else {
        Measure::Cpu
    }
}

/// Everybody who is to beat the reference.
fn competitors(result: &LabResult) -> Vec<&str> {
    let others = result.contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).filter(|name| *name != result.plan.reference).collect()
}

/// The first is the cheapest only if it is dearer than the reference nowhere, and cheaper than the runner-up.
fn cheapest(
    result: &LabResult,
    cells: &[&CellResult],
    measure: Measure,
    first: &str,
    runner_up: Option<&str>,
) -> String {
    let entries = entries_of(result, first, measure);
    let of =
        |better: bool| entries.iter().filter(move |entry| measure.is_better(entry.verdict) == Some(better));
    let dearer: Vec<String> = of(false).map(|entry| entry.cell.to_string()).collect();
    let but = match dearer.len() {
        0 => String::new(),
        _ => format!(", but {} at {}", range(&entries, measure, false), listed(&dearer)),
    };
    let (beats_runner_up, runner_up_sentence) = match runner_up {
        Some(second) => compare_with_runner_up(result, first, second, measure).unwrap_or_default(),
        None => (true, String::new()),
    };
    let opening =
        if beats_runner_up && dearer.is_empty() { "Cheapest here" } else { "Among the cheapest here" };
    format!(
        "{opening}: {first}, with {} {} than {} in {} of {}{but}.{runner_up_sentence}",
        range(&entries, measure, true),
        measure_name(result, measure),
        result.plan.reference,
        of(true).count(),
        counted(cells.len(), "cell")
    )
}

/// Whether the first is cheaper than the second somewhere and dearer nowhere, and a sentence on it; none if no cell has
/// both.
fn compare_with_runner_up(
    result: &LabResult,
    first: &str,
    second: &str,
    measure: Measure,
) -> Option<(bool, String)> {
    let index_of = |name: &str| result.contenders.iter().position(|contender| contender.name == name);
    let (one, other) = (index_of(first)?, index_of(second)?);
    let slices = CleanSlices::of(result);
    let measured = |cell: &CellResult, index: usize| cell.rows[index].outcome == Outcome::Measured;
    let entries: Vec<Entry> = (result.cells.iter().enumerate())
        .filter(|(_, cell)| measure.applies(&cell.cell) && measured(cell, one) && measured(cell, other))
        .filter_map(|(index, cell)| {
            let ratio = slices.ratio(index, one, other, measure)?;
            Some(Entry { cell: cell.cell, ratio, verdict: verdict_on(ratio, measure.resolution(cell)) })
        })
        .collect();
    let count =
        |better| entries.iter().filter(|entry| measure.is_better(entry.verdict) == Some(better)).count();
    let text = super::sentence(result, &entries, measure)?;
    let text = format!(" Compared with the runner-up, {second}: {}.", lowercase_first(&text));
    Some((count(true) > 0 && count(false) == 0, text))
}

/// A sentence as it goes on behind a colon: "CPU" stays as it is.
fn lowercase_first(sentence: &str) -> String {
    let mut rest = sentence.chars();
    match (rest.next(), rest.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(rest).collect(),
        _ => sentence.to_owned(),
    }
}

/// Nobody is cheaper than the reference, as far as can be told.
fn no_cheaper_contender(result: &LabResult, cells: &[&CellResult], measure: Measure) -> String {
    let (reference, server_noun) = (&result.plan.reference, result.workload().server_noun());
    let name_of_measure = measure_name(result, measure).trim_start_matches("server ");
    let competitors = competitors(result);
    let noisy = |cell: &&&CellResult| cell.rows.iter().any(|row| measure.verdict(row) == Verdict::TooNoisy);
    let compared = |cell: &CellResult| {
        let mut rows = cell.rows.iter().filter(|row| competitors.contains(&row.contender.as_str()));
        rows.any(|row| measure.ratio(row).is_some())
    };
    // Without competitors there is nobody who could have been compared.
    let alone = |cell: &&&CellResult| !competitors.is_empty() && !compared(cell);
    let all = cells.len();
    let (noisy, alone) = (cells.iter().filter(noisy).count(), cells.iter().filter(alone).count());
    if alone == all {
        return format!(
            "No other {server_noun} could be compared with {reference}, so that none can be said to take less {name_of_measure}."
        );
    }
    if noisy == all {
        return format!("Too noisy: this run cannot tell whether any {server_noun} beats {reference}.");
    }
    let mut clauses = Vec::new();
    if noisy > 0 {
        clauses.push(format!("{noisy} of {all} cells were too noisy to tell"));
    }
    if alone > 0 {
        clauses.push(format!("in {alone} of {all} cells no other could be compared with it"));
    }
    let but = if clauses.is_empty() { String::new() } else { format!(", but {}", clauses.join(" and ")) };
    format!("No {server_noun} here takes detectably less {name_of_measure} than {reference}{but}.")
}

#[cfg(test)]
mod tests {
    use super::lowercase_first;

    #[test]
    fn an_abbreviation_keeps_its_capitals() {
        assert_eq!(lowercase_first("CPU per operation: 3 % less"), "CPU per operation: 3 % less");
        assert_eq!(lowercase_first("Memory per connection: 3 % less"), "memory per connection: 3 % less");
        assert_eq!(lowercase_first(""), "");
    }
}
