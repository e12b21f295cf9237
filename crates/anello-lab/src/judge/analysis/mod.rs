//! Analysis of a run: computes figures, ratios and verdicts from the measured slices.
//!
//! Each contender is compared with the reference and, if it names a base, with that base. The anello contenders are
//! also compared with every peer. These comparisons form three groups: peers with the same kind of I/O, async runtimes
//! with a different kind of I/O, and all other peers.
//!
//! Only clean slices count. A ratio is computed within a round, from two slices that ran shortly after each other and
//! in the same phase of the machine. A round yields no ratio if either contender has no clean slice or if the phase
//! changed between the two slices.

mod backfill;
mod comparability;

use std::collections::HashMap;

use crate::judge::statistics::phases::{self, Sample};
use crate::judge::statistics::quantile;
use crate::judge::verdict::{self, SERVER_BUSY_THRESHOLD};
use crate::plan::cell::{Cell, Workload};
use crate::plan::contender::Role;
use crate::plan::limits::{limit_reason, unsupported_reason};
use crate::plan::schedule::Random;
use crate::result::latency;
use crate::result::latency::latency_histogram;
use crate::result::measure::Measure;
use crate::result::{
    CellResult, Consequence, ContenderRecord, Figures, LabResult, Outcome, PairComparison, PhaseSummary,
    Quality, Row, Slice, Verdict,
};
use crate::result::{Estimate, Ratio};

pub use backfill::backfill;
pub use comparability::driver_family;

use comparability::{does_same_io, is_other_runtime, is_other_server};

/// Fraction of its cores' time above which the load generator counts as saturated.
pub const LOAD_BUSY_THRESHOLD: f64 = 0.95;

/// Fraction of the offered requests that must be answered for the offered rate to count as reached.
const MIN_REACHED_FRACTION: f64 = 0.99;

/// Fraction of late or unsent requests above which a finding reports them.
pub const LATE_FRACTION_THRESHOLD: f64 = 0.01;

/// First random stream of the comparisons with peers and bases. Comparisons with the reference use lower numbers.
const PAIR_STREAM_BASE: u64 = 1 << 40;

/// Computes the phases, cells, pair comparisons and findings of `result` from its plan, slices, latencies and failures.
pub fn analyse(result: &mut LabResult) {
    let phases: Vec<Option<PhaseSummary>> =
        (0..result.plan.cells.len()).map(|cell| mark_phases(result, cell)).collect();
    let analysed = {
        let index = SliceIndex::of(result);
        let cells = phases.into_iter().enumerate();
        let cells: Vec<CellResult> =
            cells.map(|(cell, phases)| analyse_cell(result, &index, cell, phases)).collect();
        let versus = compare_all_pairs(result, &index, &cells, does_same_io);
        let runtime_versus = compare_all_pairs(result, &index, &cells, is_other_runtime);
        let other_versus = compare_all_pairs(result, &index, &cells, is_other_server);
        let base_versus = compare_with_bases(result, &index, &cells);
        (cells, versus, runtime_versus, other_versus, base_versus)
    };
    (result.cells, result.versus, result.runtime_versus, result.other_versus, result.base_versus) = analysed;
    backfill::fill_total_cpu(result);
    verdict::judge(result);
}

/// Detects the machine's phases in one cell and stores the phase in each clean slice.
fn mark_phases(result: &mut LabResult, cell: usize) -> Option<PhaseSummary> {
    let idle = result.plan.cells[cell].workload == Workload::Idle;
    for slice in result.slices.iter_mut().filter(|slice| slice.cell == cell) {
        slice.phase = None;
    }
    let clean = |slice: &Slice| slice.cell == cell && slice.quality == Quality::Clean && slice.cpu_ns > 0;
    let mut indices: Vec<usize> =
        (0..result.slices.len()).filter(|&position| !idle && clean(&result.slices[position])).collect();
    indices.sort_by_key(|&position| (result.slices[position].pass, result.slices[position].start_ns));
    let samples: Vec<Sample> = indices
        .iter()
        .map(|&position| {
            let slice = &result.slices[position];
            Sample { contender: slice.contender, stretch: slice.pass, cost: slice.cpu_ns_per_request() }
        })
        .collect();
    let phases = phases::find(&samples)?;
    for (&position, &slow) in indices.iter().zip(&phases.slow) {
        result.slices[position].phase = Some(u8::from(slow));
    }
    Some(PhaseSummary {
        slow_factor: phases.slow_factor,
        slow_fraction: phases.slow_fraction(),
        changes: phases::changes(&samples, &phases.slow),
    })
}

/// Index of the slices by cell and contender.
struct SliceIndex<'a> {
    slices: HashMap<(usize, usize), Vec<&'a Slice>>,
}

impl<'a> SliceIndex<'a> {
    fn of(result: &'a LabResult) -> SliceIndex<'a> {
        let mut slices: HashMap<(usize, usize), Vec<&Slice>> = HashMap::new();
        for slice in &result.slices {
            slices.entry((slice.cell, slice.contender)).or_default().push(slice);
        }
        SliceIndex { slices }
    }

    fn all(&self, cell: usize, contender: usize) -> &[&'a Slice] {
        self.slices.get(&(cell, contender)).map_or(&[], Vec::as_slice)
    }

    fn clean(&self, cell: usize, contender: usize) -> impl Iterator<Item = &'a Slice> + '_ {
        self.all(cell, contender).iter().copied().filter(|slice| slice.quality == Quality::Clean)
    }

    /// Returns the values of the clean slices, grouped by pass.
    fn by_pass(
        &self,
        cell: usize,
        contender: usize,
        passes: usize,
        measure: Measure,
        of: &Cell,
    ) -> Vec<Vec<f64>> {
        let mut values = vec![Vec::new(); passes];
        for slice in self.clean(cell, contender) {
            if let (Some(pass), Some(value)) = (values.get_mut(slice.pass), measure.value(slice, of)) {
                pass.push(value);
            }
        }
        values
    }
}

/// Regroups values from passes to server processes. A process lives for one pass, except that idle connections are
/// measured on a new process in each round.
#[must_use]
pub fn by_process(passes: Vec<Vec<f64>>, cell: &Cell) -> Vec<Vec<f64>> {
    if cell.workload == Workload::Idle {
        passes.into_iter().flatten().map(|value| vec![value]).collect()
    } else {
        passes
    }
}

/// Paired ratios of two contenders in one cell.
struct Pairs {
    /// Ratios by pass: one for each round in which both contenders have a clean slice in the same phase.
    ratios: Vec<Vec<f64>>,
    /// Number of rounds in which the phase changed between the two slices.
    mixed_rounds: usize,
}

impl Pairs {
    fn of(
        index: &SliceIndex<'_>,
        plan_passes: usize,
        (cell_index, cell): (usize, &Cell),
        (left, right): (usize, usize),
        measure: Measure,
    ) -> Pairs {
        let mut right_slices: HashMap<(usize, usize), &Slice> = HashMap::new();
        for slice in index.clean(cell_index, right) {
            right_slices.entry((slice.pass, slice.round)).or_insert(slice);
        }
        let mut pairs = Pairs { ratios: vec![Vec::new(); plan_passes], mixed_rounds: 0 };
        let mut seen = std::collections::HashSet::new();
        for slice in index.clean(cell_index, left) {
            let position = (slice.pass, slice.round);
            let Some(other) = right_slices.get(&position).filter(|_| seen.insert(position)) else { continue };
            if slice.phase != other.phase {
                pairs.mixed_rounds += 1;
                continue;
            }
            let values = measure.value(slice, cell).zip(measure.value(other, cell));
            // The memory growth of a slice can be zero or negative, and then no ratio is defined.
            let values = values.filter(|&(left, right)| left > 0.0 && right > 0.0);
            let ratio = values.map(|(left, right)| left / right).filter(|ratio| ratio.is_finite());
            if let (Some(ratio), Some(pass)) = (ratio, pairs.ratios.get_mut(slice.pass)) {
                pass.push(ratio);
            }
        }
        pairs.ratios = by_process(pairs.ratios, cell);
        pairs
    }
}

fn analyse_cell(
    result: &LabResult,
    index: &SliceIndex<'_>,
    cell_index: usize,
    phases: Option<PhaseSummary>,
) -> CellResult {
    let cell = result.plan.cells[cell_index];
    let reference = result.contenders.iter().position(|contender| contender.name == result.plan.reference);
    let rows = (0..result.contenders.len())
        .map(|contender| analyse_row(result, index, (cell_index, &cell), contender, reference))
        .collect();
    CellResult {
        cell,
        rate_resolution: None,
        cpu_resolution: None,
        p50_resolution: None,
        p99_resolution: None,
        memory_resolution: None,
        cpu_of_both_resolution: None,
        phases,
        rows,
    }
}

fn analyse_row(
    result: &LabResult,
    index: &SliceIndex<'_>,
    (cell_index, cell): (usize, &Cell),
    contender: usize,
    reference: Option<usize>,
) -> Row {
    let record = &result.contenders[contender];
    let passes = result.plan.passes;
    let all = index.all(cell_index, contender);
    let count = |quality| all.iter().filter(|slice| slice.quality == quality).count();
    let outcome = outcome_of(result, cell, record, count(Quality::Clean));
    let measured = outcome == Outcome::Measured;
    let other = reference.filter(|&reference| measured && reference != contender);
    // Each comparison has its own random stream, so that adding a contender does not change the other intervals.
    let mut random = Random::stream(result.plan.seed, 1000 + cell_index as u64 * 1000 + contender as u64);
    let mut mixed_phase_rounds = 0;
    let mut ratio = |measure: Measure| {
        let other = other.filter(|_| measure.applies(cell))?;
        let pairs = Pairs::of(index, passes, (cell_index, cell), (contender, other), measure);
        mixed_phase_rounds = pairs.mixed_rounds;
        Ratio::of(&pairs.ratios, &mut random)
    };
    let (rate_ratio, cpu_ratio) = (ratio(Measure::Rate), ratio(Measure::Cpu));
    let (p50_ratio, p99_ratio) = (ratio(Measure::P50), ratio(Measure::P99));
    let memory_ratio = ratio(Measure::Memory);
    let low = |contender| index.by_pass(cell_index, contender, passes, Measure::Cpu, cell);
    let cpu_low_ratio = other
        .filter(|_| Measure::Cpu.applies(cell))
        .and_then(|other| Ratio::of_low_deciles(&low(contender), &low(other), &mut random));
    let idle = cell.workload == Workload::Idle;
    let memory: Vec<f64> = index
        .clean(cell_index, contender)
        .filter_map(|slice| slice.memory_per_connection(cell.connections).filter(|_| idle && measured))
        .collect();
    let restarts = result.failures.iter().filter(|failure| {
        failure.contender == record.name
            && failure.cell == Some(*cell)
            && failure.consequence == Consequence::Restarted
    });
    Row {
        contender: record.name.clone(),
        clean_slices: count(Quality::Clean),
        stolen_slices: count(Quality::Stolen),
        throttled_slices: count(Quality::Throttled),
        spoilt_slices: count(Quality::Invalid),
        mixed_phase_rounds,
        restarts: restarts.count(),
        figures: if measured && !idle { figures_of(result, index, cell_index, contender) } else { None },
        rate_ratio,
        cpu_ratio,
        cpu_low_ratio,
        p50_ratio,
        p99_ratio,
        memory_ratio,
        cpu_of_both_ratio: None,
        rate_verdict: Verdict::NotComparable,
        cpu_verdict: Verdict::NotComparable,
        p50_verdict: Verdict::NotComparable,
        p99_verdict: Verdict::NotComparable,
        memory_verdict: Verdict::NotComparable,
        cpu_of_both_verdict: Verdict::NotComparable,
        memory_per_connection_bytes: Estimate::of(&memory),
        instructions_per_request: result
            .instructions
            .as_ref()
            .and_then(|counts| counts.of(record.twin_of.as_deref().unwrap_or(&record.name), cell)),
        latency_curve: if measured { curve_of(result, cell_index, contender) } else { Vec::new() },
        outcome,
    }
}

fn outcome_of(result: &LabResult, cell: &Cell, record: &ContenderRecord, clean_slices: usize) -> Outcome {
    let failure_of = |name: &str, consequence: &[Consequence], here: Option<Cell>| {
        result
            .failures
            .iter()
            .find(|failure| {
                failure.contender == name
                    && consequence.contains(&failure.consequence)
                    && failure.cell == here
            })
            .map(|failure| failure.what.clone())
    };
    let original = record.twin_of.as_deref().unwrap_or(&record.name);
    if let Some(what) = failure_of(original, &[Consequence::NotTimed], None) {
        return Outcome::CheckFailed(what);
    }
    if let Some(why) = unsupported_reason(&record.serves, cell) {
        return Outcome::NotServed(why);
    }
    if let Some(why) = limit_reason(record.connections_limit, record.many_cores, cell) {
        return Outcome::BeyondLimit(why);
    }
    if let Some(what) =
        failure_of(&record.name, &[Consequence::LeftOut, Consequence::Disqualified], Some(*cell))
    {
        return Outcome::Failed(what);
    }
    if clean_slices > 0 {
        return Outcome::Measured;
    }
    match failure_of(&record.name, &[Consequence::SkippedPass], None) {
        Some(what) => Outcome::Skipped(what),
        None => Outcome::NotMeasured,
    }
}

fn figures_of(
    result: &LabResult,
    index: &SliceIndex<'_>,
    cell_index: usize,
    contender: usize,
) -> Option<Figures> {
    let cell = &result.plan.cells[cell_index];
    let slices: Vec<&Slice> = index.clean(cell_index, contender).collect();
    let values =
        |value: &dyn Fn(&Slice) -> f64| -> Vec<f64> { slices.iter().map(|slice| value(slice)).collect() };
    let estimate = |value: &dyn Fn(&Slice) -> f64| Estimate::of(&values(value));
    let middle = |value: &dyn Fn(&Slice) -> Option<f64>| {
        let values: Option<Vec<f64>> = slices.iter().map(|slice| value(slice)).collect();
        quantile(&values?, 0.5)
    };
    let cpu_ns = values(&Slice::cpu_ns_per_request);
    let server_busy = quantile(&values(&|slice| slice.cpu_ns as f64 / slice.elapsed_ns.max(1) as f64), 0.5)?;
    let load_busy = quantile(&values(&|slice| slice.load_busy), 0.5)?;
    let offered: Option<u64> = slices.iter().map(|slice| slice.offered).sum();
    let answered: u64 = slices.iter().map(|slice| slice.requests).sum();
    let reached_fraction = offered.map(|offered| answered as f64 / offered.max(1) as f64);
    let load_cores = result.plan.load_cores.len() as f64;
    let plan = &result.plan;
    let share = cell.server_share(plan.server_share, &plan.server_cores, &plan.load_cores);
    let of_offered = |count: fn(&Slice) -> u64| {
        offered.map(|offered| {
            slices.iter().map(|slice| count(slice)).sum::<u64>() as f64 / offered.max(1) as f64
        })
    };
    let (late_fraction, unsent_fraction) = (of_offered(|slice| slice.late), of_offered(|slice| slice.unsent));
    // At an offered rate, a busy load generator does not distort the figures as long as it sends on schedule.
    let behind = late_fraction
        .zip(unsent_fraction)
        .is_none_or(|(late, unsent)| late.max(unsent) > LATE_FRACTION_THRESHOLD);
    let uncorrected: Option<Vec<f64>> =
        slices.iter().map(|slice| slice.uncorrected_p99_ns.map(|ns| ns as f64)).collect();
    Some(Figures {
        requests_per_second: estimate(&Slice::requests_per_second)?,
        p50_ns: estimate(&|slice| slice.p50_ns as f64)?,
        p90_ns: estimate(&|slice| slice.p90_ns as f64)?,
        p99_ns: estimate(&|slice| slice.p99_ns as f64)?,
        p999_ns: estimate(&|slice| slice.p999_ns as f64)?,
        max_ns: slices.iter().map(|slice| slice.max_ns).max()?,
        uncorrected_p99_ns: uncorrected.and_then(|values| Estimate::of(&values)),
        cpu_ns: Estimate::of(&cpu_ns)?,
        cpu_of_both_ns: None,
        cpu_low_decile_ns: quantile(&cpu_ns, 0.1)?,
        server_busy,
        switches_per_request: middle(&|slice| {
            let switches = slice.voluntary_switches? + slice.involuntary_switches?;
            Some(switches as f64 / slice.requests.max(1) as f64)
        }),
        resident_bytes: middle(&|slice| slice.resident_bytes.map(|bytes| bytes as f64)),
        load_busy,
        load_bottleneck: behind
            && load_busy > LOAD_BUSY_THRESHOLD * load_cores
            && server_busy < SERVER_BUSY_THRESHOLD * share * cell.server_cores as f64,
        reached_fraction,
        rate_reached: reached_fraction.map(|fraction| fraction >= MIN_REACHED_FRACTION),
        late_fraction,
        unsent_fraction,
    })
}

/// Returns the latency curve over all clean slices. Skips records that cannot be decoded; no figure depends on them.
fn curve_of(result: &LabResult, cell: usize, contender: usize) -> Vec<(f64, u64)> {
    let mut sum = latency_histogram();
    let records =
        result.latencies.iter().filter(|record| record.cell == cell && record.contender == contender);
    for histogram in records.filter_map(|record| latency::decode(&record.histogram).ok()) {
        latency::add(&mut sum, &histogram);
    }
    latency::curve(&sum)
}

/// Compares each anello contender with every peer for which `compared` returns `true`, in every cell where both were
/// measured.
fn compare_all_pairs(
    result: &LabResult,
    index: &SliceIndex<'_>,
    cells: &[CellResult],
    compared: impl Fn(&ContenderRecord, &ContenderRecord) -> bool,
) -> Vec<PairComparison> {
    let is = |record: &ContenderRecord, role: Role| record.role == role && record.twin_of.is_none();
    let contenders = || result.contenders.iter().enumerate();
    let mut versus = Vec::new();
    for (peer_index, peer) in contenders().filter(|(_, record)| is(record, Role::Peer)) {
        for (own_index, own) in contenders().filter(|(_, record)| is(record, Role::Anello)) {
            if compared(own, peer) {
                versus.extend(compare_pair(result, index, cells, (own_index, peer_index)));
            }
        }
    }
    versus
}

/// Compares each contender that names a base with that base, in every cell where both were measured.
fn compare_with_bases(
    result: &LabResult,
    index: &SliceIndex<'_>,
    cells: &[CellResult],
) -> Vec<PairComparison> {
    let index_of = |name: &str| {
        result.contenders.iter().position(|record| record.name == name && record.twin_of.is_none())
    };
    let pair = |(own, record): (usize, &ContenderRecord)| {
        let base = index_of(record.base.as_deref()?)?;
        (base != own).then_some((own, base))
    };
    let versus = |(own, base): (usize, usize)| {
        if result.contenders[base].name == result.plan.reference {
            let cells = cells_with_both(cells, (own, base));
            cells.map(|(_, cell)| comparison_from_row(cell, own, &result.plan.reference)).collect()
        } else {
            compare_pair(result, index, cells, (own, base))
        }
    };
    let pairs = result.contenders.iter().enumerate().filter_map(pair);
    pairs.flat_map(versus).collect()
}

/// Compares two contenders in every cell where both were measured.
fn compare_pair(
    result: &LabResult,
    index: &SliceIndex<'_>,
    cells: &[CellResult],
    pair: (usize, usize),
) -> Vec<PairComparison> {
    let indices = cells_with_both(cells, pair);
    indices
        .map(|(position, cell)| compare_pair_in_cell(result, index, (position, &cell.cell), pair))
        .collect()
}

/// Returns the cells in which both contenders were measured, with their indices.
fn cells_with_both(
    cells: &[CellResult],
    (one, other): (usize, usize),
) -> impl Iterator<Item = (usize, &CellResult)> {
    let measured = |cell: &CellResult, contender: usize| {
        cell.rows.get(contender).is_some_and(|row| row.outcome == Outcome::Measured)
    };
    cells.iter().enumerate().filter(move |(_, cell)| measured(cell, one) && measured(cell, other))
}

/// Builds the comparison of a contender with the reference from the ratios of its row. Resampling them again would
/// give different intervals for the same pair within one report.
fn comparison_from_row(cell: &CellResult, contender: usize, reference: &str) -> PairComparison {
    let row = &cell.rows[contender];
    PairComparison {
        contender: row.contender.clone(),
        peer: reference.to_owned(),
        cell: cell.cell,
        mixed_phase_rounds: row.mixed_phase_rounds,
        rate_ratio: row.rate_ratio,
        cpu_ratio: row.cpu_ratio,
        p99_ratio: row.p99_ratio,
        memory_ratio: row.memory_ratio,
        cpu_of_both_ratio: None,
        rate_verdict: Verdict::NotComparable,
        cpu_verdict: Verdict::NotComparable,
        p99_verdict: Verdict::NotComparable,
        memory_verdict: Verdict::NotComparable,
        cpu_of_both_verdict: Verdict::NotComparable,
    }
}

fn compare_pair_in_cell(
    result: &LabResult,
    index: &SliceIndex<'_>,
    (cell_index, cell): (usize, &Cell),
    (own, peer): (usize, usize),
) -> PairComparison {
    let stream = PAIR_STREAM_BASE + ((cell_index as u64) << 24) + ((own as u64) << 12) + peer as u64;
    let mut random = Random::stream(result.plan.seed, stream);
    let mut mixed_phase_rounds = 0;
    let mut ratio = |measure: Measure| {
        let position = (cell_index, cell);
        let pairs = measure
            .applies(cell)
            .then(|| Pairs::of(index, result.plan.passes, position, (own, peer), measure))?;
        mixed_phase_rounds = pairs.mixed_rounds;
        Ratio::of(&pairs.ratios, &mut random)
    };
    let (rate_ratio, cpu_ratio) = (ratio(Measure::Rate), ratio(Measure::Cpu));
    let (p99_ratio, memory_ratio) = (ratio(Measure::P99), ratio(Measure::Memory));
    PairComparison {
        contender: result.contenders[own].name.clone(),
        peer: result.contenders[peer].name.clone(),
        cell: *cell,
        mixed_phase_rounds,
        rate_ratio,
        cpu_ratio,
        p99_ratio,
        memory_ratio,
        cpu_of_both_ratio: None,
        rate_verdict: Verdict::NotComparable,
        cpu_verdict: Verdict::NotComparable,
        p99_verdict: Verdict::NotComparable,
        memory_verdict: Verdict::NotComparable,
        cpu_of_both_verdict: Verdict::NotComparable,
    }
}
