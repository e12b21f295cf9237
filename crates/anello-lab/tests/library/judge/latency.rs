//! Stored latencies.

use anello_lab::latency::*;

#[test]
fn histogram_round_trips_as_text() {
    let mut histogram = latency_histogram();
    (1..=10_000u64).for_each(|value| histogram.saturating_record(value * 1_000));
    let text = encode(&histogram).unwrap();
    assert!(text.len() < 4_000, "{} characters", text.len());
    let decoded = decode(&text).unwrap();
    assert_eq!(decoded, histogram);
    assert!(decode("no base64!").unwrap_err().to_string().contains("base64"));
    assert!(decode("AAAA").unwrap_err().to_string().contains("HdrHistogram"));
}

#[test]
fn curve_omits_quantiles_with_too_few_values() {
    assert!(curve(&latency_histogram()).is_empty());
    let mut histogram = latency_histogram();
    (1..=100u64).for_each(|value| histogram.saturating_record(value * 1_000));
    let curve = curve(&histogram);
    assert!(curve.iter().any(|&(quantile, _)| quantile == 0.99));
    assert!(curve.iter().all(|&(quantile, _)| quantile <= 0.99 || quantile == 1.0));
    assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
}
