//! Tables of ratios to the reference, bases and peers, with verdicts, and a table of peak rates.

use crate::judge::comparisons::driver_family;
use crate::judge::findings::{self, Standing, Tally};
use crate::judge::peak::{Peak, Sweep, sweeps};
use crate::judge::published::{self, PEAKS_OF};
use crate::judge::statistics::{extremes, quantile};
use crate::plan::cell::{Cell, Group, Workload};
use crate::report::format::{count, interval, percent, sign, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::measure::Measure;
use crate::result::unique::unique;
use crate::result::{CellResult, Comparison, ContenderRecord, LabResult, Outcome, PairComparison, Verdict};

pub const SIGNS: &str = "▲ significantly more; ▼ significantly less; = no significant difference; ? too noisy. \
     Confidence level of the intervals: 99 %.";

fn ratio_value(comparison: &Comparison, measure: Measure, outcome: &Outcome) -> Value {
    let Some(ratio) = comparison.ratio(measure) else { return Value::none(names::why_none(outcome)) };
    let verdict = comparison.verdict(measure);
    let tone = match (measure.is_better(verdict), verdict) {
        (Some(true), _) => Tone::Good,
        (Some(false), _) => Tone::Bad,
        (None, Verdict::TooNoisy) => Tone::Noisy,
        (None, _) => Tone::Muted,
    };
    let text = format!("{} {}", sign(verdict), times(ratio.estimate));
    let value = Value::with_detail(text, interval(&ratio)).tone(tone);
    Value { interval: Some((ratio.low, ratio.high)), ..value }
}

fn table_of(result: &LabResult, group: &Group, title: String, rows: Vec<TableRow>) -> Table {
    let positions = result.cells_of(group).into_iter().map(|cell| names::position(&cell.cell));
    let head = [names::axis_title(group).to_owned()].into_iter().chain(positions).collect();
    Table { title, head, rows, ..Table::default() }
}

/// Returns the ratios of each contender in a group to the reference, with the noise floor and the measurement method of
/// each cell.
pub fn against_reference(result: &LabResult, group: &Group, measure: Measure) -> Table {
    let (cells, reference) = (result.cells_of(group), &result.plan.reference);
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let is_reference = contender.name == *reference;
        let value = |cell: &&CellResult| {
            let Some(row) = cell.rows.get(index) else { return Value::absent() };
            if is_reference {
                let figure = row.figure(measure).map(|figure| names::shown(measure, figure.median));
                return Value::new(figure.unwrap_or_else(|| names::why_none(&row.outcome).to_owned()))
                    .tone(Tone::Muted);
            }
            let low_deciles = row.cpu_low_ratio.filter(|_| measure == Measure::Cpu);
            let hint = low_deciles.map_or_else(String::new, |ratio| {
                format!("low deciles: {} ({})", times(ratio.estimate), interval(&ratio))
            });
            Value { hint, ..ratio_value(&row.comparison, measure, &row.outcome) }
        };
        let detail = if is_reference { names::unit(measure) } else { "" };
        let row = TableRow::of_contender(index, &contender.name, cells.iter().map(value).collect());
        TableRow { detail: detail.to_owned(), ..row }
    };
    let mut rows: Vec<TableRow> = result.contenders.iter().enumerate().map(row).collect();
    let mut add = |name: String, value: &dyn Fn(&Cell, Option<f64>) -> String| {
        let values = cells.iter().map(|cell| value(&cell.cell, measure.resolution(cell)));
        let values = values.map(|value| Value::new(value).tone(Tone::Muted));
        rows.push(TableRow::new(name, values.collect()));
    };
    add(format!("(equal {}s)", group.workload.server_noun()), &|_, floor| {
        floor.map_or_else(|| "unknown".to_owned(), |floor| format!("±{}", percent(floor)))
    });
    if group.workload.has_loops() {
        add("(method)".to_owned(), &|cell, _| result.plan.method_name(cell).to_owned());
    }
    let contents = format!("{}, × {reference}", measure.name(group.workload));
    table_of(result, group, names::table_title(group, &contents, measure), rows)
}

/// Returns a row with the ratio in each cell. `None` if no cell has a ratio.
fn pair_row(
    result: &LabResult,
    group: &Group,
    measure: Measure,
    row: TableRow,
    pairs: &[&PairComparison],
) -> Option<TableRow> {
    let value = |cell: &CellResult| {
        let pair = pairs.iter().find(|pair| pair.cell == cell.cell);
        pair.map_or_else(Value::absent, |pair| ratio_value(&pair.comparison, measure, &Outcome::NotMeasured))
    };
    let values: Vec<Value> = result.cells_of(group).into_iter().map(value).collect();
    values.iter().any(|value| value.interval.is_some()).then_some(TableRow { values, ..row })
}

/// Returns one table for each measure by which pairs are compared in a group. Omits empty tables.
fn pair_tables(
    result: &LabResult,
    group: &Group,
    contents: &str,
    rows: impl Fn(Measure) -> Vec<TableRow>,
) -> Vec<Table> {
    let measures = result.measures_of(group).iter().filter(|measure| **measure != Measure::P50);
    let tables = measures.map(|&measure| {
        let contents = format!("{}{contents}", measure.name(group.workload));
        table_of(result, group, names::table_title(group, &contents, measure), rows(measure))
    });
    tables.filter(|table| !table.rows.is_empty()).collect()
}

/// Returns the ratios of each contender to the base that it names, in one table per measure.
pub fn against_bases(result: &LabResult, group: &Group) -> Vec<Table> {
    pair_tables(result, group, ", × the base, which differs in one option", |measure| {
        let rows = result.contenders.iter().enumerate().filter_map(|(index, record)| {
            let base = record.base.as_deref()?;
            let pairs = result.base_comparisons.iter();
            let pairs = pairs.filter(|pair| pair.contender == record.name && pair.peer == base);
            let row = TableRow::of_contender(index, &record.name, Vec::new());
            let row = TableRow { detail: format!("× {base}"), ..row };
            pair_row(result, group, measure, row, &pairs.collect::<Vec<_>>())
        });
        rows.collect()
    })
}

/// Returns an empty row for a peer, with its driver family if that is neither the family of `own` nor part of the name.
fn peer_row(result: &LabResult, own: &str, peer: &str) -> TableRow {
    let family = |name: &str| driver_family(result.contenders.iter().find(|record| record.name == name)?);
    let both = family(own).zip(family(peer));
    let other = both.filter(|(own, of_peer)| own != of_peer && !peer.contains(of_peer));
    let detail = other.map(|(_, of_peer)| format!("({of_peer})")).unwrap_or_default();
    TableRow { contender: result.original_index(peer), detail, ..TableRow::new(peer, Vec::new()) }
}

/// Returns the ratios of an anello contender to each peer, in one table per measure, and any instruction counts.
pub fn against_peers(result: &LabResult, group: &Group, own: &str) -> Vec<Table> {
    let peers = findings::peers_of(result, own);
    let mut tables = pair_tables(result, group, &format!(" of {own}, × peer"), |measure| {
        let row = |(peer, pairs): &(&str, Vec<&PairComparison>)| {
            pair_row(result, group, measure, peer_row(result, own, peer), pairs)
        };
        peers.iter().filter_map(row).collect()
    });
    if let Some(counts) = &result.instructions {
        let rows = [own].into_iter().chain(peers.iter().map(|(peer, _)| *peer)).map(|name| {
            let value = |cell: &CellResult| {
                let count = counts.of(name, &cell.cell);
                count.map_or_else(Value::absent, |count| Value::new(format!("{count:.0}")))
            };
            let values = result.cells_of(group).into_iter().map(value).collect();
            TableRow { values, ..peer_row(result, own, name) }
        });
        let is_counted = |row: &TableRow| row.values.iter().any(|value| !value.is_none());
        let rows: Vec<TableRow> = rows.filter(is_counted).collect();
        let title = format!("{}: instructions per request of {own} and peers", names::group_title(group));
        tables.extend((!rows.is_empty()).then(|| table_of(result, group, title, rows)));
    }
    tables
}

/// Returns, for each row and measure, the numbers of cells with the verdicts "better", "equal" and "worse".
fn standings(
    result: &LabResult,
    title: String,
    first: &str,
    rows: Vec<(TableRow, Vec<&Comparison>)>,
) -> Table {
    let has_ratio = |measure: &Measure| {
        rows.iter().flat_map(|(_, comparisons)| comparisons).any(|of| of.ratio(*measure).is_some())
    };
    let measures = Measure::IN_PAIRS.into_iter().chain([Measure::P50]);
    let measures: Vec<Measure> = measures.filter(has_ratio).collect();
    let heading = |measure: &Measure| {
        let cell = result.plan.cells.iter().find(|cell| measure.applies(cell));
        let workload = cell.map_or(result.workload(), |cell| cell.workload);
        format!("{} ({})", measure.name(workload), names::better(*measure))
    };
    let head = [first.to_owned()].into_iter().chain(measures.iter().map(heading)).collect();
    let rows = rows.into_iter().map(|(row, comparisons)| {
        let values = measures.iter().map(|measure| standing_value(&comparisons, *measure)).collect();
        TableRow { values, ..row }
    });
    Table { title, note: method_note(result), head, rows: rows.collect() }
}

fn method_note(result: &LabResult) -> String {
    let methods = result.methods();
    if methods.is_empty() { methods } else { format!("Method: {methods}.") }
}

/// Returns the numbers of cells with the verdicts "better", "equal" and "worse", and the ratios' median and range.
fn standing_value(comparisons: &[&Comparison], measure: Measure) -> Value {
    let entries = comparisons.iter().filter_map(|of| Some((of.ratio(measure)?, of.verdict(measure))));
    let ratios: Vec<f64> = entries.clone().map(|(ratio, _)| ratio.estimate).collect();
    let Some((low, high)) = extremes(ratios.iter().copied()) else { return Value::absent() };
    let median = quantile(&ratios, 0.5).unwrap_or(low);
    let Tally { better, worse, equal, noisy } = Tally::of(measure, entries);
    let (better, worse) = (better.len(), worse.len());
    let noisy_text = if noisy > 0 { format!(", {noisy} unclear") } else { String::new() };
    Value {
        parts: vec![(Tone::Good, better), (Tone::Muted, equal), (Tone::Noisy, noisy), (Tone::Bad, worse)],
        hint: format!("{better} better, {equal} equal, {worse} worse, {noisy} too noisy"),
        ..Value::with_detail(
            format!("{better} / {equal} / {worse}{noisy_text}"),
            format!("× {}, {}–{}", times(median), times(low), times(high)),
        )
    }
}

/// Returns the number of cells in which an anello contender is better or worse than each peer.
pub fn peer_standings(result: &LabResult, own: &str) -> Option<Table> {
    let rows = findings::peers_of(result, own).into_iter().map(|(peer, pairs)| {
        (peer_row(result, own, peer), pairs.into_iter().map(|pair| &pair.comparison).collect())
    });
    let rows: Vec<_> = rows.collect();
    let title = format!("{own} against peers: cells better / equal / worse (× median ratio, range)");
    (!rows.is_empty()).then(|| standings(result, title, "peer", rows))
}

/// Returns in how many cells each contender is better or worse than the reference.
pub fn reference_standings(result: &LabResult) -> Table {
    let reference = &result.plan.reference;
    let others = names::originals(result).filter(|(_, contender)| contender.name != *reference);
    let rows = others.map(|(index, contender)| {
        let rows = result.cells.iter().filter_map(|cell| cell.rows.get(index));
        (
            TableRow::of_contender(index, &contender.name, Vec::new()),
            rows.map(|row| &row.comparison).collect(),
        )
    });
    let title =
        format!("Contenders against {reference}: cells better / equal / worse (× median ratio, range)");
    standings(result, title, result.workload().server_noun(), rows.collect())
}

/// Returns, for each anello contender, the results of the comparisons with its decisive peers (see
/// [`findings::decision`]), and the differences that comparisons with the result "equal" could not have detected.
pub fn decisions(result: &LabResult) -> Table {
    let (median, p90) = ("undetectable (median)", "(90th percentile)");
    let head = ["", "peers", "comparisons", "better", "equal", "worse", "too noisy", median, p90];
    let rows = result.contenders.iter().enumerate().filter_map(|(index, own)| {
        let decision = findings::decision(result, own)?;
        let limit = |at: f64| {
            let limit = quantile(&decision.undetectable, at);
            limit.map_or_else(Value::absent, |limit| Value::new(format!("below {}", percent(limit))))
        };
        let counts =
            [decision.comparisons(), decision.better, decision.equal, decision.lost.len(), decision.noisy];
        let counts = counts.map(|count| Value::new(count.to_string())).into_iter();
        let values = [Value::new(&decision.peers)].into_iter().chain(counts).chain([limit(0.5), limit(0.9)]);
        Some(TableRow::of_contender(index, &own.name, values.collect()))
    });
    let title = "anello against its peers, all cells and measures";
    Table { note: method_note(result), ..Table::new(title, &head, rows.collect()) }
}

pub fn losses(result: &LabResult) -> Table {
    let decisions = result.contenders.iter().filter_map(|own| findings::decision(result, own));
    let rows = decisions.flat_map(|decision| decision.lost).map(|(measure, pair)| {
        let values = vec![
            Value::new(&pair.peer),
            Value::new(pair.cell.to_string()),
            Value::new(measure.name(pair.cell.workload)),
            Value::new(result.plan.method_name(&pair.cell)),
            ratio_value(&pair.comparison, measure, &Outcome::NotMeasured),
        ];
        TableRow::new(&pair.contender, values)
    });
    let head = ["contender", "peer", "cell", "measure", "method", "ratio"];
    Table::new("Cells in which a peer is significantly better", &head, rows.collect())
}

/// Returns in how many cells an anello contender is ahead of each async runtime when CPU time, rate and p99 latency are
/// considered together.
pub fn runtimes(result: &LabResult) -> Table {
    let row = |own: &str, runtime: &str, standings: &[Standing]| {
        let count = |is: fn(&&Standing) -> bool| standings.iter().filter(is).count();
        let counts = [
            standings.len(),
            count(|standing| matches!(standing, Standing::Ahead)),
            count(|standing| matches!(standing, Standing::Equal)),
            count(|standing| matches!(standing, Standing::Behind(..))),
            count(|standing| matches!(standing, Standing::TooNoisy)),
        ];
        let behind = standings.iter().filter_map(|standing| match standing {
            Standing::Behind(measure, ratio) => Some((measure, *ratio)),
            _ => None,
        });
        let worst = behind.max_by(|left, right| left.1.ln().abs().total_cmp(&right.1.ln().abs()));
        let worst = worst.map_or_else(Value::absent, |(measure, ratio)| {
            Value::new(format!("× {} {}", times(ratio), measure.name(result.workload())))
        });
        let values = counts.map(|count| Value::new(count.to_string())).into_iter().chain([worst]);
        TableRow { detail: format!("against {runtime}"), ..TableRow::new(own, values.collect()) }
    };
    let rows = result.contenders.iter().flat_map(|own| {
        let runtimes = findings::runtimes(result, &own.name).into_iter();
        runtimes.map(|(runtime, standings)| row(&own.name, runtime, &standings))
    });
    let title = format!(
        "Async runtimes at {} or more connections: CPU, rate and p99 latency combined",
        findings::MANY_CONNECTIONS
    );
    let head = ["", "cells", "ahead", "equal", "behind", "too noisy", "worst"];
    Table { note: method_note(result), ..Table::new(title, &head, rows.collect()) }
}

/// Returns the peak rate of each contender in every sweep, a series of cells with different connection counts. The
/// table has no rows if the run has no sweep.
pub fn peaks(result: &LabResult) -> Table {
    let sweeps = sweeps(result);
    let mut note =
        "→ at the largest connection count measured: the true peak may be higher. ‡ the load generator was the \
         bottleneck."
            .to_owned();
    let limited = sweeps.iter().filter(|sweep| sweep.server_share < 1.0);
    let shares = unique(limited.map(|sweep| format!("{:.0} %", sweep.server_share * 100.0)));
    if !shares.is_empty() {
        note += &format!(" Saturated: servers were limited to {} of their core.", shares.join(" or "));
    }
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let values = sweeps.iter().map(|sweep| {
            let peak = sweep.peaks[index].as_ref();
            peak.map_or_else(Value::absent, |peak| peak_value(peak, &contender.name, sweep))
        });
        TableRow::of_contender(index, &contender.name, values.collect())
    };
    let rows: Vec<TableRow> = names::originals(result).map(row).filter(|_| !sweeps.is_empty()).collect();
    if rows.iter().flat_map(|row| &row.values).any(|value| value.detail.contains("published")) {
        note += &format!(" Published peaks ({PEAKS_OF}) are from another machine.");
    }
    let title = "Peak requests/s by number of connections (more is better)".to_owned();
    let groups = sweeps.iter().map(|sweep| sweep.group.to_string());
    Table { title, note, head: [String::new()].into_iter().chain(groups).collect(), rows }
}

fn peak_value(peak: &Peak, contender: &str, sweep: &Sweep) -> Value {
    let end = if peak.at_the_end { " →" } else { "" };
    let bound = if peak.load_bound { " ‡" } else { "" };
    let text = format!("{} at {}{end}{bound}", count(peak.requests_per_second), peak.connections);
    let published = || {
        let Workload::Echo { message_bytes } = sweep.group.workload else { return None };
        let figure = published::peak(contender, message_bytes, sweep.group.server_cores)?;
        Some(format!("published {} at {}", count(figure.requests_per_second?), figure.cell.connections))
    };
    Value::with_detail(text, published().unwrap_or_default())
}
