//! The result of a run at its beginning: what it sets out to do, and, for a run that is taken up again, what it has
//! already.

use std::collections::HashSet;
use std::fmt::Debug;

use crate::cell::Workload;
use crate::cell::{Cell, SATURATION_CONNECTIONS_PER_CORE};
use crate::contender::Contender;
use crate::environment::Environment;
use crate::executable::Hashes;
use crate::machine::Machine;
use crate::measure::Measure;
use crate::result::{Completed, ContenderRecord, LabResult, Plan, SCHEMA, SCHEMA_VERSION};
use crate::scenario::LabConfig;

/// A result with nothing in it yet but the plan.
pub fn new_result(config: &LabConfig, machine: &mut dyn Machine) -> LabResult {
    let mut notes = Vec::new();
    let mut hashes = Hashes::new();
    if config.server_cores == config.load_cores {
        let workload = config.cells.first().map_or(Workload::Idle, |cell| cell.workload);
        notes.push(format!(
            "There is only one core to use: server and load share core {}, so {} is what both reach together. Read the {}.",
            config.server_cores[0],
            Measure::Rate.name(workload),
            Measure::Cpu.name(workload)
        ));
    }
    let held_back = |cell: &&Cell| config.server_share_in(cell) < 1.0;
    if let Some(cell) = config.cells.iter().find(held_back) {
        let share = config.server_share_in(cell);
        notes.push(format!(
            "In closed loops of {SATURATION_CONNECTIONS_PER_CORE} connections and more for each core, servers had {:.0} % of their cores: the rest was \
             taken away in a piece of every millisecond, so that requests always waited, and a server showed what a request \
             costs when it is busy, not what it spends while it waits for a load that costs as much. Requests/s are those \
             of such a part of a core, and latencies hold the pieces.",
            share * 100.0
        ));
    }
    if config.cells.iter().any(|cell| cell.is_saturated() && cell.workload.has_large_answers()) {
        notes.push(
            "Where answers are large, servers had all of their cores: who sets the pace is no close race there. How busy \
             server and load were stands with the figures; where the load was the slower, read what both take for a request \
             together. The p99 latency tells how fairly readers are served."
                .to_owned(),
        );
    }
    LabResult {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        started_unix_s: machine.unix_time_s(),
        elapsed_ns: 0,
        interrupted: false,
        plan: plan(config),
        findings: Vec::new(),
        contenders: config
            .contenders
            .iter()
            .map(|contender| contender_record(contender, &mut hashes))
            .collect(),
        checks: Vec::new(),
        cells: Vec::new(),
        versus: Vec::new(),
        runtime_versus: Vec::new(),
        base_versus: Vec::new(),
        other_versus: Vec::new(),
        failures: Vec::new(),
        notes,
        foreign_fraction: None,
        environment: machine.environment(config),
        environment_after: Environment::default(),
        completed: Vec::new(),
        slices: Vec::new(),
        latencies: Vec::new(),
        instructions: config.instructions.clone(),
    }
}

/// Goes on with `previous`, whose plan and contenders must be those of `fresh`. What belongs to cells that were not gone
/// through to their end is dropped.
///
/// # Errors
/// The first difference that forbids it.
pub fn resume(mut previous: LabResult, fresh: LabResult) -> Result<LabResult, String> {
    check_same_plan(&previous, &fresh)?;
    let completed: HashSet<Completed> = previous.completed.iter().copied().collect();
    previous.slices.retain(|slice| completed.contains(&Completed { pass: slice.pass, cell: slice.cell }));
    previous.latencies.retain(|record| record.unfinished_pass.is_none());
    let cells = &fresh.plan.cells;
    previous.failures.retain(|failure| {
        let cell = failure.cell.and_then(|cell| cells.iter().position(|&other| other == cell));
        cell.is_none_or(|cell| completed.contains(&Completed { pass: failure.pass, cell }))
    });
    // Who is set against whom bears on no slice: what the scenario says now counts.
    for (contender, now) in previous.contenders.iter_mut().zip(&fresh.contenders) {
        contender.base.clone_from(&now.base);
    }
    Ok(LabResult {
        interrupted: false,
        plan: Plan { repeat_command: previous.plan.repeat_command.clone(), ..fresh.plan },
        findings: Vec::new(),
        cells: Vec::new(),
        versus: Vec::new(),
        runtime_versus: Vec::new(),
        base_versus: Vec::new(),
        other_versus: Vec::new(),
        environment_after: Environment::default(),
        instructions: fresh.instructions.or(previous.instructions),
        ..previous
    })
}

fn check_same_plan(previous: &LabResult, fresh: &LabResult) -> Result<(), String> {
    let (old, new) = (&previous.plan, &fresh.plan);
    check_equal("version", &old.version, &new.version)?;
    check_equal("scenario", &old.scenario.name, &new.scenario.name)?;
    check_equal("seed", old.seed, new.seed)?;
    check_equal("length of a slice in ns", old.slice_ns, new.slice_ns)?;
    check_equal("warm-up in ns", old.warm_up_ns, new.warm_up_ns)?;
    check_equal("number of passes", old.passes, new.passes)?;
    check_equal("number of rounds", old.rounds, new.rounds)?;
    check_equal("reference", &old.reference, &new.reference)?;
    check_equal("cores of the servers", &old.server_cores, &new.server_cores)?;
    check_equal("cores of the load", &old.load_cores, &new.load_cores)?;
    check_equal("share of their cores that servers have", old.server_share, new.server_share)?;
    check_equal("driver of the load", &old.load_driver, &new.load_driver)?;
    if old.disk_file.is_some() {
        check_equal("file of the disk workers (--disk-file)", &old.disk_file, &new.disk_file)?;
    }
    check_equal("limit of stolen time", old.stolen_fraction_limit, new.stolen_fraction_limit)?;
    check_equal("choice whether to check", old.checked, new.checked)?;
    check_equal("number of cells", old.cells.len(), new.cells.len())?;
    for (index, (old, new)) in old.cells.iter().zip(&new.cells).enumerate() {
        if old != new {
            return Err(format!("cell {} is \"{old}\" there and \"{new}\" here", index + 1));
        }
    }
    let names = |result: &LabResult| -> Vec<String> {
        result.contenders.iter().map(|contender| contender.name.clone()).collect()
    };
    check_equal("list of contenders", names(previous), names(fresh))?;
    for (old, new) in previous.contenders.iter().zip(&fresh.contenders) {
        check_equal(&format!("command of {}", new.name), &old.command, &new.command)?;
        check_equal(&format!("declared version of {}", new.name), &old.version, &new.version)?;
        check_equal(
            &format!("most connections of {}", new.name),
            old.connections_limit,
            new.connections_limit,
        )?;
        check_equal(&format!("list of what {} serves", new.name), &old.serves, &new.serves)?;
        let built = |record: &ContenderRecord| -> Vec<String> {
            let executables = record.executables.iter();
            executables.map(|executable| format!("{} {}", executable.file, executable.short())).collect()
        };
        check_equal(&format!("program of {} (by its hash)", new.name), built(old), built(new))?;
    }
    check_same_machine(&previous.environment, &fresh.environment)
}

/// What bears on every figure; what comes and goes by itself, like the load average, does not count.
fn check_same_machine(old: &Environment, new: &Environment) -> Result<(), String> {
    check_equal("kernel", &old.kernel, &new.kernel)?;
    check_equal("CPU", &old.cpu_model, &new.cpu_model)?;
    check_equal("congestion control", &old.congestion_control, &new.congestion_control)?;
    check_equal("TCP receive buffer", &old.tcp_receive_buffer, &new.tcp_receive_buffer)?;
    check_equal("TCP send buffer", &old.tcp_send_buffer, &new.tcp_send_buffer)?;
    check_equal("CPU limit of the control group", &old.cpu_limit, &new.cpu_limit)?;
    check_equal("limit of open files", &old.open_files, &new.open_files)
}

fn check_equal<T: PartialEq + Debug>(what: &str, there: T, here: T) -> Result<(), String> {
    if there == here { Ok(()) } else { Err(format!("the {what} is {there:?} there and {here:?} here")) }
}

fn plan(config: &LabConfig) -> Plan {
    let nanoseconds = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Plan {
        scenario: config.scenario.clone(),
        version: config.version.clone(),
        repeat_command: config.repeat_command.clone(),
        seed: config.seed,
        slice_ns: nanoseconds(config.slice),
        warm_up_ns: nanoseconds(config.warm_up),
        passes: config.passes,
        rounds: config.rounds,
        cells: config.cells.clone(),
        server_cores: config.server_cores.clone(),
        load_cores: config.load_cores.clone(),
        load_driver: config.load_driver.clone(),
        server_share: config.server_share,
        disk_file: config.disk_file.clone(),
        reference: config.reference.clone(),
        stolen_fraction_limit: config.stolen_fraction_limit,
        checked: config.check,
    }
}

fn contender_record(contender: &Contender, hashes: &mut Hashes) -> ContenderRecord {
    ContenderRecord {
        name: contender.name.clone(),
        role: contender.role,
        command: contender.command_line(),
        executables: hashes.of(contender),
        ready_line: None,
        driver: contender.driver.clone(),
        version: contender.version.clone(),
        commit: contender.commit.clone(),
        library_checksum: contender.library_checksum.clone(),
        server_commit: contender.server_commit.clone(),
        built_with: contender.built_with.clone(),
        features: contender.features.clone(),
        connections_limit: contender.connections_limit,
        many_cores: contender.takes_cores(),
        idle_cpu_fraction: None,
        twin_of: contender.twin_of.clone(),
        kind: contender.kind,
        serves: contender.serves.clone(),
        base: contender.base.clone(),
    }
}
