//! What a reader needs to judge and repeat the run: failures, checks, contenders, machine, method, raw data.

use crate::plan::cell::{Cell, Workload};
use crate::plan::commit;
use crate::plan::contender::Role;
use crate::report::format::{grouped, milliseconds, percent};
use crate::report::html::{Page, View};
use crate::report::raw;
use crate::report::svg::escape;
use crate::result::{ContenderRecord, Quality};

/// Characters of a checksum that are shown, with the name of its kind.
const CHECKSUM_SHOWN: usize = 19;

impl Page {
    pub(super) fn failures(&mut self, view: &View<'_>) {
        let result = view.result;
        self.add(&format!("<h2 id=\"r{}failures\">Failures</h2>", self.run));
        if result.failures.is_empty() {
            self.add("<p class=\"note\">None: every contender started, answered every byte right and stayed up.</p>");
            return;
        }
        self.add(
            "<div class=\"scroll\"><table class=\"story\">\n<thead><tr><th scope=\"col\">server</th><th scope=\"col\">pass</th>\
             <th scope=\"col\">cell</th><th scope=\"col\">what it did</th><th scope=\"col\">what followed</th></tr></thead>\n<tbody>",
        );
        for (failure, passes) in grouped(&result.failures) {
            let cell = failure.cell.map_or_else(|| "at the start".to_owned(), |cell| cell.to_string());
            self.add(&format!(
                "<tr><th scope=\"row\">{}</th><td>{passes}</td><td>{}</td><td class=\"why\">{}</td><td>{}</td></tr>",
                escape(&failure.contender),
                escape(&cell),
                escape(&failure.what),
                failure.consequence
            ));
        }
        self.add("</tbody>\n</table></div>");
    }

    /// Who passed which check: a row for each contender, a column for each check.
    pub(super) fn checks(&mut self, view: &View<'_>) {
        let checks = &view.result.checks;
        self.add("<h2>Checks before the timing</h2>");
        if checks.is_empty() {
            self.add("<p class=\"note\">The contenders were not checked in this run; every byte was still compared while they were timed.</p>");
            return;
        }
        let mut kinds: Vec<&str> = Vec::new();
        for check in checks {
            if !kinds.contains(&check.what.as_str()) {
                kinds.push(&check.what);
            }
        }
        let head: String =
            kinds.iter().map(|kind| format!("<th scope=\"col\">{}</th>", escape(kind))).collect();
        self.add(&format!("<div class=\"scroll\"><table class=\"story\">\n<thead><tr><th scope=\"col\">server</th>{head}</tr></thead>\n<tbody>"));
        for (index, contender) in view.result.contenders.iter().enumerate() {
            let cell = |kind: &&str| {
                let found =
                    checks.iter().find(|check| check.contender == contender.name && check.what == *kind);
                found.map_or_else(
                    || "<td class=\"none\">–</td>".to_owned(),
                    |check| {
                        let (class, sign) = if check.passed { ("good", "✓") } else { ("bad", "✗") };
                        let details: Vec<String> = check.details.iter().map(|line| escape(line)).collect();
                        format!("<td class=\"{class}\">{sign} <small>{}</small></td>", details.join("<br>"))
                    },
                )
            };
            let row: String = kinds.iter().map(cell).collect();
            self.add(&format!(
                "<tr class=\"c{index}\"><th scope=\"row\">{}</th>{row}</tr>",
                view.named(index)
            ));
        }
        self.add("</tbody>\n</table></div>");
    }

    pub(super) fn contenders(&mut self, view: &View<'_>) {
        self.add(&format!(
            "<h2>Contenders</h2>\n<p class=\"lead\">anello {}. What each says it runs on stands in its ready line.</p>\n\
             <div class=\"scroll\"><table class=\"story\">\n<thead><tr><th scope=\"col\">name</th><th scope=\"col\">what it is</th>\
             <th scope=\"col\">driver</th><th scope=\"col\">version</th><th scope=\"col\">command and ready line</th></tr></thead>\n<tbody>",
            escape(&view.result.plan.version)
        ));
        for (index, contender) in view.result.contenders.iter().enumerate() {
            let role = match (&contender.twin_of, contender.role) {
                (Some(other), _) => format!("{other} once more"),
                (None, Role::Anello) => "under test".to_owned(),
                (None, Role::Baseline) => "yardstick".to_owned(),
                (None, Role::Peer) => "peer".to_owned(),
            };
            let features = if contender.features.is_empty() {
                String::new()
            } else {
                format!("<br><small>{}</small>", escape(&contender.features.join(", ")))
            };
            let limit = contender
                .connections_limit
                .map_or(String::new(), |limit| format!("<br><small>at most {limit} connections</small>"));
            self.add(&format!(
                "<tr class=\"c{index}\"><th scope=\"row\">{}</th><td>{}{limit}</td><td>{}{features}</td><td>{}{}</td>\
                 <td class=\"long\"><code>{}</code><br><small>{}</small></td></tr>",
                view.named(index),
                escape(&role),
                escape(contender.driver.as_deref().unwrap_or("–")),
                escape(contender.version.as_deref().unwrap_or("–")),
                identity(contender),
                escape(&contender.command),
                escape(contender.ready_line.as_deref().unwrap_or("was never ready"))
            ));
        }
        self.add("</tbody>\n</table></div>");
    }

    pub(super) fn machine(&mut self, view: &View<'_>) {
        let result = view.result;
        self.add(&format!("<h2 id=\"r{}machine\">Machine</h2>\n<dl>", self.run));
        let plan = &result.plan;
        let list = |cores: &[usize]| cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let plural = |cores: &[usize]| if cores.len() == 1 { "core" } else { "cores" };
        let mut facts: Vec<(String, String)> =
            result.environment.facts().into_iter().map(|(label, value)| (label.to_owned(), value)).collect();
        let mut add = |label: &str, value: String| facts.push((label.to_owned(), value));
        add(
            "Pinned",
            format!(
                "servers on {} {}, load on {} {}",
                plural(&plan.server_cores),
                list(&plan.server_cores),
                plural(&plan.load_cores),
                list(&plan.load_cores)
            ),
        );
        if let Some([one, five, fifteen]) = result.environment_after.load_average {
            add("Load average after", format!("{one:.2} {five:.2} {fifteen:.2}"));
        }
        if let Some(fraction) = result.foreign_fraction {
            add("Taken by other programs", format!("{} of the cores' time", percent(fraction)));
        }
        if let (Some(before), Some(after)) =
            (result.environment.stolen_ticks, result.environment_after.stolen_ticks)
        {
            add("Stolen by the hypervisor", format!("{} ticks during the run", after.saturating_sub(before)));
        }
        let dropped = |quality| result.slices.iter().filter(|slice| slice.quality == quality).count();
        add(
            "Slices dropped",
            format!(
                "{} of {} with stolen time, {} throttled, {} spoilt",
                dropped(Quality::Stolen),
                result.slices.len(),
                dropped(Quality::Throttled),
                dropped(Quality::Invalid)
            ),
        );
        let slow: Vec<_> = result.cells.iter().filter_map(|cell| cell.phases).collect();
        if let Some(most) = slow.iter().map(|phases| phases.slow_factor).reduce(f64::max) {
            let unit = result.workload().unit();
            add(
                "Slow and fast phases",
                format!(
                    "in {} of {} cells, up to {most:.2} times as long per {unit}; contenders were compared within a phase",
                    slow.len(),
                    result.cells.len()
                ),
            );
        }
        for (label, value) in facts {
            self.add(&format!("<dt>{}</dt><dd>{}</dd>", escape(&label), escape(&value)));
        }
        self.add("</dl>");
    }

    pub(super) fn method(&mut self, view: &View<'_>) {
        let plan = &view.result.plan;
        self.add("<h2>Method</h2>");
        self.add(&format!(
            "<p class=\"lead\">{} passes; each starts every server anew and walks through the cells in random order. {} Each \
             of {} rounds gives every server \
             one slice of {} in random order (seed {}). Every byte that comes back is checked. A slice is dropped \
             if the hypervisor or a CPU limit took more than {} of it. Ratios pair slices of the same round and the same \
             phase of the machine; their intervals are a bootstrap over passes and rounds. Two servers are told apart only \
             if the interval leaves out 1 and the difference exceeds what {} shows against itself.</p>",
            plan.passes,
            connections_are_held(&plan.cells),
            plan.rounds,
            milliseconds(plan.slice_ns),
            plan.seed,
            percent(plan.stolen_fraction_limit),
            escape(&plan.reference)
        ));
        if !plan.scenario.text.is_empty() {
            self.add(&format!(
                "<details><summary>The scenario as it was</summary><pre>{}</pre></details>",
                escape(&plan.scenario.text)
            ));
        }
    }

    pub(super) fn raw(&mut self, view: &View<'_>) {
        let run = self.run;
        self.add(&format!("<h2 id=\"r{run}raw\">Raw data</h2>"));
        match serde_json::to_string(view.result) {
            Ok(json) => {
                self.add(
                    "<p class=\"lead\">Every slice and every histogram is part of this page. <code>anello lab report</code> makes the \
                     page anew from it or from the JSON beside it, <code>anello lab compare</code> lays two runs side by side.</p>",
                );
                self.add(&format!(
                    "<button class=\"js save\" type=\"button\" data-raw=\"raw{run}\">Save as JSON</button>"
                ));
                self.add(&raw::element(run, &json));
            }
            Err(error) => {
                self.add(&format!("<p class=\"note\">No raw data: {}</p>", escape(&error.to_string())));
            }
        }
    }
}

/// Who has its connections when.
fn connections_are_held(cells: &[Cell]) -> String {
    let is_idle = |cell: &Cell| cell.workload == Workload::Idle;
    let mut sentences = Vec::new();
    if !cells.iter().all(is_idle) {
        sentences.push(
            "In a cell all servers hold their connections open, and those that wait for their turn are asleep; where the \
             connections of all do not fit at once, each server is connected to for its slice alone.",
        );
    }
    if cells.iter().any(is_idle) {
        sentences.push(
            "Idle connections are opened to a server that was started for this one slice, and its memory is looked at when \
             the first few are there and when all are.",
        );
    }
    sentences.join(" ")
}

/// Which build exactly it was: commits, checksum of the library, compiler, hashes of the program; a line for each.
fn identity(contender: &ContenderRecord) -> String {
    let line =
        |whole: &str, text: &str| format!("<br><small title=\"{}\">{}</small>", escape(whole), escape(text));
    let commit = |name: &str, commit: &str| line(commit, &format!("{name} {}", in_words(commit)));
    let mut lines: Vec<String> = Vec::new();
    lines.extend(contender.commit.as_deref().map(|of_sources| commit("commit", of_sources)));
    if contender.commit.is_none() && contender.role != Role::Peer {
        lines.push("<br><small>commit unknown</small>".to_owned());
    }
    lines.extend(contender.library_checksum.as_deref().map(|checksum| {
        let shown: String = checksum.chars().take(CHECKSUM_SHOWN).collect();
        line(checksum, &format!("checksum {shown}"))
    }));
    lines.extend(contender.server_commit.as_deref().map(|of_server| commit("its server: commit", of_server)));
    lines
        .extend(contender.built_with.as_deref().map(|built| format!("<br><small>{}</small>", escape(built))));
    lines.extend(contender.executables.iter().map(|executable| {
        let hash = format!("SHA-256 {}", executable.sha256);
        line(&hash, &format!("{} {}", executable.file, executable.short()))
    }));
    lines.concat()
}

/// A commit in few digits, with the mark of sources that were changed since in words.
fn in_words(commit: &str) -> String {
    let short = commit::short(commit);
    match commit::strip_dirty_suffix(&short) {
        (digits, true) => format!("{digits} and changes"),
        (digits, false) => digits.to_owned(),
    }
}
