//! `anello doctor`: reports which I/O features this host allows, and how to enable the others.
//!
//! ```text
//!   collect ──> Facts ──> examine ──> Diagnosis ──> report (text, or JSON with the facts)
//! ```
//!
//! [`collect`] queries the host and evaluates nothing. [`examine`] evaluates the facts and queries nothing, so tests
//! can evaluate facts about other hosts.

mod collect;
mod examine;
mod facts;
mod report;

use std::io;
use std::process::ExitCode;

use serde::Serialize;

use crate::common::output;

/// Report the capabilities of this host, the selected driver and the reason for it, and recommended changes.
///
/// Each io_uring feature is probed on a separate ring. The command changes nothing. It exits with 1 if no driver works.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON for other programs: facts, checks and advice.
    #[arg(long)]
    json: bool,
}

/// JSON document printed by `--json`.
#[derive(Serialize)]
struct Document<'a> {
    /// The number is incremented when a field is removed or its meaning changes, but not when a field is added.
    schema: &'static str,
    version: &'static str,
    facts: &'a facts::Facts,
    #[serde(flatten)]
    diagnosis: &'a examine::Diagnosis,
}

pub fn run(arguments: &Arguments) -> io::Result<ExitCode> {
    let facts = collect::facts();
    let diagnosis = examine::examine(&facts);
    let text = if arguments.json {
        let (schema, version) = ("anello.doctor/1", env!("CARGO_PKG_VERSION"));
        let document = Document { schema, version, facts: &facts, diagnosis: &diagnosis };
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        report::render(&diagnosis)
    };
    output::show(&text)?;
    Ok(if diagnosis.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
