//! Cells in a scenario for which this machine has enough cores and a sufficient open file limit.

use std::ops::Range;

use toml::Spanned;

use crate::plan::cell::{Cell, Cipher, Workload};
use crate::plan::limits::check_cell;
use crate::plan::scenario::file::{CellEntry, Protocol, ScenarioError};
use crate::plan::scenario::resolve::resolver::{Resolver, values_or};

impl Resolver<'_> {
    pub(super) fn cells(&mut self) -> Result<Vec<Cell>, ScenarioError> {
        let mut cells = Vec::new();
        if self.protocol == Protocol::Disk {
            self.add_disk_cells(&mut cells)?;
        } else {
            self.add_listed_cells(&mut cells)?;
            self.add_single_cells(&mut cells)?;
        }
        self.notes.extend(drop_cells_over_limit(&mut cells, self.resources.connections_limit));
        Ok(cells)
    }

    fn add_disk_cells(&self, cells: &mut Vec<Cell>) -> Result<(), ScenarioError> {
        let file = self.file;
        let lists = [
            (file.operations.is_empty(), "operations"),
            (file.depth.is_empty(), "depth"),
            (file.block_bytes.is_empty(), "block_bytes"),
        ];
        if let Some((_, key)) = lists.iter().find(|(is_missing, _)| *is_missing) {
            let message = format!("protocol disk requires key {key} (add a list with at least one value)");
            return self.error(file.missing_key_span(), message);
        }
        for operation in values_or(&file.operations, &[]) {
            for direct in values_or(&file.direct, &[false, true]) {
                for block_bytes in values_or(&file.block_bytes, &[]) {
                    for depth in &file.depth {
                        let workload = Workload::Disk { operation, direct, block_bytes };
                        let cell = Cell { workload, ..Cell::echo(1, *depth.get_ref()) };
                        self.add(cells, cell, depth.span())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds all combinations of the values in the scenario's lists.
    fn add_listed_cells(&mut self, cells: &mut Vec<Cell>) -> Result<(), ScenarioError> {
        let file = self.file;
        let workloads = self.workloads();
        let has_connections = !(file.connections.is_empty() && file.connections_per_core.is_empty());
        if file.cells.is_empty() && (!has_connections || workloads.is_empty()) {
            let list = match self.protocol {
                Protocol::Http | Protocol::Https => "targets with ",
                Protocol::Echo => "message_bytes with ",
                Protocol::Idle | Protocol::Disk => "",
            };
            let message =
                format!("no cells (add {list}connections or connections_per_core, or individual [[cells]])");
            return self.error(file.missing_key_span(), message);
        }
        let rates = file.rates_per_second.iter().map(|rate| Some(*rate.get_ref()));
        let rates: Vec<Option<u64>> = if rates.len() == 0 { vec![None] } else { rates.collect() };
        for (workload, span) in workloads {
            for server_cores in self.core_counts()? {
                let per_core = |count: &Spanned<usize>| count.get_ref().saturating_mul(server_cores);
                let fixed = file.connections.iter().map(|count| (*count.get_ref(), count.span()));
                let scaled = file.connections_per_core.iter().map(|count| (per_core(count), count.span()));
                for (connections, count_span) in fixed.chain(scaled) {
                    for &offered_per_second in &rates {
                        let cell = Cell { workload, connections, offered_per_second, server_cores };
                        let is_count_error = connections == 0 || workload == Workload::Idle;
                        let span = if is_count_error { &count_span } else { &span };
                        self.add(cells, cell, span.clone())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn add_single_cells(&mut self, cells: &mut Vec<Cell>) -> Result<(), ScenarioError> {
        for entry in &self.file.cells {
            let workload = self.workload_of(entry)?;
            let &CellEntry { connections, server_cores, rate_per_second, .. } = entry.get_ref();
            let server_cores = server_cores.unwrap_or(1);
            let available = self.cores_for_servers();
            if server_cores > available {
                self.notes.push(format!(
                    "Omitted: a cell with {server_cores} server cores (on this machine, servers can use at most \
                     {available})."
                ));
                continue;
            }
            let cell = Cell { workload, connections, offered_per_second: rate_per_second, server_cores };
            self.add(cells, cell, entry.span())?;
        }
        Ok(())
    }

    /// Returns the workloads in the scenario's lists, each with its position for error messages.
    fn workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let file = self.file;
        let echo =
            |bytes: &Spanned<usize>| (Workload::Echo { message_bytes: *bytes.get_ref() }, bytes.span());
        match self.protocol {
            Protocol::Idle => vec![(Workload::Idle, file.missing_key_span())],
            Protocol::Http => self.http_workloads(),
            Protocol::Https => {
                let plain = self.http_workloads();
                let with =
                    |cipher: Cipher| plain.iter().map(move |(it, span)| (it.under(cipher), span.clone()));
                values_or(&file.ciphers, &[Cipher::default()]).into_iter().flat_map(with).collect()
            }
            Protocol::Echo | Protocol::Disk => file.message_bytes.iter().map(echo).collect(),
        }
    }

    fn http_workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let file = self.file;
        let depths = match file.pipelining.as_slice() {
            [] => vec![(1, None)],
            depths => depths.iter().map(|depth| (*depth.get_ref(), Some(depth.span()))).collect(),
        };
        let mut workloads = Vec::new();
        for target in &file.targets {
            for (pipelining, span) in &depths {
                for reconnect in values_or(&file.reconnect, &[false]) {
                    let (requested, pipelining) = (*target.get_ref(), *pipelining);
                    let workload = Workload::Http { target: requested, pipelining, reconnect, cipher: None };
                    // A depth of 1 never causes an error, so errors refer to the target.
                    let span = span.clone().filter(|_| pipelining != 1);
                    workloads.push((workload, span.unwrap_or_else(|| target.span())));
                }
            }
        }
        workloads
    }

    fn workload_of(&self, entry: &Spanned<CellEntry>) -> Result<Workload, ScenarioError> {
        let (protocol, cell) = (self.protocol, entry.get_ref());
        let foreign = [
            (cell.message_bytes.is_some() && protocol != Protocol::Echo, "message_bytes"),
            (cell.target.is_some() && !self.is_http(), "target"),
            (cell.pipelining.is_some() && !self.is_http(), "pipelining"),
            (cell.reconnect.is_some() && !self.is_http(), "reconnect"),
            (cell.cipher.is_some() && protocol != Protocol::Https, "cipher"),
        ];
        if let Some((_, key)) = foreign.iter().find(|(is_present, _)| *is_present) {
            let message = format!("key {key} is invalid in cells with protocol {protocol} (remove it)");
            return self.error(entry.span(), message);
        }
        match (protocol, cell.message_bytes, cell.target) {
            (Protocol::Idle, ..) => Ok(Workload::Idle),
            (Protocol::Http | Protocol::Https, _, Some(target)) => {
                let (pipelining, reconnect) = (cell.pipelining.unwrap_or(1), cell.reconnect.unwrap_or(false));
                let cipher = (protocol == Protocol::Https).then(|| cell.cipher.unwrap_or_default());
                Ok(Workload::Http { target, pipelining, reconnect, cipher })
            }
            (Protocol::Http | Protocol::Https, _, None) => {
                self.error(entry.span(), format!("cells with protocol {protocol} need a target"))
            }
            (_, Some(message_bytes), _) => Ok(Workload::Echo { message_bytes }),
            (_, None, _) => self.error(entry.span(), "cells with protocol echo need message_bytes"),
        }
    }

    fn add(&self, cells: &mut Vec<Cell>, cell: Cell, span: Range<usize>) -> Result<(), ScenarioError> {
        if let Err(error) = check_cell(&cell, self.resources.cores.len()) {
            return self.error(span, error);
        }
        if cells.contains(&cell) {
            return self.error(span, format!("duplicate cell \"{cell}\" (remove one)"));
        }
        cells.push(cell);
        Ok(())
    }

    /// Returns the requested numbers of server cores. Adds a note about numbers that exceed the number of cores on this
    /// machine.
    fn core_counts(&mut self) -> Result<Vec<usize>, ScenarioError> {
        if let Some(zero) = self.file.server_cores.iter().find(|count| *count.get_ref() == 0) {
            return self.error(zero.span(), "server_cores must be at least 1");
        }
        let available = self.cores_for_servers();
        let requested = values_or(&self.file.server_cores, &[1]);
        let (fitting, excess): (Vec<_>, Vec<_>) =
            requested.into_iter().partition(|&count| count <= available);
        let (excess, cores) = (comma_separated(&excess), self.resources.cores.len());
        let note = format!(
            "Omitted: cells with {excess} server cores (usable cores: {cores}, including one for the load generator)."
        );
        if !excess.is_empty() && !self.notes.contains(&note) {
            self.notes.push(note);
        }
        Ok(fitting)
    }

    /// Returns the number of cores for servers. One core is reserved for the load generator, unless there is only one.
    fn cores_for_servers(&self) -> usize {
        self.resources.cores.len().saturating_sub(1).max(1)
    }
}

/// Removes the cells with more than `limit` connections, the number that the lab may have open. Returns a note about
/// these cells, if any. Disk cells are kept because their count is a queue depth.
pub fn drop_cells_over_limit(cells: &mut Vec<Cell>, limit: usize) -> Option<String> {
    let fits = |cell: &Cell| cell.workload.is_disk() || cell.connections <= limit;
    let mut dropped = Vec::new();
    for cell in cells.iter().filter(|cell| !fits(cell)) {
        if !dropped.contains(&cell.connections) {
            dropped.push(cell.connections);
        }
    }
    cells.retain(fits);
    (!dropped.is_empty()).then(|| {
        format!(
            "Omitted: cells with {} connections, because the lab can have at most {limit} connections open (`ulimit \
             -Hn`).",
            comma_separated(&dropped)
        )
    })
}

fn comma_separated(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
