//! Formatting of numbers as text.

use crate::result::{Estimate, Ratio, Verdict};

/// Formats a number with three or four significant digits: 987, 12.3k, 1.24M.
pub fn count(value: f64) -> String {
    match value {
        value if value >= 999_500.0 => format!("{:.2}M", value / 1e6),
        value if value >= 99_950.0 => format!("{:.0}k", value / 1e3),
        value if value >= 9_995.0 => format!("{:.1}k", value / 1e3),
        value if value >= 999.5 => format!("{:.2}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// Formats a number with three significant digits: 4.21, 12.3, 1234.
fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn micros(ns: f64) -> String {
    three_digits(ns / 1e3)
}

/// Formats nanoseconds as milliseconds without rounding: 64 ms, 0.5 ms.
pub fn milliseconds(ns: u64) -> String {
    format!("{} ms", ns as f64 / 1e6)
}

/// Formats bytes with binary prefixes: 987 B, 4.21 KiB, 12.3 MiB.
pub fn bytes(bytes: f64) -> String {
    let units = [("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];
    match units.into_iter().rfind(|(_, size)| bytes.abs() >= size / 1024.0 * 1000.0) {
        Some((unit, size)) => format!("{} {unit}", three_digits(bytes / size)),
        None => format!("{bytes:.0} B"),
    }
}

/// Formats the spread of an estimate: ±1.2%, ±12%.
pub fn spread(estimate: &Estimate) -> String {
    let percent = estimate.spread() * 100.0;
    if percent < 9.95 { format!("±{percent:.1}%") } else { format!("±{percent:.0}%") }
}

/// Formats a ratio: 0.94, 12.3.
pub fn times(value: f64) -> String {
    if value < 9.995 { format!("{value:.2}") } else { format!("{value:.1}") }
}

/// Formats the interval of a ratio: 0.92–0.96.
pub fn interval(ratio: &Ratio) -> String {
    format!("{}–{}", times(ratio.low), times(ratio.high))
}

pub fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::More => "▲",
        Verdict::Less => "▼",
        Verdict::NoDifference => "=",
        Verdict::TooNoisy => "?",
        Verdict::Reference | Verdict::NotComparable => " ",
    }
}

/// Formats a fraction as a percentage: 1.2 %.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Formats the label of an axis mark with as few digits as possible: 0, 2.5, 150k.
pub fn axis_label(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", (value * 100.0).round() / 100.0)
}

/// Returns the text if it has at most `width` characters, otherwise its start and an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Converts words to a file name of lower-case letters, digits and hyphens.
pub fn file_name(words: &str) -> String {
    let words = words.to_ascii_lowercase();
    let words = words.split(|character: char| !character.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_file_names_are_formatted() {
        let shown = [0.0, 999.4, 1_000.0, 12_345.0, 123_456.0, 999_600.0, 1_234_567.0].map(count);
        assert_eq!(shown, ["0", "999", "1.00k", "12.3k", "123k", "1.00M", "1.23M"]);
        assert_eq!([4_213.0, 12_345.0, 1_234_567.0].map(micros), ["4.21", "12.3", "1235"]);
        assert_eq!([12.0, 1024.0, 54_321.0, 4e9].map(bytes), ["12 B", "1.00 KiB", "53.0 KiB", "3.73 GiB"]);
        assert_eq!([0.9449, 12.34].map(times), ["0.94", "12.3"]);
        assert_eq!([64_000_000, 500_000, 250_001].map(milliseconds), ["64 ms", "0.5 ms", "0.250001 ms"]);
        let labels = [0.0, 2.5, 20_000.0, 150_000.0, 1_500_000.0].map(axis_label);
        assert_eq!(labels, ["0", "2.5", "20k", "150k", "1.5M"]);
        assert_eq!(file_name("Echo, 128 bytes / p99 µs"), "echo-128-bytes-p99-s");
    }
}
