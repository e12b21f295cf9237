//! What can be said, and what cannot.
//!
//! Two servers are told apart only if both hold:
//! 1. the interval of their ratio does not include 1;
//! 2. the ratio differs from 1 by more than the *resolution* of the cell: the farthest that the interval of the twins
//!    (the same server twice) reaches from 1, or the middle of that over all cells where one cell was lucky.
//!
//! Where the resolution is worse than [`NOISY_RESOLUTION`], or fewer than [`LEAST_SLICES`] slices are clean, the cell
//! is too noisy to say anything.

use crate::result::{CellResult, Finding, FindingKind, LabResult, Outcome, Row, Verdict};
use crate::statistics::{Ratio, quantile};

/// A cell in which two equal servers may differ by more than this fraction tells nothing.
pub const NOISY_RESOLUTION: f64 = 0.15;

/// Fewer clean slices than this tell nothing.
pub const LEAST_SLICES: usize = 5;

/// Below this part of its core the server was waiting for the load.
const SERVER_BUSY: f64 = 0.9;

/// Other programs that take more than this part of the cores are worth a word.
const FOREIGN: f64 = 0.02;

/// Which of the two compared figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Requests per second: more is better.
    Rate,
    /// Server CPU per request: less is better.
    Cpu,
}

impl Figure {
    /// The ratio of a row.
    #[must_use]
    pub fn ratio(self, row: &Row) -> Option<Ratio> {
        match self {
            Figure::Rate => row.rate_ratio,
            Figure::Cpu => row.cpu_ratio,
        }
    }

    /// The verdict of a row.
    #[must_use]
    pub fn verdict(self, row: &Row) -> Verdict {
        match self {
            Figure::Rate => row.rate_verdict,
            Figure::Cpu => row.cpu_verdict,
        }
    }

    /// The resolution of a cell.
    #[must_use]
    pub fn resolution(self, cell: &CellResult) -> Option<f64> {
        match self {
            Figure::Rate => cell.rate_resolution,
            Figure::Cpu => cell.cpu_resolution,
        }
    }

    /// Whether this verdict is a good one for the contender; none if it is neither good nor bad.
    #[must_use]
    pub fn is_better(self, verdict: Verdict) -> Option<bool> {
        match (self, verdict) {
            (Figure::Rate, Verdict::More) | (Figure::Cpu, Verdict::Less) => Some(true),
            (Figure::Rate, Verdict::Less) | (Figure::Cpu, Verdict::More) => Some(false),
            _ => None,
        }
    }

    /// Its name in a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Figure::Rate => "requests/s",
            Figure::Cpu => "server CPU per request",
        }
    }
}

/// Fills in the resolutions, the verdicts and the findings.
pub fn judge(result: &mut LabResult) {
    for figure in [Figure::Rate, Figure::Cpu] {
        judge_figure(result, figure);
    }
    result.findings = findings(result);
}

fn judge_figure(result: &mut LabResult, figure: Figure) {
    let twin = result
        .contenders
        .iter()
        .position(|contender| contender.twin_of.as_ref() == Some(&result.plan.reference));
    let reach = |cell: &CellResult| Some(figure.ratio(&cell.rows[twin?])?.reach());
    let reaches: Vec<f64> = result.cells.iter().filter_map(reach).collect();
    let middle = quantile(&reaches, 0.5);
    for cell in &mut result.cells {
        // A cell in which the twin is missing is judged by the others.
        let resolution = match (reach(cell), middle) {
            (Some(here), Some(middle)) => Some(here.max(middle)),
            (here, middle) => here.or(middle),
        };
        let reference_slices = cell
            .rows
            .iter()
            .find(|row| row.contender == result.plan.reference && row.outcome == Outcome::Measured)
            .map_or(0, |row| row.clean_slices);
        for row in &mut cell.rows {
            let verdict = if row.contender == result.plan.reference {
                Verdict::Reference
            } else {
                let slices = row.clean_slices.min(reference_slices);
                figure
                    .ratio(row)
                    .map_or(Verdict::NotComparable, |ratio| verdict_on(ratio, resolution, slices))
            };
            match figure {
                Figure::Rate => row.rate_verdict = verdict,
                Figure::Cpu => row.cpu_verdict = verdict,
            }
        }
        match figure {
            Figure::Rate => cell.rate_resolution = resolution,
            Figure::Cpu => cell.cpu_resolution = resolution,
        }
    }
}

/// The verdict on one ratio, given what the machine resolves and how many clean slices both sides have.
#[must_use]
pub fn verdict_on(ratio: Ratio, resolution: Option<f64>, clean_slices: usize) -> Verdict {
    let clear_of_noise = |noise: f64| !ratio.includes_one() && (ratio.estimate - 1.0).abs() > noise;
    let resolution = resolution.unwrap_or(0.0);
    if clean_slices < LEAST_SLICES {
        Verdict::TooNoisy
    } else if clear_of_noise(resolution) {
        // Even in a noisy cell a difference that dwarfs the noise can be told.
        if ratio.estimate > 1.0 { Verdict::More } else { Verdict::Less }
    } else if resolution > NOISY_RESOLUTION {
        Verdict::TooNoisy
    } else {
        Verdict::NoDifference
    }
}

fn findings(result: &LabResult) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |kind, text: String| findings.push(Finding { kind, text });
    if result.interrupted {
        add(
            FindingKind::Caution,
            "The run was stopped before its end: what follows rests on fewer slices.".to_owned(),
        );
    }
    add(FindingKind::Headline, headline(result));
    for contender in &result.contenders {
        if contender.name != result.plan.reference && contender.twin_of.is_none() {
            let sentences: Vec<String> = [Figure::Cpu, Figure::Rate]
                .iter()
                .filter_map(|&figure| sentence(result, &contender.name, figure))
                .collect();
            if !sentences.is_empty() {
                let text = format!(
                    "{} against {}. {}.",
                    contender.name,
                    result.plan.reference,
                    sentences.join(". ")
                );
                add(FindingKind::Contender, text);
            }
        }
    }
    if let Some(text) = resolution_sentence(result) {
        add(FindingKind::Resolution, text);
    }
    noisy_sentences(result).into_iter().for_each(|text| add(FindingKind::Resolution, text));
    foreign_sentence(result).into_iter().for_each(|text| add(FindingKind::Caution, text));
    stolen_sentence(result).into_iter().for_each(|text| add(FindingKind::Caution, text));
    load_bound_sentence(result).into_iter().for_each(|text| add(FindingKind::Caution, text));
    failure_sentences(result).into_iter().for_each(|text| add(FindingKind::Failure, text));
    findings
}

/// The answer in one sentence: who costs least.
fn headline(result: &LabResult) -> String {
    let reference = &result.plan.reference;
    let measured = |cell: &CellResult| {
        cell.rows.iter().any(|row| row.contender == *reference && row.outcome == Outcome::Measured)
    };
    if !result.cells.iter().any(measured) {
        return format!(
            "{reference} was not measured, so the others cannot be compared with it; the table has their figures."
        );
    }
    let better_by = |name: &String| {
        let cells =
            rows_of(result, name).filter(|(_, row)| Figure::Cpu.is_better(row.cpu_verdict) == Some(true));
        let ratios: Vec<f64> = cells.filter_map(|(_, row)| Some(row.cpu_ratio?.estimate)).collect();
        (ratios.len(), 1.0 - quantile(&ratios, 0.5).unwrap_or(1.0))
    };
    let competitors = result
        .contenders
        .iter()
        .filter(|contender| contender.name != *reference && contender.twin_of.is_none());
    let best = competitors
        .map(|contender| (better_by(&contender.name), &contender.name))
        .max_by(|(left, _), (right, _)| (left.0 as f64 * left.1).total_cmp(&(right.0 as f64 * right.1)));
    match best {
        Some(((cells @ 1.., _), name)) => {
            let clause = ranges(result, name, Figure::Cpu, true);
            format!(
                "Cheapest here: {name}, with {clause} server CPU per request than {reference} in {cells} of {} cells.",
                result.cells.len()
            )
        }
        _ => {
            let noisy = |cell: &&CellResult| cell.rows.iter().any(|row| row.cpu_verdict == Verdict::TooNoisy);
            match (result.cells.iter().filter(noisy).count(), result.cells.len()) {
                (0, _) => format!("No server here takes detectably less CPU per request than {reference}."),
                (noisy, all) if noisy == all => {
                    format!("Too noisy: this run cannot tell whether any server beats {reference}.")
                }
                (noisy, all) => format!(
                    "No server here takes detectably less CPU per request than {reference}, but {noisy} of {all} cells \
                     were too noisy to tell."
                ),
            }
        }
    }
}

fn rows_of<'a>(result: &'a LabResult, name: &'a str) -> impl Iterator<Item = (&'a CellResult, &'a Row)> {
    result
        .cells
        .iter()
        .filter_map(move |cell| Some((cell, cell.rows.iter().find(|row| row.contender == name)?)))
}

/// "4 to 9 % less" over the cells where the contender is better (or worse).
fn ranges(result: &LabResult, name: &str, figure: Figure, better: bool) -> String {
    let rows = rows_of(result, name).filter(|(_, row)| figure.is_better(figure.verdict(row)) == Some(better));
    let ratios: Vec<f64> = rows.filter_map(|(_, row)| Some(figure.ratio(row)?.estimate)).collect();
    let more = (figure == Figure::Rate) == better;
    let least =
        ratios.iter().copied().min_by(|left, right| (left - 1.0).abs().total_cmp(&(right - 1.0).abs()));
    let most =
        ratios.iter().copied().max_by(|left, right| (left - 1.0).abs().total_cmp(&(right - 1.0).abs()));
    match (least, most) {
        (Some(least), Some(most)) => difference(least, most, more),
        _ => String::new(),
    }
}

/// Two ratios, the one nearer to 1 first, as a difference in words.
fn difference(least: f64, most: f64, more: bool) -> String {
    let word = if more { "more" } else { "less" };
    if more && most >= 2.0 {
        let (least, most) = (format!("{least:.1}"), format!("{most:.1}"));
        return if least == most {
            format!("{most} times as much")
        } else {
            format!("{least} to {most} times as much")
        };
    }
    let percent = |ratio: f64| {
        let percent = (ratio - 1.0).abs() * 100.0;
        if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
    };
    let (least, most) = (percent(least), percent(most));
    if least == most { format!("{most}\u{a0}% {word}") } else { format!("{least} to {most}\u{a0}% {word}") }
}

/// "Server CPU per request: 4 to 9 % less in 3 of 6 cells, no detectable difference in 3".
fn sentence(result: &LabResult, name: &str, figure: Figure) -> Option<String> {
    let rows: Vec<_> = rows_of(result, name).filter(|(_, row)| figure.ratio(row).is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    let total = rows.len();
    let measured = if total < result.cells.len() { " measured" } else { "" };
    let mut clauses = Vec::new();
    let mut add = |words: String, cells: Vec<&CellResult>| {
        if cells.len() == total {
            clauses.push(if total == 1 { words } else { format!("{words} in all {total} cells{measured}") });
        } else if let [cell] = cells[..] {
            clauses.push(format!("{words} at {}", cell.cell));
        } else if !cells.is_empty() {
            clauses.push(format!("{words} in {} of {total} cells", cells.len()));
        }
    };
    let cells = |wanted: &dyn Fn(Verdict) -> bool| -> Vec<&CellResult> {
        rows.iter().filter(|(_, row)| wanted(figure.verdict(row))).map(|(cell, _)| *cell).collect()
    };
    for better in [true, false] {
        let found = cells(&|verdict| figure.is_better(verdict) == Some(better));
        if !found.is_empty() {
            add(ranges(result, name, figure, better), found);
        }
    }
    add("no detectable difference".to_owned(), cells(&|verdict| verdict == Verdict::NoDifference));
    add("too noisy to tell".to_owned(), cells(&|verdict| verdict == Verdict::TooNoisy));
    let (first, rest) = figure.name().split_at(1);
    Some(format!("{}{rest}: {}", first.to_uppercase(), clauses.join(", ")))
}

fn resolution_sentence(result: &LabResult) -> Option<String> {
    let of = |figure: Figure| {
        let all: Vec<f64> = result.cells.iter().filter_map(|cell| figure.resolution(cell)).collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        quantile(&all, 0.5).map(|middle| {
            let (middle, most) = (format!("{:.1}", middle * 100.0), format!("{:.1}", most * 100.0));
            if middle == most {
                format!("{middle}\u{a0}%")
            } else {
                format!("{middle}\u{a0}% (at worst {most}\u{a0}%)")
            }
        })
    };
    Some(format!(
        "{} against itself: on this machine two equal servers may differ by {} in server CPU per request and {} in \
         requests/s. Smaller differences cannot be told.",
        result.plan.reference,
        of(Figure::Cpu)?,
        of(Figure::Rate)?,
    ))
}

fn noisy_sentences(result: &LabResult) -> Vec<String> {
    let noisy = |figure: Figure| {
        let cells: Vec<String> = result
            .cells
            .iter()
            .filter(|cell| cell.rows.iter().any(|row| figure.verdict(row) == Verdict::TooNoisy))
            .map(|cell| {
                let by = figure
                    .resolution(cell)
                    .map_or(String::new(), |by| format!(" (±{:.0}\u{a0}%)", by * 100.0));
                format!("{}{by}", cell.cell)
            })
            .collect();
        (!cells.is_empty()).then(|| {
            format!(
                "Too noisy to tell servers apart by {}: {}. Run longer, or on a quieter machine.",
                figure.name(),
                cells.join("; ")
            )
        })
    };
    [Figure::Cpu, Figure::Rate].into_iter().filter_map(noisy).collect()
}

fn foreign_sentence(result: &LabResult) -> Option<String> {
    let fraction = result.foreign_fraction.filter(|&fraction| fraction > FOREIGN)?;
    Some(format!(
        "Other programs took {:.0}\u{a0}% of the cores' time during the run: stop them and repeat it for finer differences.",
        fraction * 100.0
    ))
}

fn stolen_sentence(result: &LabResult) -> Option<String> {
    let stolen: usize = result.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.stolen_slices).sum();
    (stolen > 0).then(|| {
        format!(
            "{stolen} of {} slices were dropped because the hypervisor took time from a core during them.",
            result.slices.len()
        )
    })
}

/// Where the load, not the server, set the pace, the rate says little about the server.
fn load_bound_sentence(result: &LabResult) -> Option<String> {
    let bound = |cell: &&CellResult| {
        let busy = cell
            .rows
            .iter()
            .find(|row| row.contender == result.plan.reference)
            .and_then(|row| row.figures.as_ref());
        cell.cell.connections > 1 && busy.is_some_and(|figures| figures.server_busy < SERVER_BUSY)
    };
    let cells: Vec<String> = result.cells.iter().filter(bound).map(|cell| cell.cell.to_string()).collect();
    (!cells.is_empty()).then(|| {
        format!(
            "{} was not busy all the time at {}: there the load sets the pace, and CPU per request is the figure to read.",
            result.plan.reference,
            cells.join("; ")
        )
    })
}

fn failure_sentences(result: &LabResult) -> Vec<String> {
    let mut sentences = Vec::new();
    for contender in &result.contenders {
        let rows: Vec<_> = rows_of(result, &contender.name).collect();
        let failed: Vec<_> =
            rows.iter().filter(|(_, row)| matches!(row.outcome, Outcome::Failed(_))).collect();
        let restarts: usize = rows.iter().map(|(_, row)| row.restarts).sum();
        if let Some((_, Row { outcome: Outcome::Skipped(why), .. })) = rows.first() {
            sentences.push(format!("{} took no part: {}.", contender.name, why.trim_end_matches('.')));
        } else if let Some((cell, Row { outcome: Outcome::Failed(why), .. })) = failed.first() {
            let where_else =
                if failed.len() > 1 { format!(", and {} more", failed.len() - 1) } else { String::new() };
            sentences.push(format!(
                "{} failed at {}{where_else}: {}.",
                contender.name,
                cell.cell,
                why.trim_end_matches('.')
            ));
        } else if restarts > 0 {
            let times = if restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
            sentences
                .push(format!("{} broke and was started again {times}; see the failures.", contender.name));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(estimate: f64, half_width: f64) -> Ratio {
        Ratio { estimate, low: estimate - half_width, high: estimate + half_width }
    }

    #[test]
    fn a_difference_must_leave_out_equality_and_exceed_the_resolution() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.03), 15), Verdict::More);
        assert_eq!(verdict_on(ratio(0.95, 0.02), Some(0.03), 15), Verdict::Less);
        assert_eq!(
            verdict_on(ratio(1.05, 0.06), Some(0.03), 15),
            Verdict::NoDifference,
            "the interval includes 1"
        );
        assert_eq!(
            verdict_on(ratio(1.05, 0.02), Some(0.06), 15),
            Verdict::NoDifference,
            "equal servers differ as much"
        );
        assert_eq!(verdict_on(ratio(1.0, 0.0), Some(0.0), 15), Verdict::NoDifference);
    }

    #[test]
    fn noise_and_few_slices_forbid_a_verdict_but_not_on_the_obvious() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), Some(0.3), 15), Verdict::TooNoisy);
        assert_eq!(verdict_on(ratio(3.0, 0.5), Some(0.3), 15), Verdict::More);
        assert_eq!(verdict_on(ratio(3.0, 0.5), Some(0.01), LEAST_SLICES - 1), Verdict::TooNoisy);
    }

    #[test]
    fn without_a_twin_the_interval_alone_decides() {
        assert_eq!(verdict_on(ratio(1.05, 0.02), None, 15), Verdict::More);
        assert_eq!(verdict_on(ratio(1.01, 0.02), None, 15), Verdict::NoDifference);
    }

    #[test]
    fn differences_are_put_in_words() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        assert_eq!(plain(difference(0.96, 0.9, false)), "4.0 to 10 % less");
        assert_eq!(plain(difference(1.04, 1.04, true)), "4.0 % more");
        assert_eq!(plain(difference(1.2, 2.5, true)), "1.2 to 2.5 times as much");
        assert_eq!(plain(difference(3.0, 3.0, true)), "3.0 times as much");
    }

    #[test]
    fn better_means_more_requests_and_less_cpu() {
        assert_eq!(Figure::Rate.is_better(Verdict::More), Some(true));
        assert_eq!(Figure::Cpu.is_better(Verdict::More), Some(false));
        assert_eq!(Figure::Cpu.is_better(Verdict::NoDifference), None);
    }
}
