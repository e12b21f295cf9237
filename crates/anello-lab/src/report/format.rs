//! Numbers and times as people read them.

pub use crate::result::time::readable_time;
use crate::result::{Estimate, Ratio};
use crate::result::{Failure, Verdict};

/// Three or four significant digits with k or M: 987, 12.3k, 1.24M.
pub fn count(value: f64) -> String {
    match value {
        value if value >= 999_500.0 => format!("{:.2}M", value / 1e6),
        value if value >= 99_950.0 => format!("{:.0}k", value / 1e3),
        value if value >= 9_995.0 => format!("{:.1}k", value / 1e3),
        value if value >= 999.5 => format!("{:.2}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// Nanoseconds as microseconds with three significant digits: 4.21, 12.3, 1234.
pub fn micros(ns: f64) -> String {
    let micros = ns / 1e3;
    match micros {
        micros if micros >= 99.95 => format!("{micros:.0}"),
        micros if micros >= 9.995 => format!("{micros:.1}"),
        micros => format!("{micros:.2}"),
    }
}

/// A length of time that somebody has chosen, whole: 64 ms, 0.5 ms.
pub fn milliseconds(ns: u64) -> String {
    format!("{} ms", ns as f64 / 1e6)
}

/// Bytes with binary prefixes and three significant digits: 987 B, 4.21 KiB, 12.3 MiB.
pub fn bytes(bytes: f64) -> String {
    let magnitude = bytes.abs();
    let (value, unit) = match magnitude {
        magnitude if magnitude < 1000.0 => return format!("{bytes:.0} B"),
        magnitude if magnitude < 1000.0 * 1024.0 => (bytes / 1024.0, "KiB"),
        magnitude if magnitude < 1000.0 * 1024.0 * 1024.0 => (bytes / 1_048_576.0, "MiB"),
        _ => (bytes / 1_073_741_824.0, "GiB"),
    };
    match value.abs() {
        value_abs if value_abs >= 99.95 => format!("{value:.0} {unit}"),
        value_abs if value_abs >= 9.995 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

/// The spread of an estimate: ±1.2%, ±12%.
pub fn spread(estimate: &Estimate) -> String {
    let percent = estimate.spread() * 100.0;
    if percent < 9.95 { format!("±{percent:.1}%") } else { format!("±{percent:.0}%") }
}

/// A ratio's value: 0.94, 12.3.
pub fn times(value: f64) -> String {
    if value < 9.995 { format!("{value:.2}") } else { format!("{value:.1}") }
}

/// The interval of a ratio: 0.92–0.96.
pub fn interval(ratio: &Ratio) -> String {
    format!("{}–{}", times(ratio.low), times(ratio.high))
}

/// A sign for a verdict that does without colour.
pub fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::More => "▲",
        Verdict::Less => "▼",
        Verdict::NoDifference => "=",
        Verdict::TooNoisy => "?",
        Verdict::Reference | Verdict::NotComparable => " ",
    }
}

/// A fraction as a percentage: 1.2 %.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// The text if it fits into `width` characters, else its beginning and an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Equal failures told once, with the passes in which they happened, counted from 1: "1, 2, 5".
pub fn grouped(failures: &[Failure]) -> Vec<(&Failure, String)> {
    let mut groups: Vec<(&Failure, String)> = Vec::new();
    for failure in failures {
        let same = |(earlier, _): &&mut (&Failure, String)| {
            Failure { pass: earlier.pass, ..failure.clone() } == **earlier
        };
        let pass = (failure.pass + 1).to_string();
        match groups.iter_mut().find(same) {
            Some((_, passes)) => {
                passes.push_str(", ");
                passes.push_str(&pass);
            }
            None => groups.push((failure, pass)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_width() {
        let shown = [0.0, 999.4, 1_000.0, 12_345.0, 123_456.0, 999_600.0, 1_234_567.0].map(count);
        assert_eq!(shown, ["0", "999", "1.00k", "12.3k", "123k", "1.00M", "1.23M"]);
        assert_eq!([4_213.0, 12_345.0, 1_234_567.0].map(micros), ["4.21", "12.3", "1235"]);
        assert_eq!([12.0, 1024.0, 54_321.0, 4e9].map(bytes), ["12 B", "1.00 KiB", "53.0 KiB", "3.73 GiB"]);
        assert_eq!([0.9449, 12.34].map(times), ["0.94", "12.3"]);
        assert_eq!([64_000_000, 500_000, 250_001].map(milliseconds), ["64 ms", "0.5 ms", "0.250001 ms"]);
    }

    #[test]
    fn equal_failures_are_told_once() {
        let failure = |pass: usize, what: &str| Failure {
            contender: "one".to_owned(),
            cell: None,
            pass,
            what: what.to_owned(),
            consequence: crate::result::Consequence::SkippedPass,
        };
        let failures = [failure(0, "no"), failure(1, "never"), failure(2, "no")];
        let passes: Vec<String> = grouped(&failures).into_iter().map(|(_, passes)| passes).collect();
        assert_eq!(passes, ["1, 3", "2"]);
    }
}
