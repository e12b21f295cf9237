//! Tables of figures: all figures for one cell, and the main figure of each cell in a group as bars.

use crate::plan::cell::{Group, Workload};
use crate::report::format::{bytes, count, interval, micros, percent, spread, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Value};
use crate::result::measure::Measure;
use crate::result::{CellResult, ContenderRecord, Estimate, Figures, LabResult, Outcome, Row};

pub const COLUMNS: &str = "Medians over the clean slices; ± is half the distance between the quartiles, as a fraction of the \
    median. Low decile: a tenth of the slices cost less; ×: multiple of the reference, without a verdict. Total CPU: of \
    server and load generator. Busy: used fraction of its cores' time. Instructions: in kernel and user mode, counted in an emulated machine. Excluded: \
    slices with stolen or throttled time, or invalid. † was restarted in this cell. ‡ the load generator was the \
    bottleneck. § did not reach the offered rate.";

pub fn of_cell(result: &LabResult, cell: &CellResult) -> Table {
    let workload = cell.cell.workload;
    let columns = if workload == Workload::Idle { Vec::new() } else { columns(workload) };
    let memory = if columns.is_empty() { Some("memory per connection") } else { None };
    let headings = columns.iter().map(|(heading, _)| heading.as_str()).chain(memory);
    let head = [workload.server_noun()].into_iter().chain(headings).chain(["slices", "excluded"]);
    let row = |(index, row): (usize, &Row)| {
        let figures = row.figures.as_ref();
        let marks = [
            (row.restarts > 0, " †"),
            (figures.is_some_and(|figures| figures.load_bottleneck), " ‡"),
            (figures.is_some_and(|figures| figures.rate_reached == Some(false)), " §"),
        ];
        let marks: String = marks.into_iter().filter(|(is_set, _)| *is_set).map(|(_, mark)| mark).collect();
        let mut values = match (figures, &row.memory_per_connection_bytes) {
            (Some(figures), _) => columns.iter().map(|(_, value)| value(row, figures)).collect(),
            (None, Some(memory)) => vec![estimate(bytes, memory)],
            (None, None) => vec![Value::long(why_none(row))],
        };
        if figures.is_some() || row.memory_per_connection_bytes.is_some() {
            let excluded = row.stolen_slices + row.throttled_slices + row.invalid_slices;
            values.extend([row.clean_slices, excluded].map(|slices| Value::new(slices.to_string())));
        }
        TableRow::of_contender(index, format!("{}{marks}", row.contender), values)
    };
    let rows = cell.rows.iter().enumerate().map(row).collect();
    let table = Table::new(cell.cell.to_string(), &head.collect::<Vec<_>>(), rows);
    Table { note: note(result, cell), ..table }
}

/// Column heading, and the function that returns the value for a measured contender.
type Column = (String, fn(&Row, &Figures) -> Value);

fn columns(workload: Workload) -> Vec<Column> {
    let unit = workload.unit();
    let mut columns: Vec<Column> = vec![
        (format!("{unit}s/s"), |_, of| estimate(count, &of.requests_per_second)),
        ("p50 µs".to_owned(), |_, of| estimate(micros, &of.p50_ns)),
        ("p99 µs".to_owned(), |_, of| estimate(micros, &of.p99_ns)),
        ("p99.9 µs".to_owned(), |_, of| estimate(micros, &of.p999_ns)),
        (format!("CPU µs/{unit}"), |_, of| estimate(micros, &of.cpu_ns)),
        (format!("total CPU µs/{unit}"), |_, of| optional(of.total_cpu_ns, |both| estimate(micros, &both))),
        (format!("instructions/{unit}"), |row, _| {
            optional(row.instructions_per_request, |of| Value::new(count(of)))
        }),
        ("low decile".to_owned(), |row, of| {
            let ratio = row.cpu_low_ratio.map(|of| format!("× {} ({})", times(of.estimate), interval(&of)));
            Value::with_detail(micros(of.cpu_low_decile_ns), ratio.unwrap_or_default())
        }),
        ("busy".to_owned(), |_, of| Value::new(format!("{:.0} %", of.server_busy * 100.0))),
        (format!("switches/{unit}"), |_, of| {
            optional(of.switches_per_request, |value| Value::new(format!("{value:.3}")))
        }),
        ("memory".to_owned(), |_, of| optional(of.resident_bytes, |value| Value::new(bytes(value)))),
    ];
    columns.retain(|(heading, _)| workload.target().is_some() || !heading.starts_with("total CPU"));
    columns
}

fn optional<T>(figure: Option<T>, value: impl Fn(T) -> Value) -> Value {
    figure.map_or_else(Value::absent, value)
}

fn estimate(format: fn(f64) -> String, estimate: &Estimate) -> Value {
    Value::with_detail(format(estimate.median), spread(estimate))
}

/// Returns a note on a cell: noise floor, measurement method, and slow phases of the machine.
fn note(result: &LabResult, cell: &CellResult) -> String {
    let floor = |measure: &Measure| {
        Some(format!("{} ±{}", measure.name(cell.cell.workload), percent(measure.resolution(cell)?)))
    };
    let floors: Vec<String> = Measure::of_cell(&cell.cell).iter().filter_map(floor).collect();
    let mut note = match floors[..] {
        [] => "Noise floor unknown.".to_owned(),
        _ => format!("Noise floor: {}.", floors.join(", ")),
    };
    if cell.cell.workload.has_loops() {
        note += &format!(" Method: {}.", result.plan.method_description(&cell.cell));
    }
    if let Some(phases) = &cell.phases {
        note += &format!(
            " The machine had slow phases: {} times as long per {} in {:.0} % of the slices, with {} phase changes.",
            times(phases.slow_factor),
            cell.cell.workload.unit(),
            phases.slow_fraction * 100.0,
            phases.changes
        );
    }
    note
}

fn why_none(row: &Row) -> String {
    match &row.outcome {
        Outcome::Skipped(why) => format!("skipped: {why}"),
        Outcome::Failed(why) => format!("failed: {why}"),
        Outcome::CheckFailed(why) => format!("failed its check: {why}"),
        Outcome::BeyondLimit(why) => format!("beyond its limit: {why}"),
        Outcome::NotServed(why) => format!("not served: {why}"),
        Outcome::Measured | Outcome::NotMeasured => {
            match (row.stolen_slices, row.throttled_slices, row.invalid_slices) {
                (0, 0, 0) => "not measured".to_owned(),
                (stolen, throttled, invalid) => {
                    format!(
                        "no clean slice: {stolen} with stolen time, {throttled} throttled, {invalid} invalid"
                    )
                }
            }
        }
    }
}

/// Returns the main figure of each cell in a group as bars: memory for memory cells,
/// p99 latency for cells with an offered rate, and requests/s for all others.
pub fn bars(result: &LabResult, group: &Group) -> Table {
    let measure = match (group.workload, group.connections) {
        (Workload::Idle, _) => Measure::Memory,
        (_, Some(_)) => Measure::P99,
        (_, None) => Measure::Rate,
    };
    let cells = result.cells_of(group);
    let median = |row: &Row| row.figure(measure).map(|estimate| estimate.median);
    let max = |cell: &CellResult| cell.rows.iter().filter_map(median).fold(f64::MIN_POSITIVE, f64::max);
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let value = |cell: &&CellResult| {
            let Some(row) = cell.rows.get(index) else { return Value::absent() };
            let Some(figure) = median(row) else { return Value::none(names::why_none(&row.outcome)) };
            Value { bar: Some(figure / max(cell)), ..Value::new(names::shown(measure, figure)) }
        };
        TableRow::of_contender(index, &contender.name, cells.iter().map(value).collect())
    };
    let positions = cells.iter().map(|cell| names::position_with_axis(group, &cell.cell));
    let mut rows: Vec<TableRow> = result.contenders.iter().enumerate().map(row).collect();
    if !rows.iter().flat_map(|row| &row.values).any(|value| value.bar.is_some()) {
        rows.clear();
    }
    Table {
        title: names::table_title(group, &names::heading(measure, group.workload), measure),
        head: [String::new()].into_iter().chain(positions).collect(),
        rows,
        ..Table::default()
    }
}
