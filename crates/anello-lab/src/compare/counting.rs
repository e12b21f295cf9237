//! Whose regressions count.
//!
//! Who compares two runs in CI asks whether *their* program became worse. Where a peer became worse, the peer or the
//! machine changed: to fail a build for it would be wrong, and to say nothing of it, too. So by default anello's own
//! contenders count, and what befell the others is told. Runs without any of anello (disk workers, a field of one's
//! own) have nobody else to mean than all.

use crate::contender::Role;
use crate::result::{ContenderRecord, LabResult};

/// Whose regressions count; several of them together in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// Those of anello's own contenders; those of all where neither run has any of anello.
    Anello,
    /// Those of all contenders.
    All,
    /// Those of the contender with this name.
    Named(String),
}

impl Counted {
    /// Who counts if nobody says otherwise.
    pub const DEFAULT: &[Counted] = &[Counted::Anello];

    /// The names of all that count among the contenders of two runs, in the order of the first.
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

    /// The names that were given and that neither run knows.
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

/// The contenders of both runs without twins, which are compared with nobody.
fn contenders<'a>(before: &'a LabResult, after: &'a LabResult) -> impl Iterator<Item = &'a ContenderRecord> {
    before.contenders.iter().chain(&after.contenders).filter(|contender| contender.twin_of.is_none())
}
