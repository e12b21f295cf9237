//! Flags that override the scenario of a run.

use std::io;
use std::time::Duration;

use anello_lab::{Cell, LabConfig, Workload, drop_cells_over_limit};

use super::flags::RunArguments;
use crate::common::error::invalid_input;

/// Applies the flags that override the scenario, and drops cells with more than `connections_limit` connections. Adds a
/// note to the report for each change.
pub fn apply_overrides(
    config: &mut LabConfig,
    arguments: &RunArguments,
    connections_limit: usize,
) -> io::Result<()> {
    let mut notes = Vec::new();
    if !(arguments.connections.is_empty() && arguments.message_bytes.is_empty()) {
        config.cells = override_cells(&config.cells, &arguments.connections, &arguments.message_bytes);
        notes.push("The cells were changed by flags.".to_owned());
        notes.extend(drop_cells_over_limit(&mut config.cells, connections_limit));
        if config.cells.is_empty() {
            return Err(invalid_input(format!(
                "no cells left to measure: the lab can open at most {connections_limit} connections (lower \
                 --connections, or raise the limit of open files, `ulimit -Hn`)"
            )));
        }
    }
    config.timing.seed = arguments.seed.unwrap_or(config.timing.seed);
    if let Some(rounds) = arguments.rounds.filter(|&rounds| rounds != config.timing.rounds) {
        notes.push(format!("{rounds} rounds instead of {}, by flag.", config.timing.rounds));
        config.timing.rounds = rounds;
    }
    notes.extend(arguments.method.and_then(|method| config.set_method(method)));
    if arguments.skip_checks {
        config.check = false;
    }
    notes.extend(arguments.load_time.and_then(|time| fit_passes(config, time)));
    config.scenario.scaling.extend(notes);
    Ok(())
}

/// Sets the number of passes so that their load takes about `time`. Returns a note if the number has changed.
fn fit_passes(config: &mut LabConfig, time: Duration) -> Option<String> {
    let passes = config.timing.passes;
    config.timing.passes = 1;
    let pass = config.load_time().as_secs_f64();
    config.timing.passes = ((time.as_secs_f64() / pass.max(1e-3)).round() as usize).clamp(1, 100_000);
    (config.timing.passes != passes)
        .then(|| format!("{} passes instead of {passes}, by --load-time.", config.timing.passes))
}

/// Returns the cells with other connection counts (disk: queue depths), other message sizes, or both. An empty list
/// leaves the values of the cells unchanged.
fn override_cells(cells: &[Cell], connections: &[usize], message_bytes: &[usize]) -> Vec<Cell> {
    let mut overridden: Vec<Cell> = Vec::new();
    for &cell in cells {
        let workloads = match cell.workload {
            Workload::Echo { .. } if !message_bytes.is_empty() => {
                message_bytes.iter().map(|&message_bytes| Workload::Echo { message_bytes }).collect()
            }
            workload => vec![workload],
        };
        let counts = if connections.is_empty() { &[cell.connections] } else { connections };
        for workload in workloads {
            overridden.extend(counts.iter().map(|&connections| Cell { workload, connections, ..cell }));
        }
    }
    overridden.sort();
    overridden.dedup();
    overridden
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use anello_lab::echo_cells;

    use super::*;

    #[test]
    fn overridden_cells_keep_other_values() {
        let cells = echo_cells(&[128, 1024], &[1, 50]);
        assert_eq!(override_cells(&cells, &[7], &[]), echo_cells(&[128, 1024], &[7]));
        assert_eq!(override_cells(&cells, &[], &[9]), echo_cells(&[9], &[1, 50]));
        assert_eq!(override_cells(&cells, &[7], &[9]), echo_cells(&[9], &[7]));
        let idle = Cell { workload: Workload::Idle, ..Cell::echo(1, 1000) };
        assert_eq!(override_cells(&[idle], &[7], &[9]), [Cell { connections: 7, ..idle }]);
    }

    /// Parses the flags of a run.
    fn flags(words: &[&str]) -> RunArguments {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArguments,
        }
        let words = ["run"].iter().chain(words);
        <Line as clap::Parser>::parse_from(words).run
    }

    #[test]
    fn connections_flag_obeys_open_file_limit() {
        let mut config = LabConfig::smoke(PathBuf::from("anello"));
        apply_overrides(&mut config, &flags(&["--connections", "5,100,101", "--message-bytes", "64"]), 100)
            .unwrap();
        assert_eq!(config.cells, echo_cells(&[64], &[5, 100]));
        let scaling = config.scenario.scaling.join("\n");
        assert!(
            scaling.contains("only have 100 connections open (`ulimit -Hn`): cells with 101 connections."),
            "{scaling}"
        );
        let error = apply_overrides(&mut config, &flags(&["--connections", "101"]), 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("no cells left to measure"), "{error}");
        let mut disk = LabConfig::preset("disk", PathBuf::from("anello")).unwrap();
        apply_overrides(&mut disk, &flags(&["--connections", "101"]), 100).unwrap();
        assert!(
            disk.cells.iter().all(|cell| cell.connections == 101),
            "operations in flight, not connections"
        );
    }

    #[test]
    fn method_flag_sets_server_share() {
        for (method, share, note) in
            [("saturated", 0.8, ""), ("whole-core", 1.0, "Method whole-core instead of saturated, by flag.")]
        {
            let mut config = LabConfig::smoke(PathBuf::from("anello"));
            config.scenario.scaling.clear();
            apply_overrides(&mut config, &flags(&["--method", method]), 1000).unwrap();
            assert_eq!((config.cores.server_share, config.scenario.scaling.concat().as_str()), (share, note));
        }
    }

    #[test]
    fn unchanged_passes_give_no_note() {
        let mut config = LabConfig::quick(PathBuf::from("anello"));
        let (passes, time) = (config.timing.passes, config.load_time());
        assert_eq!(fit_passes(&mut config, time), None);
        assert_eq!(config.timing.passes, passes);
        let note = fit_passes(&mut config, 3 * time);
        assert_eq!(note, Some(format!("{} passes instead of {passes}, by --load-time.", 3 * passes)));
        assert_eq!(config.timing.passes, 3 * passes);
    }
}
