//! Who sets the pace of a closed loop: the servers, the load, or both.

use super::{counted, listed};
use crate::analysis::LOAD_BUSY_THRESHOLD;
use crate::result::{CellResult, Figures, LabResult, Quality};
use crate::statistics::quantile;
use crate::verdict::SERVER_BUSY_THRESHOLD;

fn reference_figures<'a>(result: &LabResult, cell: &'a CellResult) -> Option<&'a Figures> {
    cell.rows.iter().find(|row| row.contender == result.plan.reference)?.figures.as_ref()
}

/// Where the load, not the server, set the pace, the rate says little about the server.
pub fn load_bound_sentence(result: &LabResult) -> Option<String> {
    let bound = |cell: &&CellResult| {
        let figures = reference_figures(result, cell);
        cell.cell.is_saturated() && figures.is_some_and(|figures| figures.load_bottleneck)
    };
    let bound: Vec<&CellResult> = result.cells.iter().filter(bound).collect();
    let large = bound.iter().filter(|cell| cell.cell.workload.has_large_answers()).count();
    let cells: Vec<String> = bound.iter().map(|cell| cell.cell.to_string()).collect();
    let figure = match large {
        0 => "CPU per request is the figure",
        all if all == cells.len() => "CPU of server and load per request is the figure",
        _ => "CPU per request, of large answers that of server and load, is the figure",
    };
    (!cells.is_empty()).then(|| {
        format!(
            "{} was not busy all the time at {}: there the load sets the pace, and {figure} to read.",
            result.plan.reference,
            listed(&cells)
        )
    })
}

/// Where answers are large, the CPU of a server alone is in part luck.
pub fn large_answers_sentence(result: &LabResult) -> Option<String> {
    let large = result.cells.iter().any(|cell| cell.cell.workload.has_large_answers());
    large.then(|| {
        "Where answers are large, the kernel's work for a connection (sending on, acknowledgements) falls now to the core \
         of the server, now to that of the load: equal servers may differ by half and more in server CPU per request. What \
         server and load take together varies less: there it is the figure to read."
            .to_owned()
    })
}

/// Where load and servers were both busy, what servers differ by shows only in part: one that needs less than the load
/// finds fewer requests waiting each time it looks, so that each of them bears more of the looking.
pub fn both_busy_sentence(result: &LabResult) -> Option<String> {
    let loops: Vec<(usize, &CellResult)> =
        result.cells.iter().enumerate().filter(|(_, cell)| cell.cell.is_saturated()).collect();
    let plan = &result.plan;
    let load_cores = plan.load_cores.len().max(1) as f64;
    let load_is_busy = |index: usize| {
        let clean = result.slices.iter().filter(|slice| slice.quality == Quality::Clean);
        let busy: Vec<f64> = clean.filter(|slice| slice.cell == index).map(|slice| slice.load_busy).collect();
        quantile(&busy, 0.5).is_some_and(|busy| busy > LOAD_BUSY_THRESHOLD * load_cores)
    };
    let server_is_busy = |cell: &CellResult| {
        let share = cell.cell.server_share(plan.server_share, &plan.server_cores, &plan.load_cores);
        let least = SERVER_BUSY_THRESHOLD * share * cell.cell.server_cores as f64;
        reference_figures(result, cell).is_some_and(|figures| figures.server_busy >= least)
    };
    let both_busy = loops.iter().filter(|(index, cell)| load_is_busy(*index) && server_is_busy(cell)).count();
    (both_busy > 0).then(|| {
        format!(
            "In {both_busy} of {} with several connections the load was as busy as the servers: for each request both do the \
             same work in the kernel. A server that needs less than the load then finds fewer requests waiting and gains \
             less by taking many at once: the differences are larger than they look here.",
            counted(loops.len(), "cell")
        )
    })
}
