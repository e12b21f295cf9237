//! The terminal's view of many cells at once: a matrix of ratios for each group, peaks, and bars of the main figure.
//!
//! ```text
//!  Echo, 128 bytes: server CPU per request, × bare epoll (less is better)
//!  connections             1      50     300
//!  anello io_uring    ▼ 0.90  ▼ 0.93  ▼ 0.91
//!  tokio              ▲ 1.07  = 1.01  ? 1.02
//! ```
//!
//! Contenders that name a base have a matrix of their own, with the intervals.

use crate::judge::peak::sweeps;
use crate::plan::cell::{Group, Workload};
use crate::report::base::{self, BaseRow};
use crate::report::format::{cut, interval, sign, times};
use crate::report::peaks;
use crate::report::text::{WIDTH, push_line, wrap};
use crate::report::value;
use crate::result::measure::Measure;
use crate::result::{CellResult, LabResult, Outcome};

/// Names of contenders are cut to this.
const NAME_WIDTH: usize = 19;

/// Width of a cell in the matrix.
const CELL_WIDTH: usize = 8;

/// The same where each contender has the name of its base beside its own, and each ratio its interval.
const BASE_WIDTH: usize = 21;
const INTERVAL_WIDTH: usize = 17;

/// Width of a peak, and of the group above it.
const PEAK_WIDTH: usize = 22;

/// Width of a bar, and of the figure behind it.
const BAR_WIDTH: usize = 22;
const FIGURE_WIDTH: usize = 10;

/// Cells whose bars stand side by side.
const BARS_ABREAST: usize = 2;

/// Writes the matrices of every group.
pub fn render_matrices(text: &mut String, result: &LabResult) {
    for group in result.groups() {
        let cells = result.cells_of(&group);
        let Some(first) = cells.first() else { continue };
        for &measure in Measure::of_cell(&first.cell) {
            for part in cells.chunks((WIDTH - NAME_WIDTH) / CELL_WIDTH) {
                matrix(text, result, &group, part, measure);
            }
        }
    }
}

fn matrix(text: &mut String, result: &LabResult, group: &Group, cells: &[&CellResult], measure: Measure) {
    let reference = &result.plan.reference;
    let title = format!(
        "\n{}: {}, × {reference} ({})",
        value::group_title(group),
        measure.name(group.workload),
        value::better(measure)
    );
    push_line(text, &title);
    let row = |name: &str, values: Vec<String>| {
        let values: String = values.iter().map(|value| format!("{value:>CELL_WIDTH$}")).collect();
        format!("{:NAME_WIDTH$}{values}", cut(name, NAME_WIDTH - 1))
    };
    push_line(
        text,
        &row(value::axis_title(group), cells.iter().map(|cell| value::place(&cell.cell)).collect()),
    );
    for (index, contender) in result.contenders.iter().enumerate() {
        let shown = |cell: &&CellResult| {
            let Some(row) = cell.rows.get(index) else { return String::new() };
            if contender.name == *reference {
                let estimate = value::estimate(row, measure);
                return estimate.map_or_else(String::new, |estimate| {
                    value::shown(measure, estimate.median).replace(' ', "")
                });
            }
            match value::against_reference(row, measure) {
                (Some(ratio), verdict) => format!("{} {}", sign(verdict), times(ratio.estimate)),
                (None, _) => why_none(&row.outcome).to_owned(),
            }
        };
        let name = if contender.name == *reference {
            format!("{}, {}", cut(reference, NAME_WIDTH - 5), value::unit(measure))
        } else {
            contender.name.clone()
        };
        push_line(text, &row(&name, cells.iter().map(shown).collect()));
    }
    let resolution = |cell: &&CellResult| {
        measure.resolution(cell).map_or_else(String::new, |by| format!("±{:.1}%", by * 100.0))
    };
    push_line(
        text,
        &row(&format!("(equal {}s)", group.workload.server_noun()), cells.iter().map(resolution).collect()),
    );
}

/// Writes, for every group, each contender that names a base as a multiple of that.
pub fn render_bases(text: &mut String, result: &LabResult) {
    let mut is_titled = false;
    for group in result.groups() {
        let (cells, rows) = (result.cells_of(&group), base::rows(result, &group));
        let Some(first) = cells.first().filter(|_| !rows.is_empty()) else { continue };
        if !is_titled {
            push_line(text, &format!("\n{}", base::title(group.workload)));
            is_titled = true;
        }
        for measure in base::measures(&first.cell) {
            for part in cells.chunks((WIDTH - NAME_WIDTH - BASE_WIDTH) / INTERVAL_WIDTH) {
                base_matrix(text, &group, &rows, part, measure);
            }
        }
    }
}

fn base_matrix(
    text: &mut String,
    group: &Group,
    rows: &[BaseRow<'_>],
    cells: &[&CellResult],
    measure: Measure,
) {
    let (title, name) = (value::group_title(group), measure.name(group.workload));
    push_line(text, &format!("\n{title}: {name} ({})", value::better(measure)));
    let line = |name: &str, base: &str, values: Vec<String>| {
        let values: String = values
            .iter()
            .map(|value| format!("{:>INTERVAL_WIDTH$}", cut(value, INTERVAL_WIDTH - 1)))
            .collect();
        let (name, base) = (cut(name, NAME_WIDTH - 1), cut(base, BASE_WIDTH - 1));
        format!("{name:NAME_WIDTH$}{base:BASE_WIDTH$}{values}")
    };
    let places = cells.iter().map(|cell| value::place(&cell.cell)).collect();
    push_line(text, &line(value::axis_title(group), "", places));
    for row in rows {
        let shown = |cell: &&CellResult| {
            let compared = row.in_cell(&cell.cell).map(|versus| value::against_peer(versus, measure));
            match compared {
                Some((Some(ratio), verdict)) => {
                    format!("{} {} {}", sign(verdict), times(ratio.estimate), interval(&ratio))
                }
                _ => "–".to_owned(),
            }
        };
        push_line(text, &line(row.name, &format!("× {}", row.base), cells.iter().map(shown).collect()));
    }
}

/// Why there is no ratio, in at most seven letters.
fn why_none(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Measured | Outcome::NotMeasured => "–",
        Outcome::Skipped(_) => "skipped",
        Outcome::Failed(_) => "failed",
        Outcome::CheckFailed(_) => "check ✗",
        Outcome::BeyondLimit(_) => "limit",
        Outcome::NotServed(_) => "n/a",
    }
}

/// Writes where each contender's rate peaks, if the run has a sweep of connections.
pub fn render_peaks(text: &mut String, result: &LabResult) {
    let sweeps = sweeps(result);
    for part in sweeps.chunks((WIDTH - NAME_WIDTH) / PEAK_WIDTH) {
        push_line(
            text,
            "\nPeak of requests/s while connections rise (→ at the last of them: may lie beyond; ‡ the load set the pace)",
        );
        if let Some(words) = peaks::share_words(part) {
            wrap(text, "", &words);
        }
        let row = |name: &str, values: Vec<String>| {
            let values: String =
                values.iter().map(|value| format!("{:>PEAK_WIDTH$}", cut(value, PEAK_WIDTH - 1))).collect();
            format!("{:NAME_WIDTH$}{values}", cut(name, NAME_WIDTH - 1))
        };
        push_line(text, &row("", part.iter().map(|sweep| sweep.group.to_string()).collect()));
        for (index, contender) in peaks::contenders(result) {
            let shown = part.iter().map(|sweep| {
                let words = sweep.peaks[index].as_ref().map(peaks::words);
                words.map_or_else(|| "–".to_owned(), |(rate, place)| format!("{rate} {place}"))
            });
            push_line(text, &row(&contender.name, shown.collect()));
        }
    }
}

/// Writes the main figure of every cell as bars, two cells abreast.
pub fn render_bars(text: &mut String, result: &LabResult) {
    for group in result.groups() {
        let measure = match (group.workload, group.connections) {
            (Workload::Idle, _) => Measure::Memory,
            (_, Some(_)) => Measure::P99,
            (_, None) => Measure::Rate,
        };
        let cells = result.cells_of(&group);
        let measured =
            |cell: &&CellResult| cell.rows.iter().any(|row| value::estimate(row, measure).is_some());
        if cells.iter().any(measured) {
            let heading = value::heading(measure, group.workload);
            push_line(
                text,
                &format!("\n{}: {heading} ({})", value::group_title(&group), value::better(measure)),
            );
            cells.chunks(BARS_ABREAST).for_each(|abreast| bars(text, result, &group, abreast, measure));
        }
    }
}

fn bars(text: &mut String, result: &LabResult, group: &Group, cells: &[&CellResult], measure: Measure) {
    let blank = BAR_WIDTH + FIGURE_WIDTH + 2;
    let heads: String =
        cells.iter().map(|cell| format!("{:<blank$}", value::place_in_words(group, &cell.cell))).collect();
    push_line(text, &format!("{:NAME_WIDTH$}{heads}", ""));
    let most = |cell: &CellResult| {
        let values = cell.rows.iter().filter_map(|row| Some(value::estimate(row, measure)?.median));
        values.fold(0.0, f64::max)
    };
    for (index, contender) in result.contenders.iter().enumerate() {
        let shown = |cell: &&CellResult| {
            let row = cell.rows.get(index);
            match row.and_then(|row| value::estimate(row, measure)) {
                Some(estimate) => {
                    let bar = blocks(estimate.median / most(cell).max(f64::MIN_POSITIVE));
                    let figure = value::shown(measure, estimate.median);
                    format!("{bar:<BAR_WIDTH$} {figure:<FIGURE_WIDTH$} ")
                }
                None => format!("{:<blank$}", row.map_or("", |row| value::why_none(&row.outcome))),
            }
        };
        let all: String = cells.iter().map(shown).collect();
        push_line(text, &format!("{:NAME_WIDTH$}{all}", cut(&contender.name, NAME_WIDTH - 1)));
    }
}

/// A part of the bar's width in blocks, to an eighth of a letter.
fn blocks(part: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * (BAR_WIDTH * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!(blocks(1.0).chars().count(), BAR_WIDTH);
        assert_eq!(blocks(0.5), "█".repeat(BAR_WIDTH / 2));
        assert_eq!((blocks(0.0).as_str(), blocks(f64::NAN).as_str()), ("", ""));
        assert_eq!(blocks(1.0 / (BAR_WIDTH as f64 * 8.0)), "▏");
    }
}
