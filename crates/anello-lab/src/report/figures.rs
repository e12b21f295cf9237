//! Tables of figures: all figures for one cell, and the main figure of each cell in a group as bars.

use crate::plan::cell::{Group, Workload};
use crate::report::format::{bytes, count, interval, micros, percent, spread, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Value};
use crate::result::measure::Measure;
use crate::result::{CellResult, Estimate, Figures, LabResult, Outcome, Row};

/// Explanation of the columns in [`of_cell`].
pub const COLUMNS: &str = "Medians over the clean slices; ± is half the distance between the quartiles, as a fraction of the \
    median. Low decile: a tenth of the slices cost less; ×: multiple of the reference, without a verdict. Busy: used \
    fraction of its cores' time. Instructions: in kernel and user mode, counted in an emulated machine. Excluded: \
    slices with stolen or throttled time, or invalid. † was restarted in this cell. ‡ the load generator was the \
    bottleneck. § did not reach the offered rate.";

/// A column: its heading, and its value for a measured contender.
type Column = (String, fn(&Row, &Figures) -> Value);

/// Returns all figures for a cell.
pub fn of_cell(result: &LabResult, cell: &CellResult) -> Table {
    let workload = cell.cell.workload;
    let columns = if workload == Workload::Idle { Vec::new() } else { columns(workload) };
    let mut head = vec![workload.server_noun().to_owned()];
    if columns.is_empty() {
        head.push("memory per connection".to_owned());
    }
    head.extend(columns.iter().map(|(heading, _)| heading.clone()));
    head.extend(["slices", "excluded"].map(str::to_owned));
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
            (None, Some(memory)) => vec![estimate(bytes(memory.median), memory)],
            (None, None) => vec![Value::long(why_none(row))],
        };
        if figures.is_some() || row.memory_per_connection_bytes.is_some() {
            let excluded = row.stolen_slices + row.throttled_slices + row.invalid_slices;
            values.extend([row.clean_slices, excluded].map(|slices| Value::new(slices.to_string())));
        }
        TableRow::of_contender(index, format!("{}{marks}", row.contender), values)
    };
    let rows = cell.rows.iter().enumerate().map(row).collect();
    Table { title: cell.cell.to_string(), note: note(result, cell), head, rows }
}

fn columns(workload: Workload) -> Vec<Column> {
    let unit = workload.unit();
    let mut columns: Vec<Column> = vec![
        (format!("{unit}s/s"), |_, figures| {
            let rate = &figures.requests_per_second;
            estimate(count(rate.median), rate)
        }),
        ("p50 µs".to_owned(), |_, figures| estimate(micros(figures.p50_ns.median), &figures.p50_ns)),
        ("p99 µs".to_owned(), |_, figures| estimate(micros(figures.p99_ns.median), &figures.p99_ns)),
        ("p99.9 µs".to_owned(), |_, figures| estimate(micros(figures.p999_ns.median), &figures.p999_ns)),
        (format!("CPU µs/{unit}"), |_, figures| estimate(micros(figures.cpu_ns.median), &figures.cpu_ns)),
    ];
    if workload.target().is_some() {
        columns.push((format!("CPU of both µs/{unit}"), |_, figures| {
            optional(figures.total_cpu_ns.as_ref(), |both| estimate(micros(both.median), both))
        }));
    }
    columns.extend([
        (
            format!("instructions/{unit}"),
            (|row, _| optional(row.instructions_per_request, |value| Value::new(count(value))))
                as fn(&Row, &Figures) -> Value,
        ),
        ("low decile".to_owned(), |row, figures| {
            let ratio =
                row.cpu_low_ratio.map(|ratio| format!("× {} ({})", times(ratio.estimate), interval(&ratio)));
            Value::with_detail(micros(figures.cpu_low_decile_ns), ratio.unwrap_or_default())
        }),
        ("busy".to_owned(), |_, figures| Value::new(format!("{:.0} %", figures.server_busy * 100.0))),
        (format!("switches/{unit}"), |_, figures| {
            optional(figures.switches_per_request, |value| Value::new(format!("{value:.3}")))
        }),
        ("memory".to_owned(), |_, figures| {
            optional(figures.resident_bytes, |value| Value::new(bytes(value)))
        }),
    ]);
    columns
}

fn optional<T>(figure: Option<T>, value: impl Fn(T) -> Value) -> Value {
    figure.map_or_else(|| Value::none(""), value)
}

fn estimate(text: String, estimate: &Estimate) -> Value {
    Value::with_detail(text, spread(estimate))
}

/// Returns the noise floor, method and machine phases of a cell.
fn note(result: &LabResult, cell: &CellResult) -> String {
    let floor = |measure: &Measure| {
        Some(format!("{} ±{}", measure.name(cell.cell.workload), percent(measure.resolution(cell)?)))
    };
    let floors: Vec<String> = Measure::of_cell(&cell.cell).iter().filter_map(floor).collect();
    let mut sentences = vec![if floors.is_empty() {
        "Noise floor unknown.".to_owned()
    } else {
        format!("Noise floor: {}.", floors.join(", "))
    }];
    if cell.cell.workload.has_loops() {
        sentences.push(format!("Method: {}.", result.plan.method_description(&cell.cell)));
    }
    sentences.extend(cell.phases.map(|phases| {
        format!(
            "The machine had slow phases: {} times as long per {}, {:.0} % of the slices, {} changes.",
            times(phases.slow_factor),
            cell.cell.workload.unit(),
            phases.slow_fraction * 100.0,
            phases.changes
        )
    }));
    sentences.join(" ")
}

/// Returns why a row has no figures.
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
                (stolen, throttled, invalid) => format!(
                    "no clean slice: {stolen} with stolen time, {throttled} throttled, {invalid} invalid"
                ),
            }
        }
    }
}

/// Returns the main figure of each cell in a group as bars: memory, p99 latency at an offered rate, otherwise the rate.
pub fn bars(result: &LabResult, group: &Group) -> Table {
    let measure = match (group.workload, group.connections) {
        (Workload::Idle, _) => Measure::Memory,
        (_, Some(_)) => Measure::P99,
        (_, None) => Measure::Rate,
    };
    let cells = result.cells_of(group);
    let median = |row: &Row| row.figure(measure).map(|estimate| estimate.median);
    let max = |cell: &CellResult| cell.rows.iter().filter_map(median).fold(f64::MIN_POSITIVE, f64::max);
    let row = |(index, contender): (usize, &String)| {
        let value = |cell: &&CellResult| {
            let row = cell.rows.get(index)?;
            Some(median(row).map_or_else(
                || Value::none(names::why_none(&row.outcome)),
                |figure| Value { bar: Some(figure / max(cell)), ..Value::new(names::shown(measure, figure)) },
            ))
        };
        let values = cells.iter().map(|cell| value(cell).unwrap_or_else(|| Value::none("")));
        TableRow::of_contender(index, contender, values.collect())
    };
    let positions = cells.iter().map(|cell| names::position_with_axis(group, &cell.cell));
    let rows: Vec<TableRow> =
        result.contenders.iter().map(|record| &record.name).enumerate().map(row).collect();
    let has_bars = rows.iter().flat_map(|row| &row.values).any(|value| value.bar.is_some());
    Table {
        title: format!(
            "{}: {} ({})",
            names::group_title(group),
            names::heading(measure, group.workload),
            names::better(measure)
        ),
        head: [String::new()].into_iter().chain(positions).collect(),
        rows: if has_bars { rows } else { Vec::new() },
        ..Table::default()
    }
}
