//! Parsing of stored results.
//!
//! Result files can be edited, truncated or merged by hand. The rest of the crate relies on the properties checked
//! here: lists are complete, indices are within bounds, and no number is unreasonably large.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::plan::limits::{check_cell, check_extent};
use crate::result::lab_result::{LabResult, SCHEMA, SCHEMA_VERSION};

/// Oldest readable version. It differs from version 3 only in the names of some fields and values.
const OLD_VERSION: u32 = 2;

/// Fields that were renamed after [`OLD_VERSION`]. The prefix `cpu_of_both` was also renamed to `total_cpu`.
const RENAMED_FIELDS: [(&str, &str); 8] = [
    ("versus", "peer_comparisons"),
    ("runtime_versus", "runtime_comparisons"),
    ("other_versus", "other_comparisons"),
    ("base_versus", "base_comparisons"),
    ("foreign_fraction", "other_cpu_fraction"),
    ("spoilt_slices", "invalid_slices"),
    ("idle_use", "idle_cpu_fraction"),
    ("against", "base"),
];

impl LabResult {
    /// Parses a result or a checkpoint like [`from_json`](Self::from_json), but without computing missing figures.
    pub(crate) fn as_written(text: &str) -> Result<LabResult, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
            schema_version: Option<u32>,
        }
        let head: Head = serde_json::from_str(text).map_err(|error| ReadError::NotJson(error.to_string()))?;
        let result = match (head.schema.as_deref(), head.schema_version) {
            (Some(SCHEMA), Some(SCHEMA_VERSION)) => serde_json::from_str(text),
            (Some(SCHEMA), Some(OLD_VERSION)) => {
                serde_json::from_str(text).and_then(|value| serde_json::from_value(upgrade(value)))
            }
            (Some(SCHEMA), Some(version)) => return Err(ReadError::Version(version)),
            _ => return Err(ReadError::OtherSchema),
        };
        let mut result: LabResult = result.map_err(|error| ReadError::Damaged(error.to_string()))?;
        result.schema_version = SCHEMA_VERSION;
        // Older results use the short name of the same driver.
        if result.plan.load_driver.as_deref() == Some("uring") {
            result.plan.load_driver = Some("io_uring".to_owned());
        }
        check(&result).map_err(ReadError::Damaged)?;
        Ok(result)
    }
}

/// Converts a value from [`OLD_VERSION`].
fn upgrade(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(upgrade).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| upgrade_field(name, value)).collect(),
        value => value,
    }
}

fn upgrade_field(name: String, value: Value) -> (String, Value) {
    let value = if name == "quality" && value == "spoilt" { "invalid".into() } else { upgrade(value) };
    let name = match name.strip_prefix("cpu_of_both") {
        Some(rest) => format!("total_cpu{rest}"),
        None => {
            RENAMED_FIELDS.iter().find(|(old, _)| name == *old).map_or(name, |(_, new)| (*new).to_owned())
        }
    };
    (name, value)
}

/// Reason why a stored result cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The text is not the JSON form of a run.
    #[error("not the JSON of a run: {0}")]
    NotJson(String),
    /// The text has a different schema.
    #[error("not a lab result: \"schema\" is not \"{SCHEMA}\"")]
    OtherSchema,
    /// The result has this schema version, which is not supported.
    #[error(
        "unsupported version {0} of the {SCHEMA} format: this program reads versions {OLD_VERSION} and \
         {SCHEMA_VERSION} (use the anello version that wrote it, or repeat the run)"
    )]
    Version(u32),
    /// The result is inconsistent.
    #[error("damaged result: {0}")]
    Damaged(String),
}

/// Checks that a result is consistent. Returns a description of the first problem.
fn check(result: &LabResult) -> Result<(), String> {
    let plan = &result.plan;
    let (contenders, cells) = (result.contenders.len(), plan.cells.len());
    if contenders == 0 || cells == 0 {
        return Err("it has no contenders or no cells".to_owned());
    }
    if !result.contenders.iter().any(|contender| contender.name == plan.reference) {
        return Err(format!("its reference \"{}\" is not among its contenders", plan.reference));
    }
    let is_sha256 = |text: &str| text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let executables = result.contenders.iter().flat_map(|contender| &contender.executables);
    if let Some(hash) = executables.map(|executable| &executable.sha256).find(|sha256| !is_sha256(sha256)) {
        return Err(format!("the hash of a program is not 64 hexadecimal digits: {hash:?}"));
    }
    check_extent(plan.passes, plan.rounds, cells, contenders).map_err(|error| error.to_string())?;
    let max_cores = plan.server_cores.len().max(1);
    plan.cells.iter().try_for_each(|cell| check_cell(cell, max_cores)).map_err(|error| error.to_string())?;
    if !result.cells.is_empty() && result.cells.len() != cells {
        return Err(format!("it has figures for {} cells, but {cells} are planned", result.cells.len()));
    }
    for cell in &result.cells {
        let names = result.contenders.iter().map(|contender| &contender.name);
        if !cell.rows.iter().map(|row| &row.contender).eq(names) {
            return Err(format!("the rows of the cell \"{}\" do not match the contenders", cell.cell));
        }
    }
    let within = |what: &str, index: usize, count: usize| {
        let error = || format!("index {index} of the {what} is out of range (count: {count})");
        (index < count).then_some(()).ok_or_else(error)
    };
    for slice in &result.slices {
        within("contender of a slice", slice.contender, contenders)?;
        within("cell of a slice", slice.cell, cells)?;
        within("pass of a slice", slice.pass, plan.passes)?;
        within("round of a slice", slice.round, plan.rounds)?;
    }
    for latency in &result.latencies {
        within("contender of a histogram", latency.contender, contenders)?;
        within("cell of a histogram", latency.cell, cells)?;
    }
    for completed in &result.completed {
        within("cell of a completed entry", completed.cell, cells)?;
        within("pass of a completed entry", completed.pass, plan.passes)?;
    }
    Ok(())
}
