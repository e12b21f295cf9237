//! What is said of a result: verdicts, failures, and sentences.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cell::Cell;

/// What can be said about one figure of one contender against the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// This is the reference.
    Reference,
    /// More than the reference's, beyond doubt.
    More,
    /// Less than the reference's, beyond doubt.
    Less,
    /// The interval includes equality, or the difference is one that two equal servers show here too.
    NoDifference,
    /// Two equal servers differ so much here, or there are so few clean slices, that nothing can be said.
    TooNoisy,
    /// One of the two was not measured.
    #[default]
    NotComparable,
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whom it befell.
    pub contender: String,
    /// Where; none if it was at the start of a pass.
    pub cell: Option<Cell>,
    /// In which pass, from 0.
    pub pass: usize,
    /// What it did.
    pub what: String,
    /// What the lab did about it.
    pub consequence: Consequence,
}

/// What the lab did about a contender that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consequence {
    /// It could not be started and does not take part in this pass.
    SkippedPass,
    /// It was started again, once, and goes on.
    Restarted,
    /// It broke a second time and does not take part in the rest of the cell.
    LeftOut,
    /// It answered wrongly and is not measured in this cell again.
    Disqualified,
    /// It failed a check and is not timed at all.
    NotTimed,
}

impl fmt::Display for Consequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Consequence::SkippedPass => "skipped in this pass",
            Consequence::Restarted => "started again once",
            Consequence::LeftOut => "left out for the rest of this cell",
            Consequence::Disqualified => "not measured in this cell again",
            Consequence::NotTimed => "not timed",
        })
    }
}

/// One verdict in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// One or two sentences.
    pub text: String,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The answer to the question that the lab was asked.
    Headline,
    /// Anello against one peer.
    Peer,
    /// One contender.
    Contender,
    /// What the machine can resolve, and where it cannot.
    Resolution,
    /// Something to keep in mind when reading the figures.
    Caution,
    /// A contender that failed.
    Failure,
}
