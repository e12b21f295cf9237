//! What differs between the machines and plans of two runs, and what of it forbids a comparison.

use serde::{Deserialize, Serialize};

use crate::executable::Executable;
use crate::result::{ContenderRecord, LabResult};

/// Facts that differ from one minute to the next.
const FLEETING: [&str; 3] = ["Load average", "Load average after", "Stolen by the hypervisor"];

/// Digits of a commit that are shown.
const COMMIT_DIGITS: usize = 12;

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
    found.extend(contender_differences(before, after));
    found
}

/// What differs between the contenders that both runs have: version, commit, program, driver. Those that differ alike,
/// as the many that are one program do, stand in one line.
fn contender_differences(before: &LabResult, after: &LabResult) -> Vec<Difference> {
    type Trait = fn(&ContenderRecord) -> String;
    let traits: [(&str, Trait); 4] = [
        ("version", |record| record.version.clone().unwrap_or_default()),
        ("commit", |record| record.commit.as_deref().map_or_else(String::new, short_commit)),
        ("program", |record| programs(&record.executables)),
        ("driver", |record| record.driver.clone().unwrap_or_default()),
    ];
    let mut found = Vec::new();
    for (label, value_of) in traits {
        let mut groups: Vec<(Vec<&str>, String, String)> = Vec::new();
        for one in before.contenders.iter().filter(|one| one.twin_of.is_none()) {
            let Some(other) = after.contenders.iter().find(|other| other.name == one.name) else { continue };
            let (value, other) = (value_of(one), value_of(other));
            match groups.iter_mut().find(|(_, before, after)| *before == value && *after == other) {
                Some((names, ..)) => names.push(&one.name),
                None if value != other => groups.push((vec![&one.name], value, other)),
                None => {}
            }
        }
        found.extend(groups.into_iter().map(|(names, before, after)| {
            let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
            Difference { what: format!("{label} of {}{more}", names[0]), before, after }
        }));
    }
    found
}

/// A commit in as few digits as tell commits apart; what follows it, as "-dirty" does, stays.
fn short_commit(commit: &str) -> String {
    let digits = commit.chars().take_while(char::is_ascii_hexdigit).count();
    let (hash, rest) = commit.split_at(digits);
    format!("{}{rest}", hash.get(..COMMIT_DIGITS).unwrap_or(hash))
}

/// Files with the beginnings of their hashes.
fn programs(executables: &[Executable]) -> String {
    let files: Vec<String> =
        executables.iter().map(|executable| format!("{} {}", executable.short(), executable.file)).collect();
    files.join(", ")
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
