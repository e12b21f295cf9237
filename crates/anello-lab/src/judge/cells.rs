//! Cell results: slow and fast phases of the machine, figures, and ratios to the reference. Only clean slices count.

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
    Quality, Ratio, Row, Slice,
};

/// Minimum fraction of the offered requests that must be answered for the offered rate to count as reached.
const MIN_REACHED_FRACTION: f64 = 0.99;

/// Detects the machine's slow and fast phases in one cell and stores the phase in each clean slice.
pub(super) fn mark_phases(result: &mut LabResult, cell: usize) -> Option<PhaseSummary> {
    let idle = result.plan.cells[cell].workload == Workload::Idle;
    let mut slices: Vec<&mut Slice> = result.slices.iter_mut().filter(|slice| slice.cell == cell).collect();
    slices.iter_mut().for_each(|slice| slice.phase = None);
    slices.retain(|slice| !idle && slice.quality == Quality::Clean && slice.cpu_ns > 0);
    slices.sort_by_key(|slice| (slice.pass, slice.start_ns));
    let sample = |slice: &&mut Slice| {
        let cost = slice.cpu_ns_per_request();
        Sample { contender: slice.contender, stretch: slice.pass, cost }
    };
    let samples: Vec<Sample> = slices.iter().map(sample).collect();
    let phases = phases::find(&samples)?;
    for (slice, &slow) in slices.iter_mut().zip(&phases.slow) {
        slice.phase = Some(u8::from(slow));
    }
    let slow_slices = phases.slow.iter().filter(|&&slow| slow).count();
    Some(PhaseSummary {
        slow_factor: phases.slow_factor,
        slow_fraction: slow_slices as f64 / samples.len() as f64,
        changes: phases::changes(&samples, &phases.slow),
    })
}

/// Computes the result of one cell, without verdicts.
pub(super) fn analyse_cell(
    slices: &CleanSlices<'_>,
    cell: usize,
    phases: Option<PhaseSummary>,
) -> CellResult {
    let result = slices.result;
    let of_cell: Vec<&Slice> = result.slices.iter().filter(|slice| slice.cell == cell).collect();
    let rows = (0..result.contenders.len()).map(|contender| analyse_row(slices, &of_cell, cell, contender));
    CellResult { cell: result.plan.cells[cell], resolution: Default::default(), phases, rows: rows.collect() }
}

/// Computes the row of one contender. `of_cell` contains all slices of the cell, including excluded ones.
fn analyse_row(clean: &CleanSlices<'_>, of_cell: &[&Slice], cell_index: usize, contender: usize) -> Row {
    let result = clean.result;
    let (record, cell) = (&result.contenders[contender], &result.plan.cells[cell_index]);
    let slices = clean.all(cell_index, contender);
    let outcome = outcome_of(result, cell, record, slices.len());
    let measured = outcome == Outcome::Measured;
    let idle = cell.workload == Workload::Idle;
    let reference = result.contenders.iter().position(|record| record.name == result.plan.reference);
    let other = reference.filter(|&reference| measured && reference != contender);
    // Each comparison has its own random stream, so adding a contender does not change the other intervals.
    let mut random = Random::stream(result.plan.seed, 1000 + cell_index as u64 * 1000 + contender as u64);
    let compare = |other| clean.compare(cell_index, contender, other, Measure::ALL, &mut random);
    let (comparison, mixed_phase_rounds) = other.map(compare).unwrap_or_default();
    let cpu = |contender| clean.values(cell_index, contender, Measure::Cpu);
    let cpu_low_ratio = other
        .filter(|_| Measure::Cpu.applies(cell))
        .and_then(|other| Ratio::of_low_deciles(&cpu(contender), &cpu(other), &mut random));
    let memory: Vec<f64> =
        slices.iter().filter_map(|slice| slice.memory_per_connection(cell.connections)).collect();
    let original = record.twin_of.as_deref().unwrap_or(&record.name);
    let is_restart = |failure: &&Failure| {
        failure.contender == record.name
            && failure.cell == Some(*cell)
            && failure.consequence == Consequence::Restarted
    };
    let count = |quality| {
        of_cell.iter().filter(|slice| slice.contender == contender && slice.quality == quality).count()
    };
    Row {
        contender: record.name.clone(),
        clean_slices: count(Quality::Clean),
        stolen_slices: count(Quality::Stolen),
        throttled_slices: count(Quality::Throttled),
        invalid_slices: count(Quality::Invalid),
        mixed_phase_rounds,
        restarts: result.failures.iter().filter(is_restart).count(),
        figures: if measured && !idle { figures_of(clean, cell_index, contender) } else { None },
        comparison,
        cpu_low_ratio,
        memory_per_connection_bytes: Estimate::of(&memory).filter(|_| idle && measured),
        instructions_per_request: result.instructions.as_ref().and_then(|counts| counts.of(original, cell)),
        latency_curve: if measured { curve_of(result, cell_index, contender) } else { Vec::new() },
        outcome,
    }
}

fn outcome_of(result: &LabResult, cell: &Cell, record: &ContenderRecord, clean_slices: usize) -> Outcome {
    let failure_of = |name: &str, consequences: &[Consequence], cell: Option<Cell>| {
        let matches = |failure: &&Failure| {
            failure.contender == name && consequences.contains(&failure.consequence) && failure.cell == cell
        };
        result.failures.iter().find(matches).map(|failure| failure.what.clone())
    };
    let original = record.twin_of.as_deref().unwrap_or(&record.name);
    let excluded = [Consequence::LeftOut, Consequence::Disqualified];
    failure_of(original, &[Consequence::NotTimed], None)
        .map(Outcome::CheckFailed)
        .or_else(|| unsupported_reason(&record.serves, cell).map(Outcome::NotServed))
        .or_else(|| limit_reason(record.connections_limit, record.many_cores, cell).map(Outcome::BeyondLimit))
        .or_else(|| failure_of(&record.name, &excluded, Some(*cell)).map(Outcome::Failed))
        .or_else(|| (clean_slices > 0).then_some(Outcome::Measured))
        .or_else(|| failure_of(&record.name, &[Consequence::SkippedPass], None).map(Outcome::Skipped))
        .unwrap_or(Outcome::NotMeasured)
}

fn figures_of(clean: &CleanSlices<'_>, cell_index: usize, contender: usize) -> Option<Figures> {
    let (plan, slices) = (&clean.result.plan, clean.all(cell_index, contender));
    let cell = &plan.cells[cell_index];
    // `None` unless the value of every slice is known.
    let known = |value: &dyn Fn(&Slice) -> Option<f64>| {
        Estimate::of(&slices.iter().map(|slice| value(slice)).collect::<Option<Vec<f64>>>()?)
    };
    let estimate = |value: &dyn Fn(&Slice) -> f64| known(&|slice| Some(value(slice)));
    let cpu_ns: Vec<f64> = slices.iter().map(|slice| slice.cpu_ns_per_request()).collect();
    let server_busy = estimate(&|slice| slice.cpu_ns as f64 / slice.elapsed_ns.max(1) as f64)?.median;
    let load_busy = estimate(&|slice| slice.load_busy)?.median;
    let switches = known(&|slice| {
        let switches = slice.voluntary_switches? + slice.involuntary_switches?;
        Some(switches as f64 / slice.requests.max(1) as f64)
    });
    let resident_bytes = known(&|slice| slice.resident_bytes.map(|bytes| bytes as f64));
    let offered: Option<u64> = slices.iter().map(|slice| slice.offered).sum();
    let of_offered = |count: fn(&Slice) -> u64| {
        let total: u64 = slices.iter().map(|slice| count(slice)).sum();
        offered.map(|offered| total as f64 / offered.max(1) as f64)
    };
    let reached_fraction = of_offered(|slice| slice.requests);
    let (late_fraction, unsent_fraction) = (of_offered(|slice| slice.late), of_offered(|slice| slice.unsent));
    // At an offered rate, a busy load generator does not distort the figures as long as it sends on schedule.
    let delayed = late_fraction.zip(unsent_fraction).map(|(late, unsent)| late.max(unsent));
    let is_behind = delayed.is_none_or(|fraction| fraction > LATE_FRACTION_THRESHOLD);
    let server_cores = plan.server_share_in(cell) * cell.server_cores as f64;
    Some(Figures {
        requests_per_second: estimate(&Slice::requests_per_second)?,
        p50_ns: estimate(&|slice| slice.p50_ns as f64)?,
        p90_ns: estimate(&|slice| slice.p90_ns as f64)?,
        p99_ns: estimate(&|slice| slice.p99_ns as f64)?,
        p999_ns: estimate(&|slice| slice.p999_ns as f64)?,
        max_ns: slices.iter().map(|slice| slice.max_ns).max()?,
        uncorrected_p99_ns: known(&|slice| slice.uncorrected_p99_ns.map(|ns| ns as f64)),
        cpu_ns: Estimate::of(&cpu_ns)?,
        total_cpu_ns: total_cpu_of(clean, cell_index, contender),
        cpu_low_decile_ns: quantile(&cpu_ns, 0.1)?,
        server_busy,
        switches_per_request: switches.map(|estimate| estimate.median),
        resident_bytes: resident_bytes.map(|estimate| estimate.median),
        load_busy,
        load_bottleneck: is_behind
            && load_busy > LOAD_BUSY_THRESHOLD * plan.load_cores.len() as f64
            && server_busy < SERVER_BUSY_THRESHOLD * server_cores,
        reached_fraction,
        rate_reached: reached_fraction.map(|fraction| fraction >= MIN_REACHED_FRACTION),
        late_fraction,
        unsent_fraction,
    })
}

/// Returns the CPU time per request, server and load generator combined, if this measure applies to the cell.
pub(super) fn total_cpu_of(slices: &CleanSlices<'_>, cell: usize, contender: usize) -> Option<Estimate> {
    let applies = Measure::TotalCpu.applies(&slices.result.plan.cells[cell]);
    Estimate::of(&slices.values(cell, contender, Measure::TotalCpu).concat()).filter(|_| applies)
}

/// Returns the latency curve over all clean slices. Skips records that cannot be decoded; no figure depends on them.
fn curve_of(result: &LabResult, cell: usize, contender: usize) -> Vec<(f64, u64)> {
    let mut sum = latency_histogram();
    let position = (cell, contender);
    for record in result.latencies.iter().filter(|record| (record.cell, record.contender) == position) {
        if let Ok(histogram) = latency::decode(&record.histogram) {
            latency::add(&mut sum, &histogram);
        }
    }
    latency::curve(&sum)
}
