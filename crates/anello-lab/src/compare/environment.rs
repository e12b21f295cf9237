//! What differs between the machines and plans of two runs, and what of it forbids a comparison.

use serde::{Deserialize, Serialize};

use crate::result::LabResult;

/// Facts that differ from one minute to the next.
const FLEETING: [&str; 3] = ["Load average", "Load average after", "Stolen by the hypervisor"];

/// One thing that is not the same in both runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What.
    pub what: String,
    /// In the first run; empty if it is not known there.
    pub before: String,
    /// In the second run; empty if it is not known there.
    pub after: String,
}

/// Everything that differs, the machine first.
pub fn differences(before: &LabResult, after: &LabResult) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut add = |what: &str, before: String, after: String| {
        if before != after {
            found.push(Difference { what: what.to_owned(), before, after });
        }
    };
    let (facts_before, facts_after) = (before.environment.facts(), after.environment.facts());
    for (label, value) in facts_before.iter().filter(|(label, _)| !FLEETING.contains(label)) {
        let other = facts_after.iter().find(|(other, _)| other == label);
        add(label, value.clone(), other.map_or(String::new(), |(_, value)| value.clone()));
    }
    for (label, value) in facts_after.iter().filter(|(label, _)| !FLEETING.contains(label)) {
        if !facts_before.iter().any(|(other, _)| other == label) {
            add(label, String::new(), value.clone());
        }
    }
    let (one, other) = (&before.plan, &after.plan);
    add("anello", one.version.clone(), other.version.clone());
    add("reference", one.reference.clone(), other.reference.clone());
    add("scenario", one.scenario.name.clone(), other.scenario.name.clone());
    add("slice", milliseconds(one.slice_ns), milliseconds(other.slice_ns));
    let rounds = |passes: usize, rounds: usize| format!("{passes} passes of {rounds} rounds");
    add("rounds", rounds(one.passes, one.rounds), rounds(other.passes, other.rounds));
    let cores = |servers: &[usize], load: &[usize]| format!("servers {servers:?}, load {load:?}");
    add(
        "cores used",
        cores(&one.server_cores, &one.load_cores),
        cores(&other.server_cores, &other.load_cores),
    );
    for contender in &before.contenders {
        let Some(other) = after.contenders.iter().find(|other| other.name == contender.name) else {
            continue;
        };
        let version = |version: &Option<String>| version.clone().unwrap_or_default();
        add(&contender.name, version(&contender.version), version(&other.version));
        add(&format!("{}, driver", contender.name), version(&contender.driver), version(&other.driver));
    }
    found
}

/// What forbids to compare the runs, each in a few words; a change in the program under test does not.
pub fn obstacles(before: &LabResult, after: &LabResult) -> Vec<String> {
    let (one, other) = (&before.environment, &after.environment);
    let same = [
        ("other kernel", one.kernel == other.kernel),
        ("other architecture", one.architecture == other.architecture),
        ("other CPU", one.cpu_model == other.cpu_model && one.virtual_machine == other.virtual_machine),
        ("other mitigations", one.mitigations == other.mitigations),
        ("other congestion control", one.congestion_control == other.congestion_control),
        ("other reference", before.plan.reference == after.plan.reference),
    ];
    same.into_iter().filter(|(_, same)| !same).map(|(what, _)| what.to_owned()).collect()
}

fn milliseconds(ns: u64) -> String {
    format!("{:.0} ms", ns as f64 / 1e6)
}
