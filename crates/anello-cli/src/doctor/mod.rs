//! `anello doctor`: what this kernel, this container and these limits allow, and what to change to get more.
//!
//! ```text
//!   collect ──> Facts ──> examine ──> Diagnosis ──> report (text, or JSON with the facts)
//! ```
//!
//! [`collect`] asks the machine and judges nothing; [`examine`] judges and asks nothing, so that it is tested with the
//! facts of machines that are not at hand.

mod collect;
mod examine;
mod facts;
mod report;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

/// Say what this machine allows, which driver would be chosen and why, and what to change to get more.
///
/// Every io_uring feature is tried for real, on a ring of its own. Changes nothing. Exits 0, or 1 when no driver works.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON, for programs: the facts, what was made of each, and the advice.
    #[arg(long)]
    json: bool,
}

/// Version of the JSON: raised when a field changes its meaning or goes. New fields may come at any time.
const SCHEMA: &str = "anello.doctor/1";

/// The JSON.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    version: &'static str,
    facts: &'a facts::Facts,
    #[serde(flatten)]
    diagnosis: &'a examine::Diagnosis,
}

/// Examines this machine and prints the result.
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
