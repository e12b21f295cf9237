//! One group of cells: the table of ratios first, then the charts, then every figure.

use crate::plan::cell::Workload;
use crate::report::base;
use crate::report::drawings::GroupDrawings;
use crate::report::format::{bytes, count, cut, interval, micros, percent, sign, spread, times};
use crate::report::html::{Page, View};
use crate::report::svg::escape;
use crate::report::value;
use crate::result::measure::Measure;
use crate::result::{CellResult, ContenderRecord, Figures, Outcome, PairComparison, Row, Verdict};
use crate::result::{Estimate, Ratio};

/// Reasons in the tables are cut to so many characters.
const WHY_LENGTH: usize = 110;

/// With more cells than this, the latency curves are folded.
const OPEN_CURVES: usize = 4;

/// How to see the low deciles of the CPU time, where it is compared.
const DECILES: &str = " Pointing at a ratio of CPU times shows that of their low deciles, what remains when the machine is at \
                       its best; it stands under “Every figure”, too.";

/// What stands over the tables of anello against peers.
struct Titled {
    summary: &'static str,
    explanation: &'static str,
}

const PEERS: Titled = Titled {
    summary: "anello as a multiple of each peer",
    explanation: "Each driver of anello against every peer that does I/O the same way, by the signs and colours of the \
                  tables above.",
};

const RUNTIMES: Titled = Titled {
    summary: "anello as a multiple of each async runtime that does I/O in another way",
    explanation: "Each driver of anello against every peer that is an async runtime on another kind of driver (io_uring \
                  against epoll, epoll against io_uring): part of each difference is the way of doing I/O, not the \
                  runtime.",
};

const OTHERS: Titled = Titled {
    summary: "anello as a multiple of every other peer that does I/O in another way",
    explanation: "Each driver of anello against the peers on another kind of driver that are no async runtimes (libraries, \
                  frameworks, finished servers, hand-written loops): part of each difference is the way of doing I/O.",
};

/// A row of a table of one contender against another.
struct VersusRow<'a> {
    /// Index of the contender whose colour it has, and with whom it is shown and hidden.
    index: usize,
    /// Its head, in HTML.
    head: String,
    versus: Vec<&'a PairComparison>,
}

impl Page {
    pub(super) fn group(&mut self, view: &View<'_>, index: usize, drawn: &GroupDrawings) {
        let run = self.run;
        let cells = view.result.cells_of(&drawn.group);
        let Some(first) = cells.first() else { return };
        self.add(&format!(
            "<section class=\"group\"><h2 id=\"r{run}g{index}\">{}</h2>",
            escape(&value::group_title(&drawn.group))
        ));
        if !drawn.lines.is_empty() {
            self.add("<div class=\"pair\">");
            drawn.lines.iter().for_each(|drawing| self.figure(drawing, ""));
            self.add("</div>");
        }
        if !drawn.bars.is_empty() {
            self.add("<div class=\"pair\">");
            drawn.bars.iter().for_each(|drawing| self.figure(drawing, ""));
            self.add("</div>");
        }
        let measures = Measure::of_cell(&first.cell);
        let server_noun = first.cell.workload.server_noun();
        let deciles = if measures.contains(&Measure::Cpu) { DECILES } else { "" };
        self.add(&format!(
            "<h3>Against {}</h3>\n<p class=\"lead\">Each contender as a multiple of {}, with the 99 % interval. ▲ more and \
             ▼ less beyond doubt, coloured green where that is better and orange where it is worse; = no difference that \
             this machine can tell; ? too noisy.{deciles} The last line is what two equal {server_noun}s may differ by.</p>",
            escape(&view.result.plan.reference),
            escape(&view.result.plan.reference)
        ));
        for &measure in measures {
            if measure == Measure::TotalCpu {
                self.add(&format!("<p class=\"lead\">{}</p>", why_both(first.cell.workload)));
            }
            self.ratio_table(view, &cells, measure, value::axis_title(&drawn.group));
        }
        self.bases(view, &cells);
        self.multiples(view, &view.result.versus, &cells, &PEERS);
        self.multiples(view, &view.result.runtime_versus, &cells, &RUNTIMES);
        self.multiples(view, &view.result.other_versus, &cells, &OTHERS);
        if !drawn.ratios.is_empty() {
            self.add(&format!(
                "<details><summary>The same as plots</summary><p class=\"lead\">Point: middle of the paired ratios; large \
                 where the difference is beyond doubt. Line: 99 % interval. Band: what two equal {server_noun}s may differ \
                 by.</p>"
            ));
            drawn.ratios.iter().for_each(|drawing| self.figure(drawing, "wide"));
            self.add("</details>");
        }
        if !drawn.curves.is_empty() {
            let open = if drawn.curves.len() <= OPEN_CURVES { " open" } else { "" };
            self.add(&format!(
                "<details{open}><summary>Latency by percentile ({} charts)</summary><p class=\"lead\">All clean slices together. \
                 The rarer, the farther to the right.</p><div class=\"pair\">",
                drawn.curves.len()
            ));
            drawn.curves.iter().for_each(|drawing| self.figure(drawing, ""));
            self.add("</div></details>");
        }
        self.all_figures(view, &cells);
        self.add("</section>");
    }

    fn table_head(&mut self, title: &str, cells: &[&CellResult], axis: &str) {
        self.add(&format!(
            "<div class=\"scroll\"><table class=\"glance\">\n<thead><tr><th scope=\"col\">{title}</th><th class=\"axis\" colspan=\"{}\" scope=\"colgroup\">{axis}</th></tr>",
            cells.len()
        ));
        let head: String =
            cells.iter().map(|cell| format!("<th scope=\"col\">{}</th>", value::place(&cell.cell))).collect();
        self.add(&format!("<tr><th></th>{head}</tr></thead>\n<tbody>"));
    }

    fn ratio_table(&mut self, view: &View<'_>, cells: &[&CellResult], measure: Measure, axis: &str) {
        let workload = cells[0].cell.workload;
        let heading = value::heading_of_ratios(measure, workload);
        self.table_head(&format!("{heading} <small>{}</small>", value::better(measure)), cells, axis);
        for (index, contender) in view.result.contenders.iter().enumerate() {
            let shown = |cell: &&CellResult| {
                let Some(row) = cell.rows.get(index) else { return "<td class=\"none\">–</td>".to_owned() };
                if contender.name == view.result.plan.reference {
                    let figure = value::estimate(row, measure);
                    let figure = figure.map_or_else(
                        || value::why_none(&row.outcome).to_owned(),
                        |estimate| value::shown(measure, estimate.median),
                    );
                    return format!("<td class=\"same\">{figure}</td>");
                }
                let (ratio, verdict) = value::against_reference(row, measure);
                ratio_cell(ratio, verdict, measure, &row.outcome, &low_decile_title(row, measure))
            };
            let row: String = cells.iter().map(shown).collect();
            let reference = if contender.name == view.result.plan.reference { " reference" } else { "" };
            self.add(&format!(
                "<tr class=\"c{index}{reference}\"><th scope=\"row\">{}</th>{row}</tr>",
                view.named(index)
            ));
        }
        let resolution: String = cells
            .iter()
            .map(|cell| {
                let text = measure
                    .resolution(cell)
                    .map_or_else(|| "unknown".to_owned(), |by| format!("±{}", percent(by)));
                format!("<td class=\"same\">{text}</td>")
            })
            .collect();
        self.add(&format!("<tr class=\"resolution\"><th scope=\"row\">equal {}s</th>{resolution}</tr></tbody>\n</table></div>", workload.server_noun()));
    }

    /// The cells of anello against each of these peers, for each of anello's drivers.
    fn multiples(&mut self, view: &View<'_>, all: &[PairComparison], cells: &[&CellResult], title: &Titled) {
        let here: Vec<&PairComparison> =
            all.iter().filter(|versus| cells.iter().any(|cell| cell.cell == versus.cell)).collect();
        let mut drivers: Vec<&str> = Vec::new();
        for versus in &here {
            if !drivers.contains(&versus.contender.as_str()) {
                drivers.push(&versus.contender);
            }
        }
        if drivers.is_empty() {
            return;
        }
        self.add(&format!(
            "<details><summary>{}</summary><p class=\"lead\">{}</p>",
            title.summary, title.explanation
        ));
        let workload = cells[0].cell.workload;
        for driver in drivers {
            let row = |(index, peer): (usize, &ContenderRecord)| {
                let of_peer =
                    |versus: &&PairComparison| versus.contender == driver && versus.peer == peer.name;
                let versus: Vec<&PairComparison> = here.iter().copied().filter(of_peer).collect();
                (!versus.is_empty()).then(|| VersusRow { index, head: view.named(index), versus })
            };
            let rows: Vec<VersusRow> = view.result.contenders.iter().enumerate().filter_map(row).collect();
            for measure in base::measures(&cells[0].cell) {
                let title = format!(
                    "{}: {} <small>{}</small>",
                    escape(driver),
                    measure.name(workload),
                    value::better(measure)
                );
                self.versus_table(&title, cells, measure, &rows);
            }
        }
        self.add("</details>");
    }

    /// Each contender that has a base as a multiple of that.
    fn bases(&mut self, view: &View<'_>, cells: &[&CellResult]) {
        let workload = cells[0].cell.workload;
        let rows: Vec<VersusRow> = base::rows(view.result, &cells[0].cell.group())
            .into_iter()
            .map(|row| VersusRow {
                index: row.index,
                head: format!("{}<br><small>× {}</small>", view.named(row.index), escape(row.base)),
                versus: row.versus,
            })
            .collect();
        if rows.is_empty() {
            return;
        }
        self.add(&format!(
            "<h3>{}</h3>\n<p class=\"lead\">Some options bring another along, so that beside {} they show what both are worth \
             together. Here each is a multiple of the one under its name, by the signs and colours of the tables above.</p>",
            base::title(workload),
            escape(&view.result.plan.reference)
        ));
        for measure in base::measures(&cells[0].cell) {
            let heading = value::heading_of_ratios(measure, workload);
            let title = format!("{heading} <small>{}</small>", value::better(measure));
            self.versus_table(&title, cells, measure, &rows);
        }
    }

    fn versus_table(&mut self, title: &str, cells: &[&CellResult], measure: Measure, rows: &[VersusRow<'_>]) {
        self.table_head(title, cells, value::axis_title(&cells[0].cell.group()));
        for VersusRow { index, head, versus } in rows {
            let shown = |cell: &&CellResult| {
                let Some(versus) = versus.iter().find(|versus| versus.cell == cell.cell) else {
                    return "<td class=\"none\">–</td>".to_owned();
                };
                let (ratio, verdict) = value::against_peer(versus, measure);
                let outcome = cell.rows.get(*index).map_or(&Outcome::NotMeasured, |row| &row.outcome);
                ratio_cell(ratio, verdict, measure, outcome, "")
            };
            let row: String = cells.iter().map(shown).collect();
            self.add(&format!("<tr class=\"c{index}\"><th scope=\"row\">{head}</th>{row}</tr>"));
        }
        self.add("</tbody>\n</table></div>");
    }

    fn all_figures(&mut self, view: &View<'_>, cells: &[&CellResult]) {
        self.add(
            "<details><summary>Every figure</summary><p class=\"lead\">Medians over the clean slices; ± is half the \
             distance between the quartiles, as a part of the median. Low decile: a tenth of the slices cost less; × as a \
             multiple of the reference's, with its 99 % interval, for reading beside the ratio of the medians: it carries \
             no verdict. Busy: part of the time that it was on its cores. Instructions: kernel and user together, \
             counted in an emulated machine, where they were given. Dropped: slices with stolen or throttled time, or spoilt. \
             CPU of both: server and load. † was started again in this cell. ‡ the load set the pace. § did not keep up with the offered rate.</p>",
        );
        for cell in cells {
            let workload = cell.cell.workload;
            let (unit, server_noun) = (workload.unit(), workload.server_noun());
            let phases = cell.phases.map_or(String::new(), |phases| {
                format!(
                    " <span class=\"note\">· the machine had slow phases: {} times as long per {unit}, {:.0} % of the slices, \
                     {} changes</span>",
                    times(phases.slow_factor),
                    phases.slow_fraction * 100.0,
                    phases.changes
                )
            });
            self.add(&format!("<h4>{}{phases}</h4>", escape(&cell.cell.to_string())));
            let heads = figure_heads(workload);
            let head: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
            self.add(&format!(
                "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">{server_noun}</th>{head}</tr></thead>\n<tbody>"
            ));
            for (index, row) in cell.rows.iter().enumerate() {
                self.figures_row(view, (index, row), workload, heads.len());
            }
            self.add("</tbody>\n</table></div>");
        }
        self.add("</details>");
    }

    fn figures_row(
        &mut self,
        view: &View<'_>,
        (index, row): (usize, &Row),
        workload: Workload,
        columns: usize,
    ) {
        let reference = if row.contender == view.result.plan.reference { " reference" } else { "" };
        let mut marks = String::new();
        if row.restarts > 0 {
            marks.push_str(" †");
        }
        if row.figures.as_ref().is_some_and(|figures| figures.load_bottleneck) {
            marks.push_str(" ‡");
        }
        if row.figures.as_ref().is_some_and(|figures| figures.rate_reached == Some(false)) {
            marks.push_str(" §");
        }
        let body = match (&row.figures, &row.memory_per_connection_bytes) {
            (Some(figures), _) => figure_columns(figures, row, workload),
            (None, Some(memory)) => memory_columns(memory, row),
            (None, None) => {
                format!("<td class=\"why\" colspan=\"{columns}\">{}</td>", escape(&why_not(row)))
            }
        };
        let name = view.named(index);
        self.add(&format!(
            "<tr class=\"c{index}{reference}\"><th scope=\"row\">{name}{marks}</th>{body}</tr>"
        ));
    }
}

/// Why the CPU of server and load stands beside that of the server, and when it is the one to look at.
fn why_both(workload: Workload) -> &'static str {
    if workload.has_large_answers() {
        "Large answers are mostly work of the kernel (sending on, acknowledgements), and either side of loopback may come to \
         do it. Equal servers may differ by half and more in server CPU, and by much less in the sum over server and load: here \
         the sum is the figure to read."
    } else {
        "What a server saves by leaving work to its clients does not show in server CPU, but in the sum over server and \
         load. Where answers are as small as here, server CPU is the sharper figure."
    }
}

/// What stands behind a ratio of CPU times: that of the low deciles, as the title of its cell; else nothing.
fn low_decile_title(row: &Row, measure: Measure) -> String {
    let ratio = row.cpu_low_ratio.filter(|_| measure == Measure::Cpu);
    ratio.map_or_else(String::new, |ratio| {
        format!(" title=\"low deciles: {} ({})\"", times(ratio.estimate), interval(&ratio))
    })
}

/// A ratio with the colour of its verdict, or why there is none; `title` is an attribute of the cell, or empty.
fn ratio_cell(
    ratio: Option<Ratio>,
    verdict: Verdict,
    measure: Measure,
    outcome: &Outcome,
    title: &str,
) -> String {
    let class = match measure.is_better(verdict) {
        Some(true) => "good",
        Some(false) => "bad",
        None if verdict == Verdict::NoDifference => "same",
        None if verdict == Verdict::TooNoisy => "noisy",
        None => "none",
    };
    match ratio {
        Some(ratio) => format!(
            "<td class=\"{class}\"{title}>{} {}<br><small>{}</small></td>",
            sign(verdict),
            times(ratio.estimate),
            interval(&ratio)
        ),
        None => {
            let why = value::why_none(outcome);
            let class = if matches!(outcome, Outcome::Failed(_) | Outcome::CheckFailed(_)) {
                "failed"
            } else {
                "none"
            };
            format!("<td class=\"{class}\">{}</td>", if why.is_empty() { "–" } else { why })
        }
    }
}

/// The heads of the columns behind the contender.
fn figure_heads(workload: Workload) -> Vec<String> {
    if workload == Workload::Idle {
        return ["memory per connection", "slices", "dropped"].map(str::to_owned).to_vec();
    }
    let unit = workload.unit();
    let mut heads = vec![
        format!("{unit}s/s"),
        "p50 µs".to_owned(),
        "p99 µs".to_owned(),
        "p99.9 µs".to_owned(),
        format!("CPU µs/{unit}"),
    ];
    heads.extend(workload.target().map(|_| format!("CPU of both µs/{unit}")));
    heads.extend([format!("instructions/{unit}"), "low decile".to_owned(), "busy".to_owned()]);
    heads.push(format!("switches/{unit}"));
    heads.extend(["memory", "slices", "dropped"].map(str::to_owned));
    heads
}

fn with_spread(value: &str, estimate: &Estimate) -> String {
    format!("<td>{value} <small>{}</small></td>", spread(estimate))
}

/// The last two columns of every cell.
fn slice_columns(row: &Row) -> String {
    let dropped = row.stolen_slices + row.throttled_slices + row.spoilt_slices;
    format!("<td>{}</td><td>{dropped}</td>", row.clean_slices)
}

/// Idle connections have one figure.
fn memory_columns(memory: &Estimate, row: &Row) -> String {
    with_spread(&bytes(memory.median), memory) + &slice_columns(row)
}

fn figure_columns(figures: &Figures, row: &Row, workload: Workload) -> String {
    let both = figures.cpu_of_both_ns.as_ref();
    let both = both.map_or_else(|| "<td>–</td>".to_owned(), |both| with_spread(&micros(both.median), both));
    [
        with_spread(&count(figures.requests_per_second.median), &figures.requests_per_second),
        with_spread(&micros(figures.p50_ns.median), &figures.p50_ns),
        with_spread(&micros(figures.p99_ns.median), &figures.p99_ns),
        with_spread(&micros(figures.p999_ns.median), &figures.p999_ns),
        with_spread(&micros(figures.cpu_ns.median), &figures.cpu_ns),
        workload.target().map_or_else(String::new, |_| both),
        format!("<td>{}</td>", row.instructions_per_request.map_or_else(|| "–".to_owned(), count)),
        format!("<td>{}{}</td>", micros(figures.cpu_low_decile_ns), low_decile_ratio(row)),
        format!("<td>{:.0} %</td>", figures.server_busy * 100.0),
        format!(
            "<td>{}</td>",
            figures.switches_per_request.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
        ),
        format!("<td>{}</td>", figures.resident_bytes.map_or_else(|| "–".to_owned(), bytes)),
        slice_columns(row),
    ]
    .concat()
}

/// The low decile as a multiple of the reference's, behind its figure.
fn low_decile_ratio(row: &Row) -> String {
    row.cpu_low_ratio.map_or_else(String::new, |ratio| {
        format!(" <small>× {} ({})</small>", times(ratio.estimate), interval(&ratio))
    })
}

/// Why a row has no figures, in short; the whole story stands among the failures.
fn why_not(row: &Row) -> String {
    match &row.outcome {
        Outcome::Skipped(why) => format!("Skipped: {}", cut(why, WHY_LENGTH)),
        Outcome::Failed(why) => format!("Failed: {}", cut(why, WHY_LENGTH)),
        Outcome::CheckFailed(why) => format!("Failed its check: {}", cut(why, WHY_LENGTH)),
        Outcome::BeyondLimit(why) => format!("Beyond its limit: {}", cut(why, WHY_LENGTH)),
        Outcome::NotServed(why) => format!("Takes no part here: {}", cut(why, WHY_LENGTH)),
        Outcome::Measured | Outcome::NotMeasured => {
            match (row.stolen_slices, row.throttled_slices, row.spoilt_slices) {
                (0, 0, 0) => "Not measured".to_owned(),
                (stolen, throttled, spoilt) => format!(
                    "No clean slice: {stolen} slices had stolen time, {throttled} were throttled, {spoilt} spoilt"
                ),
            }
        }
    }
}
