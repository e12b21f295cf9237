//! Flags that override the scenario of a run.

use std::io;

use anello_lab::{LabConfig, drop_cells_over_limit};

use super::flags::RunArguments;
use crate::common::error::usage_error;

/// Applies the flags, and drops cells with more than `connections_limit` connections. Adds a note for each change.
pub fn apply_overrides(
    config: &mut LabConfig,
    arguments: &RunArguments,
    connections_limit: usize,
) -> io::Result<()> {
    let mut notes = Vec::new();
    let changes = [&arguments.connections, &arguments.message_bytes].into_iter().any(|list| !list.is_empty());
    if changes || !arguments.targets.is_empty() {
        config.override_cells(&arguments.connections, &arguments.message_bytes);
        config.keep_targets(&arguments.targets);
        if config.cells.is_empty() {
            return Err(usage_error("no cells left to measure: the scenario has none with these --targets"));
        }
        notes.push("The cells were changed (--connections, --message-bytes, --targets).".to_owned());
        notes.extend(drop_cells_over_limit(&mut config.cells, connections_limit));
        if config.cells.is_empty() {
            return Err(usage_error(format!(
                "no cells left to measure: the lab can open at most {connections_limit} connections (lower \
                 --connections, or raise the open-file limit, `ulimit -Hn`)"
            )));
        }
    }
    config.timing.seed = arguments.seed.unwrap_or(config.timing.seed);
    if let Some(rounds) = arguments.rounds.filter(|&rounds| rounds != config.timing.rounds) {
        notes.push(format!("{rounds} rounds instead of {} (--rounds).", config.timing.rounds));
        config.timing.rounds = rounds;
    }
    notes.extend(arguments.method.and_then(|method| config.set_method(method)));
    config.check &= !arguments.skip_checks;
    if let Some(time) = arguments.load_time {
        let passes = config.timing.passes;
        config.fit_passes(time);
        if config.timing.passes != passes {
            notes.push(format!("{} passes instead of {passes} (--load-time).", config.timing.passes));
        }
    }
    config.scenario.scaling.extend(notes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use anello_lab::{Cell, Target, echo_cells};

    use super::*;
    use crate::lab::run::flags::parse_run;

    fn apply(config: &mut LabConfig, words: &[&str], connections_limit: usize) -> io::Result<()> {
        apply_overrides(config, &parse_run(words), connections_limit)
    }

    #[test]
    fn targets_flag_keeps_cells_with_these_targets() {
        let mut config = LabConfig::preset("http", "anello".into()).unwrap();
        apply(&mut config, &["--connections", "50", "--targets", "/fixed"], 100).unwrap();
        assert!(config.cells.contains(&Cell::http(Target::Fixed, 50)), "{:?}", config.cells);
        for cell in &config.cells {
            assert_eq!((cell.workload.target(), cell.connections), (Some(Target::Fixed), 50));
        }
        let error = apply(&mut config, &["--targets", "/json"], 100).unwrap_err();
        assert!(error.to_string().contains("--targets"), "{error}");
    }

    #[test]
    fn connections_flag_obeys_open_file_limit() {
        let mut config = LabConfig::preset("smoke", "anello".into()).unwrap();
        apply(&mut config, &["--connections", "5,100,101", "--message-bytes", "64"], 100).unwrap();
        assert_eq!(config.cells, echo_cells(&[64], &[5, 100]));
        let scaling = config.scenario.scaling.join("\n");
        let note = "cells with 101 connections, because the lab can have at most 100 connections open";
        assert!(scaling.contains(note), "{scaling}");
        let error = apply(&mut config, &["--connections", "101"], 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("no cells left to measure"), "{error}");
        // The cells of this preset have operations in flight instead of connections.
        let mut disk = LabConfig::preset("disk", "anello".into()).unwrap();
        apply(&mut disk, &["--connections", "101"], 100).unwrap();
        assert!(disk.cells.iter().all(|cell| cell.connections == 101));
    }

    #[test]
    fn method_flag_sets_server_share() {
        for (method, share, note) in [
            ("saturated", 0.8, ""),
            ("whole-core", 1.0, "Method whole-core instead of saturated (--method)."),
        ] {
            let mut config = LabConfig::preset("smoke", "anello".into()).unwrap();
            config.scenario.scaling.clear();
            apply(&mut config, &["--method", method], 1000).unwrap();
            assert_eq!((config.cores.server_share, config.scenario.scaling.concat().as_str()), (share, note));
        }
    }

    #[test]
    fn unchanged_passes_give_no_note() {
        let mut config = LabConfig::preset("quick", "anello".into()).unwrap();
        config.scenario.scaling.clear();
        let (passes, seconds) = (config.timing.passes, config.load_time().as_secs_f64());
        let tripled = format!("{} passes instead of {passes} (--load-time).", 3 * passes);
        for (factor, note) in [(1.0, ""), (3.0, &tripled)] {
            let time = format!("{}s", factor * seconds);
            apply(&mut config, &["--load-time", &time], 100).unwrap();
            assert_eq!(config.scenario.scaling.concat(), note);
        }
        assert_eq!(config.timing.passes, 3 * passes);
    }
}
