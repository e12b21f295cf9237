//! The HTML report: one file, no network, light and dark, verdicts first.
//!
//! The page follows the reader's questions: what came out, how sure is that, how does it look, what are the figures,
//! what went wrong, on what machine, how do I repeat it. Every text that comes from outside is escaped.

use crate::report::format::{
    count, cut, grouped, interval, micros, percent, readable_time, sign, spread, times,
};
use crate::report::plot::{colour_variable, line_plot, ratio_plot};
use crate::result::{CellResult, Figures, Finding, FindingKind, LabResult, Outcome, Row, Verdict};
use crate::statistics::Estimate;
use crate::verdict::Figure;

const STYLE: &str = include_str!("page.css");

/// Lets the reader save the raw data. The page is complete without it.
const SCRIPT: &str = "document.getElementById('save').addEventListener('click',()=>{\
const a=document.createElement('a');\
a.href=URL.createObjectURL(new Blob([document.getElementById('raw').textContent],{type:'application/json'}));\
a.download='anello-lab.json';a.click();URL.revokeObjectURL(a.href)})";

/// Reasons in the tables are cut to so many characters.
const WHY_LENGTH: usize = 110;

/// Width of a server's name and of one figure in the tables at a glance, so that the page knows how many of them stand
/// side by side.
const GLANCE_NAME_REM: f64 = 8.5;
const GLANCE_CELL_REM: f64 = 3.6;

/// Renders the result as one self-contained page.
#[must_use]
pub fn render_html(result: &LabResult) -> String {
    let mut page = Page { text: String::new() };
    page.add(&format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>anello lab · {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
        readable_time(result.started_unix_s)
    ));
    page.opening(result);
    page.glance(result);
    page.plots(result);
    page.tables(result);
    page.failures(result);
    page.contenders(result);
    page.environment(result);
    page.method(result);
    page.raw(result);
    page.add("</main>\n</body>\n</html>");
    page.text
}

/// A page under construction.
struct Page {
    text: String,
}

impl Page {
    fn add(&mut self, html: &str) {
        self.text.push_str(html);
        self.text.push('\n');
    }

    fn opening(&mut self, result: &LabResult) {
        let plan = &result.plan;
        self.add("<header>\n<h1><b>anello</b> lab</h1>");
        self.add(&format!(
            "<p class=\"meta\">{} · {} · {} · {:.0} s · {} slices</p>\n</header>",
            readable_time(result.started_unix_s),
            escape(&result.environment.cpu_model),
            escape(&result.environment.kernel),
            result.elapsed_ns as f64 / 1e9,
            result.slices.len()
        ));
        let (headlines, others): (Vec<&Finding>, Vec<&Finding>) =
            result.findings.iter().partition(|finding| finding.kind == FindingKind::Headline);
        for headline in headlines {
            self.add(&format!("<p class=\"headline\">{}</p>", escape(&headline.text)));
        }
        self.add("<ul class=\"findings\">");
        for finding in others {
            self.finding(result, finding);
        }
        for note in &result.notes {
            self.add(&format!("<li class=\"caution\">{}</li>", escape(note)));
        }
        self.add("</ul>");
        self.add(&format!(
            "<p class=\"note\">Repeat this run:</p>\n<pre>{}</pre>",
            escape(&plan.repeat_command)
        ));
    }

    fn finding(&mut self, result: &LabResult, finding: &Finding) {
        let class = match finding.kind {
            FindingKind::Headline | FindingKind::Resolution => "resolution",
            FindingKind::Contender => "contender",
            FindingKind::Caution => "caution",
            FindingKind::Failure => "failure",
        };
        let about = result
            .contenders
            .iter()
            .position(|contender| finding.text.starts_with(&contender.name))
            .filter(|_| finding.kind == FindingKind::Contender);
        let swatch = about
            .map_or(String::new(), |index| format!(" style=\"--swatch:var({})\"", colour_variable(index)));
        let name = about.map_or("", |index| result.contenders[index].name.as_str());
        let rest = &finding.text[name.len()..];
        self.add(&format!("<li class=\"{class}\"{swatch}><b>{}</b>{}</li>", escape(name), escape(rest)));
    }

    fn glance(&mut self, result: &LabResult) {
        self.add("<h2>At a glance</h2>");
        self.add(&format!(
            "<p class=\"lead\">Each server as a multiple of {}. Coloured where the difference is beyond doubt, = where \
             there is none that this machine can tell, ? where it is too noisy.</p>",
            escape(&result.plan.reference)
        ));
        // A table for each message size: side by side on a wide page, and narrow enough for a phone.
        let least_rem = GLANCE_NAME_REM + GLANCE_CELL_REM * result.plan.connections.len() as f64;
        for (figure, title) in [
            (Figure::Cpu, "Server CPU per request (less is better)"),
            (Figure::Rate, "Requests/s (more is better)"),
        ] {
            self.add(&format!("<h3>{title}</h3>\n<div class=\"pair\" style=\"--least:{least_rem:.1}rem\">"));
            for &bytes in &result.plan.message_bytes {
                self.glance_table(result, figure, bytes);
            }
            self.add("</div>");
        }
    }

    fn glance_table(&mut self, result: &LabResult, figure: Figure, bytes: usize) {
        let cells: Vec<&CellResult> =
            result.cells.iter().filter(|cell| cell.cell.message_bytes == bytes).collect();
        self.add("<div class=\"scroll\"><table class=\"glance\">\n<thead>");
        let span = cells.len();
        self.add(&format!("<tr><th></th><th colspan=\"{span}\" scope=\"colgroup\">{bytes} bytes</th></tr>"));
        let head: String =
            cells.iter().map(|cell| format!("<th scope=\"col\">{}</th>", cell.cell.connections)).collect();
        self.add(&format!("<tr><th scope=\"row\">connections</th>{head}</tr>\n</thead>\n<tbody>"));
        for (index, contender) in result.contenders.iter().enumerate() {
            if contender.name != result.plan.reference {
                let row: String = cells.iter().map(|cell| glance_cell(&cell.rows[index], figure)).collect();
                self.add(&format!("<tr><th scope=\"row\">{}</th>{row}</tr>", named(result, index)));
            }
        }
        self.add("</tbody>\n</table></div>");
    }

    fn plots(&mut self, result: &LabResult) {
        let reference = escape(&result.plan.reference);
        self.add("<h2>Against the reference</h2>");
        self.add(&format!(
            "<p class=\"lead\">Dot: median of the paired ratios to {reference}. Line: 99 % interval. Grey band: what two \
             equal servers may differ by on this machine.</p>"
        ));
        self.figures(result, ratio_plot, &format!("as a multiple of {reference}"));
        self.add("<h2>Against connections</h2>");
        self.add("<p class=\"lead\">Medians, with the quartiles as bars.</p>\n<div class=\"legend\">");
        for (index, contender) in result.contenders.iter().enumerate() {
            if contender.twin_of.is_none() {
                self.add(&format!("<span>{}</span>", named(result, index)));
            }
        }
        self.add("</div>");
        self.figures(result, line_plot, "median");
    }

    fn figures(&mut self, result: &LabResult, plot: fn(&LabResult, usize, Figure) -> String, how: &str) {
        for (figure, title) in [(Figure::Cpu, "Server CPU per request"), (Figure::Rate, "Requests/s")] {
            let unit = if figure == Figure::Cpu && how == "median" { ", µs" } else { "" };
            let better = if figure == Figure::Cpu { "less is better" } else { "more is better" };
            self.add(&format!("<h3>{title}{unit}</h3>\n<div class=\"pair\">"));
            for &bytes in &result.plan.message_bytes {
                self.add(&format!(
                    "<figure><figcaption><b>{bytes} bytes</b> · {how} · {better}</figcaption>{}</figure>",
                    plot(result, bytes, figure)
                ));
            }
            self.add("</div>");
        }
    }

    fn tables(&mut self, result: &LabResult) {
        self.add("<h2>Figures</h2>");
        self.add(
            "<p class=\"lead\">Medians over the clean slices; ± is half the distance between the quartiles, as a part of \
             the median. Low decile: a tenth of the slices cost less. Busy: part of the time that the server was on its \
             core. Ratios with their 99 % intervals. † was started again in this cell.</p>",
        );
        for cell in &result.cells {
            let resolution = match (cell.cpu_resolution, cell.rate_resolution) {
                (Some(cpu), Some(rate)) => {
                    format!(
                        "equal servers may differ by {} in CPU, {} in requests/s",
                        percent(cpu),
                        percent(rate)
                    )
                }
                _ => "the resolution is unknown: the reference was not measured twice".to_owned(),
            };
            self.add(&format!("<h3>{} <span class=\"note\">· {resolution}</span></h3>", cell.cell));
            self.add(
                "<div class=\"scroll\"><table>\n<thead><tr><th>server</th><th scope=\"col\">requests/s</th>\
                 <th scope=\"col\">p50 µs</th><th scope=\"col\">p99 µs</th><th scope=\"col\">CPU µs/request</th>\
                 <th scope=\"col\">low decile</th><th scope=\"col\">busy</th><th scope=\"col\">× requests/s</th>\
                 <th scope=\"col\">× CPU</th><th scope=\"col\">slices</th></tr></thead>\n<tbody>",
            );
            for (index, row) in cell.rows.iter().enumerate() {
                self.table_row(result, cell, index, row);
            }
            self.add("</tbody>\n</table></div>");
        }
    }

    fn table_row(&mut self, result: &LabResult, cell: &CellResult, index: usize, row: &Row) {
        let class = if row.contender == result.plan.reference { " class=\"reference\"" } else { "" };
        let mark = if row.restarts > 0 { " †" } else { "" };
        let name = format!("<th scope=\"row\">{}{mark}</th>", named(result, index));
        let body = match &row.figures {
            Some(figures) => figure_columns(figures, row),
            None => format!("<td class=\"why\" colspan=\"9\">{}</td>", escape(&why_not(cell, row))),
        };
        self.add(&format!("<tr{class}>{name}{body}</tr>"));
    }

    fn failures(&mut self, result: &LabResult) {
        self.add("<h2>Failures</h2>");
        if result.failures.is_empty() {
            self.add("<p class=\"note\">None: every contender started, answered every byte right and stayed up.</p>");
            return;
        }
        self.add(
            "<div class=\"scroll\"><table class=\"story\">\n<thead><tr><th>server</th><th scope=\"col\">pass</th><th scope=\"col\">cell\
             </th><th scope=\"col\">what it did</th><th scope=\"col\">what followed</th></tr></thead>\n<tbody>",
        );
        for (failure, passes) in grouped(&result.failures) {
            let cell = failure.cell.map_or_else(|| "at the start".to_owned(), |cell| cell.to_string());
            self.add(&format!(
                "<tr><th scope=\"row\">{}</th><td>{passes}</td><td>{cell}</td><td class=\"why\">{}</td><td>{}</td></tr>",
                escape(&failure.contender),
                escape(&failure.what),
                failure.consequence
            ));
        }
        self.add("</tbody>\n</table></div>");
    }

    fn contenders(&mut self, result: &LabResult) {
        self.add(&format!(
            "<h2>Contenders</h2>\n<p class=\"lead\">anello {}</p>\n<dl>",
            escape(&result.plan.version)
        ));
        for (index, contender) in result.contenders.iter().enumerate() {
            let ready = contender.ready_line.as_deref().unwrap_or("was never ready");
            self.add(&format!(
                "<dt>{}</dt><dd><code>{}</code><br><span class=\"note\">{}</span></dd>",
                named(result, index),
                escape(&contender.command),
                escape(ready)
            ));
        }
        self.add("</dl>");
    }

    fn environment(&mut self, result: &LabResult) {
        self.add("<h2>Machine</h2>\n<dl>");
        let plan = &result.plan;
        let pinned = format!("servers on core {}, load on core {}", plan.server_core, plan.load_core);
        let mut facts = result.environment.facts();
        facts.push(("Pinned", pinned));
        if let Some([one, five, fifteen]) = result.environment_after.load_average {
            facts.push(("Load average after", format!("{one:.2} {five:.2} {fifteen:.2}")));
        }
        if let Some(fraction) = result.foreign_fraction {
            facts.push(("Taken by other programs", format!("{} of the cores' time", percent(fraction))));
        }
        if let (Some(before), Some(after)) =
            (result.environment.stolen_ticks, result.environment_after.stolen_ticks)
        {
            facts.push((
                "Stolen by the hypervisor",
                format!("{} ticks during the run", after.saturating_sub(before)),
            ));
        }
        for (label, value) in facts {
            self.add(&format!("<dt>{label}</dt><dd>{}</dd>", escape(&value)));
        }
        self.add("</dl>");
    }

    fn method(&mut self, result: &LabResult) {
        let plan = &result.plan;
        self.add("<h2>Method</h2>");
        self.add(&format!(
            "<p class=\"lead\">{} passes; each starts every server anew and walks through the cells in random order. In a \
             cell all servers hold their connections open, the idle ones asleep, and each of {} rounds gives every server \
             one slice of {:.0} ms in random order (seed {}). Every byte that comes back is checked. A slice is dropped \
             if the hypervisor took more than {} of it. Ratios pair slices of the same round; their intervals are a \
             bootstrap over passes and rounds. Two servers are told apart only if the interval leaves out 1 and the \
             difference exceeds what {} shows against itself.</p>",
            plan.passes,
            plan.rounds,
            plan.slice_ns as f64 / 1e6,
            plan.seed,
            percent(plan.stolen_fraction_limit),
            escape(&plan.reference)
        ));
    }

    fn raw(&mut self, result: &LabResult) {
        // Compact, and with no "<" in it, so that nothing inside can end the element.
        let json = serde_json::to_string(result).map(|json| json.replace('<', "\\u003c"));
        match json {
            Ok(json) => {
                self.add("<h2>Raw data</h2>\n<p class=\"lead\">Every slice is part of this page.</p>");
                self.add("<button id=\"save\" type=\"button\">Save as JSON</button>");
                self.add(&format!("<script type=\"application/json\" id=\"raw\">{json}</script>"));
                self.add(&format!("<script>{SCRIPT}</script>"));
            }
            Err(error) => {
                self.add(&format!("<p class=\"note\">No raw data: {}</p>", escape(&error.to_string())))
            }
        }
    }
}

fn named(result: &LabResult, index: usize) -> String {
    let name = escape(&result.contenders[index].name);
    format!("<span class=\"swatch\" style=\"--swatch:var({})\"></span>{name}", colour_variable(index))
}

fn glance_cell(row: &Row, figure: Figure) -> String {
    let verdict = figure.verdict(row);
    let class = match figure.is_better(verdict) {
        Some(true) => "good",
        Some(false) => "bad",
        None if verdict == Verdict::NoDifference => "same",
        None if verdict == Verdict::TooNoisy => "noisy",
        None => "none",
    };
    let shown = match figure.ratio(row) {
        Some(ratio) => format!("{} {}", sign(verdict), times(ratio.estimate)),
        None => match row.outcome {
            Outcome::Skipped(_) => "skipped".to_owned(),
            Outcome::Failed(_) => "failed".to_owned(),
            Outcome::Measured | Outcome::NotMeasured => "–".to_owned(),
        },
    };
    format!("<td class=\"{class}\">{shown}</td>")
}

fn figure_columns(figures: &Figures, row: &Row) -> String {
    let with_spread =
        |value: String, estimate: &Estimate| format!("<td>{value} <small>{}</small></td>", spread(estimate));
    let ratio = |figure: Figure| {
        let verdict = figure.verdict(row);
        let class = match figure.is_better(verdict) {
            Some(true) => "good",
            Some(false) => "bad",
            None => "same",
        };
        match (figure.ratio(row), verdict) {
            (_, Verdict::Reference) => "<td class=\"same\">1</td>".to_owned(),
            (Some(ratio), verdict) => format!(
                "<td class=\"{class}\">{} {} <small>{}</small></td>",
                sign(verdict),
                times(ratio.estimate),
                interval(&ratio)
            ),
            (None, _) => "<td class=\"none\">–</td>".to_owned(),
        }
    };
    [
        with_spread(count(figures.requests_per_second.median), &figures.requests_per_second),
        with_spread(micros(figures.p50_ns.median), &figures.p50_ns),
        with_spread(micros(figures.p99_ns.median), &figures.p99_ns),
        with_spread(micros(figures.cpu_ns.median), &figures.cpu_ns),
        format!("<td>{}</td>", micros(figures.cpu_low_decile_ns)),
        format!("<td>{:.0} %</td>", figures.server_busy * 100.0),
        ratio(Figure::Rate),
        ratio(Figure::Cpu),
        format!("<td>{}</td>", row.clean_slices),
    ]
    .concat()
}

/// Why a row has no figures, in short; the whole story stands among the failures.
fn why_not(cell: &CellResult, row: &Row) -> String {
    match &row.outcome {
        Outcome::Skipped(why) => format!("Skipped: {}", cut(why, WHY_LENGTH)),
        Outcome::Failed(why) => format!("Failed: {}", cut(why, WHY_LENGTH)),
        Outcome::Measured | Outcome::NotMeasured if row.stolen_slices > 0 => {
            format!("All {} slices at {} had stolen time", row.stolen_slices, cell.cell)
        }
        Outcome::Measured | Outcome::NotMeasured => "Not measured".to_owned(),
    }
}

/// Makes any text safe inside an element or a quoted attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
