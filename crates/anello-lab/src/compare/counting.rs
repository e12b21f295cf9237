//! Selection of the contenders whose regressions count.
//!
//! A comparison in CI must show whether the program under test became worse, not whether a peer or the machine changed.
//! By default, only the anello contenders count. Regressions in other contenders are only reported.

use crate::plan::contender::Role;
use crate::result::unique::unique;
use crate::result::{ContenderRecord, LabResult};

/// A selection of contenders whose regressions count. Several selections can be combined.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counted {
    /// The anello contenders, or all contenders if neither run has an anello contender.
    Anello,
    /// All contenders.
    All,
    /// The contender with this name.
    Named(String),
}

impl Counted {
    /// Returns the names of the selected contenders in two runs, starting with the contenders in the first run.
    #[must_use]
    pub fn among(counted: &[Counted], before: &LabResult, after: &LabResult) -> Vec<String> {
        let has_anello = contenders(before, after).any(|contender| contender.role == Role::Anello);
        let counts = |contender: &ContenderRecord| {
            counted.iter().any(|counted| match counted {
                Counted::Anello => !has_anello || contender.role == Role::Anello,
                Counted::All => true,
                Counted::Named(name) => *name == contender.name,
            })
        };
        unique(contenders(before, after).filter(|contender| counts(contender)).map(|it| it.name.clone()))
    }

    /// Returns the selected names that occur in neither run.
    #[must_use]
    pub fn unknown<'a>(counted: &'a [Counted], before: &LabResult, after: &LabResult) -> Vec<&'a str> {
        let is_known = |name: &str| contenders(before, after).any(|contender| contender.name == name);
        let unknown = counted.iter().filter_map(|counted| match counted {
            Counted::Named(name) if !is_known(name) => Some(name.as_str()),
            _ => None,
        });
        unknown.collect()
    }
}

/// Returns the contenders of both runs, excluding twins, which are not compared.
fn contenders<'a>(before: &'a LabResult, after: &'a LabResult) -> impl Iterator<Item = &'a ContenderRecord> {
    before.contenders.iter().chain(&after.contenders).filter(|contender| contender.twin_of.is_none())
}
