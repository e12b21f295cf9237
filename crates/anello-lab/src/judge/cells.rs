//! Cell results: slow and fast phases of the machine, figures, and ratios to the reference. Only clean slices count.

use std::collections::HashMap;

use crate::judge::pairs::CleanSlices;
use crate::judge::statistics::phases::{self, Sample};
use crate::judge::statistics::quantile;
use crate::judge::verdict::{LATE_FRACTION_THRESHOLD, LOAD_BUSY_THRESHOLD, SERVER_BUSY_THRESHOLD};
use crate::plan::cell::{Cell, Workload};
use crate::plan::limits::{limit_reason, unsupported_reason};
use crate::plan::schedule::Random;
use crate::result::latency::{self, latency_histogram};
use crate::result::measure::Measure;
use crate::result::{
    CellResult, Consequence, ContenderRecord, Estimate, Failure, Figures, LabResult, Outcome, PhaseSummary,
    Quality, Ratio, Resolution, Row, Slice,
};

/// Fraction of the offered requests that must be answered for the offered rate to be considered reached.
const MIN_REACHED_FRACTION: f64 = 0.99;

/// Detects the machine's slow and fast phases in one cell and stores the phase in each clean slice.
pub(super) fn mark_phases(result: &mut LabResult, cell: usize) -> Option<PhaseSummary> {
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

/// Computes the result of one cell.
pub(super) fn analyse_cell(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cell_index: usize,
    phases: Option<PhaseSummary>,
) -> CellResult {
    // Number of excluded slices, by contender and quality.
    let mut excluded: HashMap<(usize, Quality), usize> = HashMap::new();
    for slice in result.slices.iter().filter(|slice| slice.cell == cell_index) {
        *excluded.entry((slice.contender, slice.quality)).or_default() += 1;
    }
    let count = |contender, quality| excluded.get(&(contender, quality)).copied().unwrap_or(0);
    let reference = result.contenders.iter().position(|contender| contender.name == result.plan.reference);
    let row = |contender: usize| Row {
        clean_slices: count(contender, Quality::Clean),
        stolen_slices: count(contender, Quality::Stolen),
        throttled_slices: count(contender, Quality::Throttled),
        invalid_slices: count(contender, Quality::Invalid),
        ..analyse_row(result, slices, cell_index, contender, reference)
    };
    CellResult {
        cell: result.plan.cells[cell_index],
        resolution: Resolution::default(),
        phases,
        rows: (0..result.contenders.len()).map(row).collect(),
    }
}

/// Computes the row of one contender, without the slice counts.
fn analyse_row(
    result: &LabResult,
    slices: &CleanSlices<'_>,
    cell_index: usize,
    contender: usize,
    reference: Option<usize>,
) -> Row {
    let (record, cell) = (&result.contenders[contender], &result.plan.cells[cell_index]);
    let clean = slices.all(cell_index, contender);
    let outcome = outcome_of(result, cell, record, clean.len());
    let measured = outcome == Outcome::Measured;
    let other = reference.filter(|&reference| measured && reference != contender);
    // Each comparison has its own random stream, so adding a contender does not change the other intervals.
    let mut random = Random::stream(result.plan.seed, 1000 + cell_index as u64 * 1000 + contender as u64);
    let (comparison, mixed_phase_rounds) = other
        .map(|other| slices.compare(cell_index, (contender, other), &Measure::ALL, &mut random))
        .unwrap_or_default();
    let cpu = |contender| slices.values(cell_index, contender, Measure::Cpu);
    let cpu_low_ratio = other
        .filter(|_| Measure::Cpu.applies(cell))
        .and_then(|other| Ratio::of_low_deciles(&cpu(contender), &cpu(other), &mut random));
    let idle = cell.workload == Workload::Idle;
    let memory: Vec<f64> = clean
        .iter()
        .filter_map(|slice| slice.memory_per_connection(cell.connections).filter(|_| idle && measured))
        .collect();
    let is_restart = |failure: &&Failure| {
        failure.contender == record.name
            && failure.cell == Some(*cell)
            && failure.consequence == Consequence::Restarted
    };
    Row {
        contender: record.name.clone(),
        clean_slices: 0,
        stolen_slices: 0,
        throttled_slices: 0,
        invalid_slices: 0,
        mixed_phase_rounds,
        restarts: result.failures.iter().filter(is_restart).count(),
        figures: if measured && !idle { figures_of(result, slices, cell_index, contender) } else { None },
        comparison,
        cpu_low_ratio,
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
    clean: &CleanSlices<'_>,
    cell_index: usize,
    contender: usize,
) -> Option<Figures> {
    let cell = &result.plan.cells[cell_index];
    let slices = clean.all(cell_index, contender);
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
    let share = plan.server_share_in(cell);
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
        total_cpu_ns: total_cpu_of(clean, cell_index, cell, contender),
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

/// Returns the combined CPU time of server and load generator per request, if it applies to the cell.
pub(super) fn total_cpu_of(
    slices: &CleanSlices<'_>,
    cell_index: usize,
    cell: &Cell,
    contender: usize,
) -> Option<Estimate> {
    let values = || slices.values(cell_index, contender, Measure::TotalCpu).concat();
    Measure::TotalCpu.applies(cell).then(values).and_then(|values| Estimate::of(&values))
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
