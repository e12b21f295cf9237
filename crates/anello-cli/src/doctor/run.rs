//! Running `anello doctor`.

use std::io;
use std::process::ExitCode;

use serde::Serialize;

use super::flags::Arguments;
use super::{collect, examine, facts, report};
use crate::common::output;

/// JSON document printed by `--json`.
#[derive(Serialize)]
struct Document<'a> {
    /// Name and version number of the format. The number is incremented when a field is removed or its meaning changes,
    /// but not when a field is added.
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
