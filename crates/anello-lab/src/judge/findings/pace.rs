//! Bottleneck of closed loops: the servers, the load generator, or both.

use super::{counted, listed};
use crate::judge::statistics::quantile;
use crate::judge::verdict::LOAD_BUSY_THRESHOLD;
use crate::judge::verdict::SERVER_BUSY_THRESHOLD;
use crate::result::{CellResult, Figures, LabResult, Quality};

fn reference_figures<'a>(result: &LabResult, cell: &'a CellResult) -> Option<&'a Figures> {
    cell.rows.iter().find(|row| row.contender == result.plan.reference)?.figures.as_ref()
}

/// Returns a sentence on the cells in which the load generator was the bottleneck. There, the rate does not show the
/// capacity of the server.
pub fn load_bound_sentence(result: &LabResult) -> Option<String> {
    let bound = |cell: &&CellResult| {
        let figures = reference_figures(result, cell);
        cell.cell.is_saturated() && figures.is_some_and(|figures| figures.load_bottleneck)
    };
    let bound: Vec<&CellResult> = result.cells.iter().filter(bound).collect();
    let large = bound.iter().filter(|cell| cell.cell.workload.has_large_answers()).count();
    let cells: Vec<String> = bound.iter().map(|cell| cell.cell.to_string()).collect();
    let figure = match large {
        0 => "CPU per request",
        all if all == cells.len() => "CPU of server and load per request",
        _ => "CPU per request (for large responses: of server and load)",
    };
    (!cells.is_empty()).then(|| {
        format!(
            "{} was not busy all the time at {}: there the load is the bottleneck, and {figure} is the relevant \
             figure.",
            result.plan.reference,
            listed(&cells)
        )
    })
}

/// Returns a sentence on large responses, for which the CPU time of the server alone varies randomly.
pub fn large_answers_sentence(result: &LabResult) -> Option<String> {
    let large = result.cells.iter().any(|cell| cell.cell.workload.has_large_answers());
    large.then(|| {
        "With large responses, the kernel's work for a connection (transmission, acknowledgements) is charged either \
         to the server or to the load: identical servers can differ by more than half in server CPU per request. The \
         CPU of server and load together varies less and is the relevant figure there."
            .to_owned()
    })
}

/// Returns a sentence on the cells in which load and servers were both busy. There, the measured differences between
/// servers are too small: a server that is faster than the load receives fewer requests per wait, so that the cost of
/// waiting is divided among fewer requests.
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
        let threshold = SERVER_BUSY_THRESHOLD * share * cell.cell.server_cores as f64;
        reference_figures(result, cell).is_some_and(|figures| figures.server_busy >= threshold)
    };
    let both_busy = loops.iter().filter(|(index, cell)| load_is_busy(*index) && server_is_busy(cell)).count();
    (both_busy > 0).then(|| {
        format!(
            "In {both_busy} of {} with several connections the load was as busy as the servers: for each request both \
             do the same work in the kernel. A server that needs less CPU than the load then receives fewer requests \
             per wait and gains less from batching: the real differences are larger than measured here.",
            counted(loops.len(), "cell")
        )
    })
}
