//! Examines this host and prints the diagnosis.

use std::io;
use std::process::ExitCode;

use serde::Serialize;

use super::flags::Arguments;
use super::{collect, examine, facts, report};
use crate::common::output;

/// Schema version of the JSON. It is incremented when a field is removed or its meaning changes; fields can be added
/// without a new version.
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
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        report::render(&diagnosis)
    };
    output::show(&text)?;
    Ok(if diagnosis.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
