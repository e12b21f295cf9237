//! Main conclusion of a run in one sentence: the cheapest contender.

use super::{Entry, counted, entries_of, listed, measure_name, range};
use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::quantile;
use crate::judge::verdict::verdict_on;
use crate::plan::cell::Workload;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Outcome, Verdict};

/// Returns the sentence on the cheapest contender, with the figures that support it.
pub fn sentence(result: &LabResult) -> String {
    let reference = &result.plan.reference;
    let measure = headline_measure(result);
    let cells: Vec<&CellResult> = result.cells.iter().filter(|cell| measure.applies(&cell.cell)).collect();
    let measured = |cell: &&CellResult| {
        cell.rows.iter().any(|row| row.contender == *reference && row.outcome == Outcome::Measured)
    };
    if !cells.iter().any(measured) {
        return format!(
            "{reference} was not measured, so the other contenders cannot be compared with it; the table has their \
             figures."
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

/// Returns the measure on which the headline is based: memory if only idle connections were measured, the combined CPU
/// time of server and load if all responses are large, otherwise the CPU time of the server.
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

/// Returns the names of all contenders except the reference and the twins.
fn competitors(result: &LabResult) -> Vec<&str> {
    let others = result.contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).filter(|name| *name != result.plan.reference).collect()
}

/// Returns the sentence on `first`, the contender with the lowest cost. It is called the cheapest only if it is not
/// more expensive than the reference in any cell and if it is cheaper than the runner-up.
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
    let costlier: Vec<String> = of(false).map(|entry| entry.cell.to_string()).collect();
    let but = match costlier.len() {
        0 => String::new(),
        _ => format!(", but {} at {}", range(&entries, measure, false), listed(&costlier)),
    };
    let (beats_runner_up, runner_up_sentence) = match runner_up {
        Some(second) => compare_with_runner_up(result, first, second, measure).unwrap_or_default(),
        None => (true, String::new()),
    };
    let opening =
        if beats_runner_up && costlier.is_empty() { "Cheapest here" } else { "Among the cheapest here" };
    format!(
        "{opening}: {first}, with {} {} than {} in {} of {}{but}.{runner_up_sentence}",
        range(&entries, measure, true),
        measure_name(result, measure),
        result.plan.reference,
        of(true).count(),
        counted(cells.len(), "cell")
    )
}

/// Compares the cheapest contender with the runner-up. Returns `true` if `first` is cheaper in at least one cell and
/// not more expensive in any, with a sentence on the comparison. Returns `None` if the two have no cell in common.
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

/// Converts the first letter to lower case, for use after a colon. Abbreviations such as "CPU" are unchanged.
fn lowercase_first(sentence: &str) -> String {
    let mut rest = sentence.chars();
    match (rest.next(), rest.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(rest).collect(),
        _ => sentence.to_owned(),
    }
}

/// Returns the sentence for a run in which no contender is significantly cheaper than the reference.
fn no_cheaper_contender(result: &LabResult, cells: &[&CellResult], measure: Measure) -> String {
    let (reference, server_noun) = (&result.plan.reference, result.workload().server_noun());
    let name_of_measure = measure_name(result, measure).trim_start_matches("server ");
    let competitors = competitors(result);
    let noisy = |cell: &&&CellResult| cell.rows.iter().any(|row| measure.verdict(row) == Verdict::TooNoisy);
    let compared = |cell: &CellResult| {
        let mut rows = cell.rows.iter().filter(|row| competitors.contains(&row.contender.as_str()));
        rows.any(|row| measure.ratio(row).is_some())
    };
    // If the reference is the only contender, the sentence must not report missing comparisons.
    let without_comparison = |cell: &&&CellResult| !competitors.is_empty() && !compared(cell);
    let all = cells.len();
    let noisy = cells.iter().filter(noisy).count();
    let without_comparison = cells.iter().filter(without_comparison).count();
    if without_comparison == all {
        return format!(
            "No other {server_noun} could be compared with {reference}, so it is unknown whether any takes less \
             {name_of_measure}."
        );
    }
    if noisy == all {
        return format!("Too noisy: it is unknown whether any {server_noun} is cheaper than {reference}.");
    }
    let mut clauses = Vec::new();
    if noisy > 0 {
        clauses.push(format!("{noisy} of {all} cells were too noisy for a verdict"));
    }
    if without_comparison > 0 {
        clauses.push(format!("in {without_comparison} of {all} cells no other could be compared with it"));
    }
    let but = if clauses.is_empty() { String::new() } else { format!(", but {}", clauses.join(" and ")) };
    format!("No {server_noun} here takes detectably less {name_of_measure} than {reference}{but}.")
}

#[cfg(test)]
mod tests {
    use super::lowercase_first;

    #[test]
    fn lowercase_first_keeps_abbreviations() {
        assert_eq!(lowercase_first("CPU per operation: 3 % less"), "CPU per operation: 3 % less");
        assert_eq!(lowercase_first("Memory per connection: 3 % less"), "memory per connection: 3 % less");
        assert_eq!(lowercase_first(""), "");
    }
}
