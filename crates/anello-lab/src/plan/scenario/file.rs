//! Scenario files in TOML. `docs/reference/lab-scenarios.md` documents every key; the presets are examples.
//!
//! Parsing is strict. An unknown key, an invalid number or a cell that does not fit the protocol is an error that
//! gives the file, line and column, shows the line, and states the remedy. This module does not depend on the machine:
//! `resolve.rs` creates a [`LabConfig`](crate::LabConfig) from a file and a machine.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::plan::cell::DiskOperation;
use crate::plan::cipher::Cipher;
use crate::plan::contender::Role;
use crate::plan::contender::Serves;
use crate::plan::site::Target;
use crate::plan::toml_error::describe_toml_error;

/// Contents of a scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub name: Spanned<String>,
    pub title: String,
    #[serde(default)]
    pub description: String,
    pub source: Option<String>,
    #[serde(default)]
    pub notes: Vec<String>,
    pub protocol: Option<Spanned<Protocol>>,
    #[serde(default)]
    pub message_bytes: Vec<Spanned<usize>>,
    #[serde(default)]
    pub targets: Vec<Spanned<Target>>,
    #[serde(default)]
    pub pipelining: Vec<Spanned<usize>>,
    #[serde(default)]
    pub reconnect: Vec<Spanned<bool>>,
    #[serde(default)]
    pub ciphers: Vec<Spanned<Cipher>>,
    #[serde(default)]
    pub connections: Vec<Spanned<usize>>,
    #[serde(default)]
    pub connections_per_core: Vec<Spanned<usize>>,
    #[serde(default)]
    pub rates_per_second: Vec<Spanned<u64>>,
    #[serde(default)]
    pub server_cores: Vec<Spanned<usize>>,
    #[serde(default)]
    pub operations: Vec<Spanned<DiskOperation>>,
    #[serde(default)]
    pub direct: Vec<Spanned<bool>>,
    #[serde(default)]
    pub block_bytes: Vec<Spanned<usize>>,
    #[serde(default)]
    pub depth: Vec<Spanned<usize>>,
    #[serde(default)]
    pub cells: Vec<Spanned<CellEntry>>,
    pub contenders: Vec<Spanned<ContenderEntry>>,
    pub reference: Spanned<Reference>,
    pub rounds: Spanned<usize>,
    pub passes: Spanned<usize>,
    #[serde(deserialize_with = "duration")]
    pub slice: Duration,
    #[serde(deserialize_with = "duration")]
    pub warm_up: Duration,
    pub server_share: Option<Spanned<f64>>,
    #[serde(default = "default_seed")]
    pub seed: u64,
    #[serde(default = "default_check")]
    pub check: bool,
}

/// Protocol of a scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(super) enum Protocol {
    #[default]
    Echo,
    Http,
    /// HTTP over TLS.
    Https,
    Idle,
    Disk,
}

impl Protocol {
    /// Returns HTTP for HTTPS, and any other protocol unchanged. HTTP keys are also valid for HTTPS.
    pub fn without_tls(self) -> Protocol {
        if self == Protocol::Https { Protocol::Http } else { self }
    }
}

/// Candidates for the reference. The first one that participates is used.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Names")]
pub(super) struct Reference(pub Vec<String>);

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a contender, or a list of names of which the first participating one is used"
)]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl From<Names> for Reference {
    fn from(names: Names) -> Reference {
        match names {
            Names::One(name) => Reference(vec![name]),
            Names::Several(names) => Reference(names),
        }
    }
}

/// An entry of `[[cells]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellEntry {
    pub connections: usize,
    pub message_bytes: Option<usize>,
    pub target: Option<Target>,
    pub pipelining: Option<usize>,
    pub reconnect: Option<bool>,
    pub cipher: Option<Cipher>,
    pub rate_per_second: Option<u64>,
    #[serde(default = "default_count")]
    pub server_cores: usize,
}

/// A contender: a name or a command.
#[derive(Debug, Clone)]
pub(super) enum ContenderEntry {
    Name(String),
    Inline(InlineContender),
}

/// A contender defined by its command.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InlineContender {
    pub name: String,
    pub command: String,
    #[serde(default = "default_role")]
    pub role: Role,
    pub driver: Option<String>,
    pub version: Option<String>,
    pub connections_limit: Option<usize>,
    /// Resources that an HTTP server can serve.
    pub serves: Option<Spanned<Vec<Serves>>>,
    /// Name of the contender that differs from this one only in the property under test.
    #[serde(alias = "against")]
    pub base: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for ContenderEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ContenderEntry;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a contender, or { name = \"…\", command = \"…\" }")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ContenderEntry, E> {
                Ok(ContenderEntry::Name(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ContenderEntry, A::Error> {
                InlineContender::deserialize(MapAccessDeserializer::new(map)).map(ContenderEntry::Inline)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).ok_or_else(|| {
        D::Error::custom(format!("invalid duration {text:?} (expected \"64ms\", \"2s\" or \"500us\")"))
    })
}

/// Parses a number with a unit: `us`, `ms` or `s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.find(|character: char| !character.is_ascii_digit() && character != '.')?;
    let number: f64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

fn default_seed() -> u64 {
    1
}

fn default_check() -> bool {
    true
}

fn default_count() -> usize {
    1
}

fn default_role() -> Role {
    Role::Peer
}

impl ScenarioFile {
    /// Parses a file. `file_name` is only used in error messages.
    pub fn parse(file_name: &str, text: &str) -> Result<ScenarioFile, ScenarioError> {
        toml::from_str(text).map_err(|error| {
            let message = describe_toml_error(error.message());
            ScenarioError::at(file_name, text, error.span().unwrap_or(0..0), message)
        })
    }

    /// Returns the protocol of the scenario.
    pub fn protocol(&self) -> Protocol {
        self.protocol.as_ref().map_or_else(Protocol::default, |protocol| *protocol.get_ref())
    }

    /// Returns the position for an error about a missing key: the `protocol` key, or `name` if there is no
    /// `protocol`.
    pub fn missing_key_span(&self) -> Range<usize> {
        self.protocol.as_ref().map_or_else(|| self.name.span(), Spanned::span)
    }
}

/// Error in a scenario file, with its position and remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    /// File name as given, or preset name.
    file_name: String,
    /// Line number, 1-based.
    line: usize,
    /// Column number in characters, 1-based.
    column: usize,
    /// Text of the line.
    quoted: String,
    /// Cause and remedy.
    message: String,
}

impl ScenarioError {
    /// Creates an error about the byte range `span` of the text.
    pub(super) fn at(file_name: &str, text: &str, span: Range<usize>, message: String) -> ScenarioError {
        let start =
            (0..=span.start.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ScenarioError {
            file_name: file_name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            quoted: text[line_start..].lines().next().unwrap_or_default().to_owned(),
            message,
        }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScenarioError { file_name, line, column, quoted, message } = self;
        let number = line.to_string();
        let (margin, indent) = (" ".repeat(number.len()), " ".repeat(column - 1));
        write!(
            formatter,
            "{file_name}:{line}:{column}: {message}\n{margin} |\n{number} | {quoted}\n{margin} | {indent}^"
        )
    }
}

impl std::error::Error for ScenarioError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_requires_number_and_unit() {
        assert_eq!(parse_duration("64ms"), Some(Duration::from_millis(64)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1500)));
        for wrong in ["", "10", "s", "-1s", "10 s", "3h"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn error_shows_position_and_line() {
        let text = "name = \"x\"\ntitle = \"ü\" 5\n";
        let error = ScenarioFile::parse("a.toml", text).unwrap_err().to_string();
        assert!(error.starts_with("a.toml:2:13: "), "{error}");
        assert!(error.ends_with("2 | title = \"ü\" 5\n  |             ^"), "{error}");
        let past_end = ScenarioError::at("a.toml", "x", 7..9, "what".to_owned()).to_string();
        assert!(past_end.starts_with("a.toml:1:2: what"), "{past_end}");
    }
}
