//! Writer for the Prometheus text format, version 0.0.4: families of samples, each with a help line and a type line.

use std::fmt::{self, Display};
use std::io::Write;

/// Appends metric families to a buffer.
pub(super) struct Exposition<'a>(pub &'a mut Vec<u8>);

/// Type of a family, as written in its `# TYPE` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

/// Value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Integer(u64),
    /// A time. Rendered in seconds, the base unit of Prometheus, without rounding.
    Nanoseconds(u64),
}

impl Exposition<'_> {
    /// Starts a family. All its samples must be added before the next family starts.
    pub(super) fn family(&mut self, name: &str, kind: FamilyKind, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.append(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds a sample: `name{label="value",…} value`.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Value) {
        self.append(format_args!("{name}"));
        for (index, (label, content)) in labels.iter().enumerate() {
            let separator = if index == 0 { "{" } else { "," };
            let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.append(format_args!("{separator}{label}=\"{content}\""));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.append(format_args!("{end} {value}\n"));
    }

    /// Adds a family that consists of one sample without labels.
    pub(super) fn single(&mut self, name: &str, kind: FamilyKind, help: &str, value: Value) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn append(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a `Vec` cannot fail.
        self.0.write_fmt(text).unwrap_or_default();
    }
}

impl Display for FamilyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

impl Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(formatter),
            Self::Nanoseconds(nanoseconds) => {
                let text = format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
                formatter.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Returns `true` if a string is a valid metric or label name: ASCII letters, digits and underscores, not starting with
/// a digit.
pub(super) fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_rendered_as_exact_seconds() {
        for (nanoseconds, text) in [
            (0, "0"),
            (1024, "0.000001024"),
            (1_000_000_000, "1"),
            (10_500_000_000, "10.5"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Value::Nanoseconds(nanoseconds).to_string(), text);
        }
        assert_eq!(Value::Integer(u64::MAX).to_string(), "18446744073709551615");
    }
}
