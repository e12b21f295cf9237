//! Names of measures, groups, cells and runs in reports, and the text of figures.

use crate::plan::cell::{Cell, Group, Workload};
use crate::report::format::{bytes, count, micros};
use crate::result::measure::Measure;
use crate::result::time::readable_time;
use crate::result::{ContenderRecord, LabResult, Outcome};

/// Returns the contenders with their indices, excluding twins.
pub fn originals(result: &LabResult) -> impl Iterator<Item = (usize, &ContenderRecord)> {
    result.contenders.iter().enumerate().filter(|(_, contender)| contender.twin_of.is_none())
}

/// Returns the name of a measure, with its unit, as a heading.
pub fn heading(measure: Measure, workload: Workload) -> String {
    let name = measure.name(workload);
    let unit = if matches!(measure, Measure::Rate | Measure::Memory) { "" } else { ", µs" };
    // "p99" stays lowercase.
    let (first, rest) = if name.starts_with("p9") { ("", name) } else { name.split_at(1) };
    format!("{}{rest}{unit}", first.to_uppercase())
}

pub fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Rate => "/s",
        Measure::Cpu | Measure::P50 | Measure::P99 | Measure::TotalCpu => "µs",
        Measure::Memory => "B",
    }
}

pub fn better(measure: Measure) -> &'static str {
    if measure.more_is_better() { "more is better" } else { "less is better" }
}

/// Formats a figure. Only memory is shown with its unit.
pub fn shown(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Rate => count(value),
        Measure::Cpu | Measure::P50 | Measure::P99 | Measure::TotalCpu => micros(value),
        Measure::Memory => bytes(value),
    }
}

pub fn table_title(group: &Group, contents: &str, measure: Measure) -> String {
    format!("{}: {contents} ({})", group_title(group), better(measure))
}

pub fn group_title(group: &Group) -> String {
    match group.workload {
        Workload::Echo { .. } => format!("Echo, {group}"),
        Workload::Http { .. } => format!("HTTP, {group}"),
        Workload::Idle => "Idle connections".to_owned(),
        Workload::Disk { .. } => format!("Disk: {group}"),
    }
}

/// Returns the quantity in which the cells of a group differ.
pub fn axis_title(group: &Group) -> &'static str {
    match (group.workload, group.connections) {
        (Workload::Disk { .. }, _) => "queue depth",
        (_, Some(_)) => "requests/s offered",
        (Workload::Idle, None) => "idle connections",
        (Workload::Echo { .. } | Workload::Http { .. }, None) => "connections",
    }
}

/// Formats the offered rate, connection count or queue depth that identifies a cell within its group: "300", "20.0k".
pub fn position(cell: &Cell) -> String {
    match cell.offered_per_second {
        Some(rate) => count(rate as f64),
        None => cell.connections.to_string(),
    }
}

/// Returns the position with the name of its quantity: "1 connection", "20.0k requests/s offered", "queue depth 16".
pub fn position_with_axis(group: &Group, cell: &Cell) -> String {
    let (position, axis) = (position(cell), axis_title(group));
    match (group.workload, group.connections) {
        (Workload::Disk { .. }, _) => format!("{axis} {position}"),
        (_, None) if cell.connections == 1 => format!("{position} {}", axis.trim_end_matches('s')),
        _ => format!("{position} {axis}"),
    }
}

/// Returns the reason why a row has no figure, in at most two words. Returns an empty string if the row has a figure.
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

/// Returns the scenario and start time of a run.
pub fn run_title(result: &LabResult) -> String {
    let name = &result.plan.scenario.name;
    let time = readable_time(result.started_unix_s);
    if name.is_empty() { time } else { format!("{name}, {time}") }
}
