//! What changed between two runs, beyond noise.
//!
//! Two runs of the same program on the same machine differ: the machine was in another mood. So every contender's ratio
//! *to the reference of its own run* is compared with the same ratio in the other run; what slows everything down cancels
//! out. The twin of the reference shows what is left: its ratio should be the same in both runs, and as far as it is not,
//! no other change is believed.
//!
//! ```text
//!            run A                    run B                   change
//!  contender / reference  1.10   contender / reference  1.21    +10 %
//!  twin      / reference  1.00   twin      / reference  1.01     ±1 %   what cannot be told
//! ```
//!
//! A regression counts if it is beyond doubt that it exceeds the threshold: the whole interval of the change does, and
//! the change is larger than the noise. A contender that was measured in the first run and failed in the second counts
//! too. Whose regressions count is another question: see [`Counted`]. Absolute changes stand beside, for runs on one machine; they prove nothing, because the machine may have changed
//! its speed in between.

mod bootstrap;
mod counting;
mod environment;
mod render;

pub use counting::Counted;
pub use environment::Difference;
pub use render::render_comparison;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::compare::bootstrap::ratio_of_medians;
use crate::measure::Measure;
use crate::pairs::CleanSlices;
use crate::result::{LabResult, Outcome, Row, Verdict};
use crate::schedule::Random;
use crate::statistics::{Ratio, quantile};
use crate::verdict::{has_enough_samples, verdict_on};

/// Name of the format of a comparison as JSON.
pub const SCHEMA: &str = "anello-lab-compare";

/// Version of that format.
pub const SCHEMA_VERSION: u32 = 2;

/// What changed from one run to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] it was written by.
    pub schema_version: u32,
    /// The first run.
    pub before: RunName,
    /// The second run.
    pub after: RunName,
    /// Regressions up to this fraction are not counted.
    pub threshold: f64,
    /// What differs between the machines, the plans and the contenders.
    pub differences: Vec<Difference>,
    /// Why the runs as a whole cannot be compared; empty if they can.
    pub obstacles: Vec<String>,
    /// Every contender in every cell that either run has, by the order of the first run.
    pub changes: Vec<Change>,
    /// The contenders whose regressions count. Of the reference, if it is among them, only that it broke can be told.
    pub counted: Vec<String>,
    /// How many changes of these are regressions past the threshold beyond doubt.
    pub regressions: usize,
    /// How many changes of other contenders are.
    pub regressions_of_others: usize,
}

/// What a run is known by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunName {
    /// Start of the run, seconds since 1970.
    pub started_unix_s: u64,
    /// Version of anello.
    pub version: String,
    /// The scenario.
    pub scenario: String,
}

/// One figure of one contender in one cell in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The contender.
    pub contender: String,
    /// The cell.
    pub cell: Cell,
    /// What is compared; none where the two could not even be laid side by side.
    pub measure: Option<Measure>,
    /// The ratio to the reference in the first run.
    pub before: Option<f64>,
    /// The ratio to the reference in the second run.
    pub after: Option<f64>,
    /// The second as a multiple of the first.
    pub change: Option<Ratio>,
    /// What the reference's twin changed by, as a fraction: changes up to this are not believed.
    pub noise: Option<f64>,
    /// The absolute figure of the second run as a multiple of the first's; only on the same machine.
    pub absolute: Option<Ratio>,
    /// What can be said.
    pub verdict: ChangeVerdict,
    /// Why nothing can be said, or how the contender broke.
    pub why: Option<String>,
    /// Whether it is a regression past the threshold beyond doubt, be its contender one that counts or not.
    pub regression: bool,
}

/// What can be said about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerdict {
    /// It is the reference, of which only the absolute change is known.
    Reference,
    /// Better, beyond doubt.
    Better,
    /// Worse, beyond doubt.
    Worse,
    /// The interval includes no change, or the twin changed as much.
    NoDifference,
    /// The twin changed so much, or there are so few clean slices, that nothing can be said.
    TooNoisy,
    /// It was measured in the first run and failed in the second.
    #[serde(rename = "broke")]
    Broken,
    /// It failed in the first run and was measured in the second.
    #[serde(rename = "mended")]
    Fixed,
    /// One of the two runs does not have it, or the runs cannot be compared.
    NotComparable,
}

/// Compares two runs and counts the regressions of anello; `threshold` is the fraction up to which one is not counted.
#[must_use]
pub fn compare(before: &LabResult, after: &LabResult, threshold: f64) -> Comparison {
    compare_counting(before, after, threshold, Counted::DEFAULT)
}

/// As [`compare`], and counts the regressions of whom one likes.
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

/// Two runs side by side.
struct Runs<'a> {
    before: &'a LabResult,
    after: &'a LabResult,
    before_slices: CleanSlices<'a>,
    after_slices: CleanSlices<'a>,
    obstacles: &'a [String],
    threshold: f64,
}

/// Where one contender stands in one cell in each of the runs: indexes of cell and contender.
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
                        changes.push(missing(&record.name, *cell, "it took no part in the second run"))
                    }
                }
            }
        }
        self.add_new_cells(&mut changes);
        changes
    }

    /// What only the second run has.
    fn add_new_cells(&self, changes: &mut Vec<Change>) {
        for cell in &self.after.plan.cells {
            let known_cell = self.before.plan.cells.contains(cell);
            for record in self.after.contenders.iter().filter(|record| record.twin_of.is_none()) {
                let known = self.before.contenders.iter().any(|other| other.name == record.name);
                if !known_cell {
                    changes.push(missing(&record.name, *cell, "the first run does not have the cell"));
                } else if !known {
                    changes.push(missing(&record.name, *cell, "it took no part in the first run"));
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
            return vec![missing(name, cell, "one of the runs ended before it")];
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
            // A cell without this figure (a disk worker that uses no CPU that could be counted) is not worth a line.
            let nothing = before.concat().is_empty() && after.concat().is_empty() && absolute.is_none();
            return (!nothing)
                .then(|| Change { why: Some("the reference was not measured".to_owned()), ..blank });
        };
        let (verdict, why) = match self.obstacles {
            [] => (verdict_of(verdict_on(change, noise), measure), None),
            obstacles => (ChangeVerdict::NotComparable, Some(obstacles.join(", "))),
        };
        let surely_past = if measure.more_is_better() {
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
            regression: verdict == ChangeVerdict::Worse && surely_past,
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

    /// What the twin changed by, by cell of the first run and measure: the farther end of the interval, or the middle of
    /// that over all cells where one cell was lucky.
    fn noise(&self) -> HashMap<(usize, Measure), f64> {
        let mut noise = HashMap::new();
        let (Some(twin_before), Some(twin_after)) = (twin_of(self.before), twin_of(self.after)) else {
            return noise;
        };
        for measure in Measure::ALL {
            let cells = self.before.plan.cells.iter().enumerate();
            let reaches: Vec<(usize, Option<f64>)> = cells
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
            let known: Vec<f64> = reaches.iter().filter_map(|(_, reach)| *reach).collect();
            let middle = quantile(&known, 0.5);
            for (index, reach) in reaches {
                if let Some(reach) = reach.into_iter().chain(middle).reduce(f64::max) {
                    noise.insert((index, measure), reach);
                }
            }
        }
        noise
    }
}

/// A stream of its own for every question.
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
