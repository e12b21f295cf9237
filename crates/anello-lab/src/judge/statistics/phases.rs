//! Slow and fast phases of the machine, recognised from the data.
//!
//! A virtual machine whose core is shared, or a CPU that changes its clock, may be slower by a factor of 1.6 for seconds
//! at a time and then fast again. Contenders that meet different phases differ by chance alone. In a cell many
//! contenders take turns of some ten milliseconds, so a phase shows as a run of slices, of different contenders, that
//! are all slow by the same factor against what is usual for each.
//!
//! The model, in logarithms: slowness of slice *i* of contender *c* = *own(c)* + *gap* × *phase(i)* + noise, with a phase
//! of 0 or 1 that seldom changes from one slice to the next. It is fitted in turns:
//!
//! 1. the residual of each slice is its slowness less its contender's own;
//! 2. the most likely sequence of phases is found, given gap and noise, where every change costs `CHANGE_COST` and a
//!    single slice counts for at most `MAX_OUTLIER_COST` (the Viterbi algorithm; first guess: a running mean cut in two);
//! 3. own values (medians), gap and noise are taken again with these phases.
//!
//! Phases are *believed* only if the gap is at least `MIN_GAP` and `MIN_SEPARATION` times the noise, each phase
//! holds a fair part of the slices, and phases last. Otherwise there is one phase, and nothing changes for anybody:
//! noise that is not in two levels, slow drift and single outliers are no phases.
//!
//! What that buys: comparing within a phase, a ratio is that of the contenders. What it costs are the rounds in which
//! the two sides met different phases. The tests hold it to this: with phases of factor 1.6 that change every few
//! seconds at random, no ratio is off by more than with a steady machine and as many rounds.

/// Natural logarithm of the least factor between two phases: 1.12. What is less is treated as noise.
const MIN_GAP: f64 = 0.113;

/// The gap must be at least so many times the noise of one slice.
const MIN_SEPARATION: f64 = 3.0;

/// A phase that holds fewer slices than this is a few outliers.
const MIN_SLICES: usize = 6;

/// Phases must last for so many slices on average.
const MIN_PHASE_LENGTH: usize = 4;

/// Slices that each contender must have on average: with fewer its own cost cannot be told from the phases it met.
const MIN_SLICES_PER_CONTENDER: usize = 4;

/// What a change of phase must gain, in units of squared noise.
const CHANGE_COST: f64 = 12.0;

/// Most that one slice can say for or against a phase, in the same units.
const MAX_OUTLIER_COST: f64 = 9.0;

/// Slices on either side in the running mean of the first guess.
const SMOOTHING_RADIUS: usize = 4;

/// Turns of the fit. It has settled after three or four.
const FIT_ITERATIONS: usize = 6;

/// One slice, as far as phases are concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Whose slice.
    pub contender: usize,
    /// Samples of one stretch follow each other closely in time; between stretches anything may have happened.
    pub stretch: usize,
    /// What a request cost, in any unit; greater than 0.
    pub cost: f64,
}

/// What the machine did.
#[derive(Debug, Clone, PartialEq)]
pub struct Phases {
    /// By sample: whether it ran in the slow phase.
    pub slow: Vec<bool>,
    /// How many times as much a request cost in the slow phase.
    pub slow_factor: f64,
}

impl Phases {
    /// Part of the samples in the slow phase.
    #[must_use]
    pub fn slow_fraction(&self) -> f64 {
        self.slow.iter().filter(|&&slow| slow).count() as f64 / self.slow.len().max(1) as f64
    }
}

/// Finds the phases of samples in the order of time; none if there is but one.
#[must_use]
pub fn find(samples: &[Sample]) -> Option<Phases> {
    if samples.len() < 2 * MIN_SLICES
        || samples.iter().any(|sample| sample.cost.is_nan() || sample.cost <= 0.0)
    {
        return None;
    }
    let mut contenders: Vec<usize> = samples.iter().map(|sample| sample.contender).collect();
    contenders.sort_unstable();
    contenders.dedup();
    if samples.len() < MIN_SLICES_PER_CONTENDER * contenders.len() {
        return None;
    }
    let slowness: Vec<f64> = samples.iter().map(|sample| sample.cost.ln()).collect();
    let mut slow = initial_phases(samples, &slowness)?;
    let (mut gap, mut noise) = (0.0, 0.0);
    for _ in 0..FIT_ITERATIONS {
        let residuals = residuals(samples, &slowness, &slow, gap);
        gap = level(&residuals, &slow, true)? - level(&residuals, &slow, false)?;
        noise = noise_of(&residuals, &slow, gap).max(1e-4);
        if gap <= 0.0 {
            return None;
        }
        let zero = level(&residuals, &slow, false)?;
        slow = most_likely_phases(samples, &residuals, zero, gap, noise);
    }
    let slices = slow.iter().filter(|&&slow| slow).count();
    let least = MIN_SLICES.max(samples.len() / 50);
    let believed = gap >= MIN_GAP
        && gap >= MIN_SEPARATION * noise
        && slices.min(samples.len() - slices) >= least
        && (changes(samples, &slow) + 1) * MIN_PHASE_LENGTH <= samples.len();
    believed.then(|| Phases { slow, slow_factor: gap.exp() })
}

/// How often the phase changes within stretches.
#[must_use]
pub fn changes(samples: &[Sample], slow: &[bool]) -> usize {
    let follows = |index: &usize| samples[*index].stretch == samples[index - 1].stretch;
    (1..samples.len()).filter(follows).filter(|&index| slow[index] != slow[index - 1]).count()
}

/// A running mean over the residuals of neighbours, cut in two where the two parts differ most.
fn initial_phases(samples: &[Sample], slowness: &[f64]) -> Option<Vec<bool>> {
    let residuals = residuals(samples, slowness, &vec![false; samples.len()], 0.0);
    let smooth: Vec<f64> = (0..samples.len())
        .map(|index| {
            let neighbours =
                index.saturating_sub(SMOOTHING_RADIUS)..(index + SMOOTHING_RADIUS + 1).min(samples.len());
            let near = neighbours.filter(|&other| samples[other].stretch == samples[index].stretch);
            let (sum, count) =
                near.fold((0.0, 0.0), |(sum, count), other| (sum + residuals[other], count + 1.0));
            sum / count
        })
        .collect();
    let cut = best_threshold(&smooth)?;
    Some(smooth.iter().map(|&value| value > cut).collect())
}

/// The value that cuts the values in two parts with the least variance within them.
fn best_threshold(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let total: f64 = sorted.iter().sum();
    let count = sorted.len() as f64;
    let mut below = 0.0;
    let mut best: Option<(f64, f64)> = None;
    for index in 1..sorted.len() {
        below += sorted[index - 1];
        let (left, right) = (index as f64, count - index as f64);
        let between = left * right * (below / left - (total - below) / right).powi(2);
        if best.is_none_or(|(most, _)| between > most) {
            best = Some((between, f64::midpoint(sorted[index - 1], sorted[index])));
        }
    }
    best.map(|(_, cut)| cut)
}

/// Slowness of each sample less its contender's own, which is the median after the gap has been taken off.
fn residuals(samples: &[Sample], slowness: &[f64], slow: &[bool], gap: f64) -> Vec<f64> {
    let contenders = samples.iter().map(|sample| sample.contender).max().map_or(0, |most| most + 1);
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); contenders];
    for ((sample, value), &slow) in samples.iter().zip(slowness).zip(slow) {
        values[sample.contender].push(value - if slow { gap } else { 0.0 });
    }
    // In the first turn nothing is known of phases: the mean shifts everybody alike where the median would jump.
    let own: Vec<f64> = values
        .iter_mut()
        .map(|values| match values.len() {
            0 => 0.0,
            count if gap == 0.0 => values.iter().sum::<f64>() / count as f64,
            _ => super::median(values),
        })
        .collect();
    samples.iter().zip(slowness).map(|(sample, value)| value - own[sample.contender]).collect()
}

/// The median residual of one phase.
fn level(residuals: &[f64], slow: &[bool], which: bool) -> Option<f64> {
    let of_phase = residuals.iter().zip(slow).filter(|&(_, &slow)| slow == which);
    let mut values: Vec<f64> = of_phase.map(|(&value, _)| value).collect();
    (!values.is_empty()).then(|| super::median(&mut values))
}

/// The noise of one slice: the median deviation from the level of its phase, scaled to a standard deviation.
fn noise_of(residuals: &[f64], slow: &[bool], gap: f64) -> f64 {
    let zero = level(residuals, slow, false).unwrap_or(0.0);
    let expected = |slow: bool| zero + if slow { gap } else { 0.0 };
    let mut deviations: Vec<f64> =
        residuals.iter().zip(slow).map(|(value, &slow)| (value - expected(slow)).abs()).collect();
    1.4826 * super::median(&mut deviations)
}

/// The cheapest sequence of phases: squared deviations in units of noise, and a price for each change.
fn most_likely_phases(samples: &[Sample], residuals: &[f64], zero: f64, gap: f64, noise: f64) -> Vec<bool> {
    let cost = |index: usize, slow: usize| {
        let deviation = (residuals[index] - zero - gap * slow as f64) / noise;
        (deviation * deviation).min(MAX_OUTLIER_COST)
    };
    // `came_from[i][s]`: the phase before sample i on the cheapest way that ends there in phase s.
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
