//! `anello lab compare`: what changed between two runs of the lab, beyond noise.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anello_lab::LabResult;
use anello_lab::compare::{Counted, compare_counting, render_comparison};
use anello_lab::raw::read_runs;

/// Exit code for input that cannot be read, as of a wrong command line.
const UNREADABLE: u8 = 2;

/// Show what changed between two runs beyond noise; for CI.
///
/// Compares every contender's ratio to the reference of its own run, so that a machine that was slower as a whole does
/// not count. Exits with 1 if one of anello's contenders became worse by more than the threshold beyond doubt, or failed
/// and did not before; with 2 if a file cannot be read; else with 0. A peer or bare server that became worse is shown and
/// does not count: it or the machine changed, not anello. --fail-on says otherwise.
#[derive(clap::Args)]
pub struct CompareArguments {
    /// The first run: its JSON, or its report.
    before: PathBuf,

    /// The second run.
    after: PathBuf,

    /// What may become worse without being counted, as in 5%.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    threshold: f64,

    /// Whose regressions count: anello (its own contenders; all where there are none of anello), all, or the name of a
    /// contender; may be given several times.
    #[arg(long, value_name = "NAME", default_value = "anello", value_parser = parse_counted)]
    fail_on: Vec<Counted>,

    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
}

/// Compares two runs.
pub fn run(arguments: &CompareArguments) -> io::Result<ExitCode> {
    let (before, after) = match (read_result(&arguments.before), read_result(&arguments.after)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(UNREADABLE));
        }
    };
    let unknown = Counted::unknown(&arguments.fail_on, &before, &after);
    if !unknown.is_empty() {
        eprintln!("error: --fail-on: neither run has a contender called {}", unknown.join(", "));
        return Ok(ExitCode::from(UNREADABLE));
    }
    let comparison = compare_counting(&before, &after, arguments.threshold, &arguments.fail_on);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        println!("{}", render_comparison(&comparison).trim_end());
    }
    Ok(if comparison.regressions > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a run from its JSON or its report.
///
/// # Errors
/// Which file, and what is wrong with it.
pub fn read_result(path: &Path) -> io::Result<LabResult> {
    let mut runs = read_runs(path)?;
    match runs.pop() {
        Some(run) if runs.is_empty() => Ok(run),
        _ => {
            let text = format!("{} is a page of several runs: give the JSON of one", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Reads who counts: any word that is no keyword is a name.
fn parse_counted(word: &str) -> Result<Counted, String> {
    match word {
        "" => Err("write anello, all or the name of a contender".to_owned()),
        "anello" => Ok(Counted::Anello),
        "all" => Ok(Counted::All),
        name => Ok(Counted::Named(name.to_owned())),
    }
}

/// Reads `5%` or `5` as 0.05.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let percent = number.filter(|percent| (0.0..=1000.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "write a percentage as in 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_with_and_without_their_sign() {
        assert_eq!(
            (parse_percent("5%"), parse_percent("2.5"), parse_percent("0 %")),
            (Ok(0.05), Ok(0.025), Ok(0.0))
        );
        for wrong in ["", "%", "-1%", "NaN", "five"] {
            assert!(parse_percent(wrong).is_err(), "{wrong}");
        }
    }
}
