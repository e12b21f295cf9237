//! Comparison results: the types that are stored and reported.

use serde::{Deserialize, Serialize};

use crate::compare::environment::Difference;
use crate::plan::cell::Cell;
use crate::result::Ratio;
use crate::result::measure::Measure;

/// Changes from one run to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Always "anello-lab-compare".
    pub schema: String,
    /// Version of the format.
    pub schema_version: u32,
    /// The first run.
    pub before: RunName,
    /// The second run.
    pub after: RunName,
    /// Threshold, as a fraction. Smaller regressions are not counted.
    pub threshold: f64,
    /// Differences between the two runs in the machine, the plan and the contenders.
    pub differences: Vec<Difference>,
    /// Reasons why the runs cannot be compared; empty if they can.
    pub obstacles: Vec<String>,
    /// Changes for every contender and cell in either run, in the order of the first run.
    pub changes: Vec<Change>,
    /// Contenders whose regressions count. For the reference, only a failure can be detected.
    pub counted: Vec<String>,
    /// Number of regressions in these contenders that significantly exceed the threshold.
    pub regressions: usize,
    /// Number of such regressions in other contenders.
    pub regressions_of_others: usize,
}

/// Identifies a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunName {
    /// Start of the run, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Version of anello.
    pub version: String,
    /// Name of the scenario.
    pub scenario: String,
}

/// Change in one figure of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the contender.
    pub contender: String,
    /// Cell to which the figure belongs.
    pub cell: Cell,
    /// Measure that the figure belongs to; `None` unless the contender was measured in both runs.
    pub measure: Option<Measure>,
    /// Ratio to the reference in the first run.
    pub before: Option<f64>,
    /// Ratio to the reference in the second run.
    pub after: Option<f64>,
    /// Ratio in the second run as a multiple of the ratio in the first run.
    pub change: Option<Ratio>,
    /// Noise floor: the change in the twin of the reference, as a fraction. Smaller changes are not significant.
    pub noise: Option<f64>,
    /// Absolute figure in the second run as a multiple of that in the first run; `None` if the runs cannot be compared.
    pub absolute: Option<Ratio>,
    /// Verdict on the change.
    pub verdict: ChangeVerdict,
    /// Reason why there is no verdict, or the failure of the contender.
    pub why: Option<String>,
    /// `true` if the change is a regression that significantly exceeds the threshold, whether or not its contender
    /// counts.
    pub regression: bool,
}

/// Verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeVerdict {
    /// The contender is the reference. Only the change in its absolute figure is known.
    Reference,
    /// Significantly better.
    Better,
    /// Significantly worse.
    Worse,
    /// No significant change: the interval includes 1, or the change is within the noise floor.
    NoDifference,
    /// No verdict is possible: the noise floor is too high or unknown, or there are too few clean slices.
    TooNoisy,
    /// The contender was measured in the first run and failed in the second.
    Broken,
    /// The contender failed in the first run and was measured in the second.
    Fixed,
    /// The figure is missing from one of the runs, or the runs cannot be compared.
    NotComparable,
}
