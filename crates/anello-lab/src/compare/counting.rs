//! Selection of the contenders whose regressions count.
//!
//! A comparison in CI must show whether the program under test got worse. If a peer got worse, the peer or the
//! machine changed, and the build must not fail because of it. By default, only the anello contenders count, and
//! regressions in other contenders are reported without being counted. In runs without an anello contender (disk
//! workers, or custom contenders), all contenders count.

use crate::plan::contender::Role;
use crate::result::{ContenderRecord, LabResult};

/// A selection of contenders whose regressions count. Several selections can be combined in a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// The anello contenders, or all contenders if neither run has an anello contender.
    Anello,
    /// All contenders.
    All,
    /// The contender with this name.
    Named(String),
}

impl Counted {
    /// Default selection.
    pub const DEFAULT: &[Counted] = &[Counted::Anello];

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
        let mut names: Vec<String> = Vec::new();
        for contender in contenders(before, after).filter(|contender| counts(contender)) {
            if !names.contains(&contender.name) {
                names.push(contender.name.clone());
            }
        }
        names
    }

    /// Returns the selected names that occur in neither run.
    #[must_use]
    pub fn unknown<'a>(counted: &'a [Counted], before: &LabResult, after: &LabResult) -> Vec<&'a str> {
        let is_known = |name: &str| contenders(before, after).any(|contender| contender.name == name);
        let names = counted.iter().filter_map(|counted| match counted {
            Counted::Named(name) => Some(name.as_str()),
            Counted::Anello | Counted::All => None,
        });
        names.filter(|name| !is_known(name)).collect()
    }
}

/// Returns the contenders in both runs, except twins, which have no comparisons.
fn contenders<'a>(before: &'a LabResult, after: &'a LabResult) -> impl Iterator<Item = &'a ContenderRecord> {
    before.contenders.iter().chain(&after.contenders).filter(|contender| contender.twin_of.is_none())
}
