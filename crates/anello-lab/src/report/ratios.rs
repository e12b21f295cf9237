//! Tables of ratios with their verdicts: against the reference, bases and peers. Also the table of peak rates.

use crate::judge::findings::{self, Standing, method};
use crate::judge::peak::{Peak, Sweep, sweeps};
use crate::judge::published::{self, PEAKS_OF};
use crate::judge::statistics::quantile;
use crate::plan::cell::{Cell, Group, Workload};
use crate::report::format::{count, interval, percent, sign, times};
use crate::report::names;
use crate::report::table::{Table, TableRow, Tone, Value};
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{CellResult, ContenderRecord, LabResult, Outcome, PairComparison, Verdict};

/// Explanation of the symbols in tables of ratios.
pub const SIGNS: &str = "▲ significantly more; ▼ significantly less; = no significant difference; ? too noisy. \
     Confidence level of the intervals: 99 %.";

/// Returns a ratio with its verdict, or the reason why there is none.
pub fn ratio_value(ratio: Option<Ratio>, verdict: Verdict, measure: Measure, outcome: &Outcome) -> Value {
    let Some(ratio) = ratio else {
        return Value::none(names::why_none(outcome));
    };
    let tone = match (measure.is_better(verdict), verdict) {
        (Some(true), _) => Tone::Good,
        (Some(false), _) => Tone::Bad,
        (None, Verdict::TooNoisy) => Tone::Noisy,
        (None, _) => Tone::Muted,
    };
    let text = format!("{} {}", sign(verdict), times(ratio.estimate));
    let interval_bounds = Some((ratio.low, ratio.high));
    Value { interval: interval_bounds, ..Value::with_detail(text, interval(&ratio)).tone(tone) }
}

/// Returns an empty table for one measure, with a column for each cell.
fn table_of(result: &LabResult, group: &Group, title: &str) -> Table {
    let positions = result.cells_of(group).into_iter().map(|cell| names::position(&cell.cell));
    Table {
        title: title.to_owned(),
        head: [names::axis_title(group).to_owned()].into_iter().chain(positions).collect(),
        ..Table::default()
    }
}

/// Returns each contender in a group as a multiple of the reference, with the noise floor and the measurement method of
/// each cell.
pub fn against_reference(result: &LabResult, group: &Group, measure: Measure) -> Table {
    let (cells, reference) = (result.cells_of(group), &result.plan.reference);
    let title = format!(
        "{}: {}, × {reference} ({})",
        names::group_title(group),
        measure.name(group.workload),
        names::better(measure)
    );
    let mut table = table_of(result, group, &title);
    for (index, contender) in result.contenders.iter().enumerate() {
        let is_reference = contender.name == *reference;
        let value = |cell: &&CellResult| {
            let Some(row) = cell.rows.get(index) else { return Value::none("") };
            if is_reference {
                let figure = row.figure(measure).map(|figure| names::shown(measure, figure.median));
                return Value::new(figure.unwrap_or_else(|| names::why_none(&row.outcome).to_owned()))
                    .tone(Tone::Muted);
            }
            let low_deciles = row.cpu_low_ratio.filter(|_| measure == Measure::Cpu);
            let hint = low_deciles.map_or_else(String::new, |ratio| {
                format!("low deciles: {} ({})", times(ratio.estimate), interval(&ratio))
            });
            Value { hint, ..ratio_value(measure.ratio(row), measure.verdict(row), measure, &row.outcome) }
        };
        table.rows.push(TableRow {
            contender: Some(index),
            name: contender.name.clone(),
            detail: if is_reference { names::unit(measure).to_owned() } else { String::new() },
            values: cells.iter().map(value).collect(),
        });
    }
    let floor = |cell: &&CellResult| {
        measure.resolution(cell).map_or_else(|| "unknown".to_owned(), |floor| format!("±{}", percent(floor)))
    };
    let method = |cell: &&CellResult| method::name(&result.plan, &cell.cell).to_owned();
    let mut add = |name: String, values: Vec<String>| {
        let values = values.into_iter().map(|value| Value::new(value).tone(Tone::Muted)).collect();
        table.rows.push(TableRow::new(name, values));
    };
    add(format!("(equal {}s)", group.workload.server_noun()), cells.iter().map(floor).collect());
    if group.workload.has_loops() {
        add("(method)".to_owned(), cells.iter().map(method).collect());
    }
    table
}

/// Returns the comparisons of a pair as a row with a value for each cell. `None` if no cell has a ratio.
fn pair_row(
    result: &LabResult,
    group: &Group,
    measure: Measure,
    (contender, name, detail): (usize, String, String),
    pairs: &[&PairComparison],
) -> Option<TableRow> {
    let value = |cell: &CellResult| {
        let pair = pairs.iter().find(|pair| pair.cell == cell.cell)?;
        Some(ratio_value(
            measure.pair_ratio(pair),
            measure.pair_verdict(pair),
            measure,
            &Outcome::NotMeasured,
        ))
    };
    let values: Vec<Option<Value>> = result.cells_of(group).into_iter().map(value).collect();
    let values = values.into_iter().map(|value| value.unwrap_or_else(|| Value::none("")));
    let row = TableRow { contender: Some(contender), name, detail, values: values.collect() };
    row.values.iter().any(|value| value.interval.is_some()).then_some(row)
}

/// Returns the measures by which pairs are compared in a group.
fn pair_measures(result: &LabResult, group: &Group) -> impl Iterator<Item = Measure> + use<> {
    let first = result.cells_of(group).first().map(|cell| cell.cell);
    let measures = first.into_iter().flat_map(|cell| Measure::of_cell(&cell));
    measures.copied().filter(|measure| *measure != Measure::P50)
}

/// Returns each contender that names a base as a multiple of that base, in one table per measure.
pub fn against_bases(result: &LabResult, group: &Group) -> Vec<Table> {
    let pairs = |record: &ContenderRecord, base: &str| -> Vec<&PairComparison> {
        result
            .base_comparisons
            .iter()
            .filter(|pair| pair.contender == record.name && pair.peer == base)
            .collect()
    };
    let table = |measure: Measure| {
        let title = format!(
            "{}: {}, × the {} that differs in one option ({})",
            names::group_title(group),
            measure.name(group.workload),
            group.workload.server_noun(),
            names::better(measure)
        );
        let rows = result.contenders.iter().enumerate().filter_map(|(index, record)| {
            let base = record.base.as_deref()?;
            let name = (index, record.name.clone(), format!("× {base}"));
            pair_row(result, group, measure, name, &pairs(record, base))
        });
        Table { rows: rows.collect(), ..table_of(result, group, &title) }
    };
    pair_measures(result, group).map(table).filter(|table| !table.rows.is_empty()).collect()
}

/// Returns an anello contender as a multiple of each peer, in one table per measure, with instruction counts.
pub fn against_peers(result: &LabResult, group: &Group, own: &str) -> Vec<Table> {
    let peers = findings::peers_of(result, own);
    let named = |peer: &str| {
        let index = result.contenders.iter().position(|record| record.name == peer).unwrap_or(usize::MAX);
        let family =
            names::other_family(result, own, peer).map_or_else(String::new, |family| format!("({family})"));
        (index, peer.to_owned(), family)
    };
    let table = |measure: Measure| {
        let title = format!(
            "{}: {} of {own}, × peer ({})",
            names::group_title(group),
            measure.name(group.workload),
            names::better(measure)
        );
        let rows =
            peers.iter().filter_map(|(peer, pairs)| pair_row(result, group, measure, named(peer), pairs));
        Table { rows: rows.collect(), ..table_of(result, group, &title) }
    };
    let mut tables: Vec<Table> = pair_measures(result, group).map(table).collect();
    if let Some(counts) = &result.instructions {
        let title = format!("{}: instructions per request of {own} and peers", names::group_title(group));
        let rows = [own].into_iter().chain(peers.iter().map(|(peer, _)| *peer)).map(|name| {
            let (contender, name, detail) = named(name);
            let count = |cell: &CellResult| {
                counts.of(&name, &cell.cell).map(|count| Value::new(format!("{count:.0}")))
            };
            let values =
                result.cells_of(group).into_iter().map(|cell| count(cell).unwrap_or_else(|| Value::none("")));
            TableRow { contender: Some(contender), values: values.collect(), name, detail }
        });
        let counted = |row: &TableRow| row.values.iter().any(|value| !value.is_none());
        tables.push(Table { rows: rows.filter(counted).collect(), ..table_of(result, group, &title) });
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// Ratios in one row, with their measures and verdicts.
type Entries = Vec<(Measure, Ratio, Verdict)>;

/// Returns the number of cells in which each row is better, equal and worse, for each measure.
fn standings(result: &LabResult, title: String, first: &str, rows: Vec<(TableRow, Entries)>) -> Table {
    let measures = Measure::IN_PAIRS.into_iter().chain([Measure::P50]);
    let has_entries =
        |measure: &Measure| rows.iter().any(|(_, entries)| entries.iter().any(|entry| entry.0 == *measure));
    let measures: Vec<Measure> = measures.filter(has_entries).collect();
    let name = |measure: &Measure| {
        let workload = |cell: &&Cell| measure.applies(cell);
        let workload =
            result.plan.cells.iter().find(workload).map_or(result.workload(), |cell| cell.workload);
        format!("{} ({})", measure.name(workload), names::better(*measure))
    };
    let head = [first.to_owned()].into_iter().chain(measures.iter().map(name)).collect();
    let rows = rows.into_iter().map(|(row, entries)| {
        let values = measures.iter().map(|measure| standing_value(&entries, *measure)).collect();
        TableRow { values, ..row }
    });
    Table { title, note: method_note(result), head, rows: rows.collect() }
}

/// Returns the measurement methods of the run as a sentence, or an empty string if none applies.
fn method_note(result: &LabResult) -> String {
    let methods = method::of_run(result);
    if methods.is_empty() { methods } else { format!("Method: {methods}.") }
}

/// Returns the numbers of better, equal and worse cells, with the median ratio and the worst ratio.
fn standing_value(entries: &Entries, measure: Measure) -> Value {
    let entries: Vec<_> = entries.iter().filter(|entry| entry.0 == measure).collect();
    let ratios: Vec<f64> = entries.iter().map(|(_, ratio, _)| ratio.estimate).collect();
    let Some(median) = quantile(&ratios, 0.5) else { return Value::none("") };
    let count = |is: &dyn Fn(Verdict) -> bool| entries.iter().filter(|(.., verdict)| is(*verdict)).count();
    let better = count(&|verdict| measure.is_better(verdict) == Some(true));
    let worse = count(&|verdict| measure.is_better(verdict) == Some(false));
    let equal = count(&|verdict| verdict == Verdict::NoDifference);
    let noisy = count(&|verdict| verdict == Verdict::TooNoisy);
    let (low, high) =
        ratios.iter().fold((f64::MAX, 0.0f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
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

/// Returns in how many cells an anello contender is better or worse than each peer.
pub fn peer_standings(result: &LabResult, own: &str) -> Option<Table> {
    let peers = findings::peers_of(result, own);
    let rows = peers.into_iter().map(|(peer, pairs)| {
        let entry = |pair: &&PairComparison, measure: Measure| {
            Some((measure, measure.pair_ratio(pair)?, measure.pair_verdict(pair)))
        };
        let entries = pairs
            .iter()
            .flat_map(|pair| Measure::IN_PAIRS.into_iter().filter_map(move |measure| entry(pair, measure)));
        let family =
            names::other_family(result, own, peer).map_or_else(String::new, |family| format!("({family})"));
        let contender = result.contenders.iter().position(|record| record.name == peer);
        (TableRow { contender, name: peer.to_owned(), detail: family, values: Vec::new() }, entries.collect())
    });
    let rows: Vec<_> = rows.collect();
    let title = format!("{own} against peers: cells better / equal / worse (× median ratio, range)");
    (!rows.is_empty()).then(|| standings(result, title, "peer", rows))
}

/// Returns in how many cells each contender is better or worse than the reference.
pub fn reference_standings(result: &LabResult) -> Table {
    let others = names::originals(result).filter(|(_, contender)| contender.name != result.plan.reference);
    let rows = others.map(|(index, contender)| {
        let rows = result.cells.iter().filter_map(|cell| cell.rows.get(index));
        let entry = |row, measure: Measure| Some((measure, measure.ratio(row)?, measure.verdict(row)));
        let entries =
            rows.flat_map(|row| Measure::ALL.into_iter().filter_map(move |measure| entry(row, measure)));
        (TableRow::of_contender(index, &contender.name, Vec::new()), entries.collect())
    });
    let title = format!(
        "Contenders against {}: cells better / equal / worse (× median ratio, range)",
        result.plan.reference
    );
    standings(result, title, result.workload().server_noun(), rows.collect())
}

/// Returns, for each anello contender, how many comparisons with decisive peers it wins and loses, and which
/// differences the remaining comparisons could not have detected.
pub fn decisions(result: &LabResult) -> Table {
    let head = [
        "",
        "peers",
        "comparisons",
        "better",
        "equal",
        "worse",
        "too noisy",
        "undetectable in half",
        "in a tenth",
    ];
    let rows = result.contenders.iter().enumerate().filter_map(|(index, own)| {
        let decision = findings::decision(result, own)?;
        let undetectable =
            |at| quantile(&decision.undetectable, at).map(|limit| format!("below {}", percent(limit)));
        let counts =
            [decision.comparisons(), decision.better, decision.equal, decision.lost.len(), decision.noisy];
        let limits = [0.5, 0.9].map(|at| undetectable(at).map_or_else(|| Value::none(""), Value::new));
        let values =
            [Value::new(decision.peers)].into_iter().chain(counts.map(|count| Value::new(count.to_string())));
        Some(TableRow::of_contender(index, &own.name, values.chain(limits).collect()))
    });
    Table {
        title: "anello against its peers, all cells and measures".to_owned(),
        note: method_note(result),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Returns the comparisons with decisive peers in which the peer is better.
pub fn losses(result: &LabResult) -> Table {
    let decisions = result.contenders.iter().filter_map(|own| findings::decision(result, own));
    let rows = decisions.flat_map(|decision| decision.lost).map(|(measure, pair)| {
        let values = vec![
            Value::new(&pair.peer),
            Value::new(pair.cell.to_string()),
            Value::new(measure.name(pair.cell.workload)),
            Value::new(method::name(&result.plan, &pair.cell)),
            ratio_value(measure.pair_ratio(pair), measure.pair_verdict(pair), measure, &Outcome::NotMeasured),
        ];
        TableRow::new(&pair.contender, values)
    });
    let head = ["contender", "peer", "cell", "measure", "method", "ratio"];
    Table::new("Cells in which a peer is significantly better", &head, rows.collect())
}

/// Returns in how many cells an anello contender is ahead of each async runtime, by CPU time, rate and p99 latency
/// combined.
pub fn runtimes(result: &LabResult) -> Table {
    let rows = result.contenders.iter().flat_map(|own| {
        findings::runtimes(result, &own.name).into_iter().map(|(runtime, standings)| {
            let count = |is: fn(&Standing) -> bool| {
                standings.iter().filter(|standing| is(standing)).count().to_string()
            };
            let counts = [
                standings.len().to_string(),
                count(|standing| matches!(standing, Standing::Ahead)),
                count(|standing| matches!(standing, Standing::Equal)),
                count(|standing| matches!(standing, Standing::Behind(..))),
                count(|standing| matches!(standing, Standing::TooNoisy)),
            ];
            let worst = standings.iter().filter_map(|standing| match standing {
                Standing::Behind(measure, ratio) => Some((*measure, *ratio)),
                _ => None,
            });
            let worst = worst.max_by(|left, right| left.1.ln().abs().total_cmp(&right.1.ln().abs()));
            let worst = worst.map_or_else(
                || Value::none(""),
                |(measure, ratio)| {
                    Value::new(format!("× {} {}", times(ratio), measure.name(result.workload())))
                },
            );
            let values = counts.into_iter().map(Value::new).chain([worst]).collect();
            TableRow {
                name: own.name.clone(),
                detail: format!("against {runtime}"),
                values,
                ..TableRow::default()
            }
        })
    });
    Table {
        title: format!(
            "Async runtimes at {} or more connections: CPU, rate and p99 latency together",
            findings::MANY_CONNECTIONS
        ),
        note: method_note(result),
        head: ["", "cells", "ahead", "equal", "behind", "too noisy", "worst"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Returns the peak rate of each contender as the number of connections rises. Has no rows if the run has no sweep.
pub fn peaks(result: &LabResult) -> Table {
    let sweeps = sweeps(result);
    let head = sweeps.iter().map(|sweep| sweep.group.to_string());
    let mut note =
        "→ at the largest connection count measured: the true peak may be higher. ‡ the load generator was the \
         bottleneck."
            .to_owned();
    let mut shares: Vec<String> = Vec::new();
    for sweep in sweeps.iter().filter(|sweep| sweep.server_share < 1.0) {
        let share = format!("{:.0} %", sweep.server_share * 100.0);
        if !shares.contains(&share) {
            shares.push(share);
        }
    }
    if !shares.is_empty() {
        note += &format!(" Saturated: servers were limited to {} of their core.", shares.join(" or "));
    }
    let row = |(index, contender): (usize, &ContenderRecord)| {
        let value = |sweep: &Sweep| {
            sweep.peaks[index]
                .as_ref()
                .map_or_else(|| Value::none(""), |peak| peak_value(peak, &contender.name, sweep))
        };
        let values = sweeps.iter().map(value).collect();
        TableRow::of_contender(index, &contender.name, values)
    };
    let rows: Vec<TableRow> = names::originals(result).map(row).filter(|_| !sweeps.is_empty()).collect();
    if rows.iter().flat_map(|row| &row.values).any(|value| value.detail.contains("published")) {
        note += &format!(" Published peaks ({PEAKS_OF}) are from another machine.");
    }
    let title = "Peak requests/s by number of connections (more is better)".to_owned();
    Table { title, note, head: [String::new()].into_iter().chain(head).collect(), rows }
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
