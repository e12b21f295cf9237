//! Stored latencies: histograms as text, and latency curves.
//!
//! The histogram of every clean slice is added to the sum for its contender and cell. The result contains the sum as
//! compressed HdrHistogram V2 in base64, a format that other tools can read. Any quantile can be computed from it
//! later, and the sums of several runs can be added without loss.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{
    DeserializeError, Deserializer, Serializer, V2DeflateSerializeError, V2DeflateSerializer,
};
use thiserror::Error;

/// Quantiles of a latency curve.
const CURVE_QUANTILES: [f64; 19] = [
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999,
    1.0,
];

/// Returns a histogram of 1 ns to 60 s with three significant digits. `saturating_record` clamps larger values.
pub fn latency_histogram() -> Histogram<u64> {
    // Copying a histogram is faster than filling its counts with zeros one by one, as it is done without optimization.
    static EMPTY: LazyLock<Histogram<u64>> = LazyLock::new(|| {
        Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
    });
    EMPTY.clone()
}

/// Reason why a histogram cannot be encoded or decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The histogram cannot be encoded. This is not expected to happen.
    #[error("cannot encode the latencies: {0}")]
    Encode(#[from] V2DeflateSerializeError),
    /// The text is not base64.
    #[error("latencies are not valid base64: {0}")]
    Base64(#[from] base64::DecodeError),
    /// The bytes are not an HdrHistogram V2.
    #[error("latencies are not a valid HdrHistogram V2: {0}")]
    Histogram(#[from] DeserializeError),
}

/// Encodes a histogram as text.
///
/// # Errors
/// Returns the error of the serializer, which is not expected to fail.
pub fn encode(histogram: &Histogram<u64>) -> Result<String, CodecError> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes)?;
    Ok(STANDARD.encode(bytes))
}

/// Decodes the output of [`encode`], or any HdrHistogram V2 in base64, compressed or not.
///
/// # Errors
/// Returns an error if the text is not base64, or not an HdrHistogram V2.
pub fn decode(text: &str) -> Result<Histogram<u64>, CodecError> {
    let bytes = STANDARD.decode(text.trim())?;
    Ok(Deserializer::new().deserialize(&mut bytes.as_slice())?)
}

/// Adds the values of one histogram to another, which may have different bounds.
pub fn add(sum: &mut Histogram<u64>, histogram: &Histogram<u64>) {
    if sum.add(histogram).is_ok() {
        return;
    }
    // The histogram has values outside the bounds of the sum. Nothing has been added yet.
    for value in histogram.iter_recorded() {
        sum.saturating_record_n(value.value_iterated_to(), value.count_at_value());
    }
}

/// Returns latencies in nanoseconds by quantile. Quantiles with too few values are omitted, except for the maximum.
pub fn curve(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let count = histogram.len() as f64;
    CURVE_QUANTILES
        .iter()
        .filter(|&&quantile| count > 0.0 && (quantile >= 1.0 || (1.0 - quantile) * count >= 1.0))
        .map(|&quantile| (quantile, histogram.value_at_quantile(quantile)))
        .collect()
}

/// Serializes a histogram with [`encode`].
pub(crate) mod text {
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub(crate) fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(histogram).map_err(ser::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        super::decode(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Serializes an optional histogram with [`encode`].
pub(crate) mod optional_text {
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    pub(crate) fn serialize<S: Serializer>(
        histogram: &Option<Histogram<u64>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = histogram.as_ref().map(super::encode).transpose();
        text.map_err(ser::Error::custom)?.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Histogram<u64>>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::decode(&text)).transpose().map_err(de::Error::custom)
    }
}
