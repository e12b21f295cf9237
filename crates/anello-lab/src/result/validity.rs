//! Consistency check of a result that was read from a file.
//!
//! Result files can be edited, truncated or merged by hand. The rest of the crate relies on the checked properties: the
//! lists are complete, indices are within their lists, and no number is unreasonably large.

use std::fmt::Display;

use crate::plan::limits::{check_cell, check_extent};
use crate::result::LabResult;

/// Checks that a result is consistent.
///
/// # Errors
/// Returns a description of the first problem.
pub fn check(result: &LabResult) -> Result<(), String> {
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
    check_extent(plan.passes, plan.rounds, cells, contenders)?;
    let max_cores = plan.server_cores.len().max(1);
    plan.cells.iter().try_for_each(|cell| check_cell(cell, max_cores))?;
    if !result.cells.is_empty() && result.cells.len() != cells {
        return Err(format!("it has figures of {} cells, but {cells} are planned", result.cells.len()));
    }
    let names = || result.contenders.iter().map(|contender| &contender.name);
    let complete = |rows: &[crate::result::Row]| rows.iter().map(|row| &row.contender).eq(names());
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
