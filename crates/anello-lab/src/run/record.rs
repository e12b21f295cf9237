//! Initial result of a run: its plan or, for a resumed run, the previous result.

use std::collections::HashSet;
use std::fmt::Debug;

use thiserror::Error;

use crate::plan::cell::{SATURATION_CONNECTIONS_PER_CORE, Workload};
use crate::plan::config::LabConfig;
use crate::plan::contender::Contender;
use crate::plan::method::Method;
use crate::plan::network::NetworkPath;
use crate::result::Environment;
use crate::result::executable::Executable;
use crate::result::measure::Measure;
use crate::result::{Completed, ContenderRecord, LabResult, Plan, SCHEMA, SCHEMA_VERSION};
use crate::run::machine::{Machine, MachineError};

/// Reason why a run cannot be resumed: a property differs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{property} differs: {previous} in the previous run, {current} now")]
pub struct ResumeError {
    difference: Difference,
    property: String,
    previous: String,
    current: String,
}

/// The part of a run that differs from the run that it resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The request: the scenario or a flag.
    Plan,
    /// The environment: the version of anello, a program or the machine.
    Environment,
}

impl ResumeError {
    /// Returns the part in which the two runs differ.
    pub fn difference(&self) -> Difference {
        self.difference
    }
}

pub fn new_result(config: &LabConfig, machine: &mut dyn Machine) -> Result<LabResult, MachineError> {
    let mut notes = Vec::new();
    if config.shares_cores() {
        let workload = config.cells.first().map_or(Workload::Idle, |cell| cell.workload);
        notes.push(format!(
            "Only one core is usable: server and load generator share core {}, so {} depends on both. Compare \
             the {} instead.",
            config.cores.server[0],
            Measure::Rate.name(workload),
            Measure::Cpu.name(workload)
        ));
    }
    let shares = config.cells.iter().map(|cell| config.server_share_in(cell));
    if let Some(share) = shares.into_iter().find(|&share| share < 1.0) {
        notes.push(format!(
            "In closed loops with at least {SATURATION_CONNECTIONS_PER_CORE} connections per core, servers could use \
             {:.0} % of their cores. The lab's CPU throttle kept these cores busy for the rest of every millisecond. \
             Requests were therefore always queued, and CPU per request is the cost of a busy server. Requests/s refer \
             to this share of the cores, and latencies include the throttled intervals.",
            share * 100.0
        ));
    }
    if config.cells.iter().any(|cell| cell.is_saturated() && cell.workload.has_large_answers()) {
        notes.push(
            "In cells with large responses, servers could use their full cores, because the bottleneck is clear in these cells. \
             Each cell shows the CPU usage of server and load generator. Where the load generator was the bottleneck, \
             compare their combined CPU time per request. The p99 latency shows how evenly readers are served."
                .to_owned(),
        );
    }
    let executables = machine.executables(&config.contenders)?;
    let records = config.contenders.iter().zip(executables);
    let records = records.map(|(contender, executables)| contender_record(contender, executables));
    Ok(LabResult {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        started_unix_s: machine.unix_time_s(),
        plan: plan(config),
        contenders: records.collect(),
        notes,
        environment: machine.environment(config)?,
        instructions: config.provenance.instructions.clone(),
        ..LabResult::default()
    })
}

/// Continues `previous`, whose plan and contenders must match those of `fresh`. Drops the data of incomplete cells.
pub fn resume(mut previous: LabResult, fresh: LabResult) -> Result<LabResult, ResumeError> {
    check_same_run(&previous, &fresh)?;
    let completed: HashSet<Completed> = previous.completed.iter().copied().collect();
    previous.slices.retain(|slice| completed.contains(&Completed { pass: slice.pass, cell: slice.cell }));
    previous.latencies.retain(|record| record.unfinished_pass.is_none());
    let cells = &fresh.plan.cells;
    previous.failures.retain(|failure| {
        let cell = failure.cell.and_then(|cell| cells.iter().position(|&other| other == cell));
        cell.is_none_or(|cell| completed.contains(&Completed { pass: failure.pass, cell }))
    });
    // The base of a contender does not affect slices, so use the base of the current scenario.
    for (contender, current) in previous.contenders.iter_mut().zip(&fresh.contenders) {
        contender.base.clone_from(&current.base);
    }
    previous.plan = Plan { repeat_command: previous.plan.repeat_command, ..fresh.plan };
    previous.instructions = fresh.instructions.or(previous.instructions);
    // Drop the analysis, which is recomputed at the end.
    previous.findings.clear();
    previous.cells.clear();
    previous.pair_lists_mut().into_iter().for_each(Vec::clear);
    previous.environment_after = Environment::default();
    Ok(previous)
}

/// Checks that two scenarios plan the same measurements, before flags change the plan. A resumed run keeps the plan of
/// the previous run, and would ignore a change in its scenario.
///
/// # Errors
/// Returns the first difference.
pub fn check_same_scenario(previous: &LabConfig, current: &LabConfig) -> Result<(), ResumeError> {
    check_same_plan(&plan(previous), &plan(current))
}

fn check_same_run(previous: &LabResult, fresh: &LabResult) -> Result<(), ResumeError> {
    check_environment("version", &previous.plan.version, &fresh.plan.version)?;
    check_same_plan(&previous.plan, &fresh.plan)?;
    let names = |result: &LabResult| -> Vec<String> {
        result.contenders.iter().map(|contender| contender.name.clone()).collect()
    };
    check_plan("list of contenders", names(previous), names(fresh))?;
    for (old, new) in previous.contenders.iter().zip(&fresh.contenders) {
        check_same_contender(old, new)?;
    }
    check_environment("server cores", &previous.plan.server_cores, &fresh.plan.server_cores)?;
    check_environment("load generator cores", &previous.plan.load_cores, &fresh.plan.load_cores)?;
    check_same_machine(&previous.environment, &fresh.environment)
}

fn check_same_plan(old: &Plan, new: &Plan) -> Result<(), ResumeError> {
    check_plan("scenario", &old.scenario.name, &new.scenario.name)?;
    check_plan("seed", old.seed, new.seed)?;
    check_plan("slice length in ns", old.slice_ns, new.slice_ns)?;
    check_plan("warm-up in ns", old.warm_up_ns, new.warm_up_ns)?;
    check_plan("number of passes", old.passes, new.passes)?;
    check_plan("number of rounds", old.rounds, new.rounds)?;
    check_plan("reference", &old.reference, &new.reference)?;
    check_plan("CPU share of servers", old.server_share, new.server_share)?;
    check_plan("load generator driver", &old.load_driver, &new.load_driver)?;
    let hosts = |plan: &Plan| plan.network.as_ref().map(NetworkPath::hosts);
    check_plan("hosts (--server-host, --load-host)", hosts(old), hosts(new))?;
    if old.disk_file.is_some() {
        check_plan("file of the disk workers (--disk-file)", &old.disk_file, &new.disk_file)?;
    }
    check_plan("stolen time limit", old.stolen_fraction_limit, new.stolen_fraction_limit)?;
    check_plan("check setting", old.checked, new.checked)?;
    check_plan("number of cells", old.cells.len(), new.cells.len())?;
    for (index, (old, new)) in old.cells.iter().zip(&new.cells).enumerate() {
        check_plan(&format!("cell {}", index + 1), old.to_string(), new.to_string())?;
    }
    Ok(())
}

fn check_same_contender(old: &ContenderRecord, new: &ContenderRecord) -> Result<(), ResumeError> {
    let name = &new.name;
    check_plan(&format!("command of {name}"), &old.command, &new.command)?;
    check_plan(&format!("declared version of {name}"), &old.version, &new.version)?;
    let property = format!("maximum number of connections of {name}");
    check_plan(&property, old.connections_limit, new.connections_limit)?;
    check_plan(&format!("resources of {name}"), &old.serves, &new.serves)?;
    let hashes = |record: &ContenderRecord| -> Vec<String> {
        let executables = record.executables.iter();
        executables.map(|executable| format!("{} {}", executable.file, executable.short())).collect()
    };
    check_environment(&format!("program of {name} (by its hash)"), hashes(old), hashes(new))
}

/// Compares the properties that affect every measurement. Volatile properties such as the load average are ignored.
fn check_same_machine(old: &Environment, new: &Environment) -> Result<(), ResumeError> {
    check_environment("kernel", &old.kernel, &new.kernel)?;
    check_environment("CPU", &old.cpu_model, &new.cpu_model)?;
    check_environment("congestion control", &old.congestion_control, &new.congestion_control)?;
    check_environment("TCP receive buffer", &old.tcp_receive_buffer, &new.tcp_receive_buffer)?;
    check_environment("TCP send buffer", &old.tcp_send_buffer, &new.tcp_send_buffer)?;
    check_environment("CPU limit of the control group", &old.cpu_limit, &new.cpu_limit)?;
    check_environment("open file limit", &old.open_files, &new.open_files)
}

fn check_plan<T: PartialEq + Debug>(property: &str, previous: T, current: T) -> Result<(), ResumeError> {
    check_equal(Difference::Plan, property, previous, current)
}

fn check_environment<T: PartialEq + Debug>(
    property: &str,
    previous: T,
    current: T,
) -> Result<(), ResumeError> {
    check_equal(Difference::Environment, property, previous, current)
}

fn check_equal<T: PartialEq + Debug>(
    difference: Difference,
    property: &str,
    previous: T,
    current: T,
) -> Result<(), ResumeError> {
    if previous == current {
        return Ok(());
    }
    let (previous, current) = (format!("{previous:?}"), format!("{current:?}"));
    Err(ResumeError { difference, property: property.to_owned(), previous, current })
}

fn plan(config: &LabConfig) -> Plan {
    let nanoseconds = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Plan {
        scenario: config.scenario.clone(),
        version: config.provenance.version.clone(),
        repeat_command: config.provenance.repeat_command.clone(),
        seed: config.timing.seed,
        slice_ns: nanoseconds(config.timing.slice),
        warm_up_ns: nanoseconds(config.timing.warm_up),
        passes: config.timing.passes,
        rounds: config.timing.rounds,
        cells: config.cells.clone(),
        server_cores: config.cores.server.clone(),
        load_cores: config.cores.load.clone(),
        load_driver: config.provenance.load_driver.clone(),
        server_share: config.cores.server_share,
        method: Some(Method::of_share(config.cores.server_share)),
        network: config.network.clone(),
        disk_file: config.disk_file.clone(),
        reference: config.reference.clone(),
        stolen_fraction_limit: config.timing.stolen_fraction_limit,
        checked: config.check,
    }
}

fn contender_record(contender: &Contender, executables: Vec<Executable>) -> ContenderRecord {
    ContenderRecord {
        name: contender.name.clone(),
        role: contender.role,
        command: contender.command_line(),
        executables,
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
