//! Consistency check of a result that was read from a file.
//!
//! Result files can be edited, truncated or merged by hand. The rest of the crate relies on the checked properties: the
//! lists are complete, indices are within their lists, and no number is unreasonably large.

use std::fmt::Display;

use crate::result::LabResult;
use crate::scenario::{check_cell, check_extent};

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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::contender::Contender;
    use crate::executable::Executable;
    use crate::scenario::LabConfig;
    use crate::simulation::{Noise, SimulatedServer, Simulation};

    fn result() -> LabResult {
        let simulation = Simulation::new(1, Noise::NONE, &[("one", SimulatedServer::costing(6_000.0))]);
        let config = LabConfig {
            contenders: vec![Contender::new("one", Path::new("one"), &[])],
            reference: "one".to_owned(),
            ..LabConfig::smoke(PathBuf::from("anello"))
        };
        let (mut load, mut machine) = (simulation.load(), simulation.machine());
        crate::run(&config, &mut load, &mut machine, &mut |_| {}, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn rejects_inconsistent_results_with_reason() {
        let valid = result();
        let read = |result: &LabResult| LabResult::from_json(&crate::render_json(result).unwrap());
        assert_eq!(read(&valid).as_ref().map(|read| read.slices.len()), Ok(valid.slices.len()));
        type Change = fn(&mut LabResult);
        fn program(result: &mut LabResult, sha256: &str) {
            let program = Executable { file: "one".to_owned(), sha256: sha256.to_owned() };
            result.contenders[0].executables = vec![program];
        }
        let mut hashed = valid.clone();
        program(&mut hashed, &"0aF9".repeat(16));
        assert!(read(&hashed).is_ok());
        let changes: [(Change, &str); 14] = [
            (|result| program(result, &"0aF".repeat(21)), "is not 64 hexadecimal digits: \"0aF0aF"),
            (|result| program(result, &"0aG9".repeat(16)), "is not 64 hexadecimal digits"),
            (|result| result.contenders.clear(), "no contenders"),
            (|result| result.plan.cells.clear(), "no cells"),
            (|result| result.plan.reference = "two".to_owned(), "\"two\" is not among"),
            (|result| result.plan.passes = 1 << 60, "passes"),
            (|result| result.plan.rounds = 0, "rounds"),
            (|result| result.plan.cells[0].connections = 1 << 60, "at most"),
            (|result| drop(result.cells.pop()), "are planned"),
            (|result| result.cells[0].rows.clear(), "do not match the contenders"),
            (|result| result.slices[0].contender = 1, "contender of a slice has index 1, but the count is 1"),
            (|result| result.slices[0].cell = 1000, "cell of a slice"),
            (|result| result.latencies[0].cell = 1000, "cell of a histogram"),
            (|result| result.completed[0].pass = 1000, "pass of a completed entry"),
        ];
        for (change, expected) in changes {
            let mut inconsistent = valid.clone();
            change(&mut inconsistent);
            let error = read(&inconsistent).unwrap_err();
            assert!(error.starts_with("damaged result: ") && error.contains(expected), "{error}");
        }
    }
}
