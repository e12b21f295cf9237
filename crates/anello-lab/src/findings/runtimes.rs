//! Anello against the async runtimes among the peers, whichever way they do I/O, where connections are many.

use super::{counted, difference, figure_name, listed};
use crate::cell::Workload;
use crate::peers::Kind;
use crate::result::{LabResult, Verdict, Versus};
use crate::verdict::Figure;

/// From so many connections on anello is to be ahead of every runtime.
const MANY_CONNECTIONS: usize = 50;

/// The figures that decide who is ahead where data flow.
const DECISIVE: [Figure; 3] = [Figure::Cpu, Figure::Rate, Figure::P99];

/// A sentence for each of anello's contenders that met runtimes.
pub fn sentences(result: &LabResult) -> Vec<String> {
    result.contenders.iter().filter_map(|contender| sentence(result, &contender.name)).collect()
}

fn sentence(result: &LabResult, name: &str) -> Option<String> {
    let runtime = |versus: &&Versus| {
        let peer = result.contenders.iter().find(|record| record.name == versus.peer);
        peer.is_some_and(|peer| peer.kind == Some(Kind::Runtime))
    };
    let met: Vec<&Versus> = result
        .versus
        .iter()
        .chain(&result.runtime_versus)
        .filter(|versus| versus.contender == name && versus.cell.connections >= MANY_CONNECTIONS)
        .filter(|versus| matches!(versus.cell.workload, Workload::Echo { .. }))
        .filter(runtime)
        .collect();
    if met.is_empty() {
        return None;
    }
    let mut runtimes: Vec<&str> = met.iter().map(|versus| versus.peer.as_str()).collect();
    runtimes.sort_unstable();
    runtimes.dedup();
    let not_ahead: Vec<String> = met
        .iter()
        .filter_map(|versus| {
            Some(format!("{} at {} ({})", versus.peer, versus.cell, obstacle(result, versus)?))
        })
        .collect();
    let compared = counted(met.len(), "comparison");
    let against = format!("{} ({})", counted(runtimes.len(), "async runtime"), runtimes.join(", "));
    Some(if not_ahead.is_empty() {
        format!(
            "At {MANY_CONNECTIONS} connections and more {name} is ahead of {against} in all of {compared}: better in CPU per \
             request, rate or latency, and worse in none of them."
        )
    } else {
        format!(
            "At {MANY_CONNECTIONS} connections and more {name} is ahead of {against} in {} of {compared}; not of {}.",
            met.len() - not_ahead.len(),
            listed(&not_ahead)
        )
    })
}

/// Why anello is not ahead in a comparison; none if it is: better in one figure at least and worse in none.
fn obstacle(result: &LabResult, versus: &Versus) -> Option<String> {
    let verdicts = DECISIVE.map(|figure| (figure, figure.versus_verdict(versus)));
    let worse = verdicts.iter().find(|(figure, verdict)| figure.is_better(*verdict) == Some(false));
    if let Some((figure, _)) = worse {
        let by = figure.versus_ratio(versus).map_or(1.0, |ratio| ratio.estimate);
        return Some(format!("{} {}", difference(by, by, by > 1.0), figure_name(result, *figure)));
    }
    if verdicts.iter().any(|(figure, verdict)| figure.is_better(*verdict) == Some(true)) {
        return None;
    }
    let level = verdicts.iter().any(|(_, verdict)| *verdict == Verdict::NoDifference);
    Some(if level { "no detectable difference" } else { "too noisy to tell" }.to_owned())
}
