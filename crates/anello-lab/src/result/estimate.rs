//! Estimates and ratios with their confidence intervals.

use serde::{Deserialize, Serialize};

/// Median and quartiles of a set of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Median of the slices.
    pub median: f64,
    /// Lower quartile: a quarter of the slices have a smaller value.
    pub low_quartile: f64,
    /// Upper quartile: a quarter of the slices have a larger value.
    pub high_quartile: f64,
}

/// A value as a multiple of the reference's value, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the paired ratios, or the ratio of the medians when two runs are compared.
    pub estimate: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Number of paired ratios in the sample. When two runs are compared, the smaller of their two numbers.
    #[serde(default)]
    pub pairs: usize,
    /// Number of passes with at least one paired ratio. Each pass has its own processes. For idle connections, the
    /// number of rounds. When two runs are compared, the smaller of their two numbers.
    #[serde(default)]
    pub passes: usize,
    /// Exponent by which the interval was widened because of the small number of passes.
    #[serde(default = "default_stretch")]
    pub stretch: f64,
}

fn default_stretch() -> f64 {
    1.0
}
