//! Facts that a reader of the figures must know: noise floor, limitations, failures.

use crate::judge::findings::conclusion;
use crate::judge::statistics::{extremes, quantile};
use crate::judge::verdict::{LATE_FRACTION_THRESHOLD, LOAD_BUSY_THRESHOLD, SERVER_BUSY_THRESHOLD};
use crate::plan::cell::{Cell, Workload, counted};
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
    if result.interrupted {
        facts.add(Caution, "The run was stopped early", "the results are based on fewer slices than planned");
    }
    if let Some((second, text)) = conclusion::runner_up(result) {
        facts.add(Contender, &format!("Runner-up {second}"), text);
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

impl Facts<'_> {
    fn add(&mut self, kind: FindingKind, subject: &str, text: impl Into<String>) {
        self.all.push(Fact { kind, subject: subject.to_owned(), text: text.into() });
    }

    /// Adds a fact with a list of items, followed by a remark, unless the list is empty.
    fn add_list(&mut self, kind: FindingKind, subject: &str, items: &[String], remark: &str) {
        if !items.is_empty() {
            self.add(kind, subject, format!("{}{remark}", listed(items)));
        }
    }

    fn of_cells(&self, count: usize) -> String {
        format!("{count} of {}", counted(self.result.cells.len(), "cell"))
    }

    /// Adds the noise floor, the cells that are too noisy, and the number of cells whose noise floor is unknown.
    fn noise(&mut self) {
        let result = self.result;
        let name = |measure: Measure| measure.name(result.workload());
        let floor = |measure: &Measure| {
            let all: Vec<f64> = result.cells.iter().filter_map(|cell| measure.resolution(cell)).collect();
            let (median, (_, max)) = quantile(&all, 0.5).zip(extremes(all.iter().copied()))?;
            Some(format!("{} {} (maximum {})", name(*measure), percent(median), percent(max)))
        };
        let floors: Vec<String> = MEASURES.iter().filter_map(floor).collect();
        let subject = format!("Noise floor ({} against itself)", result.plan.reference);
        self.add_list(Resolution, &subject, &floors, "; smaller differences are not significant");
        for measure in MEASURES {
            let is_noisy = |cell: &&CellResult| {
                cell.rows.iter().any(|row| row.comparison.verdict(measure) == Verdict::TooNoisy)
            };
            let with_floor = |cell: &CellResult| {
                let floor = measure.resolution(cell).map(|floor| format!(" (±{})", whole_percent(floor)));
                format!("{}{}", cell.cell, floor.unwrap_or_default())
            };
            let cells: Vec<String> = result.cells.iter().filter(is_noisy).map(with_floor).collect();
            let subject = format!("Too noisy to compare {}", name(measure));
            self.add_list(Resolution, &subject, &cells, " (run longer, or on a quieter machine)");
        }
        let is_unknown = |cell: &&CellResult| {
            let measures = || MEASURES.into_iter().filter(|measure| measure.applies(&cell.cell));
            measures().all(|measure| measure.resolution(cell).is_none())
                && measures().any(|of| cell.rows.iter().any(|row| row.comparison.ratio(of).is_some()))
        };
        let unknown = result.cells.iter().filter(is_unknown).count();
        if unknown > 0 {
            let text = format!(
                "{}: no difference is claimed, because {} and its second instance have fewer than 5 pairs of slices \
                 or fewer than 3 passes",
                self.of_cells(unknown),
                result.plan.reference
            );
            self.add(Caution, "Noise floor unknown", text);
        }
    }

    /// Adds the machine's slow and fast phases, suspended contenders, other programs' CPU use, and excluded slices.
    fn machine(&mut self) {
        let result = self.result;
        let phases: Vec<_> = result.cells.iter().filter_map(|cell| cell.phases).collect();
        let factors: Vec<f64> = phases.iter().map(|phases| phases.slow_factor).collect();
        let fractions: Vec<f64> = phases.iter().map(|phases| phases.slow_fraction).collect();
        let sum = |count: fn(&Row) -> usize| {
            result.cells.iter().flat_map(|cell| &cell.rows).map(count).sum::<usize>()
        };
        if let Some((factor, fraction)) = quantile(&factors, 0.5).zip(quantile(&fractions, 0.5)) {
            let text = format!(
                "in {}: in {} of the slices, a {} cost {factor:.1} times as much CPU as in the others; only slices in \
                 the same phase are compared (excluded: {} with a phase change)",
                self.of_cells(phases.len()),
                whole_percent(fraction),
                result.workload().unit(),
                counted(sum(|row| row.mixed_phase_rounds), "round")
            );
            self.add(Resolution, "Slow and fast phases of the machine", text);
        }
        let suspended = result.contenders.iter().filter_map(|contender| {
            Some(format!("{} ({} of a core)", contender.name, whole_percent(contender.idle_cpu_fraction?)))
        });
        let subject = "Suspended during other contenders' slices, because they use CPU when idle";
        self.add_list(Resolution, subject, &suspended.collect::<Vec<_>>(), "");
        if let Some(fraction) = result.other_cpu_fraction.filter(|&fraction| fraction > OTHER_CPU_THRESHOLD) {
            let text = format!(
                "used {} of the cores' time (stop them and repeat the run to detect smaller differences)",
                whole_percent(fraction)
            );
            self.add(Caution, "Other programs", text);
        }
        let excluded = [
            (sum(|row| row.stolen_slices), "the hypervisor took time from a core"),
            (sum(|row| row.throttled_slices), "a CPU limit throttled the lab or the server"),
        ];
        let excluded = excluded.into_iter().filter(|(count, _)| *count > 0);
        let excluded = excluded.map(|(count, why)| format!("{count} of {} ({why})", result.slices.len()));
        self.add_list(Caution, "Slices excluded", &excluded.collect::<Vec<_>>(), "");
    }

    /// Adds the servers that did not reach the offered rate, and the requests that were sent late or not at all.
    fn offered_rates(&mut self) {
        let result = self.result;
        let items = |is: &dyn Fn(&Figures) -> bool, text: &dyn Fn(&Figures) -> String| -> Vec<String> {
            let originals = result.contenders.iter().filter(|contender| contender.twin_of.is_none());
            let rows = originals.flat_map(|contender| rows_of(result, &contender.name));
            let figures = rows.filter_map(|(cell, row)| Some((cell, row, row.figures.as_ref()?)));
            let concerned = figures.filter(|(.., figures)| is(figures));
            concerned.map(|(cell, row, of)| format!("{} at {cell} ({})", row.contender, text(of))).collect()
        };
        let whole = |fraction: Option<f64>| whole_percent(fraction.unwrap_or(0.0));
        let is_late = |figures: &Figures| {
            let mut fractions = figures.late_fraction.into_iter().chain(figures.unsent_fraction);
            fractions.any(|fraction| fraction > LATE_FRACTION_THRESHOLD)
        };
        let late = |figures: &Figures| {
            format!("{} late, {} never", whole(figures.late_fraction), whole(figures.unsent_fraction))
        };
        let behind =
            items(&|figures| figures.rate_reached == Some(false) && !figures.load_bottleneck, &|figures| {
                whole(figures.reached_fraction)
            });
        let server = items(&|figures| is_late(figures) && !figures.load_bottleneck, &late);
        let load = items(&|figures| is_late(figures) && figures.load_bottleneck, &late);
        let remark = " (latencies are those of an overloaded server)";
        self.add_list(Caution, "Offered rate not reached", &behind, remark);
        let remark = " (latency is measured from the scheduled send time)";
        self.add_list(Caution, "Requests sent more than 1 ms late or not at all", &server, remark);
        let remark = " (latencies do not describe the server; offer a lower rate)";
        let subject = "Load generator behind schedule while the server was not busy";
        self.add_list(Caution, subject, &load, remark);
    }

    /// Adds closed-loop cells in which the load generator was the bottleneck or was as busy as the servers.
    fn bottlenecks(&mut self) {
        let (result, plan) = (self.result, &self.result.plan);
        let loops: Vec<(usize, &CellResult)> =
            result.cells.iter().enumerate().filter(|(_, cell)| cell.cell.is_saturated()).collect();
        let is_load_bound = |cell: &&CellResult| {
            reference_figures(result, cell).is_some_and(|figures| figures.load_bottleneck)
        };
        let bound: Vec<&CellResult> = loops.iter().map(|(_, cell)| *cell).filter(is_load_bound).collect();
        let figure = match bound.iter().filter(|cell| cell.cell.workload.has_large_answers()).count() {
            0 => "CPU per request",
            large if large == bound.len() => "CPU of server and load generator per request",
            _ => "CPU per request (for large responses, the combined CPU of server and load generator)",
        };
        let cells: Vec<String> = bound.iter().map(|cell| cell.cell.to_string()).collect();
        let remark = format!(" ({} was not busy all the time; compare {figure})", plan.reference);
        self.add_list(Caution, "The load generator is the bottleneck", &cells, &remark);
        let load_is_busy = |index: usize| {
            let slices = result.slices.iter().filter(|slice| slice.cell == index);
            let clean = slices.filter(|slice| slice.quality == Quality::Clean);
            let busy = quantile(&clean.map(|slice| slice.load_busy).collect::<Vec<_>>(), 0.5);
            busy.is_some_and(|busy| busy > LOAD_BUSY_THRESHOLD * plan.load_cores.len().max(1) as f64)
        };
        let server_is_busy = |cell: &CellResult| {
            let cores = plan.server_share_in(&cell.cell) * cell.cell.server_cores as f64;
            reference_figures(result, cell)
                .is_some_and(|figures| figures.server_busy >= SERVER_BUSY_THRESHOLD * cores)
        };
        let both = loops.iter().filter(|(index, cell)| load_is_busy(*index) && server_is_busy(cell)).count();
        if both > 0 {
            let text = format!(
                "in {both} of {} with several connections: a server that needs less CPU than the load generator \
                 benefits less from batching, so the actual differences are larger than those measured",
                counted(loops.len(), "cell")
            );
            self.add(Caution, "The load generator was as busy as the servers", text);
        }
    }

    /// Adds the limitations that apply to the figures of the run's workloads.
    fn limitations(&mut self) {
        let result = self.result;
        let any = |is: fn(Workload) -> bool| result.cells.iter().any(|cell| is(cell.cell.workload));
        if any(Workload::has_large_answers) {
            let text = "compare the combined CPU of server and load generator: the kernel can charge its work for a \
                connection to either process, so the server CPU per request of identical servers can differ by more \
                than 50 %";
            self.add(Caution, "Large responses", text);
        }
        if any(|workload| workload == Workload::Idle) {
            let text = "includes only the memory of the server process; kernel memory per connection, which differs \
                between servers, was not measured";
            self.add(Caution, "Memory per idle connection", text);
        }
        if !result.plan.checked && any(|workload| !workload.is_disk()) {
            let text = "the lab did not test whether servers return all data, tolerate stalled readers and serve many \
                connections, so contenders may be fast but incorrect";
            self.add(Caution, "Contenders not checked before the run", text);
        }
    }

    fn failures(&mut self) {
        for contender in &self.result.contenders {
            let rows: Vec<(&Cell, &Row)> = rows_of(self.result, &contender.name).collect();
            let is_measured = rows.iter().any(|(_, row)| row.outcome == Outcome::Measured);
            let restarts: usize = rows.iter().map(|(_, row)| row.restarts).sum();
            // The cells with this outcome, and the reason in the first such cell.
            let cells_with = |outcome: fn(&Outcome) -> Option<&String>| {
                let mut cells = rows.iter().filter_map(|(cell, row)| Some((cell, outcome(&row.outcome)?)));
                let (first, why) = cells.next()?;
                let more = cells.count();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Some((format!(" at {first}{more}"), why.trim_end_matches('.')))
            };
            let unchecked =
                cells_with(|of| if let Outcome::CheckFailed(why) = of { Some(why) } else { None });
            let failed = cells_with(|of| if let Outcome::Failed(why) = of { Some(why) } else { None });
            let skipped = cells_with(|of| if let Outcome::Skipped(why) = of { Some(why) } else { None });
            let text = if let Some((_, why)) = unchecked {
                // The twin is the same program, so report the failure only for the original.
                contender.twin_of.is_none().then(|| format!("failed its check and was not measured: {why}"))
            } else if let Some((cells, why)) = failed {
                Some(format!("failed{cells}: {why}"))
            } else if let Some((cells, why)) = skipped {
                Some(format!("was not measured{}: {why}", if is_measured { &cells } else { "" }))
            } else {
                (restarts > 0).then(|| format!("failed and was restarted {}", counted(restarts, "time")))
            };
            if let Some(text) = text {
                self.add(Failure, &contender.name, text);
            }
        }
    }
}

/// Returns the rows of a contender, with their cells.
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

fn whole_percent(fraction: f64) -> String {
    format!("{:.0}\u{a0}%", fraction * 100.0)
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
