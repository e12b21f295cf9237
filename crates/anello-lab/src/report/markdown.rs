//! Anello against every peer as tables for documents: cells won, level and lost, then every cell with its interval; and
//! contenders against those that differ from them in nothing but what they are named for.

use crate::judge::statistics::CONFIDENCE;
use crate::plan::cell::{Cell, Group};
use crate::report::base;
use crate::report::format::{interval, milliseconds, readable_time, sign, times};
use crate::report::value::{self, group_title};
use crate::result::measure::Measure;
use crate::result::{LabResult, PairComparison, Verdict};

/// Comparisons of one contender of anello with one peer, counted by what can be said.
#[derive(Default)]
struct Tally {
    won: usize,
    level: usize,
    lost: usize,
    too_noisy: usize,
}

impl Tally {
    fn add(&mut self, measure: Measure, verdict: Verdict) {
        match (measure.is_better(verdict), verdict) {
            (Some(true), _) => self.won += 1,
            (Some(false), _) => self.lost += 1,
            (None, Verdict::NoDifference) => self.level += 1,
            (None, Verdict::TooNoisy) => self.too_noisy += 1,
            (None, _) => {}
        }
    }

    /// "5 / 1 / 0", with what could not be told behind it; empty if nothing was compared.
    fn shown(&self) -> String {
        let Tally { won, level, lost, too_noisy } = *self;
        match (won + level + lost, too_noisy) {
            (0, 0) => String::new(),
            (_, 0) => format!("{won} / {level} / {lost}"),
            (_, unclear) => format!("{won} / {level} / {lost}, {unclear} unclear"),
        }
    }
}

/// One contender of anello with those it was compared with: peers with a driver of the same kind first, then the
/// runtimes that do I/O in another way, then the other peers that do.
struct Side<'a> {
    name: &'a str,
    peers: Vec<&'a str>,
}

impl Side<'_> {
    /// What a peer's line begins with: its name, and its way of doing I/O where that is another.
    fn head(&self, result: &LabResult, peer: &str) -> String {
        let way = value::other_way(result, self.name, peer);
        way.map_or_else(|| peer.to_owned(), |way| format!("{peer} ({way})"))
    }
}

/// The tables of several runs.
#[must_use]
pub fn render_markdown(results: &[LabResult]) -> String {
    results.iter().map(document).collect::<Vec<_>>().join("\n")
}

fn document(result: &LabResult) -> String {
    let scenario = &result.plan.scenario;
    let mut text = format!("## {}: {}\n\n", scenario.name, scenario.title);
    let sides = sides(result);
    text += &format!(
        "{}, {} passes of {} rounds, slices of {}; ratios{} with intervals of {:.0} %.\n",
        readable_time(result.started_unix_s),
        result.plan.passes,
        result.plan.rounds,
        milliseconds(result.plan.slice_ns),
        if sides.is_empty() { "" } else { " of anello to the peer" },
        CONFIDENCE * 100.0,
    );
    for side in sides {
        text += &summary(result, &side);
        for group in result.groups() {
            for measure in measures_of(result, &group) {
                text += &ratios(result, &side, &group, measure);
            }
            text += &instructions(result, &side, &group);
        }
    }
    text += &bases(result);
    text
}

/// By what the contenders are compared in the cells of a group.
fn measures_of(result: &LabResult, group: &Group) -> impl Iterator<Item = Measure> + use<> {
    let first = result.cells_of(group).first().map(|cell| cell.cell);
    first.into_iter().flat_map(|cell| base::measures(&cell))
}

fn sides(result: &LabResult) -> Vec<Side<'_>> {
    let mut sides: Vec<Side> = Vec::new();
    for versus in result.all_pair_comparisons() {
        let place = sides.iter().position(|side| side.name == versus.contender).unwrap_or_else(|| {
            sides.push(Side { name: &versus.contender, peers: Vec::new() });
            sides.len() - 1
        });
        if !sides[place].peers.contains(&versus.peer.as_str()) {
            sides[place].peers.push(&versus.peer);
        }
    }
    sides
}

/// Cells won against each peer, level with it, and lost.
fn summary(result: &LabResult, side: &Side) -> String {
    let of_side = |versus: &&PairComparison| versus.contender == side.name;
    let compared = |measure: &Measure| {
        result
            .all_pair_comparisons()
            .filter(of_side)
            .any(|versus| value::against_peer(versus, *measure).0.is_some())
    };
    let measures: Vec<Measure> = Measure::IN_PAIRS.into_iter().filter(compared).collect();
    let workload = |measure: &Measure| {
        let of_measure = |cell: &&Cell| Measure::of_cell(cell).contains(measure);
        result.plan.cells.iter().find(of_measure).map(|cell| cell.workload)
    };
    let name = |measure: &Measure| Some(measure.name(workload(measure)?).to_owned());
    let names = measures.iter().filter_map(name);
    let mut text = format!("\n### {}, cells won / level / lost\n\n", side.name);
    text += &line(["peer".to_owned()].into_iter().chain(names));
    text += &rule(measures.len());
    for peer in &side.peers {
        let tally = |measure: &Measure| {
            let mut tally = Tally::default();
            result
                .all_pair_comparisons()
                .filter(|versus| versus.contender == side.name && versus.peer == *peer)
                .for_each(|versus| tally.add(*measure, value::against_peer(versus, *measure).1));
            tally.shown()
        };
        text += &line([side.head(result, peer)].into_iter().chain(measures.iter().map(tally)));
    }
    text
}

/// One measure in every cell of a group: a line for each peer.
fn ratios(result: &LabResult, side: &Side, group: &Group, measure: Measure) -> String {
    let row = |peer: &&str| {
        let of_both = |versus: &&PairComparison| versus.contender == side.name && versus.peer == *peer;
        (side.head(result, peer), result.all_pair_comparisons().filter(of_both).collect::<Vec<_>>())
    };
    let rows: Vec<Line> = side.peers.iter().map(row).collect();
    ratio_table(
        result,
        &format!("{} against peers, {}", side.name, group_title(group)),
        group,
        measure,
        &rows,
    )
}

/// Every contender that names a base against that: a table for each group and measure.
fn bases(result: &LabResult) -> String {
    let mut text = String::new();
    for group in result.groups() {
        let rows = base::rows(result, &group).into_iter();
        let rows: Vec<Line> = rows.map(|row| (format!("{} × {}", row.name, row.base), row.versus)).collect();
        for measure in measures_of(result, &group) {
            text += &ratio_table(result, &group_title(&group), &group, measure, &rows);
        }
    }
    if text.is_empty() { text } else { format!("\n### {}\n{text}", base::title(result.workload())) }
}

/// What stands at the head of a line of a table, and the comparisons in it.
type Line<'a> = (String, Vec<&'a PairComparison>);

/// One measure in every cell of a group; empty if nothing was compared by it.
fn ratio_table(
    result: &LabResult,
    title: &str,
    group: &Group,
    measure: Measure,
    rows: &[Line<'_>],
) -> String {
    let cells: Vec<Cell> = result.cells_of(group).iter().map(|cell| cell.cell).collect();
    let (name, better) = (measure.name(group.workload), value::better(measure));
    let mut text = format!("\n{title}: {name} ({better})\n\n");
    let heads = cells.iter().map(value::place);
    text += &line([value::axis_title(group).to_owned()].into_iter().chain(heads));
    text += &rule(cells.len());
    let before = text.len();
    for (head, versus) in rows {
        let shown = |cell: &Cell| {
            let versus = versus.iter().find(|versus| versus.cell == *cell)?;
            let (ratio, verdict) = value::against_peer(versus, measure);
            let ratio = ratio?;
            let figures = format!("{} {} ({})", sign(verdict), times(ratio.estimate), interval(&ratio));
            // Lost cells are to be seen at a glance.
            Some(if measure.is_better(verdict) == Some(false) { format!("**{figures}**") } else { figures })
        };
        let shown: Vec<String> = cells.iter().map(|cell| shown(cell).unwrap_or_default()).collect();
        if shown.iter().any(|shown| !shown.is_empty()) {
            text += &line([head.clone()].into_iter().chain(shown));
        }
    }
    if text.len() == before { String::new() } else { text }
}

/// Instructions per request where they were counted.
fn instructions(result: &LabResult, side: &Side, group: &Group) -> String {
    let Some(counts) = &result.instructions else { return String::new() };
    let cells = result.cells_of(group).into_iter().map(|cell| cell.cell);
    let cells: Vec<Cell> = cells.filter(|cell| counts.of(side.name, cell).is_some()).collect();
    if cells.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\n{} against peers, {}: instructions per request\n\n", side.name, group_title(group));
    text += &line([value::axis_title(group).to_owned()].into_iter().chain(cells.iter().map(value::place)));
    text += &rule(cells.len());
    for name in [side.name].into_iter().chain(side.peers.iter().copied()) {
        let counted: Vec<Option<f64>> = cells.iter().map(|cell| counts.of(name, cell)).collect();
        if counted.iter().any(Option::is_some) {
            let shown = counted
                .into_iter()
                .map(|count| count.map_or_else(String::new, |count| format!("{count:.0}")));
            text += &line([side.head(result, name)].into_iter().chain(shown));
        }
    }
    text
}

fn line(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.map(|value| value.trim().replace('|', "\\|")).collect();
    format!("| {} |\n", values.join(" | "))
}

/// The line under a table's head; names stand left, figures right.
fn rule(figures: usize) -> String {
    format!("|---|{}\n", "---:|".repeat(figures))
}
