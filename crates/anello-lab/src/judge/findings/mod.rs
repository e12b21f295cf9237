//! Findings: the conclusion of a run in one sentence, and facts that a reader of the figures must know.

mod conclusion;
mod facts;
mod peers;

pub(crate) use conclusion::Tally;
pub use conclusion::sentence as conclusion;
pub use facts::facts;
pub(crate) use peers::{MANY_CONNECTIONS, peers_of};
pub use peers::{Standing, decision, runtimes};

use crate::result::{Finding, FindingKind, LabResult};

/// Returns the findings of a result whose verdicts have been computed: the conclusion, then the facts.
pub(crate) fn findings(result: &LabResult) -> Vec<Finding> {
    let finding = |kind, text| {
        let compares = matches!(kind, FindingKind::Headline | FindingKind::Contender);
        Finding { kind, text, method: compares.then(|| result.plan.method()) }
    };
    let facts = facts(result).into_iter();
    let facts = facts.map(|fact| finding(fact.kind, format!("{}: {}", fact.subject, fact.text)));
    [finding(FindingKind::Headline, conclusion(result))].into_iter().chain(facts).collect()
}
