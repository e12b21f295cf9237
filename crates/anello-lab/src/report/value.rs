//! What a row of a result holds about each measure, and how it is called where it is shown.

use crate::judge::comparability::driver_family;
use crate::plan::cell::{Cell, Group, Workload};
use crate::report::format::{bytes, count, micros};
use crate::result::measure::Measure;
use crate::result::{Estimate, Ratio};
use crate::result::{LabResult, Outcome, PairComparison, Row, Verdict};

/// The absolute figure.
pub fn estimate(row: &Row, measure: Measure) -> Option<Estimate> {
    let figures = row.figures.as_ref();
    match measure {
        Measure::Rate => figures.map(|figures| figures.requests_per_second),
        Measure::Cpu => figures.map(|figures| figures.cpu_ns),
        Measure::P50 => figures.map(|figures| figures.p50_ns),
        Measure::P99 => figures.map(|figures| figures.p99_ns),
        Measure::Memory => row.memory_per_connection_bytes,
        Measure::TotalCpu => figures.and_then(|figures| figures.cpu_of_both_ns),
    }
}

/// The ratio to the reference and what can be said about it.
pub fn against_reference(row: &Row, measure: Measure) -> (Option<Ratio>, Verdict) {
    (measure.ratio(row), measure.verdict(row))
}

/// The ratio of anello to a peer, or of another to its base, and what can be said about it.
pub fn against_peer(versus: &PairComparison, measure: Measure) -> (Option<Ratio>, Verdict) {
    (measure.pair_ratio(versus), measure.pair_verdict(versus))
}

/// The way of doing I/O of a peer that does it in another way than this contender of anello; none where its name tells.
pub fn other_way(result: &LabResult, own: &str, peer: &str) -> Option<&'static str> {
    let kin = |name: &str| driver_family(result.contenders.iter().find(|record| record.name == name)?);
    let way = kin(peer)?;
    (kin(own)? != way && !peer.contains(way)).then_some(way)
}

/// The measure as the heading of a table or chart of this workload: name and unit.
pub fn heading(measure: Measure, workload: Workload) -> &'static str {
    match (measure, workload) {
        (Measure::Rate, Workload::Disk { .. }) => "Operations/s",
        (Measure::Rate, _) => "Requests/s",
        (Measure::Cpu, Workload::Disk { .. }) => "CPU per operation, µs",
        (Measure::Cpu, _) => "Server CPU per request, µs",
        (Measure::P50, _) => "Median latency, µs",
        (Measure::P99, _) => "p99 latency, µs",
        (Measure::Memory, _) => "Memory per idle connection",
        (Measure::TotalCpu, _) => "CPU of server and load per request, µs",
    }
}

/// The same without the unit, over tables of ratios, which have none.
pub fn heading_of_ratios(measure: Measure, workload: Workload) -> &'static str {
    let heading = heading(measure, workload);
    heading.split(',').next().unwrap_or(heading)
}

/// The unit of what [`shown`] shows.
pub fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Rate => "/s",
        Measure::Cpu | Measure::P50 | Measure::P99 | Measure::TotalCpu => "µs",
        Measure::Memory => "B",
    }
}

/// Which way is better, in words.
pub fn better(measure: Measure) -> &'static str {
    if measure.more_is_better() { "more is better" } else { "less is better" }
}

/// A figure of this measure as people read it, without its unit.
pub fn shown(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Rate => count(value),
        Measure::Cpu | Measure::P50 | Measure::P99 | Measure::TotalCpu => micros(value),
        Measure::Memory => bytes(value),
    }
}

/// The heading of a chart or section for a group of cells.
pub fn group_title(group: &Group) -> String {
    match group.workload {
        Workload::Echo { .. } => format!("Echo, {group}"),
        Workload::Http { .. } => format!("HTTP, {group}"),
        Workload::Idle => "Idle connections".to_owned(),
        Workload::Disk { .. } => format!("Disk: {group}"),
    }
}

/// What the cells of a group differ in.
pub fn axis_title(group: &Group) -> &'static str {
    match (group.workload, group.connections) {
        (Workload::Disk { .. }, _) => "queue depth",
        (_, Some(_)) => "requests/s offered",
        (Workload::Idle, None) => "idle connections",
        (Workload::Echo { .. } | Workload::Http { .. }, None) => "connections",
    }
}

/// A cell's place within its group, in words: "300", "20.0k".
pub fn place(cell: &Cell) -> String {
    match cell.offered_per_second {
        Some(rate) => count(rate as f64),
        None => cell.connections.to_string(),
    }
}

/// A cell's place within its group with what it counts: "1 connection", "20.0k requests/s offered", "queue depth 16".
pub fn place_in_words(group: &Group, cell: &Cell) -> String {
    let (place, axis) = (place(cell), axis_title(group));
    match (group.workload, group.connections) {
        (Workload::Disk { .. }, _) => format!("{axis} {place}"),
        (_, None) if cell.connections == 1 => format!("{place} {}", axis.trim_end_matches('s')),
        _ => format!("{place} {axis}"),
    }
}

/// In a word or two why a row has no figure; empty if it has.
pub fn why_none(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Measured => "",
        Outcome::Skipped(_) => "skipped",
        Outcome::Failed(_) => "failed",
        Outcome::CheckFailed(_) => "failed check",
        Outcome::BeyondLimit(_) => "beyond limit",
        Outcome::NotServed(_) => "not served",
        Outcome::NotMeasured => "not measured",
    }
}
