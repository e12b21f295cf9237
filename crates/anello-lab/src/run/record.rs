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

/// Difference that prevents a run from being resumed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{property} differs: {previous} in the previous run, {current} now")]
pub struct ResumeError {
    property: String,
    previous: String,
    current: String,
    is_of_machine: bool,
}

impl ResumeError {
    /// Returns whether the machine, or a program on it, differs, and not the requested plan.
    pub fn is_of_machine(&self) -> bool {
        self.is_of_machine
    }

    fn of_machine(self) -> Self {
        Self { is_of_machine: true, ..self }
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
    check_same_plan(&previous, &fresh)?;
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

fn check_same_plan(previous: &LabResult, fresh: &LabResult) -> Result<(), ResumeError> {
    let (old, new) = (&previous.plan, &fresh.plan);
    check_equal("version", &old.version, &new.version).map_err(ResumeError::of_machine)?;
    check_equal("scenario", &old.scenario.name, &new.scenario.name)?;
    check_equal("seed", old.seed, new.seed)?;
    check_equal("slice length in ns", old.slice_ns, new.slice_ns)?;
    check_equal("warm-up in ns", old.warm_up_ns, new.warm_up_ns)?;
    check_equal("number of passes", old.passes, new.passes)?;
    check_equal("number of rounds", old.rounds, new.rounds)?;
    check_equal("reference", &old.reference, &new.reference)?;
    check_equal("CPU share of servers", old.server_share, new.server_share)?;
    check_equal("load generator driver", &old.load_driver, &new.load_driver)?;
    let hosts = |plan: &Plan| plan.network.as_ref().map(NetworkPath::hosts);
    check_equal("hosts (--server-host, --load-host)", hosts(old), hosts(new))?;
    if old.disk_file.is_some() {
        check_equal("file of the disk workers (--disk-file)", &old.disk_file, &new.disk_file)?;
    }
    check_equal("stolen time limit", old.stolen_fraction_limit, new.stolen_fraction_limit)?;
    check_equal("check setting", old.checked, new.checked)?;
    check_equal("number of cells", old.cells.len(), new.cells.len())?;
    for (index, (old, new)) in old.cells.iter().zip(&new.cells).enumerate() {
        check_equal(&format!("cell {}", index + 1), old.to_string(), new.to_string())?;
    }
    let names = |result: &LabResult| -> Vec<String> {
        result.contenders.iter().map(|contender| contender.name.clone()).collect()
    };
    check_equal("list of contenders", names(previous), names(fresh))?;
    for (old, new) in previous.contenders.iter().zip(&fresh.contenders) {
        check_equal(&format!("command of {}", new.name), &old.command, &new.command)?;
        check_equal(&format!("declared version of {}", new.name), &old.version, &new.version)?;
        check_equal(
            &format!("maximum number of connections of {}", new.name),
            old.connections_limit,
            new.connections_limit,
        )?;
        check_equal(&format!("resources of {}", new.name), &old.serves, &new.serves)?;
        let hashes = |record: &ContenderRecord| -> Vec<String> {
            let executables = record.executables.iter();
            executables.map(|executable| format!("{} {}", executable.file, executable.short())).collect()
        };
        let property = format!("program of {} (by its hash)", new.name);
        check_equal(&property, hashes(old), hashes(new)).map_err(ResumeError::of_machine)?;
    }
    check_same_cores(old, new).map_err(ResumeError::of_machine)?;
    check_same_machine(&previous.environment, &fresh.environment).map_err(ResumeError::of_machine)
}

fn check_same_cores(old: &Plan, new: &Plan) -> Result<(), ResumeError> {
    check_equal("server cores", &old.server_cores, &new.server_cores)?;
    check_equal("load generator cores", &old.load_cores, &new.load_cores)
}

/// Compares the properties that affect every measurement. Volatile properties such as the load average are ignored.
fn check_same_machine(old: &Environment, new: &Environment) -> Result<(), ResumeError> {
    check_equal("kernel", &old.kernel, &new.kernel)?;
    check_equal("CPU", &old.cpu_model, &new.cpu_model)?;
    check_equal("congestion control", &old.congestion_control, &new.congestion_control)?;
    check_equal("TCP receive buffer", &old.tcp_receive_buffer, &new.tcp_receive_buffer)?;
    check_equal("TCP send buffer", &old.tcp_send_buffer, &new.tcp_send_buffer)?;
    check_equal("CPU limit of the control group", &old.cpu_limit, &new.cpu_limit)?;
    check_equal("open file limit", &old.open_files, &new.open_files)
}

fn check_equal<T: PartialEq + Debug>(property: &str, previous: T, current: T) -> Result<(), ResumeError> {
    if previous == current {
        return Ok(());
    }
    let (previous, current) = (format!("{previous:?}"), format!("{current:?}"));
    Err(ResumeError { property: property.to_owned(), previous, current, is_of_machine: false })
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
