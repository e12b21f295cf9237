//! Comparison of two runs: significant changes in each contender.
//!
//! Two runs of the same program on the same machine differ because the machine's state changes. The comparison
//! therefore uses the ratio of each contender *to the reference of the same run*. Effects that slow down all contenders
//! cancel out. The twin is the reference, measured a second time. Its ratio to the reference should be the same in both
//! runs. Any change in this ratio is the noise floor: smaller changes in other contenders are not significant.
//!
//! ```text
//!            run A                    run B                   change
//!  contender / reference  1.10   contender / reference  1.21    +10 %
//!  twin      / reference  1.00   twin      / reference  1.01     ±1 %   noise floor
//! ```
//!
//! A change is a regression if its whole interval exceeds the threshold and the change is larger than the noise floor.
//! A contender that was measured in the first run and failed in the second also counts as a regression. [`Counted`]
//! selects the contenders whose regressions count. Changes in absolute figures are included for information only,
//! because the machine's speed can change between the runs.

mod change;
mod counting;
mod environment;
mod render;

pub use crate::judge::statistics::ratio_of_medians;
pub use change::{Change, ChangeVerdict, Comparison, RunName};
pub use counting::Counted;
pub use environment::Difference;
pub use render::render_comparison;

use std::collections::HashMap;

use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::quantile;
use crate::judge::verdict::{has_enough_samples, verdict_on};
use crate::plan::cell::Cell;
use crate::plan::schedule::Random;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{LabResult, Outcome, Row, Verdict};

/// Compares two runs and counts the regressions that exceed `threshold`, a fraction, in the contenders selected by
/// `counted`.
#[must_use]
pub fn compare_counting(
    before: &LabResult,
    after: &LabResult,
    threshold: f64,
    counted: &[Counted],
) -> Comparison {
    let differences = environment::differences(before, after);
    let obstacles = environment::obstacles(before, after);
    let runs = Runs { before: Side::of(before), after: Side::of(after), obstacles: &obstacles, threshold };
    let changes = runs.changes();
    let counted = Counted::among(counted, before, after);
    let (own, others): (Vec<&Change>, Vec<&Change>) = changes
        .iter()
        .filter(|change| change.regression)
        .partition(|change| counted.contains(&change.contender));
    Comparison {
        schema: "anello-lab-compare".to_owned(),
        schema_version: 3,
        before: name_of(before),
        after: name_of(after),
        threshold,
        regressions: own.len(),
        regressions_of_others: others.len(),
        counted,
        differences,
        obstacles,
        changes,
    }
}

fn name_of(result: &LabResult) -> RunName {
    RunName {
        started_unix_s: result.started_unix_s,
        version: result.plan.version.clone(),
        scenario: result.plan.scenario.name.clone(),
    }
}

struct Side<'a> {
    result: &'a LabResult,
    slices: CleanSlices<'a>,
    reference: Option<usize>,
    twin: Option<usize>,
}

impl<'a> Side<'a> {
    fn of(result: &'a LabResult) -> Side<'a> {
        let reference = &result.plan.reference;
        Side {
            result,
            slices: CleanSlices::of(result),
            reference: result.contenders.iter().position(|record| record.name == *reference),
            twin: result.contenders.iter().position(|record| record.twin_of.as_ref() == Some(reference)),
        }
    }

    fn cell(&self, cell: &Cell) -> Option<usize> {
        self.result.plan.cells.iter().position(|other| other == cell)
    }

    fn position(&self, cell: &Cell, contender: &str) -> Option<Position> {
        let contender = self.result.contenders.iter().position(|record| record.name == contender)?;
        Some(Position { cell: self.cell(cell)?, contender })
    }

    /// Returns the ratios to the reference, grouped by process.
    fn ratios(&self, at: Position, measure: Measure) -> Vec<Vec<f64>> {
        self.reference.map_or_else(Vec::new, |to| self.slices.ratios(at.cell, at.contender, to, measure))
    }

    fn values(&self, at: Position, measure: Measure) -> Vec<Vec<f64>> {
        self.slices.values(at.cell, at.contender, measure)
    }

    fn row(&self, at: Position) -> Option<&'a Row> {
        self.result.cells.get(at.cell)?.rows.get(at.contender)
    }
}

/// Indices in a run.
#[derive(Clone, Copy)]
struct Position {
    cell: usize,
    contender: usize,
}

struct Runs<'a> {
    before: Side<'a>,
    after: Side<'a>,
    obstacles: &'a [String],
    threshold: f64,
}

impl Runs<'_> {
    fn changes(&self) -> Vec<Change> {
        let noise = self.noise();
        let (before, after) = (self.before.result, self.after.result);
        let new_cells = after.plan.cells.iter().filter(|cell| !before.plan.cells.contains(cell));
        let names = Counted::among(&[Counted::All], before, after);
        let cells = before.plan.cells.iter().chain(new_cells);
        let mut changes = Vec::new();
        for (cell, name) in cells.flat_map(|cell| names.iter().map(move |name| (cell, name))) {
            let absent = |side: &Side<'_>, run: &str| match side.cell(cell) {
                Some(_) => missing(name, *cell, &format!("not a contender of the {run} run")),
                None => missing(name, *cell, &format!("the {run} run does not contain the cell")),
            };
            match (self.before.position(cell, name), self.after.position(cell, name)) {
                (Some(before), Some(after)) => {
                    changes.extend(self.changes_at(*cell, name, before, after, &noise))
                }
                (Some(_), None) => changes.push(absent(&self.after, "second")),
                (None, Some(_)) => changes.push(absent(&self.before, "first")),
                (None, None) => {}
            }
        }
        changes
    }

    fn changes_at(
        &self,
        cell: Cell,
        name: &str,
        before: Position,
        after: Position,
        noise: &HashMap<(usize, Measure), f64>,
    ) -> Vec<Change> {
        let rows = self.before.row(before).zip(self.after.row(after));
        let Some((row_before, row_after)) = rows else {
            return vec![missing(name, cell, "one of the runs was stopped before this cell")];
        };
        match (&row_before.outcome, &row_after.outcome) {
            (Outcome::Measured, Outcome::Measured) => {}
            (Outcome::Measured, Outcome::Skipped(why) | Outcome::Failed(why) | Outcome::CheckFailed(why)) => {
                return vec![Change {
                    verdict: ChangeVerdict::Broken,
                    regression: self.obstacles.is_empty(),
                    ..missing(name, cell, why)
                }];
            }
            (Outcome::Skipped(why) | Outcome::Failed(why) | Outcome::CheckFailed(why), Outcome::Measured) => {
                return vec![Change { verdict: ChangeVerdict::Fixed, ..missing(name, cell, why) }];
            }
            _ => return vec![missing(name, cell, "not measured in both runs")],
        }
        Measure::of_cell(&cell)
            .iter()
            .filter_map(|&measure| {
                let noise = noise.get(&(before.cell, measure)).copied();
                self.change(cell, name, before, after, measure, noise)
            })
            .collect()
    }

    fn change(
        &self,
        cell: Cell,
        name: &str,
        before: Position,
        after: Position,
        measure: Measure,
        noise: Option<f64>,
    ) -> Option<Change> {
        let absolute = self.absolute(before, after, measure);
        let blank = Change { measure: Some(measure), absolute, noise, ..missing(name, cell, "") };
        if [&self.before, &self.after].iter().all(|side| side.result.plan.reference == name) {
            return Some(Change { verdict: ChangeVerdict::Reference, why: None, ..blank });
        }
        let mut random = stream(before, measure);
        let (before, after) = (self.before.ratios(before, measure), self.after.ratios(after, measure));
        let Some(change) = ratio_of_medians(&before, &after, &mut random) else {
            // Skip figures that neither run has, such as the CPU time of a disk worker that used no measurable CPU
            // time.
            let has_no_figure = before.concat().is_empty() && after.concat().is_empty() && absolute.is_none();
            return (!has_no_figure)
                .then(|| Change { why: Some("the reference was not measured".to_owned()), ..blank });
        };
        let (verdict, why) = match self.obstacles {
            [] => (verdict_of(verdict_on(change, noise), measure), None),
            obstacles => (ChangeVerdict::NotComparable, Some(obstacles.join(", "))),
        };
        let exceeds_threshold = if measure.more_is_better() {
            change.high < 1.0 - self.threshold
        } else {
            change.low > 1.0 + self.threshold
        };
        Some(Change {
            before: quantile(&before.concat(), 0.5),
            after: quantile(&after.concat(), 0.5),
            change: Some(change),
            verdict,
            why,
            regression: verdict == ChangeVerdict::Worse && exceeds_threshold,
            ..blank
        })
    }

    fn absolute(&self, before: Position, after: Position, measure: Measure) -> Option<Ratio> {
        if !self.obstacles.is_empty() {
            return None;
        }
        let (before_values, after_values) =
            (self.before.values(before, measure), self.after.values(after, measure));
        ratio_of_medians(&before_values, &after_values, &mut stream(before, measure))
    }

    /// Returns the noise floor for each cell (of the first run) and measure: the largest deviation from 1 in the
    /// interval for the twin's change, or the median of these deviations over all cells if that is larger.
    fn noise(&self) -> HashMap<(usize, Measure), f64> {
        let mut noise = HashMap::new();
        let Some((twin_before, twin_after)) = self.before.twin.zip(self.after.twin) else { return noise };
        for measure in Measure::ALL {
            let cells = self.before.result.plan.cells.iter().enumerate();
            let deviation = |(index, cell): (usize, &Cell)| {
                let before = Position { cell: index, contender: twin_before };
                let after = Position { cell: self.after.cell(cell)?, contender: twin_after };
                let mut random = stream(before, measure);
                let (before, after) =
                    (self.before.ratios(before, measure), self.after.ratios(after, measure));
                let change = ratio_of_medians(&before, &after, &mut random);
                Some((index, change.filter(has_enough_samples).map(|change| change.max_deviation())))
            };
            let deviations: Vec<(usize, Option<f64>)> =
                cells.filter(|(_, cell)| measure.applies(cell)).filter_map(deviation).collect();
            let known: Vec<f64> = deviations.iter().filter_map(|(_, deviation)| *deviation).collect();
            let median = quantile(&known, 0.5);
            for (index, deviation) in deviations {
                if let Some(deviation) = deviation.into_iter().chain(median).reduce(f64::max) {
                    noise.insert((index, measure), deviation);
                }
            }
        }
        noise
    }
}

fn stream(at: Position, measure: Measure) -> Random {
    Random::stream(at.cell as u64 * 4096 + at.contender as u64, 1 << 40 | measure as u64)
}

fn missing(name: &str, cell: Cell, why: &str) -> Change {
    Change {
        contender: name.to_owned(),
        cell,
        measure: None,
        before: None,
        after: None,
        change: None,
        noise: None,
        absolute: None,
        verdict: ChangeVerdict::NotComparable,
        why: Some(why.to_owned()),
        regression: false,
    }
}

fn verdict_of(verdict: Verdict, measure: Measure) -> ChangeVerdict {
    match (measure.is_better(verdict), verdict) {
        (Some(true), _) => ChangeVerdict::Better,
        (Some(false), _) => ChangeVerdict::Worse,
        (None, Verdict::TooNoisy) => ChangeVerdict::TooNoisy,
        (None, Verdict::NotComparable) => ChangeVerdict::NotComparable,
        (None, _) => ChangeVerdict::NoDifference,
    }
}
