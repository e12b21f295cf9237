//! What is measured: the cells that a scenario asks for, as far as this machine has the cores and the open files.

use std::ops::Range;

use toml::Spanned;

use super::Resolver;
use crate::cell::{Cell, Workload};
use crate::scenario::check_cell;
use crate::scenario::file::{CellEntry, Protocol, ScenarioError};
use crate::tls::Cipher;

impl Resolver<'_> {
    /// What is measured, as far as this machine has the cores and the open files.
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
            let why =
                format!("a scenario for disks needs the key {key}, a list with at least one value: add it");
            return self.error(file.missing_key_span(), why);
        }
        let ways = match file.direct.as_slice() {
            [] => vec![false, true],
            ways => ways.iter().map(|direct| *direct.get_ref()).collect(),
        };
        let mut cells = Vec::new();
        for operation in file.operations.iter().map(|operation| *operation.get_ref()) {
            for &direct in &ways {
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
            let what = match file.protocol() {
                Protocol::Http | Protocol::Https => "targets with ",
                Protocol::Echo => "message_bytes with ",
                Protocol::Idle | Protocol::Disk => "",
            };
            let why = format!("give {what}connections or connections_per_core, or single [[cells]]");
            return self.error(file.missing_key_span(), why);
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
                        let of_count = connections == 0 || *workload == Workload::Idle;
                        let span = if of_count { count_span.clone() } else { span.clone() };
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
                    "Left out: a cell with {} server cores; this machine has {} for servers.",
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

    /// What the lists of the scenario ask for, each with the place to point at.
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
        let ways = match file.reconnect.as_slice() {
            [] => vec![false],
            ways => ways.iter().map(|reconnect| *reconnect.get_ref()).collect(),
        };
        let mut workloads = Vec::new();
        for target in &file.targets {
            for (pipelining, span) in &depths {
                for &reconnect in &ways {
                    let workload = Workload::Http {
                        target: *target.get_ref(),
                        pipelining: *pipelining,
                        reconnect,
                        cipher: None,
                    };
                    // A depth of 1 is never what is wrong.
                    let span = span.clone().filter(|_| *pipelining != 1);
                    workloads.push((workload, span.unwrap_or_else(|| target.span())));
                }
            }
        }
        workloads
    }

    /// The same by each of the ciphers.
    fn https_workloads(&self) -> Vec<(Workload, Range<usize>)> {
        let ciphers: Vec<Cipher> = match self.file.ciphers.as_slice() {
            [] => vec![Cipher::default()],
            ciphers => ciphers.iter().map(|cipher| *cipher.get_ref()).collect(),
        };
        let plain = self.http_workloads();
        let under = |&cipher: &Cipher| {
            plain.iter().map(move |(workload, span)| (workload.under(cipher), span.clone()))
        };
        ciphers.iter().flat_map(under).collect()
    }

    /// What a cell that is named for itself asks for.
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
        if let Some((_, key)) = foreign.iter().find(|(is_there, _)| *is_there) {
            return self.error(entry.span(), format!("a cell for {protocol} has no {key}: remove it"));
        }
        match (protocol, cell.message_bytes, cell.target) {
            (Protocol::Idle, ..) => Ok(Workload::Idle),
            (Protocol::Http | Protocol::Https, _, Some(target)) => {
                let (pipelining, reconnect) = (cell.pipelining.unwrap_or(1), cell.reconnect.unwrap_or(false));
                let cipher = (protocol == Protocol::Https).then(|| cell.cipher.unwrap_or_default());
                Ok(Workload::Http { target, pipelining, reconnect, cipher })
            }
            (Protocol::Http | Protocol::Https, _, None) => {
                self.error(entry.span(), format!("a cell for {protocol} needs a target"))
            }
            (_, Some(message_bytes), _) => Ok(Workload::Echo { message_bytes }),
            (_, None, _) => self.error(entry.span(), "a cell for echo needs message_bytes".to_owned()),
        }
    }

    fn add(&self, cells: &mut Vec<Cell>, cell: Cell, span: Range<usize>) -> Result<(), ScenarioError> {
        if let Err(why) = check_cell(&cell, self.resources.cores.len()) {
            return self.error(span, why);
        }
        if cells.contains(&cell) {
            return self.error(span, format!("the cell \"{cell}\" is there twice: name it once"));
        }
        cells.push(cell);
        Ok(())
    }

    /// The numbers of server cores that this machine has; says which it has not.
    fn core_counts(&mut self) -> Result<Vec<usize>, ScenarioError> {
        let requested_counts: Vec<usize> = match self.file.server_cores.as_slice() {
            [] => vec![1],
            counts => counts.iter().map(|count| *count.get_ref()).collect(),
        };
        if let Some(zero) = self.file.server_cores.iter().find(|count| *count.get_ref() == 0) {
            return self.error(zero.span(), "servers need at least 1 core".to_owned());
        }
        let most = self.cores_for_servers();
        let (fitting, beyond): (Vec<usize>, Vec<usize>) =
            requested_counts.into_iter().partition(|&count| count <= most);
        if !beyond.is_empty() {
            let note = format!(
                "Left out: {} server cores; of the {} that may be used here one is the load's, and {most} left.",
                listed(&beyond),
                self.resources.cores.len()
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(fitting)
    }

    /// One core is the load's, unless there is only one.
    fn cores_for_servers(&self) -> usize {
        self.resources.cores.len().saturating_sub(1).max(1)
    }
}

/// Removes the cells with more connections than the lab may have open, `limit`, and says which; disks have operations in
/// flight instead.
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
            "Left out, since the lab may have only {limit} connections open here (`ulimit -Hn`): {} connections.",
            listed(&dropped)
        )
    })
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
