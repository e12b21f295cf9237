//! Writer for the Prometheus text format, version 0.0.4: families of samples, each with a help and a type line.

/// Appends metric families to a buffer.
pub(super) struct Exposition<'a> {
    text: &'a mut Vec<u8>,
}

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

impl<'a> Exposition<'a> {
    pub(super) fn new(text: &'a mut Vec<u8>) -> Self {
        Self { text }
    }

    /// Starts a family. All its samples must be added before the next family starts.
    pub(super) fn family(&mut self, name: &str, kind: FamilyKind, help: &str) {
        self.push(&["# HELP ", name, " "]);
        for character in help.chars() {
            match character {
                '\\' => self.push(&["\\\\"]),
                '\n' => self.push(&["\\n"]),
                _ => self.push_char(character),
            }
        }
        let kind = match kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        };
        self.push(&["\n# TYPE ", name, " ", kind, "\n"]);
    }

    /// Adds a sample: `name{label="value",…} value`.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Value) {
        self.push(&[name]);
        for (index, (label, content)) in labels.iter().enumerate() {
            self.push(&[if index == 0 { "{" } else { "," }, label, "=\""]);
            for character in content.chars() {
                match character {
                    '\\' => self.push(&["\\\\"]),
                    '"' => self.push(&["\\\""]),
                    '\n' => self.push(&["\\n"]),
                    _ => self.push_char(character),
                }
            }
            self.push(&["\""]);
        }
        self.push(&[if labels.is_empty() { " " } else { "} " }]);
        self.push(&[&value.text(), "\n"]);
    }

    /// Adds a family of one sample without labels.
    pub(super) fn single(&mut self, name: &str, kind: FamilyKind, help: &str, value: Value) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.extend_from_slice(part.as_bytes()));
    }

    fn push_char(&mut self, character: char) {
        self.push(&[character.encode_utf8(&mut [0; 4])]);
    }
}

impl Value {
    pub(super) fn text(self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Nanoseconds(nanoseconds) => {
                let text = format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
        }
    }
}

/// Returns whether a string is a valid metric or label name: ASCII letters, digits and underscores, not starting with a
/// digit.
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
        let text = |nanoseconds| Value::Nanoseconds(nanoseconds).text();
        assert_eq!([0, 1024, 1_000_000_000, 10_500_000_000].map(text), ["0", "0.000001024", "1", "10.5"]);
        assert_eq!(text(u64::MAX), "18446744073.709551615");
        assert_eq!(Value::Integer(u64::MAX).text(), "18446744073709551615");
    }

    #[test]
    fn name_allows_only_letters_digits_and_underscores() {
        assert!(["a", "_", "a9_B"].into_iter().all(is_name));
        assert!(!["", "9a", "a-b", "ä", "a b", "a\n"].into_iter().any(is_name));
    }
}
