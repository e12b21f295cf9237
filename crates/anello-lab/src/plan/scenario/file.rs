//! Scenario files in TOML, independent of the machine. `docs/reference/lab-scenarios.md` documents every key.
//!
//! Parsing is strict: an unknown key, an invalid number or a cell that does not fit the protocol is an error that gives
//! the file, line and column, shows the line, and states the remedy.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use toml::Spanned;

use crate::plan::cell::{Cipher, DiskOperation};
use crate::plan::contender::{Role, Serves};
use crate::plan::site::Target;
use crate::plan::toml_error::describe_toml_error;

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
    pub seed: Option<u64>,
    pub check: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(super) enum Protocol {
    #[default]
    Echo,
    Http,
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
#[serde(
    untagged,
    expecting = "expected the name of a contender, or a list of names (the first that participates is used)"
)]
pub(super) enum Reference {
    One(String),
    FirstOf(Vec<String>),
}

impl Reference {
    pub fn candidates(&self) -> &[String] {
        match self {
            Reference::One(name) => std::slice::from_ref(name),
            Reference::FirstOf(names) => names,
        }
    }
}

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
    pub server_cores: Option<usize>,
}

/// A contender, defined by its name or its command.
#[derive(Debug, Clone)]
pub(super) enum ContenderEntry {
    Name(String),
    Inline(InlineContender),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InlineContender {
    pub name: String,
    pub command: String,
    #[serde(default)]
    pub role: Role,
    pub driver: Option<String>,
    pub version: Option<String>,
    pub connections_limit: Option<usize>,
    pub serves: Option<Spanned<Vec<Serves>>>,
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

impl ScenarioFile {
    pub fn parse(file_name: &str, text: &str) -> Result<ScenarioFile, ScenarioError> {
        toml::from_str(text).map_err(|error| {
            let message = describe_toml_error(error.message());
            ScenarioError::at(file_name, text, error.span().unwrap_or(0..0), message)
        })
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol.as_ref().map_or_else(Protocol::default, |protocol| *protocol.get_ref())
    }

    /// Returns the position for an error about a missing key: the `protocol` key or, if there is none, `name`.
    pub fn missing_key_span(&self) -> Range<usize> {
        self.protocol.as_ref().map_or_else(|| self.name.span(), Spanned::span)
    }
}

/// Error in a scenario file, with its position and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{file_name}:{line}:{column}: {message}\n{margin} |\n{line} | {quoted}\n{margin} | {indent}^",
    margin = " ".repeat(.line.to_string().len()),
    indent = " ".repeat(.column - 1)
)]
pub struct ScenarioError {
    file_name: String,
    /// Line number. `line` and `column` are 1-based; `column` counts characters.
    line: usize,
    column: usize,
    quoted: String,
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
