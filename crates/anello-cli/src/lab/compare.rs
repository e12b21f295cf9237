//! `anello lab compare`: significant differences between two runs of the lab.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anello_lab::compare::{Counted, compare_counting, render_comparison};

use super::sources::read_result;
use crate::common::output::{print_stderr, show};

/// Show significant changes between two runs, for example in CI.
///
/// Compares the runs by each contender's ratio to the reference in the same run, so a change in overall machine speed
/// has no effect. Exits with 1 if an anello contender became significantly worse by more than the threshold, or was
/// measured in the first run but failed in the second; with 2 if a file cannot be read; else with 0. A peer or baseline
/// server that became worse is shown but does not count, because anello did not cause the change; --fail-on overrides
/// this.
#[derive(clap::Args)]
pub struct CompareArguments {
    /// First run: its JSON, optionally compressed with gzip, or its HTML report.
    before: PathBuf,
    /// Second run: its JSON, optionally compressed with gzip, or its HTML report.
    after: PathBuf,
    /// Largest change for the worse that does not count as a regression, in percent, such as 5%.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    threshold: f64,
    /// Contenders whose regressions count: anello (or all, if neither run has an anello contender), all, or the name of
    /// a contender; can be repeated.
    #[arg(long, value_name = "NAME", default_value = "anello", value_parser = parse_counted)]
    fail_on: Vec<Counted>,
    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &CompareArguments) -> io::Result<ExitCode> {
    let runs = read_result(&arguments.before).and_then(|before| Ok((before, read_result(&arguments.after)?)));
    let (before, after) = match runs {
        Ok(runs) => runs,
        Err(error) => return Ok(unreadable(&error.to_string())),
    };
    let unknown = Counted::unknown(&arguments.fail_on, &before, &after).join(", ");
    if !unknown.is_empty() {
        let cause = format!("--fail-on: unknown contender {unknown} (in neither of the two runs)");
        return Ok(unreadable(&cause));
    }
    let comparison = compare_counting(&before, &after, arguments.threshold, &arguments.fail_on);
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&comparison)?,
        false => render_comparison(&comparison).trim_end().to_owned(),
    };
    show(&(text + "\n"))?;
    Ok(if comparison.regressions > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reports an unreadable input file or an invalid argument, and returns the exit code.
fn unreadable(cause: &str) -> ExitCode {
    print_stderr(format_args!("error: {cause}"));
    ExitCode::from(2)
}

fn parse_counted(value: &str) -> Result<Counted, String> {
    match value {
        "" => Err("expected anello, all or the name of a contender".to_owned()),
        "anello" => Ok(Counted::Anello),
        "all" => Ok(Counted::All),
        name => Ok(Counted::Named(name.to_owned())),
    }
}

/// Parses a percentage, with or without the percent sign, as a fraction: `5%` is 0.05.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let percent = number.filter(|percent| (0.0..=1000.0).contains(percent));
    let fraction = percent.map(|percent| percent / 100.0);
    fraction.ok_or_else(|| "expected a percentage from 0% to 1000%, such as 5%".to_owned())
}
