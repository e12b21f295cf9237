//! Measurement methods of the cells in a run. Cells without request loops have no method.

use crate::plan::cell::Cell;
use crate::plan::method::Method;
use crate::result::{LabResult, Plan};

/// Returns the method used in a cell: "saturated", "whole core", or an empty string.
pub fn name(plan: &Plan, cell: &Cell) -> &'static str {
    match plan.method_in(cell) {
        _ if !cell.workload.has_loops() => "",
        Method::Saturated => "saturated",
        Method::WholeCore => "whole core",
    }
}

/// Returns the method used in these cells, or "both methods".
pub fn summary<'a>(plan: &Plan, cells: impl Iterator<Item = &'a Cell>) -> &'static str {
    let mut names = cells.map(|cell| name(plan, cell)).filter(|name| !name.is_empty());
    let first = names.next().unwrap_or("");
    if names.any(|name| name != first) { "both methods" } else { first }
}

/// Describes the methods used in a run, for example "whole core; saturated: server limited to 80 % of its
/// core".
pub fn of_run(result: &LabResult) -> String {
    let mut methods: Vec<String> = Vec::new();
    for cell in result.cells.iter().map(|cell| &cell.cell).filter(|cell| cell.workload.has_loops()) {
        let method = result.plan.method_description(cell);
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods.join("; ")
}
