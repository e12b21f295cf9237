//! State of the conversion of a scenario file, and access to the lists in the file.

use std::ops::Range;

use toml::Spanned;

use crate::plan::scenario::file::{Protocol, ScenarioError, ScenarioFile};
use crate::plan::scenario::resources::Resources;

pub(super) struct Resolver<'a> {
    pub(super) file_name: &'a str,
    pub(super) text: &'a str,
    pub(super) file: &'a ScenarioFile,
    pub(super) protocol: Protocol,
    pub(super) resources: &'a Resources,
    pub(super) notes: Vec<String>,
}

impl Resolver<'_> {
    pub(super) fn error<T>(&self, span: Range<usize>, message: impl ToString) -> Result<T, ScenarioError> {
        Err(ScenarioError::at(self.file_name, self.text, span, message.to_string()))
    }

    pub(super) fn is_http(&self) -> bool {
        self.protocol.without_tls() == Protocol::Http
    }

    pub(super) fn note_omitted(&mut self, why: &str, names: &[String]) {
        if !names.is_empty() {
            self.notes.push(format!("{why}: {}.", names.join(", ")));
        }
    }

    /// Rejects keys that belong to another protocol.
    pub(super) fn check_protocol_keys(&self) -> Result<(), ScenarioError> {
        use Protocol::{Disk, Echo, Http, Https, Idle};
        let file = self.file;
        let keys: [(_, &str, &[Protocol]); 14] = [
            (first(&file.depth), "depth", &[Disk]),
            (first(&file.block_bytes), "block_bytes", &[Disk]),
            (first(&file.operations), "operations", &[Disk]),
            (first(&file.direct), "direct", &[Disk]),
            (first(&file.connections), "connections", &[Echo, Http, Idle]),
            (first(&file.connections_per_core), "connections_per_core", &[Echo, Http, Idle]),
            (first(&file.server_cores), "server_cores", &[Echo, Http, Idle]),
            (first(&file.cells), "cells", &[Echo, Http, Idle]),
            (first(&file.message_bytes), "message_bytes", &[Echo]),
            (first(&file.rates_per_second), "rates_per_second", &[Echo, Http]),
            (first(&file.targets), "targets", &[Http]),
            (first(&file.pipelining), "pipelining", &[Http]),
            (first(&file.reconnect), "reconnect", &[Http]),
            (first(&file.ciphers), "ciphers", &[Https]),
        ];
        for (span, key, protocols) in keys {
            let is_valid =
                [self.protocol, self.protocol.without_tls()].iter().any(|it| protocols.contains(it));
            let Some(span) = span.filter(|_| !is_valid) else { continue };
            let names: Vec<String> = protocols.iter().map(Protocol::to_string).collect();
            let names = match names.split_last() {
                Some((last, others @ [_, ..])) => format!("{} or {last}", others.join(", ")),
                _ => names.concat(),
            };
            let protocol = self.protocol;
            return self
                .error(span, format!("key {key} requires protocol {names}, not {protocol} (remove it)"));
        }
        Ok(())
    }
}

/// Returns the position of a list's first value. `None` if the list is empty.
pub(super) fn first<T>(values: &[Spanned<T>]) -> Option<Range<usize>> {
    values.first().map(Spanned::span)
}

/// Returns the values of a list, or `default` if it is empty.
pub(super) fn values_or<T: Copy>(list: &[Spanned<T>], default: &[T]) -> Vec<T> {
    if list.is_empty() { default.to_vec() } else { list.iter().map(|value| *value.get_ref()).collect() }
}
