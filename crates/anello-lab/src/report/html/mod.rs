//! The HTML report: one file, no network, light and dark, verdicts first, one run or several.
//!
//! The page follows the reader's questions: what came out, who beats whom, do published claims hold, how does it look,
//! what are the figures, what went wrong, on what machine, how do I repeat it. It is complete without its script, which
//! only hides and shows contenders, switches between light and dark and saves the raw data. Every text that comes from
//! outside is escaped.
//!
//! ```text
//!  mod.rs ── opening.rs    verdicts, anello against its peers
//!         ├─ peaks.rs      where rates peak while connections rise
//!         ├─ published.rs  published ratios beside ours
//!         ├─ group.rs      one group of cells: ratio tables, charts, figures
//!         └─ closing.rs    failures, checks, contenders, machine, method, raw data
//! ```

mod closing;
mod group;
mod opening;
mod peaks;
mod published;

use crate::report::drawings::{Drawing, drawings};
use crate::report::format::readable_time;
use crate::report::palette::{Look, looks, style_sheet};
use crate::report::svg::escape;
use crate::report::value;
use crate::result::LabResult;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Renders one result as a self-contained page.
#[must_use]
pub fn render_html(result: &LabResult) -> String {
    render_page(std::slice::from_ref(result))
}

/// Renders several results as one self-contained page, one after the other.
#[must_use]
pub fn render_page(results: &[LabResult]) -> String {
    let mut page = Page { text: String::new(), run: 0 };
    let title = match results {
        [result] => run_title(result),
        _ => format!("{} runs", results.len()),
    };
    page.add(&format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>anello lab · {}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>",
        escape(&title),
        style_sheet()
    ));
    page.add(
        "<header class=\"bar\"><div><h1><b>anello</b> lab</h1>\
         <button id=\"theme\" class=\"js\" type=\"button\" title=\"Light, dark or as the system has it\">◐ <span>auto</span></button>\
         </div></header>\n<main>",
    );
    if results.len() > 1 {
        page.overview(results);
    }
    for (run, result) in results.iter().enumerate() {
        page.run = run;
        page.whole_run(result, results.len() > 1);
    }
    page.add("</main>");
    page.add(&format!("<script>{SCRIPT}</script>\n</body>\n</html>"));
    page.text
}

/// What a run is called: its scenario and when it was.
fn run_title(result: &LabResult) -> String {
    let name = &result.plan.scenario.name;
    let time = readable_time(result.started_unix_s);
    if name.is_empty() { time } else { format!("{name}, {time}") }
}

/// A page under construction.
struct Page {
    text: String,
    /// Index of the run that is being written: parts of ids and classes.
    run: usize,
}

/// A run with what every part of the page needs to know about it.
struct View<'a> {
    result: &'a LabResult,
    looks: Vec<Look>,
}

impl Page {
    fn add(&mut self, html: &str) {
        self.text.push_str(html);
        self.text.push('\n');
    }

    /// With several runs: what they are and what came out of each.
    fn overview(&mut self, results: &[LabResult]) {
        self.add(&format!("<h2>{} runs on this page</h2>\n<ol class=\"runs\">", results.len()));
        for (run, result) in results.iter().enumerate() {
            let headline = result
                .findings
                .iter()
                .find(|finding| finding.kind == crate::result::FindingKind::Headline)
                .map_or("", |finding| finding.text.as_str());
            self.add(&format!(
                "<li><a href=\"#run{run}\">{}</a> {}</li>",
                escape(&run_title(result)),
                escape(headline)
            ));
        }
        self.add("</ol>");
    }

    fn whole_run(&mut self, result: &LabResult, several: bool) {
        let run = self.run;
        let view = View { result, looks: looks(&result.contenders, &result.plan.reference) };
        let groups = drawings(result);
        self.add(&format!("<section class=\"run\" id=\"run{run}\" data-run=\"{run}\">"));
        self.opening(&view, several);
        self.navigation(&groups.iter().map(|drawn| value::group_title(&drawn.group)).collect::<Vec<_>>());
        self.versus(&view);
        self.peaks(&view);
        self.published(&view);
        self.legend(&view);
        for (index, drawn) in groups.iter().enumerate() {
            self.group(&view, index, drawn);
        }
        self.failures(&view);
        self.checks(&view);
        self.contenders(&view);
        self.machine(&view);
        self.method(&view);
        self.raw(&view);
        self.add("</section>");
    }

    fn navigation(&mut self, groups: &[String]) {
        let run = self.run;
        let links: String = groups
            .iter()
            .enumerate()
            .map(|(index, title)| format!("<a href=\"#r{run}g{index}\">{}</a>", escape(title)))
            .collect();
        self.add(&format!(
            "<nav>{links}<a href=\"#r{run}failures\">Failures</a><a href=\"#r{run}machine\">Machine</a>\
             <a href=\"#r{run}raw\">Raw data</a></nav>"
        ));
    }

    /// The names of all contenders with a switch each; for the script only, since every chart names its own lines.
    fn legend(&mut self, view: &View<'_>) {
        self.add("<details class=\"legend js\"><summary>Contenders: show and hide</summary><div>");
        for (index, contender) in view.result.contenders.iter().enumerate() {
            self.add(&format!(
                "<label><input type=\"checkbox\" checked data-c=\"{index}\">{}{}</label>",
                view.swatch(index),
                escape(&contender.name)
            ));
        }
        self.add(
            "<span class=\"presets\"><button type=\"button\" data-show=\"all\">all</button>\
             <button type=\"button\" data-show=\"none\">none</button></span></div></details>",
        );
    }

    /// A drawing that may be scrolled sideways where it would become too small to read.
    fn figure(&mut self, drawing: &Drawing, class: &str) {
        let width = drawing.svg.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split(' ').next());
        let width: f64 = width.and_then(|width| width.parse().ok()).unwrap_or(520.0);
        self.add(&format!(
            "<figure class=\"{class}\"><div class=\"slide\"><div style=\"max-width:{:.0}px;min-width:{:.0}px\">{}</div></div></figure>",
            width * 1.15,
            if width > 600.0 { width * 0.8 } else { 0.0 },
            drawing.svg
        ));
    }
}

impl View<'_> {
    /// A contender's sign in its colour.
    fn swatch(&self, index: usize) -> String {
        self.looks.get(index).map_or_else(String::new, |look| {
            format!("<i class=\"swatch\" style=\"color:var(--{})\">{}</i>", look.colour, look.marker.letter())
        })
    }

    /// A contender's name with its sign.
    fn named(&self, index: usize) -> String {
        let name = self.result.contenders.get(index).map_or("", |contender| contender.name.as_str());
        format!("{}{}", self.swatch(index), escape(name))
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.result.contenders.iter().position(|contender| contender.name == name)
    }
}
