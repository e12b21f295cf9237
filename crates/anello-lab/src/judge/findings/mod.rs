//! Findings: the verdicts of a run as sentences, the most important first.

mod equality;
mod field;
mod headline;
mod pace;
mod rates;
mod runtimes;

use crate::judge::statistics::quantile;
use crate::plan::cell::{Cell, Workload};
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{
    CellResult, ContenderRecord, Finding, FindingKind, LabResult, Outcome, PairComparison, Row, Verdict,
};

/// Fraction of the cores' time used by other processes above which a finding reports it.
const FOREIGN_CPU_THRESHOLD: f64 = 0.02;

/// Maximum number of items listed in a sentence. Further items are only counted.
const MAX_NAMED_CELLS: usize = 6;

/// Returns all findings of a result whose verdicts have been computed.
pub fn findings(result: &LabResult) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |kind, text: String| {
        let compares = matches!(kind, FindingKind::Headline | FindingKind::Peer | FindingKind::Contender);
        findings.push(Finding { kind, text, method: compares.then(|| result.plan.method()) });
    };
    if result.interrupted {
        add(
            FindingKind::Caution,
            "The run was stopped early: the following findings are based on fewer slices.".to_owned(),
        );
    }
    equality::sentences(result).into_iter().for_each(|text| add(FindingKind::Headline, text));
    peer_headlines(result).into_iter().for_each(|text| add(FindingKind::Headline, text));
    runtimes::sentences(result).into_iter().for_each(|text| add(FindingKind::Headline, text));
    add(FindingKind::Headline, headline::sentence(result));
    peer_sentences(result).into_iter().for_each(|text| add(FindingKind::Peer, text));
    contender_sentences(result).into_iter().for_each(|text| add(FindingKind::Contender, text));
    resolution_sentence(result).into_iter().for_each(|text| add(FindingKind::Resolution, text));
    noisy_sentences(result).into_iter().for_each(|text| add(FindingKind::Resolution, text));
    phase_sentence(result).into_iter().for_each(|text| add(FindingKind::Resolution, text));
    busy_when_idle_sentence(result).into_iter().for_each(|text| add(FindingKind::Resolution, text));
    let cautions = [
        unknown_resolution_sentence(result),
        rates::behind_sentence(result),
        rates::late_sentence(result),
        rates::load_behind_sentence(result),
        other_cpu_sentence(result),
        excluded_slices_sentence(result),
        pace::load_bound_sentence(result),
        pace::both_busy_sentence(result),
        pace::large_answers_sentence(result),
        idle_sentence(result),
        unchecked_sentence(result),
    ];
    cautions.into_iter().flatten().for_each(|text| add(FindingKind::Caution, text));
    failure_sentences(result).into_iter().for_each(|text| add(FindingKind::Failure, text));
    findings
}

/// Ratio and verdict of one measure in one cell.
struct Entry {
    cell: Cell,
    ratio: Ratio,
    verdict: Verdict,
}

/// Returns an entry for each cell in which the contender has a ratio to the reference.
fn entries_of(result: &LabResult, name: &str, measure: Measure) -> Vec<Entry> {
    let rows = rows_of(result, name);
    let entry = |(cell, row): (&CellResult, &Row)| {
        Some(Entry { cell: cell.cell, ratio: measure.ratio(row)?, verdict: measure.verdict(row) })
    };
    rows.filter_map(entry).collect()
}

fn rows_of<'a>(result: &'a LabResult, name: &'a str) -> impl Iterator<Item = (&'a CellResult, &'a Row)> {
    result
        .cells
        .iter()
        .filter_map(move |cell| Some((cell, cell.rows.iter().find(|row| row.contender == name)?)))
}

/// Returns a sentence for each anello contender: the cells in which a peer is better, or that there are none.
fn peer_headlines(result: &LabResult) -> Vec<String> {
    let mut sentences = Vec::new();
    for contender in &result.contenders {
        let pairs = field::decisive(result, &contender.name);
        let judged = |measure: Measure| {
            pairs.iter().map(move |versus| (measure, *versus, measure.pair_verdict(versus)))
        };
        let all: Vec<(Measure, &PairComparison, Verdict)> = Measure::ALL
            .into_iter()
            .flat_map(judged)
            .filter(|(_, _, verdict)| *verdict != Verdict::NotComparable)
            .collect();
        if all.is_empty() {
            continue;
        }
        let name = &contender.name;
        let lost: Vec<String> = all
            .iter()
            .filter(|(measure, _, verdict)| measure.is_better(*verdict) == Some(false))
            .filter_map(|(measure, versus, _)| {
                let by = measure.pair_ratio(versus)?.estimate;
                let clause = difference(by, by, by > 1.0);
                Some(format!(
                    "{} at {} ({name}: {clause} {})",
                    versus.peer,
                    versus.cell,
                    measure_name(result, *measure)
                ))
            })
            .collect();
        let noisy = all.iter().filter(|(_, _, verdict)| *verdict == Verdict::TooNoisy).count();
        let unclear = match noisy {
            0 => String::new(),
            noisy => format!(" {noisy} of {} comparisons were too noisy for a verdict.", all.len()),
        };
        let (count, peers) = field::counted_peers(result, contender, &pairs);
        sentences.push(if lost.is_empty() {
            let undetected = undetected_sentence(result, &all).unwrap_or_default();
            let none = if count == 1 {
                format!("The one {peers} is not")
            } else {
                format!("None of {count} {peers} is")
            };
            format!("{none} significantly better than {name} in any cell.{undetected}{unclear}")
        } else {
            format!(
                "Of {count} {peers}, {name} is beaten in {} of {} comparisons: {}.{unclear}",
                lost.len(),
                all.len(),
                listed(&lost)
            )
        });
    }
    sentences
}

/// Returns a sentence on the size of the differences that these comparisons could not detect. Comparisons that are too
/// noisy are excluded. The detection limit of a comparison is the resolution of its cell or half the width of the
/// interval, whichever is larger.
fn undetected_sentence(result: &LabResult, all: &[(Measure, &PairComparison, Verdict)]) -> Option<String> {
    let selected = all.iter().filter(|(_, _, verdict)| *verdict == Verdict::NoDifference);
    let undetected = selected.filter_map(|(measure, versus, _)| {
        let cell = result.cells.iter().find(|cell| cell.cell == versus.cell)?;
        let ratio = measure.pair_ratio(versus)?;
        let half = (ratio.estimate - ratio.low).max(ratio.high - ratio.estimate);
        Some(measure.resolution(cell)?.max(half))
    });
    let undetected: Vec<f64> = undetected.collect();
    let percent = |at: f64| Some(quantile(&undetected, at)? * 100.0);
    Some(format!(
        " Where no difference was detected, differences below {:.1}\u{a0}% were not detectable in half of the \
         comparisons, and differences below {:.1}\u{a0}% in one of ten.",
        percent(0.5)?,
        percent(0.9)?
    ))
}

fn peer_sentences(result: &LabResult) -> Vec<String> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for versus in &result.versus {
        let pair = (versus.contender.as_str(), versus.peer.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    // Group the sentences by the driver of anello.
    let index_of = |name: &str| result.contenders.iter().position(|contender| contender.name == name);
    pairs.sort_by_key(|(contender, _)| index_of(contender));
    let sentence_on = |(contender, peer): (&str, &str)| {
        let of_pair = || {
            result.versus.iter().filter(move |versus| versus.contender == contender && versus.peer == peer)
        };
        let sentences: Vec<String> = measures_in_order()
            .filter_map(|measure| {
                let entry = |versus: &PairComparison| {
                    let ratio = measure.pair_ratio(versus)?;
                    Some(Entry { cell: versus.cell, ratio, verdict: measure.pair_verdict(versus) })
                };
                sentence(result, &of_pair().filter_map(entry).collect::<Vec<_>>(), measure)
            })
            .collect();
        (!sentences.is_empty()).then(|| format!("{contender} against {peer}. {}.", sentences.join(". ")))
    };
    pairs.into_iter().filter_map(sentence_on).collect()
}

fn contender_sentences(result: &LabResult) -> Vec<String> {
    let reference = &result.plan.reference;
    let others = result
        .contenders
        .iter()
        .filter(|contender| contender.name != *reference && contender.twin_of.is_none());
    let sentence_on = |name: &str| {
        let sentences: Vec<String> = measures_in_order()
            .filter_map(|measure| sentence(result, &entries_of(result, name, measure), measure))
            .collect();
        (!sentences.is_empty()).then(|| format!("{name} against {reference}. {}.", sentences.join(". ")))
    };
    others.filter_map(|contender| sentence_on(&contender.name)).collect()
}

/// Returns the measures in the order in which sentences list them.
fn measures_in_order() -> impl Iterator<Item = Measure> {
    use Measure::{Cpu, Memory, P50, P99, Rate, TotalCpu};
    [Cpu, TotalCpu, Rate, P50, P99, Memory].into_iter()
}

/// Returns the range of the differences over the cells in which the contender is better (or worse), such as
/// "4 to 9 % less".
fn range(entries: &[Entry], measure: Measure, better: bool) -> String {
    let judged = entries.iter().filter(|entry| measure.is_better(entry.verdict) == Some(better));
    let ratios: Vec<f64> = judged.map(|entry| entry.ratio.estimate).collect();
    let more = measure.more_is_better() == better;
    let by_distance = |left: &f64, right: &f64| (left - 1.0).abs().total_cmp(&(right - 1.0).abs());
    let smallest = ratios.iter().copied().min_by(by_distance);
    let largest = ratios.iter().copied().max_by(by_distance);
    match (smallest, largest) {
        (Some(smallest), Some(largest)) => difference(smallest, largest, more),
        _ => String::new(),
    }
}

/// Formats a range of two ratios as a difference in words. The ratio closer to 1 comes first.
fn difference(smallest: f64, largest: f64, more: bool) -> String {
    let word = if more { "more" } else { "less" };
    if more && largest >= 2.0 {
        let (smallest, largest) = (format!("{smallest:.1}"), format!("{largest:.1}"));
        return if smallest == largest {
            format!("{largest} times as much")
        } else {
            format!("{smallest} to {largest} times as much")
        };
    }
    let percent = |ratio: f64| {
        let percent = (ratio - 1.0).abs() * 100.0;
        if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
    };
    let (smallest, largest) = (percent(smallest), percent(largest));
    if smallest == largest {
        format!("{largest}\u{a0}% {word}")
    } else {
        format!("{smallest} to {largest}\u{a0}% {word}")
    }
}

/// Returns a sentence on one measure, such as "Server CPU per request: 4 to 9 % less in 3 of 6 cells, no detectable
/// difference in 3 of 6 cells".
fn sentence(result: &LabResult, entries: &[Entry], measure: Measure) -> Option<String> {
    if entries.is_empty() {
        return None;
    }
    let total = entries.len();
    let applicable = result.cells.iter().filter(|cell| measure.applies(&cell.cell)).count();
    let measured = if total < applicable { " measured" } else { "" };
    let mut clauses = Vec::new();
    let mut add = |words: String, cells: Vec<Cell>| {
        if cells.len() == total {
            clauses.push(if total == 1 { words } else { format!("{words} in all {total} cells{measured}") });
        } else if let [cell] = cells[..] {
            clauses.push(format!("{words} at {cell}"));
        } else if !cells.is_empty() {
            clauses.push(format!("{words} in {} of {total} cells", cells.len()));
        }
    };
    let cells = |predicate: &dyn Fn(Verdict) -> bool| -> Vec<Cell> {
        entries.iter().filter(|entry| predicate(entry.verdict)).map(|entry| entry.cell).collect()
    };
    for better in [true, false] {
        let judged = cells(&|verdict| measure.is_better(verdict) == Some(better));
        if !judged.is_empty() {
            add(range(entries, measure, better), judged);
        }
    }
    add("no detectable difference".to_owned(), cells(&|verdict| verdict == Verdict::NoDifference));
    add("too noisy for a verdict".to_owned(), cells(&|verdict| verdict == Verdict::TooNoisy));
    let name = measure_name(result, measure);
    let (first, rest) = name.split_at(1);
    Some(format!("{}{rest}: {}", first.to_uppercase(), clauses.join(", ")))
}

/// Returns the name of a measure in the terms of the run's workload.
fn measure_name(result: &LabResult, measure: Measure) -> &'static str {
    measure.name(result.workload())
}

fn resolution_sentence(result: &LabResult) -> Option<String> {
    let of = |measure: Measure| {
        let all: Vec<f64> = result.cells.iter().filter_map(|cell| measure.resolution(cell)).collect();
        let max = all.iter().copied().fold(0.0, f64::max);
        quantile(&all, 0.5).map(|median| {
            let (median, max) = (format!("{:.1}", median * 100.0), format!("{:.1}", max * 100.0));
            let name = measure_name(result, measure);
            if median == max {
                format!("{median}\u{a0}% in {name}")
            } else {
                format!("{median}\u{a0}% (at worst {max}\u{a0}%) in {name}")
            }
        })
    };
    let figures: Vec<String> = measures_in_order().filter_map(of).collect();
    let (last, others) = figures.split_last()?;
    let list = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!(
        "Noise floor ({} against itself): two identical {}s differed by {list}. Smaller differences are not \
         significant.",
        result.plan.reference,
        result.workload().server_noun()
    ))
}

fn noisy_sentences(result: &LabResult) -> Vec<String> {
    let noisy = |measure: Measure| {
        let cells: Vec<String> = result
            .cells
            .iter()
            .filter(|cell| cell.rows.iter().any(|row| measure.verdict(row) == Verdict::TooNoisy))
            .map(|cell| {
                let by = measure
                    .resolution(cell)
                    .map_or(String::new(), |by| format!(" (±{:.0}\u{a0}%)", by * 100.0));
                format!("{}{by}", cell.cell)
            })
            .collect();
        (!cells.is_empty()).then(|| {
            format!(
                "Too noisy to compare {}s by {}: {}. Run longer, or on a quieter machine.",
                result.workload().server_noun(),
                measure_name(result, measure),
                listed(&cells)
            )
        })
    };
    measures_in_order().filter_map(noisy).collect()
}

fn phase_sentence(result: &LabResult) -> Option<String> {
    let phases: Vec<_> = result.cells.iter().filter_map(|cell| cell.phases).collect();
    let factors: Vec<f64> = phases.iter().map(|phases| phases.slow_factor).collect();
    let fractions: Vec<f64> = phases.iter().map(|phases| phases.slow_fraction).collect();
    let (factor, fraction) = (quantile(&factors, 0.5)?, quantile(&fractions, 0.5)?);
    let rows = || result.cells.iter().flat_map(|cell| &cell.rows);
    let workload = result.workload();
    let mixed: usize = rows().map(|row| row.mixed_phase_rounds).sum();
    Some(format!(
        "This machine has slow and fast phases: in {} of {} {} cost {factor:.1} times as much for \
         {:.0}\u{a0}% of the slices. {} are compared within a phase; {} in which the phase changed between the two \
         slices are excluded.",
        phases.len(),
        counted(result.cells.len(), "cell"),
        if workload.is_disk() { "an operation" } else { "a request" },
        fraction * 100.0,
        if workload.is_disk() { "Workers" } else { "Servers" },
        counted(mixed, "round")
    ))
}

/// Returns a sentence on the contenders that used CPU time while idle.
fn busy_when_idle_sentence(result: &LabResult) -> Option<String> {
    let used = |contender: &ContenderRecord| {
        Some(format!("{} ({:.0}\u{a0}% of a core)", contender.name, contender.idle_cpu_fraction? * 100.0))
    };
    let suspended: Vec<String> = result.contenders.iter().filter_map(used).collect();
    (!suspended.is_empty()).then(|| {
        format!(
            "Suspended during other contenders' slices because they use CPU when idle: {}.",
            suspended.join(", ")
        )
    })
}

/// Returns a sentence on the cells without a resolution. There, the noise floor is unknown because the twin of the
/// reference was not measured often enough.
fn unknown_resolution_sentence(result: &LabResult) -> Option<String> {
    let is_unknown = |cell: &&CellResult| {
        let figures = || Measure::ALL.into_iter().filter(|measure| measure.applies(&cell.cell));
        let compared = cell.rows.iter().any(|row| figures().any(|measure| measure.ratio(row).is_some()));
        compared && figures().all(|measure| measure.resolution(cell).is_none())
    };
    let cells = result.cells.iter().filter(is_unknown).count();
    (cells > 0).then(|| {
        format!(
            "In {} of {}, {} was not measured a second time in at least 5 pairs from 3 passes: the difference between \
             identical {}s is unknown there, and no difference is claimed.",
            cells,
            counted(result.cells.len(), "cell"),
            result.plan.reference,
            result.workload().server_noun()
        )
    })
}

fn other_cpu_sentence(result: &LabResult) -> Option<String> {
    let fraction = result.foreign_fraction.filter(|&fraction| fraction > FOREIGN_CPU_THRESHOLD)?;
    Some(format!(
        "Other programs took {:.0}\u{a0}% of the cores' time during the run: stop them and repeat it for finer \
         differences.",
        fraction * 100.0
    ))
}

fn excluded_slices_sentence(result: &LabResult) -> Option<String> {
    let sum = |count: fn(&Row) -> usize| -> usize {
        result.cells.iter().flat_map(|cell| &cell.rows).map(count).sum()
    };
    let reasons = [
        (sum(|row| row.stolen_slices), "the hypervisor took time from a core during them"),
        (sum(|row| row.throttled_slices), "a CPU limit held them back"),
    ];
    let selected: Vec<String> = reasons
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} of {} slices were dropped because {why}.", result.slices.len()))
        .collect();
    (!selected.is_empty()).then(|| selected.join(" "))
}

fn idle_sentence(result: &LabResult) -> Option<String> {
    let idle = result.cells.iter().any(|cell| cell.cell.workload == Workload::Idle);
    idle.then(|| {
        "Memory per idle connection is that of the server's process. Kernel memory of the connections was not \
         measured; it differs between servers (a thread has a kernel stack and a task, io_uring an armed request)."
            .to_owned()
    })
}

fn unchecked_sentence(result: &LabResult) -> Option<String> {
    let servers = result.cells.iter().any(|cell| !cell.cell.workload.is_disk());
    (servers && !result.plan.checked).then(|| {
        "The contenders were not checked before the run (complete bytes, a stalled reader, many connections): some may \
         be fast but incorrect."
            .to_owned()
    })
}

fn failure_sentences(result: &LabResult) -> Vec<String> {
    let mut sentences = Vec::new();
    for contender in &result.contenders {
        let rows: Vec<_> = rows_of(result, &contender.name).collect();
        let failed: Vec<_> =
            rows.iter().filter(|(_, row)| matches!(row.outcome, Outcome::Failed(_))).collect();
        let skipped: Vec<_> =
            rows.iter().filter(|(_, row)| matches!(row.outcome, Outcome::Skipped(_))).collect();
        let measured = rows.iter().any(|(_, row)| row.outcome == Outcome::Measured);
        let more = |count: usize| if count > 1 { format!(", and {} more", count - 1) } else { String::new() };
        let restarts: usize = rows.iter().map(|(_, row)| row.restarts).sum();
        let name = &contender.name;
        if let Some((_, Row { outcome: Outcome::CheckFailed(why), .. })) = rows.first() {
            if contender.twin_of.is_none() {
                let why = why.trim_end_matches('.');
                sentences.push(format!("{name} failed its check and was not measured: {why}."));
            }
        } else if let Some((cell, Row { outcome: Outcome::Failed(why), .. })) = failed.first() {
            let where_else = more(failed.len());
            let why = why.trim_end_matches('.');
            sentences.push(format!("{name} failed at {}{where_else}: {why}.", cell.cell));
        } else if let Some((cell, Row { outcome: Outcome::Skipped(why), .. })) = skipped.first() {
            let why = why.trim_end_matches('.');
            sentences.push(if measured {
                let cells = format!("{}{}", cell.cell, more(skipped.len()));
                format!("{name} was not measured at {cells}: it could not be started ({why}).")
            } else {
                format!("{name} was not measured: {why}.")
            });
        } else if restarts > 0 {
            let times = if restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
            sentences.push(format!("{name} failed and was restarted {times}; see the failures."));
        }
    }
    sentences
}

/// Joins the first [`MAX_NAMED_CELLS`] items and adds the number of the remaining items.
fn listed(all: &[String]) -> String {
    match all.len().saturating_sub(MAX_NAMED_CELLS) {
        0 => all.join("; "),
        more => format!("{}; and {more} more", all[..MAX_NAMED_CELLS].join("; ")),
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_formats_percentages_and_factors() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        assert_eq!(plain(difference(0.96, 0.9, false)), "4.0 to 10 % less");
        assert_eq!(plain(difference(1.04, 1.04, true)), "4.0 % more");
        assert_eq!(plain(difference(1.2, 2.5, true)), "1.2 to 2.5 times as much");
        assert_eq!(plain(difference(3.0, 3.0, true)), "3.0 times as much");
    }

    #[test]
    fn long_list_is_truncated_with_count() {
        let cells: Vec<String> = (1..=9).map(|cell| cell.to_string()).collect();
        assert_eq!(listed(&cells[..6]), "1; 2; 3; 4; 5; 6");
        assert_eq!(listed(&cells), "1; 2; 3; 4; 5; 6; and 3 more");
    }
}
