//! What came out: the verdicts in sentences, and anello against its peers in one table.

use crate::judge::statistics::quantile;
use crate::report::format::{readable_time, times};
use crate::report::html::{Page, View, run_title};
use crate::report::svg::escape;
use crate::report::value;
use crate::result::measure::Measure;
use crate::result::{Finding, FindingKind, PairComparison, Verdict};

/// So many sentences of one kind stand open; more are folded.
const OPEN_SENTENCES: usize = 6;

impl Page {
    pub(super) fn opening(&mut self, view: &View<'_>, several: bool) {
        let result = view.result;
        if several {
            self.add(&format!("<h2 class=\"run\">{}</h2>", escape(&run_title(result))));
        }
        let scenario = &result.plan.scenario;
        let parts = [
            scenario.name.clone(),
            readable_time(result.started_unix_s),
            result.environment.cpu_model.clone(),
            result.environment.kernel.clone(),
            length(result.elapsed_ns),
            format!("{} slices", result.slices.len()),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| escape(part)).collect();
        self.add(&format!("<p class=\"meta\">{}</p>", parts.join(" · ")));
        let of_kind = |kinds: &[FindingKind]| -> Vec<&Finding> {
            result.findings.iter().filter(|finding| kinds.contains(&finding.kind)).collect()
        };
        for headline in of_kind(&[FindingKind::Headline]) {
            self.add(&format!("<p class=\"headline\">{}</p>", escape(&headline.text)));
        }
        if !scenario.title.is_empty() {
            self.add(&format!(
                "<p class=\"lead\"><b>{}.</b> {}</p>",
                escape(scenario.title.trim_end_matches('.')),
                escape(&scenario.description)
            ));
        }
        self.add("<ul class=\"findings\">");
        let failures = of_kind(&[FindingKind::Failure]);
        let (few, many) =
            if failures.len() <= OPEN_SENTENCES { (failures, Vec::new()) } else { (Vec::new(), failures) };
        for finding in of_kind(&[FindingKind::Caution]).into_iter().chain(few) {
            self.finding(view, finding);
        }
        for finding in of_kind(&[FindingKind::Resolution]) {
            self.finding(view, finding);
        }
        for note in &result.notes {
            self.add(&format!("<li class=\"resolution\">{}</li>", escape(note)));
        }
        self.add("</ul>");
        self.scaling(&scenario.scaling);
        self.sentences(view, "Contenders that failed somewhere", &many);
        self.sentences(view, "anello against each peer, in sentences", &of_kind(&[FindingKind::Peer]));
        self.sentences(
            view,
            "Each contender against the reference, in sentences",
            &of_kind(&[FindingKind::Contender]),
        );
        self.add(&format!(
            "<p class=\"note\">Repeat this run:</p>\n<pre>{}</pre>",
            escape(&result.plan.repeat_command)
        ));
    }

    fn sentences(&mut self, view: &View<'_>, title: &str, findings: &[&Finding]) {
        if findings.is_empty() {
            return;
        }
        let open = if findings.len() <= OPEN_SENTENCES { " open" } else { "" };
        self.add(&format!(
            "<details{open}><summary>{title} ({})</summary><ul class=\"findings\">",
            findings.len()
        ));
        for finding in findings {
            self.finding(view, finding);
        }
        self.add("</ul></details>");
    }

    /// What the scenario says of itself, and what was changed or scaled down.
    fn scaling(&mut self, scaling: &[String]) {
        if scaling.is_empty() {
            return;
        }
        let items: String =
            scaling.iter().map(|note| format!("<li class=\"resolution\">{}</li>", escape(note))).collect();
        let count = scaling.len();
        self.add(&format!(
            "<details><summary>How this run was made ({count})</summary><ul class=\"findings\">{items}</ul></details>"
        ));
    }

    fn finding(&mut self, view: &View<'_>, finding: &Finding) {
        let class = match finding.kind {
            FindingKind::Headline | FindingKind::Resolution => "resolution",
            FindingKind::Contender | FindingKind::Peer => "contender",
            FindingKind::Caution => "caution",
            FindingKind::Failure => "failure",
        };
        // The longest name that the sentence begins with: "bare epoll" is also how "bare epoll again" begins.
        let contenders = view.result.contenders.iter().enumerate();
        let about = contenders
            .filter(|(_, contender)| finding.text.starts_with(&contender.name))
            .max_by_key(|(_, contender)| contender.name.len())
            .filter(|_| matches!(finding.kind, FindingKind::Contender | FindingKind::Peer));
        let (colour, name) = match about {
            Some((index, contender)) => (view.looks[index].colour.as_str(), contender.name.as_str()),
            None => ("line", ""),
        };
        let row = about.map_or(String::new(), |(index, _)| format!(" c{index}"));
        let rest = &finding.text[name.len()..];
        self.add(&format!(
            "<li class=\"{class}{row}\" style=\"--swatch:var(--{colour})\"><b>{}</b>{}</li>",
            escape(name),
            escape(rest)
        ));
    }

    /// Anello against each peer: cells won, level and lost.
    pub(super) fn versus(&mut self, view: &View<'_>) {
        let all: Vec<&PairComparison> = view.result.all_pair_comparisons().collect();
        let measures: Vec<Measure> = Measure::IN_PAIRS
            .into_iter()
            .filter(|&measure| all.iter().any(|versus| value::against_peer(versus, measure).0.is_some()))
            .collect();
        if measures.is_empty() {
            return;
        }
        self.add(
            "<h2>anello against its peers</h2>\n<p class=\"lead\">Each driver of anello against every other system, cell by \
             cell: those that do I/O the same way first, then those that do it in another way, which stands beside their \
             names. Won and lost: beyond doubt. Level: no difference that this machine can tell. The number is the middle \
             of the ratios of anello to the peer, and the worst cell for anello beside it.</p>",
        );
        self.add("<div class=\"scroll\"><table class=\"versus\">\n<thead><tr><th scope=\"col\">anello against</th>");
        for measure in &measures {
            self.add(&format!(
                "<th scope=\"col\" class=\"left\">{} ({})</th>",
                measure.name(view.result.workload()),
                value::better(*measure)
            ));
        }
        self.add("</tr></thead>");
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for versus in &all {
            let pair = (versus.contender.as_str(), versus.peer.as_str());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        // One driver after the other.
        pairs.sort_by_key(|(contender, _)| view.index_of(contender));
        let mut earlier = "";
        for (contender, peer) in pairs {
            if contender != earlier {
                let (name, columns) = (self.name_cell(view, contender), measures.len() + 1);
                self.add(&format!(
                    "<tr class=\"driver\"><th colspan=\"{columns}\" scope=\"colgroup\">{name}</th></tr>"
                ));
                earlier = contender;
            }
            let of_pair = |versus: &&PairComparison| versus.contender == contender && versus.peer == peer;
            let of_pair: Vec<&PairComparison> = all.iter().copied().filter(of_pair).collect();
            let class = view.index_of(peer).map_or(String::new(), |index| format!(" class=\"c{index}\""));
            let way = value::other_way(view.result, contender, peer);
            let way = way.map_or_else(String::new, |way| format!(" <small>{way}</small>"));
            let peer = self.name_cell(view, peer);
            let cells: String = measures.iter().map(|&measure| standing(&of_pair, measure)).collect();
            self.add(&format!("<tr{class}><th scope=\"row\">{peer}{way}</th>{cells}</tr>"));
        }
        self.add("</table></div>");
    }

    fn name_cell(&self, view: &View<'_>, name: &str) -> String {
        view.index_of(name).map_or_else(|| escape(name), |index| view.named(index))
    }
}

/// Cells won, level, unclear and lost as a bar with signs and counts, with the middle and the worst of the ratios.
fn standing(versus: &[&PairComparison], measure: Measure) -> String {
    let of_measure = || versus.iter().map(|versus| value::against_peer(versus, measure));
    let count = |wanted: &dyn Fn(Verdict) -> bool| {
        of_measure().filter(|(ratio, verdict)| ratio.is_some() && wanted(*verdict)).count()
    };
    let won = count(&|verdict| measure.is_better(verdict) == Some(true));
    let lost = count(&|verdict| measure.is_better(verdict) == Some(false));
    let level = count(&|verdict| verdict == Verdict::NoDifference);
    let noisy = count(&|verdict| verdict == Verdict::TooNoisy);
    let ratios: Vec<f64> = of_measure().filter_map(|(ratio, _)| Some(ratio?.estimate)).collect();
    let Some(middle) = quantile(&ratios, 0.5) else {
        return "<td class=\"left none\">not measured together</td>".to_owned();
    };
    let worst = ratios.iter().copied().reduce(if measure.more_is_better() { f64::min } else { f64::max });
    let standings = [("won", won, "✓"), ("level", level, "="), ("noisy", noisy, "?"), ("lost", lost, "✗")];
    let there = || standings.iter().filter(|(_, count, _)| *count > 0);
    let bar: String = there()
        .map(|(class, count, sign)| {
            format!("<i class=\"{class}\" style=\"flex-grow:{count}\">{sign}&#8201;{count}</i>")
        })
        .collect();
    let words: Vec<String> = there().map(|(word, count, _)| format!("{count} {word}")).collect();
    let worst = worst.map_or(String::new(), times);
    format!(
        "<td class=\"left\"><span class=\"tally\" title=\"{}\">{bar}</span>× {} <small>worst {worst}</small></td>",
        words.join(", "),
        times(middle)
    )
}

/// A length of time as people say it.
fn length(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
