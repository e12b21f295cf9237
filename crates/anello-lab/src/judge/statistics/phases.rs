//! Detection of slow and fast phases of the machine.
//!
//! A virtual machine on a shared core, or a CPU that changes its clock rate, can be slower by a factor of 1.6 for
//! seconds at a time. Contenders that run in different phases then differ by chance. Since the contenders of a cell
//! alternate every few milliseconds, a slow phase is a sequence of slices from different contenders that are all slower
//! than usual for their contender by the same factor.
//!
//! Model, in logarithms: slowness of a slice = *level of its contender* + *gap* × *phase* + noise, where the phase is 0
//! or 1 and rarely changes. It is fitted iteratively:
//!
//! 1. The residual of a slice is its slowness minus the level of its contender.
//! 2. The Viterbi algorithm finds the most likely sequence of phases for the current gap and noise. Each change costs
//!    `CHANGE_COST`; one slice costs at most `MAX_OUTLIER_COST`. The first estimate is a thresholded running mean.
//! 3. Levels (medians), gap and noise are recomputed with these phases.
//!
//! Phases are reported only if the gap is at least `MIN_GAP` and `MIN_SEPARATION` times the noise, both phases contain
//! enough slices, and phases last long enough. Noise around a single level, slow drift and isolated outliers are not
//! reported as phases.

use std::collections::HashSet;

/// Minimum gap between the phases: the natural logarithm of the factor 1.12.
const MIN_GAP: f64 = 0.113;

/// Minimum gap as a multiple of the noise of one slice.
const MIN_SEPARATION: f64 = 3.0;

/// Minimum number of slices in a phase.
const MIN_SLICES: usize = 6;

/// Minimum mean length of a phase, in slices.
const MIN_PHASE_LENGTH: usize = 4;

/// Minimum mean number of slices per contender. With fewer slices, the level of a contender cannot be separated from
/// the phases.
const MIN_SLICES_PER_CONTENDER: usize = 4;

/// Cost of a phase change, in units of squared noise.
const CHANGE_COST: f64 = 12.0;

/// Maximum cost of one slice, in the same units.
const MAX_OUTLIER_COST: f64 = 9.0;

/// Number of slices on each side of the centre in the running mean that is used for the first estimate.
const SMOOTHING_RADIUS: usize = 4;

/// Number of iterations. The fit converges after three or four.
const FIT_ITERATIONS: usize = 6;

/// Cost per request in one slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Index of the contender.
    pub contender: usize,
    /// Group of samples that follow each other closely in time. The phase can change between groups at no cost.
    pub stretch: usize,
    /// Cost per request, in any unit; greater than 0.
    pub cost: f64,
}

/// Slow and fast phases of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Phases {
    /// For each sample: `true` if it ran in the slow phase.
    pub slow: Vec<bool>,
    /// Cost per request in the slow phase, as a multiple of the cost in the fast phase.
    pub slow_factor: f64,
}

/// Returns the phases of `samples`, which must be in chronological order. `None` if there is only one phase.
pub fn find(samples: &[Sample]) -> Option<Phases> {
    let contenders: HashSet<usize> = samples.iter().map(|sample| sample.contender).collect();
    let min_samples = (2 * MIN_SLICES).max(MIN_SLICES_PER_CONTENDER * contenders.len());
    let is_invalid = |sample: &Sample| sample.cost.is_nan() || sample.cost <= 0.0;
    if samples.len() < min_samples || samples.iter().any(is_invalid) {
        return None;
    }
    let slowness: Vec<f64> = samples.iter().map(|sample| sample.cost.ln()).collect();
    let mut slow = initial_phases(samples, &slowness)?;
    let (mut gap, mut noise) = (0.0, 0.0);
    for _ in 0..FIT_ITERATIONS {
        let residuals = residuals(samples, &slowness, &slow, gap);
        let zero = level(&residuals, &slow, false)?;
        gap = level(&residuals, &slow, true)? - zero;
        if gap <= 0.0 {
            return None;
        }
        noise = noise_of(&residuals, &slow, zero, gap).max(1e-4);
        slow = viterbi_phases(samples, &residuals, zero, gap, noise);
    }
    let slow_slices = slow.iter().filter(|&&slow| slow).count();
    let is_significant = gap >= MIN_GAP.max(MIN_SEPARATION * noise)
        && slow_slices.min(samples.len() - slow_slices) >= MIN_SLICES.max(samples.len() / 50)
        && (changes(samples, &slow) + 1) * MIN_PHASE_LENGTH <= samples.len();
    is_significant.then(|| Phases { slow, slow_factor: gap.exp() })
}

/// Returns the number of phase changes within groups of consecutive samples.
pub fn changes(samples: &[Sample], slow: &[bool]) -> usize {
    let follows = |index: &usize| samples[*index].stretch == samples[index - 1].stretch;
    (1..samples.len()).filter(follows).filter(|&index| slow[index] != slow[index - 1]).count()
}

/// Returns a first estimate: a sample is slow if the running mean of the residuals exceeds the best threshold.
fn initial_phases(samples: &[Sample], slowness: &[f64]) -> Option<Vec<bool>> {
    let residuals = residuals(samples, slowness, &vec![false; samples.len()], 0.0);
    let mean = |index: usize| {
        let end = (index + SMOOTHING_RADIUS + 1).min(samples.len());
        let near = index.saturating_sub(SMOOTHING_RADIUS)..end;
        let near = near.filter(|&other| samples[other].stretch == samples[index].stretch);
        let (sum, count) = near.fold((0.0, 0.0), |(sum, count), other| (sum + residuals[other], count + 1.0));
        sum / count
    };
    let smooth: Vec<f64> = (0..samples.len()).map(mean).collect();
    let cut = best_threshold(&smooth)?;
    Some(smooth.iter().map(|&value| value > cut).collect())
}

/// Returns the threshold that splits the values into two parts such that the variance within the parts is smallest.
fn best_threshold(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let total: f64 = sorted.iter().sum();
    let count = sorted.len() as f64;
    let mut below = 0.0;
    let thresholds = sorted.windows(2).zip(1..).map(|(pair, index)| {
        below += pair[0];
        let (left, right) = (f64::from(index), count - f64::from(index));
        let between = left * right * (below / left - (total - below) / right).powi(2);
        (between, f64::midpoint(pair[0], pair[1]))
    });
    thresholds.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, cut)| cut)
}

/// Returns each sample's slowness minus its contender's level, the median after subtracting the gap from slow samples.
fn residuals(samples: &[Sample], slowness: &[f64], slow: &[bool], gap: f64) -> Vec<f64> {
    let contenders = samples.iter().map(|sample| sample.contender).max().map_or(0, |max| max + 1);
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); contenders];
    for ((sample, value), &slow) in samples.iter().zip(slowness).zip(slow) {
        values[sample.contender].push(value - if slow { gap } else { 0.0 });
    }
    // In the first iteration, the phases are unknown, so use the mean: it has a similar offset for all contenders,
    // whereas the median would jump between the phases.
    let level = |values: &mut Vec<f64>| match values.len() {
        0 => 0.0,
        count if gap == 0.0 => values.iter().sum::<f64>() / count as f64,
        _ => super::median(values),
    };
    let own: Vec<f64> = values.iter_mut().map(level).collect();
    samples.iter().zip(slowness).map(|(sample, value)| value - own[sample.contender]).collect()
}

/// Returns the median residual of one phase.
fn level(residuals: &[f64], slow: &[bool], which: bool) -> Option<f64> {
    let of_phase = residuals.iter().zip(slow).filter(|&(_, &slow)| slow == which);
    let mut values: Vec<f64> = of_phase.map(|(&value, _)| value).collect();
    (!values.is_empty()).then(|| super::median(&mut values))
}

/// Returns the noise of one slice: the median deviation from the level of its phase, scaled to a standard deviation.
fn noise_of(residuals: &[f64], slow: &[bool], zero: f64, gap: f64) -> f64 {
    let expected = |slow: bool| zero + if slow { gap } else { 0.0 };
    let mut deviations: Vec<f64> =
        residuals.iter().zip(slow).map(|(value, &slow)| (value - expected(slow)).abs()).collect();
    1.4826 * super::median(&mut deviations)
}

/// Returns the sequence of phases with the lowest cost: squared deviations in noise units plus costs of phase changes.
fn viterbi_phases(samples: &[Sample], residuals: &[f64], zero: f64, gap: f64, noise: f64) -> Vec<bool> {
    let cost = |index: usize, slow: usize| {
        let deviation = (residuals[index] - zero - gap * slow as f64) / noise;
        (deviation * deviation).min(MAX_OUTLIER_COST)
    };
    // `came_from[i][s]`: phase before sample i in the cheapest sequence that has phase s at i.
    let mut came_from: Vec<[usize; 2]> = vec![[0, 1]; samples.len()];
    let mut total = [cost(0, 0), cost(0, 1)];
    for index in 1..samples.len() {
        let price = if samples[index].stretch == samples[index - 1].stretch { CHANGE_COST } else { 0.0 };
        let mut next = [0.0; 2];
        for slow in 0..2 {
            let stays = total[slow] <= total[1 - slow] + price;
            came_from[index][slow] = if stays { slow } else { 1 - slow };
            next[slow] = total[slow].min(total[1 - slow] + price) + cost(index, slow);
        }
        total = next;
    }
    let mut phase = usize::from(total[1] < total[0]);
    let mut slow = vec![false; samples.len()];
    for index in (0..samples.len()).rev() {
        slow[index] = phase == 1;
        phase = came_from[index][phase];
    }
    slow
}
