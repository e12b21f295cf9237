//! Formatting of numbers in text for people.

/// Formats a duration in ns, µs, ms or s, with about three significant digits.
pub fn format_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        ..1e6 => (ns / 1e3, "µs"),
        ..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

pub fn format_count(count: impl TryInto<u64>) -> String {
    group_digits(count.try_into().unwrap_or(u64::MAX) as f64)
}

/// Formats a number as an integer with commas, such as 1,234,567.
pub fn group_digits(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0)).into_bytes();
    // Groups of three digits from the end.
    let groups = digits.rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_durations_and_counts() {
        assert_eq!(
            [7.0, 812.0, 1_234.0, 56_789.0, 123_456.0].map(format_ns),
            ["7.00 ns", "812 ns", "1.23 µs", "56.8 µs", "123 µs"]
        );
        assert_eq!([5e6, 1.5e9].map(format_ns), ["5.00 ms", "1.50 s"]);
        assert_eq!([0.0, 999.0, 1000.0, 1_234_567.8].map(group_digits), ["0", "999", "1,000", "1,234,568"]);
    }
}
