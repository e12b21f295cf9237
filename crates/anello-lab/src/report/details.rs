//! Tables that a reader needs to assess and repeat a run: facts, failures, checks, contenders, machine, method.

use crate::judge::findings;
use crate::plan::cell::{Cell, Workload};
use crate::plan::commit;
use crate::plan::contender::Role;
use crate::report::format::{milliseconds, percent};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::{ContenderRecord, Failure, FindingKind, LabResult, Quality};

/// Number of characters shown of a checksum, including its kind.
const CHECKSUM_CHARACTERS: usize = 19;

/// Returns the facts of a run and its notes.
pub fn facts(result: &LabResult) -> Table {
    let facts = findings::facts(result).into_iter().map(|fact| {
        let tone = if matches!(fact.kind, FindingKind::Failure | FindingKind::Caution) {
            Tone::Bad
        } else {
            Tone::Long
        };
        TableRow::new(fact.subject, vec![Value::long(fact.text).tone(tone)])
    });
    let note = |note: &String| TableRow::new("Note", vec![Value::long(note)]);
    Table::new("Facts", &["fact", ""], facts.chain(result.notes.iter().map(note)).collect())
}

/// Groups equal failures, with the passes in which they occurred (1-based).
fn grouped(failures: &[Failure]) -> Vec<(&Failure, String)> {
    let mut groups: Vec<(&Failure, String)> = Vec::new();
    for failure in failures {
        let is_same = |(earlier, _): &&mut (&Failure, String)| {
            Failure { pass: earlier.pass, ..failure.clone() } == **earlier
        };
        match groups.iter_mut().find(is_same) {
            Some((_, passes)) => *passes += &format!(", {}", failure.pass + 1),
            None => groups.push((failure, (failure.pass + 1).to_string())),
        }
    }
    groups
}

/// Returns the failures. Equal failures are listed once.
pub fn failures(result: &LabResult) -> Table {
    let row = |(failure, passes): (&Failure, String)| {
        let values = vec![
            Value::new(format!("pass {passes}")),
            Value::new(failure.cell.map_or_else(|| "at the start".to_owned(), |cell| cell.to_string())),
            Value::long(&failure.what).tone(Tone::Bad),
            Value::new(failure.consequence.to_string()),
        ];
        TableRow::new(&failure.contender, values)
    };
    Table::new(
        "Failures",
        &["contender", "pass", "cell", "failure", "consequence"],
        grouped(&result.failures).into_iter().map(row).collect(),
    )
}

/// Returns the checks that ran before the measurements: one row per contender, one column per check.
pub fn checks(result: &LabResult) -> Table {
    let mut kinds: Vec<&str> = Vec::new();
    for check in &result.checks {
        if !kinds.contains(&check.what.as_str()) {
            kinds.push(&check.what);
        }
    }
    let value = |contender: &str, kind: &str| {
        let check = result.checks.iter().find(|check| check.contender == contender && check.what == kind);
        check.map_or_else(
            || Value::none(""),
            |check| {
                let (sign, tone) = if check.passed { ("✓", Tone::Good) } else { ("✗", Tone::Bad) };
                Value::with_detail(sign, check.details.join("\n")).tone(tone)
            },
        )
    };
    let rows =
        result.contenders.iter().enumerate().filter(|_| !kinds.is_empty()).map(|(index, contender)| {
            TableRow::of_contender(
                index,
                &contender.name,
                kinds.iter().map(|kind| value(&contender.name, kind)).collect(),
            )
        });
    let head: Vec<&str> = ["contender"].into_iter().chain(kinds.iter().copied()).collect();
    Table::new("Checks before the measurements", &head, rows.collect())
}

/// Returns the contenders with their builds.
pub fn contenders(result: &LabResult) -> Table {
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let role = match (&contender.twin_of, contender.role) {
            (Some(original), _) => format!("second instance of {original}"),
            (None, Role::Anello) => "under test".to_owned(),
            (None, Role::Baseline) => "baseline".to_owned(),
            (None, Role::Peer) => "peer".to_owned(),
        };
        let limit = contender.connections_limit.map(|limit| format!("at most {limit} connections"));
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
        let (build, whole) = build(contender);
        let values = vec![
            Value::with_detail(role, limit.unwrap_or_default()),
            Value::with_detail(or_dash(&contender.driver), contender.features.join(", ")),
            Value { hint: whole, ..Value::with_detail(or_dash(&contender.version), build) },
            Value {
                detail: contender.ready_line.clone().unwrap_or_else(|| "never became ready".to_owned()),
                ..Value::long(&contender.command)
            },
        ];
        TableRow::of_contender(index, &contender.name, values)
    };
    let rows = result.contenders.iter().enumerate().map(row).collect();
    Table::new(
        "Contenders",
        &["contender", "role", "driver", "version and build", "command and ready line"],
        rows,
    )
}

/// Returns what identifies a contender's build, one item per line: commits, library checksum, compiler, program hashes.
/// The second text contains the full commits and hashes.
fn build(contender: &ContenderRecord) -> (String, String) {
    let (mut lines, mut whole) = (Vec::new(), Vec::new());
    let mut add = |line: String, full: &str| {
        lines.push(line);
        whole.push(full.to_owned());
    };
    let commit = |commit: &str| {
        let short = commit::short(commit);
        match commit::strip_dirty_suffix(&short) {
            (digits, true) => format!("{digits} and changes"),
            (digits, false) => digits.to_owned(),
        }
    };
    match &contender.commit {
        Some(of_sources) => add(format!("commit {}", commit(of_sources)), of_sources),
        None if contender.role != Role::Peer => add("commit unknown".to_owned(), ""),
        None => {}
    }
    if let Some(checksum) = &contender.library_checksum {
        let short: String = checksum.chars().take(CHECKSUM_CHARACTERS).collect();
        add(format!("checksum {short}"), checksum);
    }
    if let Some(of_server) = &contender.server_commit {
        add(format!("its server: commit {}", commit(of_server)), of_server);
    }
    if let Some(built_with) = &contender.built_with {
        add(built_with.clone(), "");
    }
    for executable in &contender.executables {
        add(format!("{} {}", executable.file, executable.short()), &format!("SHA-256 {}", executable.sha256));
    }
    whole.retain(|text| !text.is_empty());
    (lines.join("\n"), whole.join("\n"))
}

/// Returns the properties of the machine and the run.
pub fn machine(result: &LabResult) -> Table {
    let plan = &result.plan;
    let mut facts = result.environment.facts();
    let mut add =
        |label: &'static str, value: Option<String>| facts.extend(value.map(|value| (label, value)));
    let cores = |cores: &[usize]| {
        let list: Vec<String> = cores.iter().map(usize::to_string).collect();
        format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, list.join(", "))
    };
    add(
        "Pinned",
        Some(format!(
            "servers on {}, load generator on {}",
            cores(&plan.server_cores),
            cores(&plan.load_cores)
        )),
    );
    let after = &result.environment_after;
    let load = after.load_average.map(|[one, five, fifteen]| format!("{one:.2} {five:.2} {fifteen:.2}"));
    add("Load average after", load);
    add(
        "Used by other programs",
        result.other_cpu_fraction.map(|fraction| format!("{} of the cores' time", percent(fraction))),
    );
    let stolen = result.environment.stolen_ticks.zip(after.stolen_ticks);
    add(
        "Stolen by the hypervisor",
        stolen.map(|(before, after)| format!("{} ticks during the run", after.saturating_sub(before))),
    );
    let excluded = |quality| result.slices.iter().filter(|slice| slice.quality == quality).count();
    add(
        "Slices excluded",
        Some(format!(
            "{} of {} with stolen time, {} throttled, {} invalid",
            excluded(Quality::Stolen),
            result.slices.len(),
            excluded(Quality::Throttled),
            excluded(Quality::Invalid)
        )),
    );
    let rows = facts.into_iter().map(|(label, value)| TableRow::new(label, vec![Value::long(value)]));
    Table::new("Machine", &["property", ""], rows.collect())
}

/// Returns how the run was measured.
pub fn method(result: &LabResult) -> String {
    let plan = &result.plan;
    let is_idle = |cell: &Cell| cell.workload == Workload::Idle;
    let held = "In a cell, all servers hold their connections open, and servers that wait for their slice are idle. If \
                the connections of all servers cannot be open at once, each server is connected only during its slice.";
    let idle = "Idle connections are opened to a server that was started for this slice, and its memory is read when the first few \
                are open and when all are.";
    let connections = [(!plan.cells.iter().all(is_idle), held), (plan.cells.iter().any(is_idle), idle)];
    let connections: Vec<&str> =
        connections.into_iter().filter(|(is_used, _)| *is_used).map(|(_, text)| text).collect();
    format!(
        "{} passes; each restarts every server and measures the cells in random order. {} Each of {} rounds gives \
         every server one slice of {} in random order (seed {}). Every received byte is checked. A slice is excluded \
         if the hypervisor or a CPU limit took more than {} of it. Ratios pair slices of the same round and the same \
         phase of the machine; their intervals come from a bootstrap over passes and rounds. A difference is \
         significant only if the interval excludes 1 and the difference exceeds that between two instances of {}.",
        plan.passes,
        connections.join(" "),
        plan.rounds,
        milliseconds(plan.slice_ns),
        plan.seed,
        percent(plan.stolen_fraction_limit),
        plan.reference
    )
}

/// Returns the date, machine, duration and size of a run.
pub fn summary(result: &LabResult) -> String {
    let seconds = result.elapsed_ns as f64 / 1e9;
    let duration = match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    };
    let environment = &result.environment;
    let slices = format!("{} slices", result.slices.len());
    let parts = [
        names::run_title(result),
        environment.cpu_model.clone(),
        environment.kernel.clone(),
        duration,
        slices,
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Consequence;

    #[test]
    fn equal_failures_are_listed_once() {
        let failure = |pass: usize, what: &str| Failure {
            contender: "one".to_owned(),
            cell: None,
            pass,
            what: what.to_owned(),
            consequence: Consequence::SkippedPass,
        };
        let failures = [failure(0, "no"), failure(1, "never"), failure(2, "no")];
        let passes: Vec<String> = grouped(&failures).into_iter().map(|(_, passes)| passes).collect();
        assert_eq!(passes, ["1, 3", "2"]);
    }
}
