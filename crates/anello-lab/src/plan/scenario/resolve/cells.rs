//! Cells of a scenario, as far as this machine has the cores and the open files.

use std::ops::Range;

use toml::Spanned;

use super::Resolver;
use crate::plan::cell::{Cell, Workload};
use crate::plan::cipher::Cipher;
use crate::plan::limits::check_cell;
use crate::plan::scenario::file::{CellEntry, Protocol, ScenarioError};

impl Resolver<'_> {
    /// Returns all cells of the scenario that this machine can run.
    pub(super) fn cells(&mut self) -> Result<Vec<Cell>, ScenarioError> {
        let mut cells = match self.file.protocol() {
            Protocol::Disk => self.disk_cells()?,
            Protocol::Echo | Protocol::Http | Protocol::Https | Protocol::Idle => self.network_cells()?,
        };
        self.notes.extend(drop_cells_over_limit(&mut cells, self.resources.connections_limit));
        Ok(cells)
    }

    fn disk_cells(&self) -> Result<Vec<Cell>, ScenarioError> {
        let file = self.file;
        let missing = [
            (file.operations.is_empty(), "operations"),
            (file.depth.is_empty(), "depth"),
            (file.block_bytes.is_empty(), "block_bytes"),
        ];
        if let Some((_, key)) = missing.iter().find(|(missing, _)| *missing) {
            let message = format!("protocol disk requires key {key} (add a list with at least one value)");
            return self.error(file.missing_key_span(), message);
        }
        let direct_modes = match file.direct.as_slice() {
            [] => vec![false, true],
            modes => modes.iter().map(|direct| *direct.get_ref()).collect(),
        };
        let mut cells = Vec::new();
        for operation in file.operations.iter().map(|operation| *operation.get_ref()) {
            for &direct in &direct_modes {
                for block in &file.block_bytes {
                    for depth in &file.depth {
                        let workload = Workload::Disk { operation, direct, block_bytes: *block.get_ref() };
                        let cell = Cell { workload, ..Cell::echo(1, *depth.get_ref()) };
                        self.add(&mut cells, cell, depth.span())?;
                    }
                }
            }
        }
        Ok(cells)
    }

    fn network_cells(&mut self) -> Result<Vec<Cell>, ScenarioError> {
        let file = self.file;
        let workloads = self.workloads();
        let product = !file.connections.is_empty() || !file.connections_per_core.is_empty();
        if file.cells.is_empty() && (!product || workloads.is_empty()) {
            let list = match file.protocol() {
                Protocol::Http | Protocol::Https => "targets with ",
                Protocol::Echo => "message_bytes with ",
                Protocol::Idle | Protocol::Disk => "",
            };
            let message =
                format!("no cells (add {list}connections or connections_per_core, or single [[cells]])");
            return self.error(file.missing_key_span(), message);
        }
        let mut cells = Vec::new();
        let rates: Vec<Option<u64>> = match file.rates_per_second.as_slice() {
            [] => vec![None],
            rates => rates.iter().map(|rate| Some(*rate.get_ref())).collect(),
        };
        for (workload, span) in &workloads {
            for server_cores in self.core_counts()? {
                let fixed = file.connections.iter().map(|count| (*count.get_ref(), count.span()));
                let per_core = file
                    .connections_per_core
                    .iter()
                    .map(|count| (count.get_ref().saturating_mul(server_cores), count.span()));
                for (connections, count_span) in fixed.chain(per_core) {
                    for &offered_per_second in &rates {
                        let cell =
                            Cell { workload: *workload, connections, offered_per_second, server_cores };
                        let is_count_error = connections == 0 || *workload == Workload::Idle;
                        let span = if is_count_error { count_span.clone() } else { span.clone() };
                        self.add(&mut cells, cell, span)?;
                    }
                }
            }
        }
        for entry in &file.cells {
            let cell = entry.get_ref();
            let workload = self.workload_of(entry)?;
            if cell.server_cores > self.cores_for_servers() {
                self.notes.push(format!(
                    "Omitted: a cell with {} server cores. This machine has {} for servers.",
                    cell.server_cores,
                    self.cores_for_servers()
                ));
                continue;
            }
            let (connections, server_cores) = (cell.connections, cell.server_cores);
            let offered_per_second = cell.rate_per_second;
            let cell = Cell { workload, connections, offered_per_second, server_cores };
            self.add(&mut cells, cell, entry.span())?;
        }
        Ok(cells)
    }

    /// Returns the workloads of the scenario's lists, each with its position for error messages.
    fn workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let file = self.file;
        match file.protocol() {
            Protocol::Idle => vec![(Workload::Idle, file.missing_key_span())],
            Protocol::Http => self.http_workloads(),
            Protocol::Https => self.https_workloads(),
            Protocol::Echo | Protocol::Disk => file
                .message_bytes
                .iter()
                .map(|bytes| (Workload::Echo { message_bytes: *bytes.get_ref() }, bytes.span()))
                .collect(),
        }
    }

    fn http_workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let file = self.file;
        let depths = match file.pipelining.as_slice() {
            [] => vec![(1, None)],
            depths => depths.iter().map(|depth| (*depth.get_ref(), Some(depth.span()))).collect(),
        };
        let reconnect_modes = match file.reconnect.as_slice() {
            [] => vec![false],
            modes => modes.iter().map(|reconnect| *reconnect.get_ref()).collect(),
        };
        let mut workloads = Vec::new();
        for target in &file.targets {
            for (pipelining, span) in &depths {
                for &reconnect in &reconnect_modes {
                    let workload = Workload::Http {
                        target: *target.get_ref(),
                        pipelining: *pipelining,
                        reconnect,
                        cipher: None,
                    };
                    // A depth of 1 is never the cause of an error.
                    let span = span.clone().filter(|_| *pipelining != 1);
                    workloads.push((workload, span.unwrap_or_else(|| target.span())));
                }
            }
        }
        workloads
    }

    /// Returns the workloads of [`http_workloads`](Self::http_workloads) with each of the ciphers.
    fn https_workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let ciphers: Vec<Cipher> = match self.file.ciphers.as_slice() {
            [] => vec![Cipher::default()],
            ciphers => ciphers.iter().map(|cipher| *cipher.get_ref()).collect(),
        };
        let plain = self.http_workloads();
        let with_cipher = |&cipher: &Cipher| {
            plain.iter().map(move |(workload, span)| (workload.under(cipher), span.clone()))
        };
        ciphers.iter().flat_map(with_cipher).collect()
    }

    /// Returns the workload of an entry of `[[cells]]`.
    fn workload_of(&self, entry: &Spanned<CellEntry>) -> Result<Workload, ScenarioError> {
        let protocol = self.file.protocol();
        let is_http = protocol.without_tls() == Protocol::Http;
        let cell = entry.get_ref();
        let foreign = [
            (cell.message_bytes.is_some() && protocol != Protocol::Echo, "message_bytes"),
            (cell.target.is_some() && !is_http, "target"),
            (cell.pipelining.is_some() && !is_http, "pipelining"),
            (cell.reconnect.is_some() && !is_http, "reconnect"),
            (cell.cipher.is_some() && protocol != Protocol::Https, "cipher"),
        ];
        if let Some((_, key)) = foreign.iter().find(|(is_present, _)| *is_present) {
            return self.error(
                entry.span(),
                format!("key {key} is invalid in cells of protocol {protocol} (remove it)"),
            );
        }
        match (protocol, cell.message_bytes, cell.target) {
            (Protocol::Idle, ..) => Ok(Workload::Idle),
            (Protocol::Http | Protocol::Https, _, Some(target)) => {
                let (pipelining, reconnect) = (cell.pipelining.unwrap_or(1), cell.reconnect.unwrap_or(false));
                let cipher = (protocol == Protocol::Https).then(|| cell.cipher.unwrap_or_default());
                Ok(Workload::Http { target, pipelining, reconnect, cipher })
            }
            (Protocol::Http | Protocol::Https, _, None) => {
                self.error(entry.span(), format!("cells of protocol {protocol} need a target"))
            }
            (_, Some(message_bytes), _) => Ok(Workload::Echo { message_bytes }),
            (_, None, _) => self.error(entry.span(), "cells of protocol echo need message_bytes"),
        }
    }

    fn add(&self, cells: &mut Vec<Cell>, cell: Cell, span: Range<usize>) -> Result<(), ScenarioError> {
        if let Err(message) = check_cell(&cell, self.resources.cores.len()) {
            return self.error(span, message);
        }
        if cells.contains(&cell) {
            return self.error(span, format!("duplicate cell \"{cell}\" (remove one)"));
        }
        cells.push(cell);
        Ok(())
    }

    /// Returns the requested numbers of server cores that this machine has. Adds a note about the others.
    fn core_counts(&mut self) -> Result<Vec<usize>, ScenarioError> {
        let requested_counts: Vec<usize> = match self.file.server_cores.as_slice() {
            [] => vec![1],
            counts => counts.iter().map(|count| *count.get_ref()).collect(),
        };
        if let Some(zero) = self.file.server_cores.iter().find(|count| *count.get_ref() == 0) {
            return self.error(zero.span(), "server_cores must be at least 1");
        }
        let available = self.cores_for_servers();
        let (fitting, excess): (Vec<usize>, Vec<usize>) =
            requested_counts.into_iter().partition(|&count| count <= available);
        if !excess.is_empty() {
            let note = format!(
                "Omitted: {} server cores: of {} usable cores, 1 runs the load.",
                comma_separated(&excess),
                self.resources.cores.len()
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(fitting)
    }

    /// Returns the number of cores for servers. The load uses one core, unless there is only one.
    fn cores_for_servers(&self) -> usize {
        self.resources.cores.len().saturating_sub(1).max(1)
    }
}

/// Removes the cells with more than `limit` connections, the number that the lab may have open, and returns a note
/// about them. Disk cells are kept because their count is a queue depth.
#[must_use]
pub fn drop_cells_over_limit(cells: &mut Vec<Cell>, limit: usize) -> Option<String> {
    let mut dropped: Vec<usize> = Vec::new();
    cells.retain(|cell| {
        let fits = cell.workload.is_disk() || cell.connections <= limit;
        if !fits && !dropped.contains(&cell.connections) {
            dropped.push(cell.connections);
        }
        fits
    });
    (!dropped.is_empty()).then(|| {
        format!(
            "Omitted because the lab may only have {limit} connections open (`ulimit -Hn`): cells with {} connections.",
            comma_separated(&dropped)
        )
    })
}

fn comma_separated(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
