//! Where the rate of each contender peaks while connections rise.
//!
//! Cells that differ in nothing but their connections are a sweep: in a closed loop each connection has one request in
//! flight, so a server answers more with every connection, until it gains no more. The peak of a contender is the highest
//! of its medians. Where that stands at the last cell in which it was measured, it may have gone on rising.
//!
//! Servers have a part of their cores in crowded closed loops, and all of them in the others. A server that seems to
//! answer less from that border on has not peaked, so a sweep is of cells of one share: that of its most connections.

use crate::cell::{Cell, Group};
use crate::result::{CellResult, LabResult};

/// Fewer numbers of connections than this are no sweep.
pub const MIN_CELLS: usize = 4;

/// The cells of one message size on so many cores, from few connections to many.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Which cells.
    pub group: Group,
    /// The part of their cores that servers had in all of them.
    pub server_share: f64,
    /// The peak of each contender, in their order; none for one that was not measured here.
    pub peaks: Vec<Option<Peak>>,
}

/// The highest rate of one contender in a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// The median of the cell where it is highest.
    pub requests_per_second: f64,
    /// The connections of that cell.
    pub connections: usize,
    /// Whether it was measured with no more connections than that, so that its peak may lie beyond.
    pub at_the_end: bool,
    /// Whether the load, not the contender, set the pace there.
    pub load_bound: bool,
}

/// The sweeps of a run in the order of its groups: closed loops with [`MIN_CELLS`] numbers of connections or more in
/// which servers had the same share of their cores, and somebody was measured.
#[must_use]
pub fn sweeps(result: &LabResult) -> Vec<Sweep> {
    result.groups().into_iter().filter_map(|group| sweep(result, group)).collect()
}

fn sweep(result: &LabResult, group: Group) -> Option<Sweep> {
    let of_group = |cell: &&CellResult| cell.cell.group() == group && cell.cell.is_closed_loop();
    let mut cells: Vec<&CellResult> = result.cells.iter().filter(of_group).collect();
    cells.sort_by_key(|cell| cell.cell.connections);
    cells.dedup_by_key(|cell| cell.cell.connections);
    let plan = &result.plan;
    let share = |cell: &Cell| cell.server_share(plan.server_share, &plan.server_cores, &plan.load_cores);
    let server_share = share(&cells.last()?.cell);
    cells.retain(|cell| share(&cell.cell) == server_share);
    if cells.len() < MIN_CELLS {
        return None;
    }
    let peaks: Vec<Option<Peak>> =
        (0..result.contenders.len()).map(|contender| peak(&cells, contender)).collect();
    peaks.iter().any(Option::is_some).then_some(Sweep { group, server_share, peaks })
}

/// The peak of one contender in `cells`, which are in the order of their connections. Of equal ones the first.
fn peak(cells: &[&CellResult], contender: usize) -> Option<Peak> {
    let measured = cells.iter().filter_map(|cell| {
        let figures = cell.rows.get(contender)?.figures.as_ref()?;
        Some((cell.cell.connections, figures))
    });
    let measured: Vec<_> = measured.collect();
    let rate = |place: usize| measured[place].1.requests_per_second.median;
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
