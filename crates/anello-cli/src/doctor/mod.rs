//! `anello doctor`: reports which I/O features this host allows, and how to enable the others.
//!
//! ```text
//!   collect ──> Facts ──> examine ──> Diagnosis ──> report (text, or JSON with the facts)
//! ```
//!
//! [`collect`] queries the host and evaluates nothing. [`examine`] evaluates the facts and queries nothing, so tests
//! can evaluate facts of other hosts.

mod collect;
mod examine;
mod facts;
mod report;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

/// Report the capabilities of this host, the selected driver with the reason, and recommended changes.
///
/// Each io_uring feature is probed on a separate ring. The command changes nothing. It exits with 0, or with 1 if no
/// driver works.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON for other programs: facts, checks and advice.
    #[arg(long)]
    json: bool,
}

/// Schema version of the JSON. It is raised when a field is removed or changes its meaning; fields can be added without
/// a new version.
const SCHEMA: &str = "anello.doctor/1";

/// JSON document printed by `--json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: &'static str,
    facts: &'a facts::Facts,
    #[serde(flatten)]
    diagnosis: &'a examine::Diagnosis,
}

/// Examines this host and prints the diagnosis.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    let facts = collect::facts();
    let diagnosis = examine::examine(&facts);
    let text = if arguments.json {
        let version = env!("CARGO_PKG_VERSION");
        let document = Document { schema: SCHEMA, version, facts: &facts, diagnosis: &diagnosis };
        let mut text = serde_json::to_string_pretty(&document)?;
        text.push('\n');
        text
    } else {
        report::render(&diagnosis)
    };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(if diagnosis.works { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
