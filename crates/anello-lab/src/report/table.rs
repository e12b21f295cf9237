//! The terminal table: findings, matrices for each group, bars, one block for each cell; at most [`WIDTH`] columns,
//! plain text.

use crate::plan::cell::Workload;
use crate::report::format::{
    bytes, count, cut, grouped, interval, micros, percent, readable_time, sign, spread, times,
};
use crate::report::matrix::{render_bars, render_bases, render_matrices, render_peaks};
use crate::report::text::{WIDTH, push_line, wrap};
use crate::result::measure::Measure;
use crate::result::{CellResult, Failure, Figures, FindingKind, LabResult, Outcome, Row, Verdict};
use crate::result::{Estimate, Ratio};

/// Names of contenders are cut to this.
const NAME_WIDTH: usize = 16;

/// Width of the only figure of idle connections.
const MEMORY_WIDTH: usize = 17;

/// With more contenders than this, the sentence about each of them is left to the other reports.
const MANY_CONTENDERS: usize = 10;

/// With more cells than this, their figures are left to the other reports.
const DETAILED_CELLS: usize = 12;

/// Renders the result for a terminal.
#[must_use]
pub fn render_table(result: &LabResult) -> String {
    let mut text = String::new();
    // With many contenders the matrices say the same in less room.
    let brief = result.contenders.len() > MANY_CONTENDERS;
    for finding in result.findings.iter().filter(|finding| !brief || finding.kind != FindingKind::Contender) {
        wrap(&mut text, "• ", &finding.text);
    }
    for note in &result.notes {
        wrap(&mut text, "! ", note);
    }
    render_matrices(&mut text, result);
    render_bases(&mut text, result);
    render_peaks(&mut text, result);
    render_bars(&mut text, result);
    if result.cells.len() <= DETAILED_CELLS {
        for cell in &result.cells {
            render_cell(&mut text, result, cell);
        }
    } else {
        push_line(&mut text, "\nEvery figure of every cell: see the HTML report or the JSON.");
    }
    text.push('\n');
    wrap(
        &mut text,
        "",
        "▲ more, ▼ less than the reference, = no detectable difference, ? too noisy. ± is half the distance between \
         the quartiles; intervals hold with 99 %. † was started again.",
    );
    render_failures(&mut text, result);
    let facts = &result.environment;
    let line = format!(
        "{}; {}; {}; cores {:?} (servers) and {:?} (load); seed {}",
        readable_time(result.started_unix_s),
        facts.kernel,
        facts.cpu_model,
        result.plan.server_cores,
        result.plan.load_cores,
        result.plan.seed
    );
    wrap(&mut text, "", &line);
    text
}

fn render_cell(text: &mut String, result: &LabResult, cell: &CellResult) {
    render_heading(text, cell);
    if cell.cell.workload == Workload::Idle {
        render_idle_columns(text, &result.plan.reference);
    } else {
        render_columns(text, &result.plan.reference, cell.cell.workload);
    }
    for row in &cell.rows {
        push_line(text, &render_row(row));
    }
    render_instructions(text, result, cell);
}

/// The cell with what can be told apart in it; on two lines where one is too short.
fn render_heading(text: &mut String, cell: &CellResult) {
    let title = cell.cell.to_string();
    let resolution = resolution(cell);
    let taken = title.chars().count() + resolution.chars().count();
    if taken < WIDTH {
        push_line(text, &format!("\n{title}{}{resolution}", " ".repeat(WIDTH - taken)));
    } else {
        push_line(text, &format!("\n{title}\n{resolution:>WIDTH$}"));
    }
    push_line(text, &"─".repeat(WIDTH));
}

/// What two equal servers may differ by, in the figures by which they are compared in such a cell.
fn resolution(cell: &CellResult) -> String {
    let compared = Measure::of_cell(&cell.cell);
    let names = [
        (Measure::Rate, "rate"),
        (Measure::Cpu, "CPU"),
        (Measure::TotalCpu, "CPU of both"),
        (Measure::P50, "p50"),
        (Measure::P99, "p99"),
        (Measure::Memory, "memory"),
    ];
    let known: Vec<String> = names
        .iter()
        .filter(|(measure, _)| compared.contains(measure))
        .filter_map(|(measure, name)| Some(format!("{} of the {name}", percent(measure.resolution(cell)?))))
        .collect();
    if known.is_empty() { "resolution unknown".to_owned() } else { format!("resolves {}", known.join(", ")) }
}

fn render_idle_columns(text: &mut String, reference: &str) {
    let server_noun = Workload::Idle.server_noun();
    push_line(text, &format!("{server_noun:NAME_WIDTH$} {:>MEMORY_WIDTH$}  memory", "memory/connection"));
    push_line(text, &format!("{:NAME_WIDTH$} {:MEMORY_WIDTH$}  × {reference}", "", ""));
}

fn render_columns(text: &mut String, reference: &str, workload: Workload) {
    let reference = format!("× {reference}");
    push_line(
        text,
        &format!(
            "{:NAME_WIDTH$} {:>12} {:>11} {:>11} {:>11} {:>5}  {:<17} {:<17}",
            workload.server_noun(),
            format!("{}s/s", workload.unit()),
            "p50 µs",
            "p99 µs",
            if workload.is_disk() { "CPU µs/op" } else { "CPU µs/req" },
            "low",
            "rate",
            "CPU"
        ),
    );
    push_line(text, &format!("{:NAME_WIDTH$} {:>54}  {reference:<17} {reference:<17}", "", "decile"));
}

/// The rows of the table have no room left for them.
fn render_instructions(text: &mut String, result: &LabResult, cell: &CellResult) {
    let Some(counts) = &result.instructions else { return };
    let counted: Vec<String> = cell
        .rows
        .iter()
        .filter_map(|row| Some(format!("{} {}", row.contender, count(row.instructions_per_request?))))
        .collect();
    if !counted.is_empty() {
        let title = format!("instructions per request, emulated, Linux {}: ", counts.kernel);
        wrap(text, "", &(title + &counted.join(", ")));
    }
}

fn render_row(row: &Row) -> String {
    let mark = if row.restarts > 0 { "†" } else { "" };
    let name: String = row.contender.chars().take(NAME_WIDTH - mark.chars().count()).collect();
    let name = format!("{name}{mark}");
    match (&row.outcome, &row.figures, &row.memory_per_connection_bytes) {
        (Outcome::Measured, Some(figures), _) => {
            format!(
                "{name:NAME_WIDTH$} {} {} {}",
                render_figures(figures),
                render_ratio(row.comparison.rate_ratio, row.comparison.rate_verdict),
                render_ratio(row.comparison.cpu_ratio, row.comparison.cpu_verdict)
            )
        }
        (Outcome::Measured, None, Some(memory)) => {
            let ratio = render_ratio(row.comparison.memory_ratio, row.comparison.memory_verdict);
            let memory = format!("{} {}", bytes(memory.median), spread(memory));
            format!("{name:NAME_WIDTH$} {memory:>MEMORY_WIDTH$}  {ratio}")
        }
        (outcome, _, _) => {
            let why = match outcome {
                Outcome::Skipped(why) => format!("skipped: {why}"),
                Outcome::Failed(why) => format!("failed: {why}"),
                Outcome::CheckFailed(why) => format!("failed its check: {why}"),
                Outcome::BeyondLimit(why) => format!("beyond its limit: {why}"),
                Outcome::NotServed(why) => format!("takes no part here: {why}"),
                Outcome::Measured | Outcome::NotMeasured => match row.stolen_slices {
                    0 => "not measured".to_owned(),
                    stolen => format!("not measured: all {stolen} slices had stolen time"),
                },
            };
            cut(&format!("{name:NAME_WIDTH$} {why}"), WIDTH)
        }
    }
}

fn render_figures(figures: &Figures) -> String {
    let with_spread = |value: String, estimate: &Estimate| format!("{value:>5} {:<5}", spread(estimate));
    format!(
        "{:>12} {:>11} {:>11} {:>11} {:>5} ",
        with_spread(count(figures.requests_per_second.median), &figures.requests_per_second),
        with_spread(micros(figures.p50_ns.median), &figures.p50_ns),
        with_spread(micros(figures.p99_ns.median), &figures.p99_ns),
        with_spread(micros(figures.cpu_ns.median), &figures.cpu_ns),
        micros(figures.cpu_low_decile_ns),
    )
}

fn render_ratio(ratio: Option<Ratio>, verdict: Verdict) -> String {
    let shown = match (ratio, verdict) {
        (_, Verdict::Reference) => "1".to_owned(),
        (Some(ratio), verdict) => format!("{} {} {}", sign(verdict), times(ratio.estimate), interval(&ratio)),
        (None, _) => String::new(),
    };
    format!("{shown:<17}")
}

fn render_failures(text: &mut String, result: &LabResult) {
    if !result.failures.is_empty() {
        push_line(text, "\nfailures");
    }
    for (failure, passes) in grouped(&result.failures) {
        let place = failure.cell.map_or(String::new(), |cell| format!(", {cell}"));
        let Failure { contender, what, consequence, .. } = failure;
        wrap(text, "- ", &format!("{contender}, pass {passes}{place}: {what}; {consequence}"));
    }
    text.push('\n');
}
