//! Peak request rate of each contender across connection counts.
//!
//! Cells that differ only in their number of connections form a sweep. In a closed loop, each connection has one
//! request in flight, so the rate grows with the number of connections until the server is saturated. The peak of a
//! contender is the highest of its median rates. If the peak is in the last cell in which the contender was measured,
//! the real peak may occur with more connections.
//!
//! In saturated closed loops, servers may use only a share of their cores' time; in the other cells they may use all of
//! it. The rate drops at the first cell with the limit, but that drop does not mark a peak. A sweep therefore contains
//! only cells with the same share: that of the cell with the most connections.

use crate::plan::cell::Group;
use crate::result::{CellResult, LabResult};

/// Minimum number of cells in a sweep, each with a different number of connections.
const MIN_CELLS: usize = 4;

/// The cells of one group, ordered by their number of connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Group to which the cells belong.
    pub group: Group,
    /// Fraction of the cores' time that the servers were allowed to use in these cells.
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
    /// `true` if the contender was not measured with more connections, in which case the real peak may be higher.
    pub at_the_end: bool,
    /// `true` if the load generator, not the contender, limited the rate in that cell.
    pub load_bound: bool,
}

/// Returns the sweeps of a run in the order of its groups. A sweep consists of at least four closed-loop cells with the
/// same server share, in which at least one contender was measured.
pub fn sweeps(result: &LabResult) -> Vec<Sweep> {
    result.groups().into_iter().filter_map(|group| sweep(result, group)).collect()
}

fn sweep(result: &LabResult, group: Group) -> Option<Sweep> {
    let mut cells = result.cells_of(&group);
    cells.retain(|cell| cell.cell.is_closed_loop());
    cells.sort_by_key(|cell| cell.cell.connections);
    cells.dedup_by_key(|cell| cell.cell.connections);
    let server_share = result.plan.server_share_in(&cells.last()?.cell);
    cells.retain(|cell| result.plan.server_share_in(&cell.cell) == server_share);
    let peaks: Vec<_> = (0..result.contenders.len()).map(|contender| peak(&cells, contender)).collect();
    let is_sweep = cells.len() >= MIN_CELLS && peaks.iter().any(Option::is_some);
    is_sweep.then_some(Sweep { group, server_share, peaks })
}

/// Returns the peak in `cells`, which are sorted by their number of connections: the first cell with the highest rate.
fn peak(cells: &[&CellResult], contender: usize) -> Option<Peak> {
    let peak = |cell: &&CellResult| {
        let figures = cell.rows.get(contender)?.figures.as_ref()?;
        Some(Peak {
            requests_per_second: figures.requests_per_second.median,
            connections: cell.cell.connections,
            at_the_end: false,
            load_bound: figures.load_bottleneck,
        })
    };
    let peaks: Vec<Peak> = cells.iter().filter_map(peak).collect();
    let rate = |index: usize| peaks[index].requests_per_second;
    let highest = (0..peaks.len()).reduce(|best, next| if rate(next) > rate(best) { next } else { best })?;
    Some(Peak { at_the_end: highest + 1 == peaks.len(), ..peaks[highest] })
}
