//! Latencies that are kept: a histogram as a line of text, and the curve that is drawn of it.
//!
//! Every clean slice's histogram is added to the sum of its contender and cell; the sum is part of the result as
//! HdrHistogram V2 (compressed) in base64, the form that other tools read, so that later readers can ask for any
//! quantile and add up several runs without loss.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// The quantiles of a latency curve.
pub const CURVE_QUANTILES: [f64; 19] = [
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999,
    1.0,
];

/// The histogram as text.
///
/// # Errors
/// The cause in words; none is known that could arise.
pub fn encode(histogram: &Histogram<u64>) -> Result<String, String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .map_err(|error| format!("cannot keep the latencies: {error}"))?;
    Ok(STANDARD.encode(bytes))
}

/// The histogram that [`encode`] wrote, or any HdrHistogram V2 in base64, compressed or not.
///
/// # Errors
/// What is wrong with the text.
pub fn decode(text: &str) -> Result<Histogram<u64>, String> {
    let bytes =
        STANDARD.decode(text.trim()).map_err(|error| format!("the latencies are no base64: {error}"))?;
    Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| format!("the latencies are no HdrHistogram V2: {error}"))
}

/// Adds the values of one histogram to another, which may have other bounds.
pub fn add(sum: &mut Histogram<u64>, histogram: &Histogram<u64>) {
    if sum.add(histogram).is_ok() {
        return;
    }
    // It holds values beyond the bounds of the sum, and nothing has been added.
    for value in histogram.iter_recorded() {
        sum.saturating_record_n(value.value_iterated_to(), value.count_at_value());
    }
}

/// Latency in nanoseconds by quantile; empty for an empty histogram. Quantiles that the number of values cannot show
/// are left out, but for the last, the longest.
#[must_use]
pub fn curve(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let count = histogram.len() as f64;
    CURVE_QUANTILES
        .iter()
        .filter(|&&quantile| count > 0.0 && (quantile >= 1.0 || (1.0 - quantile) * count >= 1.0))
        .map(|&quantile| (quantile, histogram.value_at_quantile(quantile)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::latency_histogram;

    #[test]
    fn a_histogram_survives_as_text() {
        let mut histogram = latency_histogram();
        (1..=10_000u64).for_each(|value| histogram.saturating_record(value * 1_000));
        let text = encode(&histogram).unwrap();
        assert!(text.len() < 4_000, "{} characters", text.len());
        let back = decode(&text).unwrap();
        assert_eq!(back, histogram);
        assert!(decode("no base64!").unwrap_err().contains("base64"));
        assert!(decode("AAAA").unwrap_err().contains("HdrHistogram"));
    }

    #[test]
    fn a_curve_shows_only_what_the_values_can_show() {
        assert!(curve(&latency_histogram()).is_empty());
        let mut few = latency_histogram();
        (1..=100u64).for_each(|value| few.saturating_record(value * 1_000));
        let curve = curve(&few);
        assert!(curve.iter().any(|&(quantile, _)| quantile == 0.99));
        assert!(curve.iter().all(|&(quantile, _)| quantile <= 0.99 || quantile == 1.0));
        assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }
}
