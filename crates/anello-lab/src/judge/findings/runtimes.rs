//! Comparison of anello with all async runtimes at high numbers of connections, regardless of their kind of I/O.

use super::{counted, difference, measure_name};
use crate::plan::cell::Workload;
use crate::plan::contender::Kind;
use crate::result::measure::Measure;
use crate::result::{LabResult, PairComparison, Verdict};

/// Minimum number of connections of the cells that this comparison includes.
const MANY_CONNECTIONS: usize = 50;

/// Measures that decide which server is ahead.
const DECISIVE: [Measure; 3] = [Measure::Cpu, Measure::Rate, Measure::P99];

/// Returns a sentence for each anello contender that was compared with async runtimes.
pub fn sentences(result: &LabResult) -> Vec<String> {
    result.contenders.iter().filter_map(|contender| sentence(result, &contender.name)).collect()
}

fn sentence(result: &LabResult, name: &str) -> Option<String> {
    let runtime = |versus: &&PairComparison| {
        let peer = result.contenders.iter().find(|record| record.name == versus.peer);
        peer.is_some_and(|peer| peer.kind == Some(Kind::Runtime))
    };
    let comparisons_with_runtimes: Vec<&PairComparison> = result
        .versus
        .iter()
        .chain(&result.runtime_versus)
        .filter(|versus| versus.contender == name && versus.cell.connections >= MANY_CONNECTIONS)
        .filter(|versus| matches!(versus.cell.workload, Workload::Echo { .. }))
        .filter(runtime)
        .collect();
    if comparisons_with_runtimes.is_empty() {
        return None;
    }
    let mut runtimes: Vec<&str> =
        comparisons_with_runtimes.iter().map(|versus| versus.peer.as_str()).collect();
    runtimes.sort_unstable();
    runtimes.dedup();
    let of = |runtime: &str| {
        let comparisons = comparisons_with_runtimes.iter().filter(|versus| versus.peer == runtime);
        Tally { standings: comparisons.map(|versus| standing_of(versus)).collect() }
    };
    let tallies: Vec<(&str, Tally)> = runtimes.iter().map(|&runtime| (runtime, of(runtime))).collect();
    let ahead: usize = tallies.iter().map(|(_, tally)| tally.ahead()).sum();
    let compared = counted(comparisons_with_runtimes.len(), "comparison");
    let runtimes_met = counted(runtimes.len(), "async runtime");
    let head = format!("At {MANY_CONNECTIONS} connections and more {name} is ahead of {runtimes_met}");
    if ahead == comparisons_with_runtimes.len() {
        return Some(format!(
            "{head} ({}) in all of {compared}: better in CPU per request, rate or latency, and worse in none of them.",
            runtimes.join(", ")
        ));
    }
    let (all, some): (Vec<_>, Vec<_>) =
        tallies.into_iter().partition(|(_, tally)| tally.ahead() == tally.standings.len());
    let mut clauses: Vec<String> = Vec::new();
    if !all.is_empty() {
        let names: Vec<&str> = all.iter().map(|(runtime, _)| *runtime).collect();
        clauses.push(format!("of {} in every cell", names.join(", ")));
    }
    clauses.extend(some.iter().map(|(runtime, tally)| format!("of {runtime} {}", tally.describe(result))));
    Some(format!("{head} in {ahead} of {compared}: {}.", clauses.join("; ")))
}

/// Result of the comparison of anello with a peer in one cell.
enum Standing {
    /// Anello is better by at least one measure and not worse by any.
    Ahead,
    /// Anello is worse by this measure, with this ratio.
    Behind(Measure, f64),
    /// There is no significant difference.
    Level,
    /// No measure has a verdict.
    TooNoisy,
}

fn standing_of(versus: &PairComparison) -> Standing {
    let verdicts = DECISIVE.map(|measure| (measure, measure.pair_verdict(versus)));
    let worse = verdicts.iter().find(|(measure, verdict)| measure.is_better(*verdict) == Some(false));
    if let Some((measure, _)) = worse {
        let by = measure.pair_ratio(versus).map_or(1.0, |ratio| ratio.estimate);
        return Standing::Behind(*measure, by);
    }
    if verdicts.iter().any(|(measure, verdict)| measure.is_better(*verdict) == Some(true)) {
        return Standing::Ahead;
    }
    let level = verdicts.iter().any(|(_, verdict)| *verdict == Verdict::NoDifference);
    if level { Standing::Level } else { Standing::TooNoisy }
}

/// Results of the comparison with one peer in all cells.
struct Tally {
    standings: Vec<Standing>,
}

impl Tally {
    fn count(&self, predicate: fn(&Standing) -> bool) -> usize {
        self.standings.iter().filter(|standing| predicate(standing)).count()
    }

    fn ahead(&self) -> usize {
        self.count(|standing| matches!(standing, Standing::Ahead))
    }

    /// Returns a summary such as "in 3 of 20 cells (16 no detectable difference, 1 too noisy for a verdict)".
    fn describe(&self, result: &LabResult) -> String {
        let behind: Vec<(Measure, f64)> = (self.standings.iter())
            .filter_map(|standing| match standing {
                Standing::Behind(measure, by) => Some((*measure, *by)),
                _ => None,
            })
            .collect();
        let distance = |(_, by): &&(Measure, f64)| by.ln().abs();
        let farthest = behind.iter().max_by(|left, right| distance(left).total_cmp(&distance(right)));
        let mut clauses = Vec::new();
        if let Some(&(measure, by)) = farthest {
            let how = format!("{} {}", difference(by, by, by > 1.0), measure_name(result, measure));
            let separator = if behind.len() > 1 { " by up to" } else { ":" };
            clauses.push(format!("{} behind{separator} {how}", behind.len()));
        }
        let others = [
            (self.count(|standing| matches!(standing, Standing::Level)), "no detectable difference"),
            (self.count(|standing| matches!(standing, Standing::TooNoisy)), "too noisy for a verdict"),
        ];
        let others = others.into_iter().filter(|(count, _)| *count > 0);
        clauses.extend(others.map(|(count, what)| format!("{count} {what}")));
        format!("in {} of {} ({})", self.ahead(), counted(self.standings.len(), "cell"), clauses.join(", "))
    }
}
