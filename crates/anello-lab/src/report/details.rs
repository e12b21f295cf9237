//! Tables that a reader needs to assess and repeat a run: facts, failures, checks, contenders, machine, method.

use crate::judge::findings;
use crate::plan::cell::{Cell, Workload};
use crate::plan::commit;
use crate::plan::contender::Role;
use crate::report::format::{milliseconds, percent};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::unique::unique;
use crate::result::{ContenderRecord, Failure, FindingKind, LabResult, Quality};

/// Number of characters shown of a checksum, including a prefix such as `sha256:`.
const CHECKSUM_CHARACTERS: usize = 19;

pub fn facts(result: &LabResult) -> Table {
    let facts = findings::facts(result).into_iter().map(|fact| {
        let is_bad = matches!(fact.kind, FindingKind::Failure | FindingKind::Caution);
        let tone = if is_bad { Tone::Bad } else { Tone::Long };
        TableRow::new(fact.subject, vec![Value::new(fact.text).tone(tone)])
    });
    let notes = result.notes.iter().map(|note| TableRow::new("Note", vec![Value::long(note)]));
    Table::new("Facts", &["fact", ""], facts.chain(notes).collect())
}

/// Returns the failures. Failures that differ only in their pass are listed once.
pub fn failures(result: &LabResult) -> Table {
    let without_pass = |failure: &Failure| Failure { pass: 0, ..failure.clone() };
    let row = |failure: Failure| {
        let equal = result.failures.iter().filter(|other| without_pass(other) == failure);
        let passes: Vec<String> = equal.map(|other| (other.pass + 1).to_string()).collect();
        let values = vec![
            Value::new(format!("pass {}", passes.join(", "))),
            Value::new(failure.cell.map_or_else(|| "at the start".to_owned(), |cell| cell.to_string())),
            Value::new(failure.what).tone(Tone::Bad),
            Value::new(failure.consequence.to_string()),
        ];
        TableRow::new(failure.contender, values)
    };
    let rows = unique(result.failures.iter().map(without_pass)).into_iter().map(row).collect();
    Table::new("Failures", &["contender", "pass", "cell", "failure", "consequence"], rows)
}

/// Returns the checks that ran before the measurements: one row per contender, one column per check.
pub fn checks(result: &LabResult) -> Table {
    let kinds = unique(result.checks.iter().map(|check| check.what.as_str()));
    let value = |contender: &str, kind: &str| {
        let check = result.checks.iter().find(|check| check.contender == contender && check.what == kind);
        check.map_or_else(Value::absent, |check| {
            let (sign, tone) = if check.passed { ("✓", Tone::Good) } else { ("✗", Tone::Bad) };
            Value::with_detail(sign, check.details.join("\n")).tone(tone)
        })
    };
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let values = kinds.iter().map(|kind| value(&contender.name, kind));
        TableRow::of_contender(index, &contender.name, values.collect())
    };
    let rows = result.contenders.iter().enumerate().map(row).filter(|row| !row.values.is_empty());
    Table::new("Checks before the measurements", &[&["contender"][..], &kinds].concat(), rows.collect())
}

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
        let ready_line = contender.ready_line.as_deref().unwrap_or("never became ready");
        let (build, whole) = build(contender);
        let values = vec![
            Value::with_detail(role, limit.unwrap_or_default()),
            Value::with_detail(or_dash(&contender.driver), contender.features.join(", ")),
            Value { hint: whole, ..Value::with_detail(or_dash(&contender.version), build) },
            Value::with_detail(&contender.command, ready_line).tone(Tone::Long),
        ];
        TableRow::of_contender(index, &contender.name, values)
    };
    let rows = result.contenders.iter().enumerate().map(row).collect();
    let head = ["contender", "role", "driver", "version and build", "command and ready line"];
    Table::new("Contenders", &head, rows)
}

/// Returns the data that identifies a contender's build, one item per line: commits, library checksum, compiler,
/// program hashes. The second string contains the full commits and hashes.
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

pub fn machine(result: &LabResult) -> Table {
    let (plan, after) = (&result.plan, &result.environment_after);
    let cores = |cores: &[usize]| {
        let list: Vec<String> = cores.iter().map(usize::to_string).collect();
        format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, list.join(", "))
    };
    let pinned =
        format!("servers on {}, load generator on {}", cores(&plan.server_cores), cores(&plan.load_cores));
    let others =
        result.other_cpu_fraction.map(|fraction| format!("{} of the cores' time", percent(fraction)));
    let stolen = result.environment.stolen_ticks.zip(after.stolen_ticks);
    let stolen =
        stolen.map(|(before, after)| format!("{} ticks during the run", after.saturating_sub(before)));
    let count = |quality| result.slices.iter().filter(|slice| slice.quality == quality).count();
    let excluded = format!(
        "{} of {} with stolen time, {} throttled, {} invalid",
        count(Quality::Stolen),
        result.slices.len(),
        count(Quality::Throttled),
        count(Quality::Invalid)
    );
    let network = plan.network.as_ref();
    let of_run = [
        ("Network", network.map(ToString::to_string)),
        ("Kernel of the load generator", network.map(|path| path.load.kernel.clone())),
        ("CPU of the load generator", network.map(|path| path.load.cpu_model.clone())),
        ("Pinned", Some(pinned)),
        ("Load average after the run", after.load_averages()),
        ("Used by other programs", others),
        ("Stolen by the hypervisor", stolen),
        ("Slices excluded", Some(excluded)),
    ];
    let of_run = of_run.into_iter().filter_map(|(label, value)| Some((label, value?)));
    let facts = result.environment.facts().into_iter().chain(of_run);
    let rows = facts.map(|(label, value)| TableRow::new(label, vec![Value::long(value)]));
    Table::new("Machine", &["property", ""], rows.collect())
}

pub fn method(result: &LabResult) -> String {
    let plan = &result.plan;
    let is_idle = |cell: &Cell| cell.workload == Workload::Idle;
    let held = "In a cell, all servers hold their connections open, and servers that wait for their slice are idle. If \
                the connections of all servers cannot be open at once, each server is connected only during its slice.";
    let idle = "Idle connections are opened to a server that was started for the slice, and its memory is read when the first few \
                are open and again when all are open.";
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
    let duration = match result.elapsed_ns as f64 / 1e9 {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    };
    let (title, slices) = (names::run_title(result), format!("{} slices", result.slices.len()));
    let parts = [&title, &result.environment.cpu_model, &result.environment.kernel, &duration, &slices];
    parts.into_iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" · ")
}
