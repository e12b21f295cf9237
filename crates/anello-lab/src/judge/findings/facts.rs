//! Facts that a reader of the figures must know: noise floor, limitations, failures.

use crate::judge::findings::conclusion;
use crate::judge::statistics::quantile;
use crate::judge::verdict::SERVER_BUSY_THRESHOLD;
use crate::judge::verdict::{LATE_FRACTION_THRESHOLD, LOAD_BUSY_THRESHOLD};
use crate::plan::cell::{Cell, Workload};
use crate::result::FindingKind::{self, Caution, Contender, Failure, Resolution};
use crate::result::measure::Measure;
use crate::result::{CellResult, Figures, LabResult, Outcome, Quality, Row, Verdict};

/// A fact about a run: a row of a two-column table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Kind of fact.
    pub kind: FindingKind,
    /// Subject of the fact: a few words, or the name of a contender.
    pub subject: String,
    /// The fact.
    pub text: String,
}

/// Fraction of the cores' time above which the time used by other processes is reported.
const OTHER_CPU_THRESHOLD: f64 = 0.02;

/// Maximum number of items in a list. Items beyond it are only counted.
const MAX_LISTED: usize = 6;

/// Measures, in the order in which the facts list them.
const MEASURES: [Measure; 6] =
    [Measure::Cpu, Measure::TotalCpu, Measure::Rate, Measure::P50, Measure::P99, Measure::Memory];

/// Returns the facts, most important first.
pub fn facts(result: &LabResult) -> Vec<Fact> {
    let mut facts = Facts { result, all: Vec::new() };
    facts.add(
        Caution,
        "The run was stopped early",
        result.interrupted.then(|| "based on fewer slices than planned".to_owned()),
    );
    if let Some((second, text)) = conclusion::runner_up(result) {
        facts.add(Contender, &format!("Runner-up {second}"), Some(text));
    }
    facts.noise();
    facts.machine();
    facts.offered_rates();
    facts.bottlenecks();
    facts.limitations();
    facts.failures();
    facts.all
}

struct Facts<'a> {
    result: &'a LabResult,
    all: Vec<Fact>,
}

impl<'a> Facts<'a> {
    fn add(&mut self, kind: FindingKind, subject: &str, text: Option<String>) {
        self.all.extend(text.map(|text| Fact { kind, subject: subject.to_owned(), text }));
    }

    /// Adds a fact with a list of items, followed by a remark, unless the list is empty.
    fn add_list(&mut self, kind: FindingKind, subject: &str, items: &[String], remark: &str) {
        self.add(kind, subject, (!items.is_empty()).then(|| format!("{}{remark}", listed(items))));
    }

    fn name(&self, measure: Measure) -> &'static str {
        measure.name(self.result.workload())
    }

    fn cells(&self, is: impl Fn(&CellResult) -> bool) -> Vec<&'a CellResult> {
        self.result.cells.iter().filter(|cell| is(cell)).collect()
    }

    /// Returns the rows of all contenders except twins, with their cells.
    fn rows(&self) -> impl Iterator<Item = (&'a Cell, &'a Row)> {
        let result = self.result;
        let originals = result.contenders.iter().filter(|contender| contender.twin_of.is_none());
        originals.flat_map(|contender| rows_of(result, &contender.name))
    }

    /// Noise floor, cells that are too noisy, cells whose noise floor is unknown.
    fn noise(&mut self) {
        let result = self.result;
        let floor = |measure: &Measure| {
            let all: Vec<f64> = result.cells.iter().filter_map(|cell| measure.resolution(cell)).collect();
            let max = all.iter().copied().fold(0.0, f64::max);
            let median = quantile(&all, 0.5)?;
            Some(format!("{} {} (maximum {})", self.name(*measure), percent(median), percent(max)))
        };
        let floors: Vec<String> = MEASURES.iter().filter_map(floor).collect();
        let subject = format!("Noise floor ({} against itself)", result.plan.reference);
        self.add_list(Resolution, &subject, &floors, "; smaller differences are not significant");
        for measure in MEASURES {
            let noisy =
                |cell: &CellResult| cell.rows.iter().any(|row| measure.verdict(row) == Verdict::TooNoisy);
            let cells: Vec<String> = self
                .cells(noisy)
                .into_iter()
                .map(|cell| {
                    let floor = measure
                        .resolution(cell)
                        .map_or(String::new(), |floor| format!(" (±{:.0}\u{a0}%)", floor * 100.0));
                    format!("{}{floor}", cell.cell)
                })
                .collect();
            self.add_list(
                Resolution,
                &format!("Too noisy by {}", self.name(measure)),
                &cells,
                " (run longer, or on a quieter machine)",
            );
        }
        let is_unknown = |cell: &CellResult| {
            let measures = || MEASURES.into_iter().filter(|measure| measure.applies(&cell.cell));
            cell.rows.iter().any(|row| measures().any(|measure| measure.ratio(row).is_some()))
                && measures().all(|measure| measure.resolution(cell).is_none())
        };
        let unknown = self.cells(is_unknown).len();
        self.add(Caution, "Noise floor unknown", (unknown > 0).then(|| {
            format!(
                "{unknown} of {}: no difference is claimed, because {} and its twin do not have 5 pairs from 3 passes",
                counted(result.cells.len(), "cell"),
                result.plan.reference
            )
        }));
    }

    /// Slow and fast phases of the machine, contenders that were suspended, other programs, excluded slices.
    fn machine(&mut self) {
        let result = self.result;
        let phases: Vec<_> = result.cells.iter().filter_map(|cell| cell.phases).collect();
        let factors: Vec<f64> = phases.iter().map(|phases| phases.slow_factor).collect();
        let fractions: Vec<f64> = phases.iter().map(|phases| phases.slow_fraction).collect();
        let rows = || result.cells.iter().flat_map(|cell| &cell.rows);
        let mixed: usize = rows().map(|row| row.mixed_phase_rounds).sum();
        self.add(Resolution, "Slow and fast phases of the machine", quantile(&factors, 0.5).zip(quantile(&fractions, 0.5)).map(|(factor, fraction)| {
            format!(
                "in {} of {}; in {:.0}\u{a0}% of the slices, a {} cost {factor:.1} times as much; slices are compared \
                 within a phase, {} with a phase change excluded",
                phases.len(),
                counted(result.cells.len(), "cell"),
                fraction * 100.0,
                result.workload().unit(),
                counted(mixed, "round")
            )
        }));
        let idle_cpu = |fraction: f64| format!("{:.0}\u{a0}% of a core", fraction * 100.0);
        let suspended: Vec<String> = result
            .contenders
            .iter()
            .filter_map(|contender| {
                Some(format!("{} ({})", contender.name, idle_cpu(contender.idle_cpu_fraction?)))
            })
            .collect();
        self.add_list(
            Resolution,
            "Suspended during other contenders' slices, because they use CPU when idle",
            &suspended,
            "",
        );
        let foreign = result.other_cpu_fraction.filter(|&fraction| fraction > OTHER_CPU_THRESHOLD);
        self.add(Caution, "Other programs", foreign.map(|fraction| {
            format!(
                "used {:.0}\u{a0}% of the cores' time (stop them and repeat the run to detect smaller differences)",
                fraction * 100.0
            )
        }));
        let sum = |count: fn(&Row) -> usize| rows().map(count).sum::<usize>();
        let excluded = [
            (sum(|row| row.stolen_slices), "the hypervisor took time from a core"),
            (sum(|row| row.throttled_slices), "a CPU limit throttled them"),
        ];
        let excluded: Vec<String> = excluded
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, why)| format!("{count} of {} ({why})", result.slices.len()))
            .collect();
        self.add_list(Caution, "Slices excluded", &excluded, "");
    }

    /// Servers that did not reach the offered rate, and requests that were sent late or not at all.
    fn offered_rates(&mut self) {
        let items = |is: &dyn Fn(&Figures) -> bool, text: &dyn Fn(&Figures) -> String| -> Vec<String> {
            let rows = self.rows().filter_map(|(cell, row)| {
                Some((cell, row, row.figures.as_ref().filter(|figures| is(figures))?))
            });
            rows.map(|(cell, row, figures)| format!("{} at {cell} ({})", row.contender, text(figures)))
                .collect()
        };
        let whole = |fraction: Option<f64>| format!("{:.0}\u{a0}%", fraction.unwrap_or(0.0) * 100.0);
        let reached = |figures: &Figures| whole(figures.reached_fraction);
        let is_late = |figures: &Figures| {
            figures.late_fraction.unwrap_or(0.0).max(figures.unsent_fraction.unwrap_or(0.0))
                > LATE_FRACTION_THRESHOLD
        };
        let late = |figures: &Figures| {
            format!("{} late, {} never", whole(figures.late_fraction), whole(figures.unsent_fraction))
        };
        let behind =
            items(&|figures| figures.rate_reached == Some(false) && !figures.load_bottleneck, &reached);
        let server = items(&|figures| is_late(figures) && !figures.load_bottleneck, &late);
        let load = items(&|figures| is_late(figures) && figures.load_bottleneck, &late);
        self.add_list(
            Caution,
            "Offered rate not reached",
            &behind,
            " (latencies are those of an overloaded server)",
        );
        self.add_list(
            Caution,
            "Requests sent more than 1 ms late, or never",
            &server,
            " (latency is measured from the scheduled send time)",
        );
        self.add_list(
            Caution,
            "Load generator behind schedule while the server was not busy",
            &load,
            " (latencies do not describe the server; offer a lower rate)",
        );
    }

    /// Bottleneck in closed loops: the load generator, or both sides.
    fn bottlenecks(&mut self) {
        let (result, plan) = (self.result, &self.result.plan);
        let is_load_bound = |cell: &&CellResult| {
            cell.cell.is_saturated()
                && reference_figures(result, cell).is_some_and(|figures| figures.load_bottleneck)
        };
        let bound: Vec<&CellResult> = result.cells.iter().filter(is_load_bound).collect();
        let figure = match bound.iter().filter(|cell| cell.cell.workload.has_large_answers()).count() {
            0 => "CPU per request",
            large if large == bound.len() => "CPU of server and load generator per request",
            _ => "CPU per request (large responses: of server and load generator)",
        };
        let cells: Vec<String> = bound.iter().map(|cell| cell.cell.to_string()).collect();
        let remark = format!(" ({} was not busy all the time; compare {figure})", plan.reference);
        self.add_list(Caution, "The load generator is the bottleneck", &cells, &remark);
        let load_is_busy = |index: usize| {
            let clean =
                result.slices.iter().filter(|slice| slice.quality == Quality::Clean && slice.cell == index);
            let busy: Vec<f64> = clean.map(|slice| slice.load_busy).collect();
            quantile(&busy, 0.5)
                .is_some_and(|busy| busy > LOAD_BUSY_THRESHOLD * plan.load_cores.len().max(1) as f64)
        };
        let server_is_busy = |cell: &CellResult| {
            let share = cell.cell.server_share(plan.server_share, &plan.server_cores, &plan.load_cores);
            let threshold = SERVER_BUSY_THRESHOLD * share * cell.cell.server_cores as f64;
            reference_figures(result, cell).is_some_and(|figures| figures.server_busy >= threshold)
        };
        let loops: Vec<(usize, &CellResult)> =
            result.cells.iter().enumerate().filter(|(_, cell)| cell.cell.is_saturated()).collect();
        let both = loops.iter().filter(|(index, cell)| load_is_busy(*index) && server_is_busy(cell)).count();
        self.add(Caution, "The load generator was as busy as the servers", (both > 0).then(|| {
            format!(
                "in {both} of {} with several connections: a server that needs less CPU than the load generator gains \
                 less from batching, so real differences are larger",
                counted(loops.len(), "cell")
            )
        }));
    }

    /// Limitations of the figures by workload.
    fn limitations(&mut self) {
        let any = |is: fn(Workload) -> bool| self.result.cells.iter().any(|cell| is(cell.cell.workload));
        let large = any(Workload::has_large_answers).then_some(
            "compare the combined CPU of server and load generator: the kernel charges its work for a connection to \
             either of them, and server CPU per request of identical servers can differ by more than half",
        );
        let idle = any(|workload| workload == Workload::Idle).then_some(
            "of the server's process; the connections' kernel memory was not measured and differs between servers",
        );
        let unchecked = (!self.result.plan.checked && any(|workload| !workload.is_disk())).then_some(
            "complete bytes, stalled reader, many connections: some contenders may be fast but incorrect",
        );
        self.add(Caution, "Large responses", large.map(str::to_owned));
        self.add(Caution, "Memory per idle connection", idle.map(str::to_owned));
        self.add(Caution, "Contenders not checked before the run", unchecked.map(str::to_owned));
    }

    fn failures(&mut self) {
        for contender in &self.result.contenders {
            let rows: Vec<(&Cell, &Row)> = rows_of(self.result, &contender.name).collect();
            let restarts: usize = rows.iter().map(|(_, row)| row.restarts).sum();
            let is_measured = rows.iter().any(|(_, row)| row.outcome == Outcome::Measured);
            let outcomes = |is: fn(&Outcome) -> Option<&String>| -> Vec<(&Cell, &str)> {
                rows.iter()
                    .filter_map(|(cell, row)| Some((*cell, is(&row.outcome)?.trim_end_matches('.'))))
                    .collect()
            };
            let more = |cells: &[(&Cell, &str)]| {
                if cells.len() > 1 { format!(" and {} more", cells.len() - 1) } else { String::new() }
            };
            let failed = outcomes(|outcome| match outcome {
                Outcome::Failed(why) => Some(why),
                _ => None,
            });
            let skipped = outcomes(|outcome| match outcome {
                Outcome::Skipped(why) => Some(why),
                _ => None,
            });
            let text = if let Some((_, Row { outcome: Outcome::CheckFailed(why), .. })) = rows.first() {
                contender
                    .twin_of
                    .is_none()
                    .then(|| format!("failed its check and was not measured: {}", why.trim_end_matches('.')))
            } else if let Some((cell, why)) = failed.first() {
                Some(format!("failed at {cell}{}: {why}", more(&failed)))
            } else if let Some((cell, why)) = skipped.first() {
                let cells = if is_measured { format!(" at {cell}{}", more(&skipped)) } else { String::new() };
                Some(format!("was not measured{cells}: {why}"))
            } else {
                (restarts > 0).then(|| format!("failed and was restarted, {}", counted(restarts, "time")))
            };
            self.add(Failure, &contender.name, text);
        }
    }
}

fn rows_of<'a>(result: &'a LabResult, name: &str) -> impl Iterator<Item = (&'a Cell, &'a Row)> {
    let row =
        move |cell: &'a CellResult| Some((&cell.cell, cell.rows.iter().find(|row| row.contender == name)?));
    result.cells.iter().filter_map(row)
}

fn reference_figures<'a>(result: &LabResult, cell: &'a CellResult) -> Option<&'a Figures> {
    cell.rows.iter().find(|row| row.contender == result.plan.reference)?.figures.as_ref()
}

/// Joins the first [`MAX_LISTED`] items and adds the number of remaining items.
fn listed(items: &[String]) -> String {
    match items.len().saturating_sub(MAX_LISTED) {
        0 => items.join("; "),
        more => format!("{}; and {more} more", items[..MAX_LISTED].join("; ")),
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.1}\u{a0}%", fraction * 100.0)
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_is_truncated_with_count() {
        let cells: Vec<String> = (1..=9).map(|cell| cell.to_string()).collect();
        assert_eq!(listed(&cells[..6]), "1; 2; 3; 4; 5; 6");
        assert_eq!(listed(&cells), "1; 2; 3; 4; 5; 6; and 3 more");
    }
}
