//! Differences between two runs in the machine, the plan and the contenders, and reasons that prevent a comparison.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::commit;
use crate::plan::contender::Role;
use crate::plan::network::NetworkPath;
use crate::report::format::milliseconds;
use crate::result::executable::Executable;
use crate::result::{ContenderRecord, LabResult};

/// Label of the load average, which changes constantly and is not compared.
const LOAD_AVERAGE: &str = "Load average";

/// Labels of the facts about CPU vulnerabilities. Old results contain only some of them.
const MITIGATIONS: &str = "CPU mitigations";
const OPEN_FAULTS: &str = "Unmitigated CPU vulnerabilities";

/// A property that differs between two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the property.
    pub what: String,
    /// Value in the first run; empty if unknown.
    pub before: String,
    /// Value in the second run; empty if unknown.
    pub after: String,
}

/// Returns all differences between two runs: first in the machine, then in the plan and the contenders.
pub fn differences(before: &LabResult, after: &LabResult) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut add = |what: &str, before: String, after: String| {
        if before != after {
            differences.push(Difference { what: what.to_owned(), before, after });
        }
    };
    let (facts_before, facts_after) = (before.environment.facts(), after.environment.facts());
    let is_compared = |label: &str| label != LOAD_AVERAGE && !is_unknown_fault(label, before, after);
    for (label, value) in facts_before.iter().filter(|(label, _)| is_compared(label)) {
        let other = facts_after.iter().find(|(other, _)| other == label);
        add(label, value.clone(), other.map_or(String::new(), |(_, value)| value.clone()));
    }
    for (label, value) in facts_after.iter().filter(|(label, _)| is_compared(label)) {
        if !facts_before.iter().any(|(other, _)| other == label) {
            add(label, String::new(), value.clone());
        }
    }
    type Property = fn(&LabResult) -> String;
    let properties: [(&str, Property); 10] = [
        ("anello", |run| run.plan.version.clone()),
        ("reference", |run| run.plan.reference.clone()),
        ("scenario", |run| run.plan.scenario.name.clone()),
        ("slice", |run| milliseconds(run.plan.slice_ns)),
        ("warm-up", |run| milliseconds(run.plan.warm_up_ns)),
        ("rounds", |run| format!("{} passes of {} rounds", run.plan.passes, run.plan.rounds)),
        ("cores used", |run| {
            format!("servers {:?}, load generator {:?}", run.plan.server_cores, run.plan.load_cores)
        }),
        ("hosts", hosts),
        ("driver of the load generator", |run| run.plan.load_driver.clone().unwrap_or_default()),
        ("CPU share of servers in saturated cells", |run| format!("{:.0} %", run.plan.server_share * 100.0)),
    ];
    for (label, value_of) in properties {
        add(label, value_of(before), value_of(after));
    }
    let checked = |run: &LabResult| if run.plan.checked { "yes" } else { "no" }.to_owned();
    add("contenders checked before the run", checked(before), checked(after));
    differences.extend(contender_differences(before, after));
    differences
}

/// Returns `true` if a fact is about CPU vulnerabilities and one of the runs did not record it. Such a fact does not
/// show a difference between the machines. Differences in the mitigations are always reported.
fn is_unknown_fault(label: &str, before: &LabResult, after: &LabResult) -> bool {
    let (one, other) = (&before.environment, &after.environment);
    let unknown = one.vulnerable.is_none() || other.vulnerable.is_none();
    unknown && (label == OPEN_FAULTS || label == MITIGATIONS && one.mitigations == other.mitigations)
}

/// Returns the differences between the contenders of both runs. Contenders with the same difference share one entry.
fn contender_differences(before: &LabResult, after: &LabResult) -> Vec<Difference> {
    type Property = fn(&LabResult, &ContenderRecord) -> String;
    let properties: [(&str, Property); 8] = [
        ("version", |_, record| record.version.clone().unwrap_or_default()),
        ("commit", |_, record| record.commit.as_deref().map_or_else(String::new, commit::short)),
        ("server's commit", |_, record| {
            record.server_commit.as_deref().map_or_else(String::new, commit::short)
        }),
        ("library's checksum", |_, record| record.library_checksum.clone().unwrap_or_default()),
        ("build", |_, record| record.built_with.clone().unwrap_or_default()),
        ("program", |_, record| programs(&record.executables)),
        ("driver", |_, record| record.driver.clone().unwrap_or_default()),
        ("command", command),
    ];
    let mut differences = Vec::new();
    for (label, value_of) in properties {
        let mut groups: Vec<(Vec<&str>, String, String)> = Vec::new();
        for one in before.contenders.iter().filter(|one| one.twin_of.is_none()) {
            let Some(other) = after.contenders.iter().find(|other| other.name == one.name) else { continue };
            let (value, other) = (value_of(before, one), value_of(after, other));
            match groups.iter_mut().find(|(_, left, right)| *left == value && *right == other) {
                Some((names, ..)) => names.push(&one.name),
                None if value != other => groups.push((vec![&one.name], value, other)),
                None => {}
            }
        }
        differences.extend(groups.into_iter().map(|(names, before, after)| {
            let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
            Difference { what: format!("{label} of {}{more}", names[0]), before, after }
        }));
    }
    differences
}

fn programs(executables: &[Executable]) -> String {
    let files: Vec<String> =
        executables.iter().map(|executable| format!("{} {}", executable.short(), executable.file)).collect();
    files.join(", ")
}

/// Returns the reasons why the runs cannot be compared. A change in the program under test is no obstacle.
pub fn obstacles(before: &LabResult, after: &LabResult) -> Vec<String> {
    let (one, other) = (&before.environment, &after.environment);
    // If an old result does not contain the driver, the drivers are assumed to match.
    let drivers = before.plan.load_driver.as_ref().zip(after.plan.load_driver.as_ref());
    let same = [
        ("different kernel", one.kernel == other.kernel),
        ("different architecture", one.architecture == other.architecture),
        ("different CPU", one.cpu_model == other.cpu_model && one.virtual_machine == other.virtual_machine),
        ("different mitigations", one.mitigations == other.mitigations),
        ("different congestion control", one.congestion_control == other.congestion_control),
        ("different load generator driver", drivers.is_none_or(|(before, after)| before == after)),
        ("different CPU share for the servers", before.plan.server_share == after.plan.server_share),
        ("different hosts", hosts(before) == hosts(after)),
        ("different reference", before.plan.reference == after.plan.reference),
    ];
    let other = same.into_iter().filter(|(_, same)| !same).map(|(what, _)| what.to_owned());
    other.chain(changed_reference(before, after)).collect()
}

/// Returns the hosts of a run and their addresses. Empty for a run on one machine.
fn hosts(run: &LabResult) -> String {
    run.plan.network.as_ref().map_or_else(String::new, NetworkPath::hosts)
}

/// Returns a reason if the reference is part of anello and its build changed: an improvement would look like a
/// regression in all other contenders.
fn changed_reference(before: &LabResult, after: &LabResult) -> Option<String> {
    let reference = |result: &LabResult| {
        let mut all = result.contenders.iter();
        all.find(|record| record.name == result.plan.reference && record.role == Role::Anello).cloned()
    };
    let (one, other) = (reference(before)?, reference(after)?);
    (one.name == other.name && one.executables != other.executables).then(|| {
        format!(
            "the reference {} is part of anello, and its build differs (use a reference that is not part of anello)",
            one.name
        )
    })
}

/// Returns the command of a contender without the name of the disk workers' file, which contains the lab's process ID.
fn command(result: &LabResult, record: &ContenderRecord) -> String {
    let file = result.plan.disk_file.as_deref().and_then(|file| Path::new(file).file_name()?.to_str());
    match file {
        Some(file) => record.command.replace(file, "{file}"),
        None => record.command.clone(),
    }
}
