//! The HTML report: one file without external resources, for one or more runs.
//!
//! The first screen shows the conclusion, the CPU time per request and the noise floor. Verdicts follow, then the
//! groups of cells, the published figures, and finally notes, contenders, machine, method and raw data. Charts are
//! drawn by the vendored uPlot from JSON in the page; everything else works without scripts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::judge::findings;
use crate::plan::cell::{Group, Workload};
use crate::report::chart::{Chart, GroupCharts};
use crate::report::palette::{Look, looks};
use crate::report::table::{Table, TableRow, Value};
use crate::report::{details, figures, names, published, ratios, raw};
use crate::result::{FindingKind, LabResult};

const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("uplot/uPlot.min.css");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Number of latency charts in a group above which they are collapsed.
const MAX_OPEN_LATENCIES: usize = 4;

/// Number of rows above which a table of published cells is collapsed.
const MAX_OPEN_CELLS: usize = 12;

/// Renders one result as a page without external resources.
#[must_use]
pub fn render_html(result: &LabResult) -> String {
    render_page(std::slice::from_ref(result))
}

/// Renders several results as one page.
#[must_use]
pub fn render_page(results: &[LabResult]) -> String {
    let title = match results {
        [result] => names::run_title(result),
        _ => format!("{} runs", results.len()),
    };
    let runs = results.iter().enumerate().map(|(number, result)| {
        let looks = looks(&result.contenders, &result.plan.reference);
        Run { result, number, looks }
    });
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "anello lab · " (title) }
                style { (PreEscaped(UPLOT_STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                header.bar {
                    div {
                        h1 { b { "anello" } " lab" }
                        button #theme .js type="button" title="Light, dark or system theme" { "◐ " span { "auto" } }
                    }
                }
                main {
                    @if results.len() > 1 {
                        h2 { (results.len()) " runs on this page" }
                        ol.runs {
                            @for (number, result) in results.iter().enumerate() {
                                li { a href={ "#run" (number) } { (names::run_title(result)) } " " (findings::conclusion(result)) }
                            }
                        }
                    }
                    @for run in runs { (run.section(results.len() > 1)) }
                }
                (PreEscaped("<!-- uPlot 1.6.32, MIT License, Copyright (c) 2022 Leon Sorokin -->"))
                script { (PreEscaped(UPLOT)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

struct Run<'a> {
    result: &'a LabResult,
    number: usize,
    looks: Vec<Look>,
}

impl Run<'_> {
    fn section(&self, is_one_of_several: bool) -> Markup {
        let (result, number) = (self.result, self.number);
        let groups: Vec<(Group, GroupCharts)> =
            result.groups().into_iter().map(|group| (group, GroupCharts::of(result, &group))).collect();
        let colours = self.looks.iter().map(|look| look.colour).enumerate();
        let colours = colours.map(|(index, (light, dark))| format!("--c{index}:light-dark({light},{dark});"));
        html! {
            section.run id={ "run" (number) } style=(colours.collect::<String>()) {
                script type="application/json" .looks { (json(&self.looks)) }
                @if is_one_of_several { h2.run { (names::run_title(result)) } }
                (self.first_screen(&groups))
                nav {
                    a href={ "#r" (number) "verdicts" } { "Verdicts" }
                    @for (index, (group, _)) in groups.iter().enumerate() {
                        a href={ "#r" (number) "g" (index) } { (names::group_title(group)) }
                    }
                    a href={ "#r" (number) "notes" } { "Notes" }
                    a href={ "#r" (number) "environment" } { "Environment" }
                    a href={ "#r" (number) "raw" } { "Raw data" }
                }
                (self.verdicts())
                (self.legend())
                @for (index, (group, charts)) in groups.iter().enumerate() { (self.group(index, group, charts)) }
                (self.published())
                (self.appendix())
            }
        }
    }

    fn first_screen(&self, groups: &[(Group, GroupCharts)]) -> Markup {
        let result = self.result;
        let shown: Vec<_> = groups.iter().filter(|(_, charts)| !charts.main.is_empty()).collect();
        let methods = result.methods();
        let facts = findings::facts(result);
        // Initially show the group in the middle of the list, which has neither the smallest nor the largest messages.
        let first = shown.len().saturating_sub(1) / 2;
        let floor = facts.iter().find(|fact| fact.kind == FindingKind::Resolution);
        html! {
            p.headline { (findings::conclusion(result)) }
            @if result.interrupted { p.caution { "The run was stopped early." } }
            p.meta { (details::summary(result)) @if !methods.is_empty() { " · method: " (methods) } }
            @if let Some(path) = &result.plan.network { p.meta { "network: " (path) } }
            @if shown.len() > 1 {
                select.js aria-label="Cells" {
                    @for (index, (group, _)) in shown.iter().enumerate() { option value=(index) selected[index == first] { (names::group_title(group)) } }
                }
            }
            @for (index, (group, charts)) in shown.iter().enumerate() {
                div.pair.main hidden[index != first] aria-label=(names::group_title(group)) { @for chart in &charts.main { (figure(chart)) } }
            }
            @if let Some(floor) = floor { p.floor { b { (floor.subject) ": " } (floor.text) "." } }
        }
    }

    fn verdicts(&self) -> Markup {
        let result = self.result;
        let own = result.contenders.iter().filter_map(|own| ratios::peer_standings(result, &own.name));
        html! {
            h2 id={ "r" (self.number) "verdicts" } { "Verdicts" }
            p.lead {
                (ratios::SIGNS) " The kind of I/O of a peer is in parentheses if it differs. The last rows of a ratio \
                table show by how much identical servers can differ, and the measurement method."
            }
            (self.table(&ratios::decisions(result), ""))
            (self.table(&ratios::losses(result), "ratios"))
            (self.table(&ratios::runtimes(result), ""))
            @for table in own { (self.table(&table, "standings")) }
            (self.table(&ratios::reference_standings(result), "standings"))
            (self.table(&ratios::peaks(result), ""))
        }
    }

    fn legend(&self) -> Markup {
        html! {
            details.legend.js {
                summary { "Show or hide contenders" }
                div {
                    @for (index, contender) in self.result.contenders.iter().enumerate() {
                        label { input type="checkbox" checked data-c=(index); (self.swatch(index)) (contender.name) }
                    }
                    span.presets {
                        button type="button" data-show="all" { "all" }
                        button type="button" data-show="none" { "none" }
                    }
                }
            }
        }
    }

    fn group(&self, index: usize, group: &Group, charts: &GroupCharts) -> Markup {
        let result = self.result;
        let cells = result.cells_of(group);
        let measures = result.measures_of(group);
        let own = result.contenders.iter();
        let peers: Vec<Table> = own.flat_map(|own| ratios::against_peers(result, group, &own.name)).collect();
        html! {
            section.group {
                h2 id={ "r" (self.number) "g" (index) } { (names::group_title(group)) }
                @for measure in measures { (self.table(&ratios::against_reference(result, group, *measure), "ratios")) }
                @for table in ratios::against_bases(result, group) { (self.table(&table, "ratios")) }
                div.pair { @for chart in &charts.others { (figure(chart)) } }
                @if group.workload == Workload::Idle { (self.table(&figures::bars(result, group), "bars")) }
                @if !peers.is_empty() {
                    details { summary { "Ratios of anello to each peer" } @for table in &peers { (self.table(table, "ratios")) } }
                }
                @if !charts.latencies.is_empty() {
                    details open[charts.latencies.len() <= MAX_OPEN_LATENCIES] {
                        summary { "Latency by percentile (" (charts.latencies.len()) " charts)" }
                        div.pair { @for chart in &charts.latencies { (figure(chart)) } }
                    }
                }
                details {
                    summary { "All figures" }
                    p.lead { (figures::COLUMNS) }
                    @for cell in cells { (self.table(&figures::of_cell(result, cell), "")) }
                }
            }
        }
    }

    fn published(&self) -> Markup {
        let all = published::tables(self.result);
        html! {
            @if !all.is_empty() {
                h2 { "Published figures" }
                p.lead { (published::RULES) }
            }
            @for of in &all {
                h3 { (of.title) }
                p.lead { "Measured on: " (of.measured_on) "." }
                (self.table(&of.claims, "long"))
                @let rows: usize = of.cells.iter().map(|table| table.rows.len()).sum();
                details open[rows <= MAX_OPEN_CELLS] {
                    summary { "All " (rows) " common cells" }
                    @for table in &of.cells { (self.table(table, "ratios")) }
                }
            }
        }
    }

    /// Notes, environment and raw data.
    fn appendix(&self) -> Markup {
        let (result, number) = (self.result, self.number);
        let (plan, scenario) = (&result.plan, &result.plan.scenario);
        html! {
            h2 id={ "r" (number) "notes" } { "Notes" }
            @if !scenario.title.is_empty() { p.lead { b { (scenario.title.trim_end_matches('.')) "." } " " (scenario.description) } }
            @if !scenario.scaling.is_empty() {
                details {
                    summary { "Adapted to this machine (" (scenario.scaling.len()) ")" }
                    ul { @for note in &scenario.scaling { li { (note) } } }
                }
            }
            (self.table(&details::facts(result), "long"))
            (self.table(&details::failures(result), "long"))
            @if result.failures.is_empty() { p.lead { "No failures: every contender started, sent correct responses and stayed up." } }
            (self.table(&details::checks(result), "long"))
            @if result.checks.is_empty() { p.lead { "The contenders were not checked before the run; every received byte was checked during the run." } }
            h2 id={ "r" (number) "environment" } { "Environment" }
            p.lead { "anello " (plan.version) ". Repeat this run:" }
            pre { (plan.repeat_command) }
            (self.table(&details::contenders(result), "long"))
            (self.table(&details::machine(result), "long"))
            h3 { "Method" }
            p.lead { (details::method(result)) }
            @if !scenario.text.is_empty() { details { summary { "Scenario file" } pre { (scenario.text) } } }
            h2 id={ "r" (number) "raw" } { "Raw data" }
            p.lead {
                "This page contains every slice and every histogram. " code { "anello lab report" } " creates the report again from \
                this page or from the JSON, " code { "anello lab compare" } " compares two runs."
            }
            @match serde_json::to_string(result) {
                Ok(text) => {
                    button.js.save type="button" data-raw={ "raw" (number) } { "Save as JSON" }
                    (PreEscaped(raw::element(number, &text)))
                }
                Err(error) => p.lead { "No raw data: " (error) }
            }
        }
    }

    fn swatch(&self, index: usize) -> Markup {
        html! { @if let Some(look) = self.looks.get(index) { i.swatch style={ "color:var(--c" (index) ")" } { (look.marker) } } }
    }

    fn table(&self, table: &Table, class: &str) -> Markup {
        html! {
            @if !table.rows.is_empty() {
                h4 { (table.title) }
                @if !table.note.is_empty() { p.lead { (table.note) } }
                div.scroll {
                    table class=(class) {
                        thead { tr { @for heading in &table.head { th scope="col" { (heading) } } } }
                        tbody { @for row in &table.rows { (self.row(row, table.head.len())) } }
                    }
                }
            }
        }
    }

    fn row(&self, row: &TableRow, columns: usize) -> Markup {
        let is_reference = self.result.plan.reference == row.name;
        let span = |index: usize| {
            let is_last = index + 1 == row.values.len();
            Some(columns.saturating_sub(row.values.len())).filter(|span| is_last && *span > 1)
        };
        html! {
            tr class=[row.contender.map(|index| format!("c{index}"))] {
                th scope="row" .reference[is_reference] {
                    @if let Some(index) = row.contender { (self.swatch(index)) }
                    (row.name)
                    @if !row.detail.is_empty() { " " small { (row.detail) } }
                }
                @for (index, value) in row.values.iter().enumerate() {
                    td class=[value.tone.class()] title=[Some(&value.hint).filter(|hint| !hint.is_empty())] colspan=[span(index)] {
                        (cell(value))
                    }
                }
            }
        }
    }
}

fn cell(value: &Value) -> Markup {
    let place = |ratio: f64| ((ratio.max(f64::MIN_POSITIVE).log2() + 1.0) * 50.0).clamp(0.0, 100.0);
    html! {
        @if !value.parts.is_empty() {
            span.parts {
                @for (tone, count) in value.parts.iter().filter(|(_, count)| *count > 0) {
                    i class=[tone.class()] style={ "flex-grow:" (count) } { (count) }
                }
            }
        }
        @if let Some(bar) = value.bar { i.bar style={ "width:" (format!("{:.1}", bar * 60.0)) "%" } {} }
        @if value.parts.is_empty() { (value.text) }
        @if !value.detail.is_empty() { " " small { (value.detail) } }
        @if let Some((low, high)) = value.interval {
            i.interval { i style=(format!("left:{:.1}%;right:{:.1}%", place(low), 100.0 - place(high))) {} }
        }
    }
}

/// Returns a figure with the chart's data, from which the script draws the chart.
fn figure(chart: &Chart) -> Markup {
    html! {
        figure.chart role="img" aria-label=(chart.title) {
            figcaption { (chart.title) }
            script type="application/json" { (json(chart)) }
        }
    }
}

/// Serializes a value as JSON that contains no markup.
fn json(value: &impl serde::Serialize) -> PreEscaped<String> {
    // Cannot fail: JSON can represent all map keys in these types.
    PreEscaped(serde_json::to_string(value).unwrap_or_default().replace('<', "\\u003c"))
}
