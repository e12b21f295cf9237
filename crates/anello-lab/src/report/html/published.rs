//! Published ratios beside ours, and whether the claims hold on this machine.

use crate::judge::published::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedCell, PublishedComparison,
    compare_with_published,
};
use crate::report::format::{count, interval, times};
use crate::report::html::{Page, View};
use crate::report::svg::escape;
use crate::report::value;
use crate::result::measure::Measure;

/// So many rows stand open; more are folded.
const OPEN_ROWS: usize = 12;

impl Page {
    pub(super) fn published(&mut self, view: &View<'_>) {
        let all = compare_with_published(view.result);
        if all.is_empty() {
            return;
        }
        self.add(
            "<h2>Published figures beside ours</h2>\n<p class=\"lead\">Ratios beside ratios: absolute figures of another \
             machine say nothing about this one and stand here only to show what the ratios are made of. A claim that one \
             server is ahead holds if ours is ahead beyond doubt by at least half as much (in factors), and does not if \
             the whole interval stays below that.</p>",
        );
        for beside in &all {
            self.beside(beside);
        }
    }

    fn beside(&mut self, beside: &PublishedComparison) {
        self.add(&format!(
            "<h3>{}</h3>\n<p class=\"note\">Measured there on: {}.</p>",
            escape(beside.source.title),
            escape(beside.source.measured_on)
        ));
        self.add("<ul class=\"claims\">");
        for found in beside.claims.chunk_by(|one, other| one.claim.words == other.claim.words) {
            self.claim(found);
        }
        self.add("</ul>");
        let open = if beside.comparisons.len() <= OPEN_ROWS { " open" } else { "" };
        self.add(&format!(
            "<details{open}><summary>All {} cells that both have</summary>",
            beside.comparisons.len()
        ));
        for (index, pair) in beside.source.pairs.iter().enumerate() {
            for &measure in pair.measures {
                let rows: Vec<&Comparison> = beside
                    .comparisons
                    .iter()
                    .filter(|comparison| comparison.pair == index && comparison.measure == measure)
                    .collect();
                if !rows.is_empty() {
                    self.comparisons(pair.server, pair.to, measure, &rows);
                }
            }
        }
        self.add("</details>");
    }

    /// One claim, with what each pair of contenders says about it.
    fn claim(&mut self, found: &[ClaimResult]) {
        let words = found.first().map_or("", |found| found.claim.words);
        self.add(&format!("<li><b>“{}”</b>", escape(words)));
        for found in found {
            let (class, sign) = match found.judgement() {
                Some(Judgement::Confirmed) => ("holds", "✓"),
                Some(Judgement::Refuted) => ("fails", "✗"),
                None => ("partly", "◑"),
                Some(Judgement::Inconclusive | Judgement::NotComparable) => ("unclear", "?"),
            };
            self.add(&format!(
                "<div class=\"{class}\"><i>{sign}</i><span>{}.</span></div>",
                escape(&capital(&found.sentence))
            ));
        }
        self.add("</li>");
    }

    fn comparisons(&mut self, server: &str, to: &str, measure: Measure, rows: &[&Comparison]) {
        let mut ours: Vec<(&str, &str)> = Vec::new();
        for one in rows.iter().flat_map(|row| &row.ours) {
            if !ours.contains(&(one.contender.as_str(), one.to.as_str())) {
                ours.push((&one.contender, &one.to));
            }
        }
        let unit = match measure {
            Measure::Rate => "requests/s",
            Measure::Cpu => "CPU per request, µs",
            _ => "latency, µs",
        };
        self.add("<div class=\"scroll\"><table class=\"beside\">\n<thead><tr>");
        self.add(&format!(
            "<th scope=\"col\">{unit}</th><th scope=\"col\" class=\"other\">{} <small>other machine</small></th>\
             <th scope=\"col\" class=\"other\">{} <small>other machine</small></th><th scope=\"col\" class=\"other\">published ratio</th>",
            escape(server),
            escape(to)
        ));
        for (contender, to) in &ours {
            self.add(&format!("<th scope=\"col\">here: {} / {}</th>", escape(contender), escape(to)));
        }
        self.add("</tr></thead>\n<tbody>");
        for row in rows {
            let figure = |figure: Option<f64>| match figure {
                Some(figure) => value::shown(measure, figure),
                None => "failed there".to_owned(),
            };
            let cells: String = ours
                .iter()
                .map(|(contender, to)| {
                    let found = row.ours.iter().find(|ours| ours.contender == *contender && ours.to == *to);
                    found.map_or_else(
                        || "<td class=\"none\">–</td>".to_owned(),
                        |ours| our_cell(ours, measure),
                    )
                })
                .collect();
            self.add(&format!(
                "<tr><th scope=\"row\">{}</th><td class=\"other\">{}</td><td class=\"other\">{}</td><td class=\"other\">{}</td>{cells}</tr>",
                place(&row.published_cell, row),
                figure(row.published_figures.0),
                figure(row.published_figures.1),
                row.published_ratio.map_or_else(|| "–".to_owned(), |ratio| format!("<b>{}</b>", times(ratio)))
            ));
        }
        self.add("</tbody>\n</table></div>");
    }
}

fn our_cell(ours: &LocalResult, measure: Measure) -> String {
    let Some(ratio) = ours.ratio else {
        return "<td class=\"none\">not measured</td>".to_owned();
    };
    let (class, sign) = match ours.judgement {
        Judgement::Confirmed => ("good", "✓"),
        Judgement::Refuted => ("bad", "✗"),
        Judgement::Inconclusive => ("noisy", "?"),
        Judgement::NotComparable => ("same", ""),
    };
    let bound = if ours.load_bound { " <small>the load set the pace</small>" } else { "" };
    let figure =
        |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |figure| value::shown(measure, figure));
    format!(
        "<td class=\"{class}\">{sign} <b>{}</b> <small>{}</small><br><small>{} / {}</small>{bound}</td>",
        times(ratio.estimate),
        interval(&ratio),
        figure(ours.figures.0),
        figure(ours.figures.1)
    )
}

/// The published cell in words, and what it is here where that differs.
fn place(published: &PublishedCell, row: &Comparison) -> String {
    let mut text = format!("{} × {}", published.connections, published.workload);
    let mut here = Vec::new();
    if row.cell.connections != published.connections {
        here.push(row.cell.connections.to_string());
    }
    if published.server_cores > 1 {
        text += &format!(", {} cores", published.server_cores);
    }
    if let (Some(there), Some(rate)) = (published.offered_per_second, row.cell.offered_per_second) {
        text += &format!(", {}/s", count(there as f64));
        if rate != there {
            here.push(format!("{}/s", count(rate as f64)));
        }
    }
    if here.is_empty() { text } else { format!("{text} <small>(here {})</small>", here.join(", ")) }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
