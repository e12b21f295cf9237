//! Comparison of two runs: significant changes of each contender.
//!
//! Two runs of the same program on the same machine differ because the state of the machine changes. Therefore, the
//! ratio of each contender *to the reference of the same run* is compared between the runs, and effects that slow down
//! all contenders cancel out. The ratio of the twin to the reference should be equal in both runs. Its change is the
//! noise floor: smaller changes of other contenders are not significant.
//!
//! ```text
//!            run A                    run B                   change
//!  contender / reference  1.10   contender / reference  1.21    +10 %
//!  twin      / reference  1.00   twin      / reference  1.01     ±1 %   noise floor
//! ```
//!
//! A change is a regression if its whole interval exceeds the threshold and if it is larger than the noise floor. A
//! contender that was measured in the first run and failed in the second is a regression, too. [`Counted`] selects the
//! contenders whose regressions count. Changes of absolute figures are included for information only, because the
//! machine's speed can change between the runs.

mod bootstrap;
mod change;
mod counting;
mod environment;
mod render;

pub use change::{Change, ChangeVerdict, Comparison, RunName, SCHEMA, SCHEMA_VERSION};
pub use counting::Counted;
pub use environment::Difference;
pub use render::render_comparison;

use std::collections::HashMap;

use crate::compare::bootstrap::ratio_of_medians;
use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::quantile;
use crate::judge::verdict::{has_enough_samples, verdict_on};
use crate::plan::cell::Cell;
use crate::plan::schedule::Random;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{LabResult, Outcome, Row, Verdict};

/// Compares two runs and counts the regressions of the anello contenders that exceed `threshold`, a fraction.
#[must_use]
pub fn compare(before: &LabResult, after: &LabResult, threshold: f64) -> Comparison {
    compare_counting(before, after, threshold, Counted::DEFAULT)
}

/// Like [`compare`], but counts the regressions of the contenders selected by `counted`.
#[must_use]
pub fn compare_counting(
    before: &LabResult,
    after: &LabResult,
    threshold: f64,
    counted: &[Counted],
) -> Comparison {
    let differences = environment::differences(before, after);
    let obstacles = environment::obstacles(before, after);
    let pair = Runs {
        before,
        after,
        before_slices: CleanSlices::of(before),
        after_slices: CleanSlices::of(after),
        obstacles: &obstacles,
        threshold,
    };
    let changes = pair.changes();
    let counted = Counted::among(counted, before, after);
    let (own, others): (Vec<&Change>, Vec<&Change>) = changes
        .iter()
        .filter(|change| change.regression)
        .partition(|change| counted.contains(&change.contender));
    Comparison {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
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

/// The two compared runs.
struct Runs<'a> {
    before: &'a LabResult,
    after: &'a LabResult,
    before_slices: CleanSlices<'a>,
    after_slices: CleanSlices<'a>,
    obstacles: &'a [String],
    threshold: f64,
}

/// Indices of the cell and of the contender in each of the two runs.
#[derive(Clone, Copy)]
struct CellPosition {
    before: (usize, usize),
    after: (usize, usize),
}

impl Runs<'_> {
    fn changes(&self) -> Vec<Change> {
        let noise = self.noise();
        let mut changes = Vec::new();
        for (cell_before, cell) in self.before.plan.cells.iter().enumerate() {
            let cell_after = self.after.plan.cells.iter().position(|other| other == cell);
            for (one, record) in self.before.contenders.iter().enumerate() {
                let other = self.after.contenders.iter().position(|other| other.name == record.name);
                match (cell_after, other) {
                    _ if record.twin_of.is_some() => {}
                    (Some(cell_after), Some(other)) => {
                        let position =
                            CellPosition { before: (cell_before, one), after: (cell_after, other) };
                        changes.extend(self.changes_at(*cell, &record.name, position, &noise));
                    }
                    (None, _) => {
                        changes.push(missing(&record.name, *cell, "the second run does not have the cell"))
                    }
                    (_, None) => {
                        changes.push(missing(&record.name, *cell, "not a contender of the second run"))
                    }
                }
            }
        }
        self.add_new_cells(&mut changes);
        changes
    }

    /// Adds the cells and contenders that only the second run has.
    fn add_new_cells(&self, changes: &mut Vec<Change>) {
        for cell in &self.after.plan.cells {
            let known_cell = self.before.plan.cells.contains(cell);
            for record in self.after.contenders.iter().filter(|record| record.twin_of.is_none()) {
                let known = self.before.contenders.iter().any(|other| other.name == record.name);
                if !known_cell {
                    changes.push(missing(&record.name, *cell, "the first run does not have the cell"));
                } else if !known {
                    changes.push(missing(&record.name, *cell, "not a contender of the first run"));
                }
            }
        }
    }

    fn changes_at(
        &self,
        cell: Cell,
        name: &str,
        position: CellPosition,
        noise: &HashMap<(usize, Measure), f64>,
    ) -> Vec<Change> {
        let row_before = row(self.before, position.before);
        let row_after = row(self.after, position.after);
        let (Some(row_before), Some(row_after)) = (row_before, row_after) else {
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
                let noise = noise.get(&(position.before.0, measure)).copied();
                self.change(cell, name, position, measure, noise)
            })
            .collect()
    }

    fn change(
        &self,
        cell: Cell,
        name: &str,
        position: CellPosition,
        measure: Measure,
        noise: Option<f64>,
    ) -> Option<Change> {
        let absolute = self.absolute(position, measure);
        let blank = Change { measure: Some(measure), absolute, noise, ..missing(name, cell, "") };
        if name == self.before.plan.reference && name == self.after.plan.reference {
            return Some(Change { verdict: ChangeVerdict::Reference, why: None, ..blank });
        }
        let (before, after) =
            (self.before_ratios(position.before, measure), self.after_ratios(position.after, measure));
        let Some(change) = ratio_of_medians(&before, &after, &mut stream(position, measure)) else {
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

    fn before_ratios(&self, (cell, contender): (usize, usize), measure: Measure) -> Vec<Vec<f64>> {
        reference_of(self.before)
            .map_or_else(Vec::new, |to| self.before_slices.ratios(cell, contender, to, measure))
    }

    fn after_ratios(&self, (cell, contender): (usize, usize), measure: Measure) -> Vec<Vec<f64>> {
        reference_of(self.after)
            .map_or_else(Vec::new, |to| self.after_slices.ratios(cell, contender, to, measure))
    }

    fn absolute(&self, position: CellPosition, measure: Measure) -> Option<Ratio> {
        if !self.obstacles.is_empty() {
            return None;
        }
        let before = self.before_slices.values(position.before.0, position.before.1, measure);
        let after = self.after_slices.values(position.after.0, position.after.1, measure);
        ratio_of_medians(&before, &after, &mut stream(position, measure))
    }

    /// Returns the noise floor by cell of the first run and measure. The noise floor is the maximum deviation from 1 of
    /// the interval of the twin's change, or the median of this value over all cells if that is larger.
    fn noise(&self) -> HashMap<(usize, Measure), f64> {
        let mut noise = HashMap::new();
        let (Some(twin_before), Some(twin_after)) = (twin_of(self.before), twin_of(self.after)) else {
            return noise;
        };
        for measure in Measure::ALL {
            let cells = self.before.plan.cells.iter().enumerate();
            let deviations: Vec<(usize, Option<f64>)> = cells
                .filter(|(_, cell)| Measure::of_cell(cell).contains(&measure))
                .filter_map(|(index, cell)| {
                    let after = self.after.plan.cells.iter().position(|other| other == cell)?;
                    let position = CellPosition { before: (index, twin_before), after: (after, twin_after) };
                    let (before, after) = (
                        self.before_ratios(position.before, measure),
                        self.after_ratios(position.after, measure),
                    );
                    let change = ratio_of_medians(&before, &after, &mut stream(position, measure));
                    Some((index, change.filter(has_enough_samples).map(|change| change.max_deviation())))
                })
                .collect();
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

/// Returns the random stream of one comparison.
fn stream(position: CellPosition, measure: Measure) -> Random {
    Random::stream(position.before.0 as u64 * 4096 + position.before.1 as u64, 1 << 40 | measure as u64)
}

fn row(result: &LabResult, (cell, contender): (usize, usize)) -> Option<&Row> {
    result.cells.get(cell)?.rows.get(contender)
}

fn reference_of(result: &LabResult) -> Option<usize> {
    result.contenders.iter().position(|contender| contender.name == result.plan.reference)
}

fn twin_of(result: &LabResult) -> Option<usize> {
    result.contenders.iter().position(|contender| contender.twin_of.as_ref() == Some(&result.plan.reference))
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
    match (verdict, measure.more_is_better()) {
        (Verdict::More, true) | (Verdict::Less, false) => ChangeVerdict::Better,
        (Verdict::More, false) | (Verdict::Less, true) => ChangeVerdict::Worse,
        (Verdict::TooNoisy, _) => ChangeVerdict::TooNoisy,
        (Verdict::NoDifference | Verdict::Reference, _) => ChangeVerdict::NoDifference,
        (Verdict::NotComparable, _) => ChangeVerdict::NotComparable,
    }
}
