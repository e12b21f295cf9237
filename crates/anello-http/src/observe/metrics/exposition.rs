//! The text format of Prometheus, version 0.0.4: families of samples, each with a help and a type line.

/// Writes families to the end of a buffer.
pub(super) struct Exposition<'a> {
    text: &'a mut Vec<u8>,
}

/// What a family is, as its type line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// A time, written in seconds as Prometheus wants all times, without rounding.
    Nanoseconds(u64),
}

impl<'a> Exposition<'a> {
    pub(super) fn new(text: &'a mut Vec<u8>) -> Self {
        Self { text }
    }

    /// Begins a family. All its samples must follow before the next begins.
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

    fn push(&mut self, pieces: &[&str]) {
        pieces.iter().for_each(|piece| self.text.extend_from_slice(piece.as_bytes()));
    }

    fn push_char(&mut self, character: char) {
        self.push(&[character.encode_utf8(&mut [0; 4])]);
    }
}

impl Value {
    pub(super) fn text(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Nanoseconds(nanoseconds) => {
                let text = format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
        }
    }
}

/// Whether a name may stand for a metric or a label: letters, digits and underscores, the first no digit.
pub(super) fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_seconds_without_rounding() {
        let text = |nanoseconds| Value::Nanoseconds(nanoseconds).text();
        assert_eq!([0, 1024, 1_000_000_000, 10_500_000_000].map(text), ["0", "0.000001024", "1", "10.5"]);
        assert_eq!(text(u64::MAX), "18446744073.709551615");
        assert_eq!(Value::Whole(u64::MAX).text(), "18446744073709551615");
    }

    #[test]
    fn names_are_letters_digits_and_underscores() {
        assert!(["a", "_", "a9_B"].into_iter().all(is_name));
        assert!(!["", "9a", "a-b", "ä", "a b", "a\n"].into_iter().any(is_name));
    }
}
