//! Comparison of the anello contenders with their peers across all cells.

use crate::judge::comparisons::driver_family;
use crate::plan::cell::{Workload, counted};
use crate::plan::contender::Kind;
use crate::result::measure::Measure;
use crate::result::{ContenderRecord, LabResult, PairComparison, Verdict};

/// Minimum number of connections in the cells in which runtimes are compared.
pub const MANY_CONNECTIONS: usize = 50;

/// Measures that determine which runtime is ahead.
const DECISIVE: [Measure; 3] = [Measure::Cpu, Measure::Rate, Measure::P99];

/// Returns the peers of an anello contender, each with its comparisons: first the peers with the same kind of I/O, then
/// other runtimes, then all other peers.
pub fn peers_of<'a>(result: &'a LabResult, own: &str) -> Vec<(&'a str, Vec<&'a PairComparison>)> {
    by_peer(result.all_pair_comparisons().filter(|pair| pair.contender == own))
}

fn by_peer<'a>(pairs: impl Iterator<Item = &'a PairComparison>) -> Vec<(&'a str, Vec<&'a PairComparison>)> {
    let mut peers: Vec<(&str, Vec<&PairComparison>)> = Vec::new();
    for pair in pairs {
        match peers.iter_mut().find(|(peer, _)| *peer == pair.peer) {
            Some((_, pairs)) => pairs.push(pair),
            None => peers.push((&pair.peer, vec![pair])),
        }
    }
    peers
}

/// Comparisons between an anello contender and its decisive peers, as defined by [`decision`].
#[derive(Debug, Clone, Default)]
pub struct Decision<'a> {
    /// Number and kind of the peers, for example "6 io_uring peers".
    pub peers: String,
    /// Number of comparisons in which anello is better.
    pub better: usize,
    /// Number of comparisons without a significant difference.
    pub equal: usize,
    /// Number of comparisons that are too noisy.
    pub noisy: usize,
    /// Comparisons in which the peer is better, each with its measure.
    pub lost: Vec<(Measure, &'a PairComparison)>,
    /// For each comparison without a significant difference, the smallest difference that it can detect, as a fraction:
    /// the noise floor of the cell or half the width of the interval, whichever is larger.
    pub(crate) undetectable: Vec<f64>,
}

impl Decision<'_> {
    /// Returns the number of comparisons.
    #[must_use]
    pub fn comparisons(&self) -> usize {
        self.better + self.equal + self.noisy + self.lost.len()
    }
}

/// Compares an anello contender with its decisive peers by all measures. For HTTP, all peers are decisive, because
/// users choose HTTP servers regardless of their kind of I/O. For other workloads, only the peers with the same kind of
/// I/O are decisive. `None` if there are no comparisons.
#[must_use]
pub fn decision<'a>(result: &'a LabResult, own: &ContenderRecord) -> Option<Decision<'a>> {
    decision_by(result, own, &Measure::ALL)
}

/// Like [`decision`], but uses only these measures.
pub fn decision_by<'a>(
    result: &'a LabResult,
    own: &ContenderRecord,
    measures: &[Measure],
) -> Option<Decision<'a>> {
    let others = result.runtime_comparisons.iter().chain(&result.other_comparisons);
    let pairs =
        result.peer_comparisons.iter().chain(others.filter(|pair| pair.cell.workload.target().is_some()));
    let pairs: Vec<&PairComparison> = pairs.filter(|pair| pair.contender == own.name).collect();
    let mut decision = Decision { peers: counted_peers(result, own, &pairs), ..Decision::default() };
    for (&measure, &pair) in measures.iter().flat_map(|measure| pairs.iter().map(move |pair| (measure, pair)))
    {
        let verdict = pair.comparison.verdict(measure);
        match (measure.is_better(verdict), verdict) {
            (Some(true), _) => decision.better += 1,
            (Some(false), _) => decision.lost.push((measure, pair)),
            (None, Verdict::TooNoisy) => decision.noisy += 1,
            (None, Verdict::NoDifference) => {
                decision.equal += 1;
                let cell = result.cells.iter().find(|cell| cell.cell == pair.cell);
                let floor = cell.and_then(|cell| measure.resolution(cell));
                decision.undetectable.extend(floor.zip(pair.comparison.ratio(measure)).map(
                    |(floor, ratio)| floor.max(ratio.estimate - ratio.low).max(ratio.high - ratio.estimate),
                ));
            }
            (None, _) => {}
        }
    }
    (decision.comparisons() > 0).then_some(decision)
}

/// Formats the number of peers in these comparisons. Adds their kind of I/O if some peers are not included.
fn counted_peers(result: &LabResult, own: &ContenderRecord, pairs: &[&PairComparison]) -> String {
    let peers = by_peer(pairs.iter().copied());
    let count = counted(peers.len(), "peer");
    let is_counted = |name: &str| peers.iter().any(|(peer, _)| *peer == name);
    let all_counted = peers_of(result, &own.name).iter().all(|(peer, _)| is_counted(peer));
    let Some(family) = driver_family(own).filter(|_| !all_counted) else { return count };
    let mut records = result.contenders.iter().filter(|record| is_counted(&record.name));
    if records.all(|record| driver_family(record) == Some(family)) {
        return counted(peers.len(), &format!("{family} peer"));
    }
    // Some of these peers have an unknown driver or one that is in neither family.
    counted(peers.len(), if family == "epoll" { "non-io_uring peer" } else { "non-epoll peer" })
}

/// Result of comparing anello with a runtime in one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// Anello is better on at least one measure and not worse on any.
    Ahead,
    /// Anello is worse on this measure. The number is the ratio.
    Behind(Measure, f64),
    /// There is no significant difference.
    Equal,
    /// No measure has a verdict.
    TooNoisy,
}

/// Returns the standings of an anello contender against each async runtime, whatever its kind of I/O, in echo cells
/// with at least 50 connections.
#[must_use]
pub fn runtimes<'a>(result: &'a LabResult, own: &str) -> Vec<(&'a str, Vec<Standing>)> {
    let is_runtime = |name: &str| {
        result.contenders.iter().any(|peer| peer.name == name && peer.kind == Some(Kind::Runtime))
    };
    let pairs = result.peer_comparisons.iter().chain(&result.runtime_comparisons).filter(|pair| {
        pair.contender == own
            && pair.cell.connections >= MANY_CONNECTIONS
            && matches!(pair.cell.workload, Workload::Echo { .. })
            && is_runtime(&pair.peer)
    });
    let mut runtimes = by_peer(pairs);
    runtimes.sort_unstable_by_key(|(runtime, _)| *runtime);
    let standings = |pairs: Vec<&PairComparison>| pairs.into_iter().map(standing).collect();
    runtimes.into_iter().map(|(runtime, pairs)| (runtime, standings(pairs))).collect()
}

fn standing(pair: &PairComparison) -> Standing {
    let verdicts = DECISIVE.map(|measure| (measure, pair.comparison.verdict(measure)));
    let with =
        |better| verdicts.iter().find(|(measure, verdict)| measure.is_better(*verdict) == Some(better));
    if let Some((measure, _)) = with(false) {
        Standing::Behind(*measure, pair.comparison.ratio(*measure).map_or(1.0, |ratio| ratio.estimate))
    } else if with(true).is_some() {
        Standing::Ahead
    } else if verdicts.iter().any(|(_, verdict)| *verdict == Verdict::NoDifference) {
        Standing::Equal
    } else {
        Standing::TooNoisy
    }
}
