//! Tables of published figures next to the figures of a run.

use crate::judge::published::{
    ClaimResult, Comparison, Judgement, LocalResult, PublishedComparison, compare_with_published,
};
use crate::report::format::{count, interval, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::LabResult;
use crate::result::measure::Measure;

/// Rules for judging claims.
pub const RULES: &str = "Ratios are compared, because absolute figures from another machine say nothing about this \
    one. A claim that one server is ahead holds if it is significantly ahead here by at least half as much (in \
    factors), and does not hold if the whole interval is below that.";

/// Tables of one publication.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Author and year.
    pub title: &'static str,
    /// Conditions of the published measurement.
    pub measured_on: &'static str,
    /// Claims, with the verdict of the run on each.
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
    let head = [
        "claim",
        "here",
        "verdict",
        "cells: holds / does not / inconclusive",
        "ratio here",
        "ratio published",
    ];
    let claims = Table {
        title: "Claims".to_owned(),
        head: head.map(str::to_owned).to_vec(),
        rows: published.claims.iter().map(claim_row).collect(),
        ..Table::default()
    };
    let measures = source
        .pairs
        .iter()
        .enumerate()
        .flat_map(|(index, pair)| pair.measures.iter().map(move |of| (index, *of)));
    let cells = measures.filter_map(|(index, measure)| {
        let of_pair = |row: &&Comparison| row.pair == index && row.measure == measure;
        let rows: Vec<&Comparison> = published.comparisons.iter().filter(of_pair).collect();
        let pair = &source.pairs[index];
        (!rows.is_empty()).then(|| cells_table(&pair.server, &pair.to, measure, &rows))
    });
    Published { title: &source.title, measured_on: &source.measured_on, claims, cells: cells.collect() }
}

fn claim_row(claim: &ClaimResult) -> TableRow {
    let (verdict, tone) = match claim.judgement() {
        Some(Judgement::Confirmed) => ("✓ holds", Tone::Good),
        Some(Judgement::Refuted) => ("✗ does not hold", Tone::Bad),
        None => ("◑ holds in part", Tone::Muted),
        Some(Judgement::Inconclusive | Judgement::NotComparable) => ("? inconclusive", Tone::Noisy),
    };
    let bound = if claim.load_bound { "the load generator was the bottleneck in some cells" } else { "" };
    let range = |range: Option<(f64, f64)>| {
        range.map_or_else(
            || Value::none("not measured"),
            |(low, high)| {
                let (low, high) = (times(low), times(high));
                Value::new(if low == high { low } else { format!("{low}–{high}") })
            },
        )
    };
    let values = vec![
        Value::new(format!("{} / {}", claim.contender, claim.to)),
        Value::with_detail(verdict, bound).tone(tone),
        Value::new(format!("{} / {} / {}", claim.holds, claim.does_not_hold, claim.cannot_be_told)),
        range(claim.here),
        range(claim.published).tone(Tone::Other),
    ];
    TableRow::new(format!("“{}”", claim.claim.words), values)
}

fn cells_table(server: &str, to: &str, measure: Measure, rows: &[&Comparison]) -> Table {
    let mut ours: Vec<(&str, &str)> = Vec::new();
    for local in rows.iter().flat_map(|row| &row.ours) {
        let pair = (local.contender.as_str(), local.to.as_str());
        if !ours.contains(&pair) {
            ours.push(pair);
        }
    }
    let here = ours.iter().map(|(contender, to)| format!("here: {contender} / {to}"));
    let published =
        [format!("{server} (other machine)"), format!("{to} (other machine)"), "published ratio".to_owned()];
    let row = |row: &&Comparison| {
        let figure = |figure: Option<f64>| {
            Value::new(
                figure.map_or_else(|| "failed there".to_owned(), |figure| names::shown(measure, figure)),
            )
            .tone(Tone::Other)
        };
        let (one, other) = row.published_figures;
        let ratio = row
            .published_ratio
            .map_or_else(|| Value::none(""), |ratio| Value::new(times(ratio)).tone(Tone::Other));
        let local = ours.iter().map(|(contender, to)| {
            let local = row.ours.iter().find(|local| local.contender == *contender && local.to == *to);
            local.map_or_else(|| Value::none(""), |local| local_value(local, measure))
        });
        let values = [figure(one), figure(other), ratio].into_iter().chain(local).collect();
        TableRow::new(position(row), values)
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
    let figure =
        |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |figure| names::shown(measure, figure));
    let bound = if local.load_bound { "\nthe load generator was the bottleneck" } else { "" };
    let detail =
        format!("{}\n{} / {}{bound}", interval(&ratio), figure(local.figures.0), figure(local.figures.1));
    Value::with_detail(format!("{sign} {}", times(ratio.estimate)), detail).tone(tone)
}

/// Returns the published cell, and the cell of the run where it differs.
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
