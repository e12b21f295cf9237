//! Verdicts, failures and findings of a run.

use serde::{Deserialize, Serialize};

use crate::plan::cell::Cell;
use crate::plan::method::Method;

/// Verdict on one figure of a contender compared with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The contender is the reference.
    Reference,
    /// The figure is significantly higher than that of the reference.
    More,
    /// The figure is significantly lower than that of the reference.
    Less,
    /// No significant difference: the interval includes 1, or the difference is within the noise floor.
    NoDifference,
    /// No verdict is possible: the noise floor is too high or unknown, or there are too few clean slices.
    TooNoisy,
    /// One of the two contenders was not measured.
    #[default]
    NotComparable,
}

/// A failure of a contender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the contender.
    pub contender: String,
    /// Cell in which the contender failed; `None` if it failed at the start of a pass.
    pub cell: Option<Cell>,
    /// Pass in which the contender failed, 0-based.
    pub pass: usize,
    /// Description of the failure.
    pub what: String,
    /// How the lab reacted.
    pub consequence: Consequence,
}

/// How the lab reacted to the failure of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Consequence {
    /// The contender could not be started and is skipped in this pass.
    #[strum(to_string = "skipped in this pass")]
    SkippedPass,
    /// The contender was restarted and measured again.
    #[strum(to_string = "restarted once")]
    Restarted,
    /// The contender failed a second time and is excluded from the rest of the cell.
    #[strum(to_string = "excluded from the rest of this cell")]
    LeftOut,
    /// The contender sent a wrong response and is excluded from this cell in all passes.
    #[strum(to_string = "excluded from this cell")]
    Disqualified,
    /// The contender failed a check and is not measured at all.
    #[strum(to_string = "not measured")]
    NotTimed,
}

/// A finding in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of finding.
    pub kind: FindingKind,
    /// Text of the finding, one or two sentences.
    pub text: String,
    /// Measurement method, if the finding compares contenders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
}

/// Kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// Main conclusion of the run.
    Headline,
    /// Comparison of an anello contender with one peer.
    Peer,
    /// Comparison of one contender with the reference.
    Contender,
    /// Noise floor of the run, and cells that are too noisy.
    Resolution,
    /// Limitation of the figures.
    Caution,
    /// Failure of a contender.
    Failure,
}
