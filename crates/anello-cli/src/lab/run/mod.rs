//! `anello lab run`: runs a scenario and writes the reports.

mod command_line;
mod display;
mod flags;
mod overrides;
mod view;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello_lab::hosts::AgentProgram;
use anello_lab::tls::Identity;
use anello_lab::{
    Difference, Hosts, Instructions, LabConfig, LabError, LabResult, Load, LocalMachine, Machine, Resources,
    ScenarioRecord, check_same_scenario, checkpoint, hosts, preset, resolve, run_from,
};
use clap::ValueEnum;

use self::command_line::{repeat_command, resume_command};
use self::display::Display;
pub use self::flags::RunArguments;
use self::overrides::apply_overrides;
use self::view::View;
use super::disk_file::DiskFile;
use super::load::{LabLoad, LoadDriver};
use super::sources::resources;
use crate::common::error::{Context, invalid_input, usage_error};
use crate::common::output::{print_stderr, show};
use crate::common::{build_identity, process, terminal};

pub fn run(arguments: &RunArguments) -> io::Result<ExitCode> {
    if std::env::var_os("ANELLO_DRIVER").is_some() {
        return Err(invalid_input("ANELLO_DRIVER overrides the drivers under comparison (unset it)"));
    }
    let has_view = !arguments.no_tui && terminal::is_available();
    // Registered before the first child is started, so that the results so far are kept whenever Ctrl-C is pressed.
    let stop = process::stop_flag(has_view)?;
    let previous = arguments.resume.as_deref().map(checkpoint::load).transpose()?;
    let disk_file = DiskFile::new(arguments.disk_file.as_deref(), previous.as_ref());
    let hosts = connect_hosts(arguments, previous.as_ref(), &stop)?;
    let resources = resources(arguments.peers.directory.as_deref(), &disk_file.path)?;
    let resources = match &hosts {
        Some((hosts, _)) => hosts.apply_resources(resources),
        None => resources,
    };
    let mut config = configuration(arguments, &resources, previous.as_ref())?;
    if let Some((hosts, address)) = &hosts {
        let path = hosts.measure_path(address)?;
        config.set_network(path).map_err(|error| usage_error(error.to_string()))?;
    }
    let driver =
        arguments.load_driver.or_else(|| LoadDriver::named(previous.as_ref()?.plan.load_driver.as_deref()?));
    let identity = Identity::for_cells(&config.cells)?;
    let driver = driver.unwrap_or(LoadDriver::Auto);
    let (mut load, mut machine, driver): (Box<dyn Load>, Box<dyn Machine>, String) = match &hosts {
        Some((hosts, _)) => {
            let name =
                driver.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            let (machine, load, driver) = hosts.set_up(&config, identity.as_ref(), &name)?;
            (Box::new(load), Box::new(machine), driver)
        }
        None => {
            let load = LabLoad::new(driver, &disk_file.path)?;
            let load = load.with_identity(identity.as_ref(), &config.cells);
            let driver = load.driver_name();
            (Box::new(load), Box::new(LocalMachine::new(identity)), driver)
        }
    };
    config.provenance.load_driver = Some(driver);
    config.provenance.instructions =
        arguments.instructions.as_deref().map(|path| instructions(path, &config)).transpose()?;
    config.validate().map_err(|error| usage_error(error.to_string()))?;
    config.keep_going = arguments.keep_going;
    anello_lab::check_outputs(&arguments.out, arguments.json.as_deref())?;
    announce(&config);
    let measured = previous.as_ref().map(|previous| previous.slices.clone()).unwrap_or_default();
    let view = has_view.then(|| View::new(&config, measured, Arc::clone(&stop))).transpose()?;
    let mut display = Display::new(&arguments.out, view);
    let result = run_from(&config, previous, load.as_mut(), machine.as_mut(), &mut display, &stop);
    display.finish();
    let mut notes =
        load.notes().unwrap_or_else(|error| vec![format!("The load generator added no notes: {error}.")]);
    let lost = hosts.as_ref().and_then(|(hosts, _)| hosts.lost());
    notes.extend(lost.as_ref().map(|reason| format!("The run was stopped early: {reason}.")));
    // Restores the CPU affinity of this thread, because writing the reports needs no reserved core, and stops the agents
    // on other hosts.
    drop((load, machine, hosts));
    let mut result = result.map_err(run_error)?;
    for note in notes {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    let exit_code = report(&result, arguments)?;
    lost.map_or(Ok(exit_code), |reason| Err(io::Error::other(reason)))
}

fn run_error(error: LabError) -> io::Error {
    match error {
        LabError::Contender(_) => usage_error(format!("{error} (correct its command, or use --keep-going)")),
        LabError::Resume(ref resume) if resume.difference() == Difference::Plan => usage_error(format!(
            "{error} (pass the flags and the scenario of the previous run, or start a new one)"
        )),
        error => io::Error::other(error),
    }
}

/// Connects to the hosts in the flags or of the resumed run. Returns the connections and the address of the server host;
/// `None` for a run on this machine.
fn connect_hosts(
    arguments: &RunArguments,
    previous: Option<&LabResult>,
    stop: &Arc<AtomicBool>,
) -> io::Result<Option<(Hosts, String)>> {
    let (mut server, mut load) = (arguments.server_host.clone(), arguments.load_host.clone());
    let mut address = arguments.server_address.clone();
    if let Some(path) = previous.and_then(|previous| previous.plan.network.as_ref())
        && server.is_none()
        && load.is_none()
    {
        (server, load) = (path.server.host.clone(), path.load.host.clone());
        address = address.or_else(|| Some(path.server.interface.address.to_string()));
    } else if server.is_none() && load.is_none() {
        if address.is_some() || arguments.copy_programs {
            let problem =
                "--server-address and --copy-programs require --server-host or --load-host (add one)";
            return Err(usage_error(problem));
        }
        return Ok(None);
    }
    let address = address.unwrap_or_else(|| hosts::default_address(server.as_deref()));
    let program = std::env::current_exe()?;
    let program =
        AgentProgram { path: &program, version: build_identity::LONG_VERSION, copy: arguments.copy_programs };
    let hosts = Hosts::connect(server.as_deref(), load.as_deref(), &program, stop)?;
    Ok(Some((hosts, address)))
}

/// Reads instruction counts, and prints the names of the contenders for which there are none.
fn instructions(path: &Path, config: &LabConfig) -> io::Result<Instructions> {
    let text = fs::read_to_string(path).context(path.display())?;
    let counts = Instructions::from_json(&text).map_err(invalid_input).context(path.display())?;
    let contenders = config.contenders.iter().filter(|contender| contender.twin_of.is_none());
    let unknown: Vec<&str> =
        contenders.map(|contender| contender.name.as_str()).filter(|name| !counts.know(name)).collect();
    if !unknown.is_empty() {
        print_stderr(format_args!("  {}: no instruction counts for {}", path.display(), unknown.join(", ")));
    }
    Ok(counts)
}

/// Writes the reports, even if standard output is a closed pipe, and prints the result, even if the reports cannot be
/// written.
fn report(result: &LabResult, arguments: &RunArguments) -> io::Result<ExitCode> {
    let written = anello_lab::write_reports(result, &arguments.out);
    let json_written = arguments.json.as_ref().map_or(Ok(()), |file| anello_lab::write_json(result, file));
    let mut text = format!("{}\n", anello_lab::render_table(result).trim_end());
    if let Ok(paths) = &written {
        text += &format!("\nReport: {}\nJSON:   {}\n", paths.html.display(), paths.json.display());
        if result.interrupted {
            text += &format!("Resume: {}\n", resume_command(arguments, &paths.json));
        }
    }
    let shown = show(&text);
    written.and(json_written).and(shown).map(|()| ExitCode::SUCCESS)
}

fn announce(config: &LabConfig) {
    let seconds = config.estimated_time().as_secs();
    let time =
        if seconds < 90 { format!("{seconds} seconds") } else { format!("{} minutes", (seconds + 30) / 60) };
    let (name, cells, contenders) = (&config.scenario.name, config.cells.len(), config.contenders.len());
    print_stderr(format_args!("{name}: {contenders} contenders in {cells} cells, about {time}"));
    if let Some(path) = &config.network {
        print_stderr(format_args!("  network: {path}"));
    }
    config.scenario.scaling.iter().for_each(|note| print_stderr(format_args!("  {note}")));
}

/// Returns the configuration from the scenario and flags, or from the resumed run.
fn configuration(
    arguments: &RunArguments,
    resources: &Resources,
    previous: Option<&LabResult>,
) -> io::Result<LabConfig> {
    let (file_name, text) = scenario_text(arguments, previous)?;
    let mut config =
        resolve(&file_name, &text, resources).map_err(|error| invalid_input(error.to_string()))?;
    if let (Some(previous), Some(_)) = (previous, &arguments.scenario) {
        let ScenarioRecord { name, text, .. } = &previous.plan.scenario;
        let scenario = resolve(name, text, resources).map_err(|error| invalid_input(error.to_string()))?;
        check_same_scenario(&scenario, &config).map_err(|error| run_error(error.into()))?;
    }
    config.startup.launcher = launcher()?;
    config.add_contenders(&arguments.contender).map_err(|error| usage_error(error.to_string()))?;
    let executable = std::env::current_exe()?;
    for own in config.contenders.iter_mut().filter(|contender| contender.program == executable) {
        own.commit = build_identity::commit();
        own.built_with = Some(build_identity::built_with());
    }
    // An argument, such as a path, is not necessarily valid Unicode.
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    config.provenance.repeat_command = repeat_command(words);
    match previous {
        Some(previous) => {
            let plan = &previous.plan;
            (config.timing.seed, config.timing.passes, config.timing.rounds) =
                (plan.seed, plan.passes, plan.rounds);
            (config.cells, config.check) = (plan.cells.clone(), plan.checked);
            config.cores.server_share = plan.server_share;
            config.timing.slice = Duration::from_nanos(plan.slice_ns);
            config.timing.warm_up = Duration::from_nanos(plan.warm_up_ns);
            config.scenario.scaling.clone_from(&plan.scenario.scaling);
        }
        None => apply_overrides(&mut config, arguments, resources.connections_limit)?,
    }
    Ok(config)
}

/// Returns the name of the scenario, for error messages, and its text.
fn scenario_text(arguments: &RunArguments, previous: Option<&LabResult>) -> io::Result<(String, String)> {
    if let Some(path) = &arguments.scenario {
        let text = fs::read_to_string(path).context(path.display())?;
        return Ok((path.display().to_string(), text));
    }
    if let Some(previous) = previous {
        let scenario = &previous.plan.scenario;
        return Ok((scenario.name.clone(), scenario.text.clone()));
    }
    let name = if arguments.smoke { "smoke" } else { arguments.preset.as_deref().unwrap_or("quick") };
    let text = preset(name).ok_or_else(|| invalid_input(format!("unknown preset {name}")))?;
    Ok((name.to_owned(), text.to_owned()))
}

/// Returns the command that starts servers in such a way that the kernel kills them when this process exits, even if
/// SIGKILL ends this process.
pub fn launcher() -> io::Result<Vec<String>> {
    let not_utf8 = |path: OsString| invalid_input(format!("executable is not UTF-8: {}", path.display()));
    let executable = std::env::current_exe()?.into_os_string().into_string().map_err(not_utf8)?;
    Ok([&executable, "lab", "launch", &std::process::id().to_string()].map(str::to_owned).to_vec())
}
