//! Method of measurement in a cell.

use crate::plan::cell::Cell;
use crate::result::Plan;

/// Returns the share of its cores that a server could use in a cell. `None` if the method does not apply, because the
/// cell has no loop of requests.
fn share(plan: &Plan, cell: &Cell) -> Option<f64> {
    cell.workload
        .has_loops()
        .then(|| cell.server_share(plan.server_share, &plan.server_cores, &plan.load_cores))
}

/// Returns the method of measurement in a cell: "saturated" if the server was limited to a share of its core, so that
/// requests always waited, otherwise "whole core". Empty if the method does not apply.
#[must_use]
pub fn name(plan: &Plan, cell: &Cell) -> &'static str {
    match share(plan, cell) {
        Some(share) if share < 1.0 => "saturated",
        Some(_) => "whole core",
        None => "",
    }
}

/// Returns the method of these cells, or "both methods".
#[must_use]
pub fn summary<'a>(plan: &Plan, cells: impl Iterator<Item = &'a Cell>) -> &'static str {
    let mut names = cells.map(|cell| name(plan, cell)).filter(|name| !name.is_empty());
    let first = names.next().unwrap_or("");
    if names.any(|name| name != first) { "both methods" } else { first }
}

/// Returns the methods of these cells with the limit, as in "whole core; saturated (servers limited to 80 % of their
/// core)".
#[must_use]
pub fn description<'a>(plan: &Plan, cells: impl Iterator<Item = &'a Cell>) -> String {
    let mut methods: Vec<String> = Vec::new();
    for cell in cells {
        let share = share(plan, cell).unwrap_or(1.0);
        let limit = format!(" (servers limited to {:.0} % of their core)", share * 100.0);
        let method = format!("{}{}", name(plan, cell), if share < 1.0 { &limit } else { "" });
        if !method.is_empty() && !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods.join("; ")
}
