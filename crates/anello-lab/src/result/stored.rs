//! Parsing of stored results.
//!
//! Result files can be edited, truncated or merged by hand. The rest of the crate relies on the properties checked
//! here: lists are complete, indices are within bounds, and no number is unreasonably large.

use std::fmt::Display;

use serde::Deserialize;
use thiserror::Error;

use crate::plan::limits::{check_cell, check_extent};
use crate::result::lab_result::{LabResult, SCHEMA, SCHEMA_VERSION};
use crate::result::row::Row;
use crate::result::schema_2;

impl LabResult {
    /// Parses a result or a checkpoint without computing missing figures. Used to resume a run.
    ///
    /// # Errors
    /// Returns the same errors as [`from_json`](Self::from_json).
    pub(crate) fn as_written(text: &str) -> Result<LabResult, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
            schema_version: Option<u32>,
        }
        let head: Head = serde_json::from_str(text).map_err(|error| ReadError::NotJson(error.to_string()))?;
        let result = match (head.schema.as_deref(), head.schema_version) {
            (Some(SCHEMA), Some(SCHEMA_VERSION)) => serde_json::from_str(text),
            (Some(SCHEMA), Some(schema_2::VERSION)) => {
                serde_json::from_str(text).and_then(|value| serde_json::from_value(schema_2::upgrade(value)))
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

/// Reason why a text is not a result that this version can read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The text is not JSON of a run.
    #[error("not the JSON of a run: {0}")]
    NotJson(String),
    /// The text has a different schema.
    #[error("not a lab result: \"schema\" is not \"{SCHEMA}\"")]
    OtherSchema,
    /// The result has this version of the schema.
    #[error(
        "unsupported version {0} of the {SCHEMA} format: this program reads versions {old} and {SCHEMA_VERSION} (use the anello that \
         wrote it, or repeat the run)",
        old = schema_2::VERSION
    )]
    Version(u32),
    /// The result is inconsistent.
    #[error("damaged result: {0}")]
    Damaged(String),
}

/// Checks that a result is consistent.
///
/// # Errors
/// Returns a description of the first problem.
fn check(result: &LabResult) -> Result<(), String> {
    let plan = &result.plan;
    let (contenders, cells) = (result.contenders.len(), plan.cells.len());
    if contenders == 0 || cells == 0 {
        return Err("it has no contenders or no cells".to_owned());
    }
    if !result.contenders.iter().any(|contender| contender.name == plan.reference) {
        return Err(format!("its reference \"{}\" is not among its contenders", plan.reference));
    }
    let executables = result.contenders.iter().flat_map(|contender| &contender.executables);
    if let Some(hash) = executables.map(|executable| &executable.sha256).find(|sha256| !is_sha256(sha256)) {
        return Err(format!("the hash of a program is not 64 hexadecimal digits: {hash:?}"));
    }
    check_extent(plan.passes, plan.rounds, cells, contenders).map_err(|error| error.to_string())?;
    let max_cores = plan.server_cores.len().max(1);
    plan.cells.iter().try_for_each(|cell| check_cell(cell, max_cores)).map_err(|error| error.to_string())?;
    if !result.cells.is_empty() && result.cells.len() != cells {
        return Err(format!("it has figures of {} cells, but {cells} are planned", result.cells.len()));
    }
    let names = || result.contenders.iter().map(|contender| &contender.name);
    let complete = |rows: &[Row]| rows.iter().map(|row| &row.contender).eq(names());
    if let Some(cell) = result.cells.iter().find(|cell| !complete(&cell.rows)) {
        return Err(format!("the rows of the cell \"{}\" do not match the contenders", cell.cell));
    }
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

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn within(what: impl Display, index: usize, count: usize) -> Result<(), String> {
    if index < count {
        Ok(())
    } else {
        Err(format!("the {what} has index {index}, but the count is {count}"))
    }
}
