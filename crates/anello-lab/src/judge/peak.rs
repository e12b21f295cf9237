//! Peak request rate of each contender across connection counts.
//!
//! Cells that differ only in their number of connections form a sweep. In a closed loop, each connection has one
//! request in flight, so the rate grows with the number of connections until the server is saturated. The peak of a
//! contender is the highest of its median rates. If the peak is in the last cell in which the contender was measured,
//! the real peak may be at more connections.
//!
//! In saturated closed loops, servers may use only a share of their cores' time; in the other cells they may use all of
//! it. The rate drops at the first cell with the limit, but that drop does not mark a peak. A sweep therefore contains
//! only cells with the same share: that of the cell with the most connections.

use crate::plan::cell::Group;
use crate::result::{CellResult, LabResult};

/// Minimum number of cells in a sweep, each with a different number of connections.
pub const MIN_CELLS: usize = 4;

/// The cells of one group, ordered by their number of connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Group of the cells.
    pub group: Group,
    /// Fraction of their cores' time that servers could use in these cells.
    pub server_share: f64,
    /// Peaks in the order of the contenders; `None` for a contender that was not measured in these cells.
    pub peaks: Vec<Option<Peak>>,
}

/// Highest rate of one contender in a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Median rate in the cell with the peak.
    pub requests_per_second: f64,
    /// Number of connections in that cell.
    pub connections: usize,
    /// `true` if the contender was not measured with more connections, so that the real peak may be at more
    /// connections.
    pub at_the_end: bool,
    /// `true` if the load generator, not the contender, limited the rate in that cell.
    pub load_bound: bool,
}

/// Returns the sweeps of a run in the order of its groups. A sweep consists of at least [`MIN_CELLS`] closed-loop cells
/// with the same server share, in which at least one contender was measured.
pub fn sweeps(result: &LabResult) -> Vec<Sweep> {
    result.groups().into_iter().filter_map(|group| sweep(result, group)).collect()
}

fn sweep(result: &LabResult, group: Group) -> Option<Sweep> {
    let of_group = |cell: &&CellResult| cell.cell.group() == group && cell.cell.is_closed_loop();
    let mut cells: Vec<&CellResult> = result.cells.iter().filter(of_group).collect();
    cells.sort_by_key(|cell| cell.cell.connections);
    cells.dedup_by_key(|cell| cell.cell.connections);
    let plan = &result.plan;
    let server_share = plan.server_share_in(&cells.last()?.cell);
    cells.retain(|cell| plan.server_share_in(&cell.cell) == server_share);
    if cells.len() < MIN_CELLS {
        return None;
    }
    let peaks: Vec<Option<Peak>> =
        (0..result.contenders.len()).map(|contender| peak(&cells, contender)).collect();
    peaks.iter().any(Option::is_some).then_some(Sweep { group, server_share, peaks })
}

/// Returns the peak of one contender in `cells`, which are sorted by their number of connections. If several cells have
/// the highest rate, returns the first of them.
fn peak(cells: &[&CellResult], contender: usize) -> Option<Peak> {
    let measured = cells.iter().filter_map(|cell| {
        let figures = cell.rows.get(contender)?.figures.as_ref()?;
        Some((cell.cell.connections, figures))
    });
    let measured: Vec<_> = measured.collect();
    let rate = |index: usize| measured[index].1.requests_per_second.median;
    let highest =
        (0..measured.len()).reduce(|best, next| if rate(next) > rate(best) { next } else { best })?;
    let (connections, figures) = measured[highest];
    Some(Peak {
        requests_per_second: figures.requests_per_second.median,
        connections,
        at_the_end: highest + 1 == measured.len(),
        load_bound: figures.load_bottleneck,
    })
}
