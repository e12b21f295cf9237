//! Problems at offered rates: overloaded servers, and requests that were sent late or not at all.

use super::{listed, rows_of};
use crate::judge::verdict::LATE_FRACTION_THRESHOLD;
use crate::result::{Figures, LabResult};

/// Returns a sentence on the servers that did not reach the offered rate although the load generator did.
pub fn behind_sentence(result: &LabResult) -> Option<String> {
    let mut behind = Vec::new();
    for contender in result.contenders.iter().filter(|contender| contender.twin_of.is_none()) {
        for (cell, row) in rows_of(result, &contender.name) {
            let figures = row.figures.as_ref();
            let overloaded =
                |figures: &&Figures| figures.rate_reached == Some(false) && !figures.load_bottleneck;
            if let Some(figures) = figures.filter(overloaded) {
                let fraction = figures.reached_fraction.unwrap_or(0.0);
                behind.push(format!("{} at {} ({:.0}\u{a0}%)", contender.name, cell.cell, fraction * 100.0));
            }
        }
    }
    (!behind.is_empty()).then(|| {
        format!(
            "Did not keep up with the offered rate: {}. Latencies there are those of an overloaded server.",
            listed(&behind)
        )
    })
}

/// Returns the contenders and cells with late or unsent requests, with the fractions of such requests. Considers only
/// figures that match `predicate`.
fn late_cells(result: &LabResult, predicate: impl Fn(&Figures) -> bool) -> Vec<String> {
    let mut cells = Vec::new();
    for contender in result.contenders.iter().filter(|contender| contender.twin_of.is_none()) {
        for (cell, row) in rows_of(result, &contender.name) {
            let Some(figures) = row.figures.as_ref().filter(|figures| predicate(figures)) else { continue };
            let (late, unsent) =
                (figures.late_fraction.unwrap_or(0.0), figures.unsent_fraction.unwrap_or(0.0));
            if late.max(unsent) > LATE_FRACTION_THRESHOLD {
                let (late, unsent) = (late * 100.0, unsent * 100.0);
                cells.push(format!(
                    "{} at {} ({late:.0}\u{a0}% late, {unsent:.0}\u{a0}% never)",
                    contender.name, cell.cell
                ));
            }
        }
    }
    cells
}

/// Returns a sentence on the cells in which requests were sent late or not at all while the load generator kept up.
pub fn late_sentence(result: &LabResult) -> Option<String> {
    let cells = late_cells(result, |figures| !figures.load_bottleneck);
    (!cells.is_empty()).then(|| {
        format!(
            "Requests were sent more than 1 ms late, or never: {}. Their latency is measured from the scheduled send \
             time, so it includes the wait for a free connection.",
            listed(&cells)
        )
    })
}

/// Returns a sentence on the cells in which the load generator, not the server, was behind the offered rate.
pub fn load_behind_sentence(result: &LabResult) -> Option<String> {
    let cells = late_cells(result, |figures| figures.load_bottleneck);
    (!cells.is_empty()).then(|| {
        format!(
            "The load itself was behind its schedule while the server was not busy: {}. Latencies there do not \
             describe the server; offer a lower rate.",
            listed(&cells)
        )
    })
}
