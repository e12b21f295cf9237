//! Tables of published figures next to the figures of a run.

use crate::judge::published::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedComparison, compare_with_published,
};
use crate::report::format::{count, interval, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::LabResult;
use crate::result::measure::Measure;
use crate::result::unique::unique;

pub const RULES: &str = "Only ratios are compared, because absolute figures depend on the machine. A claim that one server is \
    ahead of another holds if this run also shows it significantly ahead, by at least half of the published difference \
    (on a logarithmic scale: 1.22 if the published ratio is 1.5). It does not hold if the whole confidence interval \
        of the measured ratio is below that value.";

pub struct Published {
    pub title: &'static str,
    pub measured_on: &'static str,
    pub claims: Table,
    /// All cells that the publication and the run have in common: one table per pair of servers and measure.
    pub cells: Vec<Table>,
}

/// Returns the tables of all publications that have cells in common with the run.
pub fn tables(result: &LabResult) -> Vec<Published> {
    compare_with_published(result).iter().map(of_source).collect()
}

fn of_source(published: &PublishedComparison) -> Published {
    let source = published.source;
    let cells = "cells: holds / does not / inconclusive";
    let head = ["claim", "here", "verdict", cells, "ratio here", "ratio published"];
    let claims = Table::new("Claims", &head, published.claims.iter().map(claim_row).collect());
    let pairs = source.pairs.iter().enumerate();
    let tables = pairs.flat_map(|(index, pair)| pair.measures.iter().map(move |of| (index, pair, *of)));
    let tables = tables.filter_map(|(index, pair, measure)| {
        let of_pair = |row: &&Comparison| row.pair == index && row.measure == measure;
        let rows: Vec<&Comparison> = published.comparisons.iter().filter(of_pair).collect();
        (!rows.is_empty()).then(|| cells_table(&pair.server, &pair.to, measure, &rows))
    });
    Published { title: &source.title, measured_on: &source.measured_on, claims, cells: tables.collect() }
}

fn claim_row(claim: &ClaimResult) -> TableRow {
    let (verdict, tone) = match claim.judgement() {
        Some(Judgement::Confirmed) => ("✓ holds", Tone::Good),
        Some(Judgement::Refuted) => ("✗ does not hold", Tone::Bad),
        None => ("◑ holds in part", Tone::Muted),
        Some(Judgement::Inconclusive | Judgement::NotComparable) => ("? inconclusive", Tone::Noisy),
    };
    let bound = if claim.load_bound { "the load generator was the bottleneck in some cells" } else { "" };
    let range = |range: Option<(f64, f64)>| match range.map(|(low, high)| (times(low), times(high))) {
        None => Value::none("not measured"),
        Some((low, high)) if low == high => Value::new(low),
        Some((low, high)) => Value::new(format!("{low}–{high}")),
    };
    let values = vec![
        Value::new(format!("{} / {}", claim.contender, claim.to)),
        Value::with_detail(verdict, bound).tone(tone),
        Value::new(format!("{} / {} / {}", claim.holds, claim.does_not_hold, claim.inconclusive)),
        range(claim.here),
        range(claim.published).tone(Tone::Other),
    ];
    TableRow::new(format!("“{}”", claim.claim.words), values)
}

fn cells_table(server: &str, to: &str, measure: Measure, rows: &[&Comparison]) -> Table {
    let ours = unique(rows.iter().flat_map(|row| &row.ours).map(|local| (&local.contender, &local.to)));
    let here = ours.iter().map(|(contender, to)| format!("here: {contender} / {to}"));
    let published =
        [format!("{server} (other machine)"), format!("{to} (other machine)"), "published ratio".to_owned()];
    let row = |row: &&Comparison| {
        let figure = |figure: Option<f64>| {
            let text = figure.map_or_else(|| "failed there".to_owned(), |of| names::shown(measure, of));
            Value::new(text).tone(Tone::Other)
        };
        let (one, other) = row.published_figures;
        let ratio = row.published_ratio.map(|ratio| Value::new(times(ratio)).tone(Tone::Other));
        let local = ours.iter().map(|pair| {
            let local = row.ours.iter().find(|local| (&local.contender, &local.to) == *pair);
            local.map_or_else(Value::absent, |local| local_value(local, measure))
        });
        let published = [figure(one), figure(other), ratio.unwrap_or_else(Value::absent)];
        TableRow::new(position(row), published.into_iter().chain(local).collect())
    };
    let title = format!("{server} / {to}: {}", measure.name(rows[0].cell.workload));
    let head = ["cell".to_owned()].into_iter().chain(published).chain(here).collect();
    Table { title, head, rows: rows.iter().map(row).collect(), ..Table::default() }
}

fn local_value(local: &LocalResult, measure: Measure) -> Value {
    let Some(ratio) = local.ratio else { return Value::none("not measured") };
    let (tone, sign) = match local.judgement {
        Judgement::Confirmed => (Tone::Good, "✓"),
        Judgement::Refuted => (Tone::Bad, "✗"),
        Judgement::Inconclusive => (Tone::Noisy, "?"),
        Judgement::NotComparable => (Tone::Muted, ""),
    };
    let figure = |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |of| names::shown(measure, of));
    let bound = if local.load_bound { "\nthe load generator was the bottleneck" } else { "" };
    let (one, other) = local.figures;
    let detail = format!("{}\n{} / {}{bound}", interval(&ratio), figure(one), figure(other));
    Value::with_detail(format!("{sign} {}", times(ratio.estimate)), detail).tone(tone)
}

/// Describes the published cell, and how the corresponding cell of the run differs from it.
fn position(row: &Comparison) -> String {
    let published = &row.published_cell;
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
    if here.is_empty() { text } else { format!("{text} (here {})", here.join(", ")) }
}
