//! Resolution of a scenario file on a machine, with a note for everything that was reduced or omitted.

mod cells;
mod contenders;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::plan::config::{
    CoreLayout, DEFAULT_SERVER_CPU_SHARE, LabConfig, Provenance, ScenarioRecord, Startup, Timing,
};
use crate::plan::contender::Contender;
use crate::plan::cores::core_siblings;
use crate::plan::cores::{allowed_cores, connections_limit};
use crate::plan::limits::{ConfigError, check_extent};
use crate::plan::scenario::file::{Protocol, ScenarioError, ScenarioFile};

pub use cells::drop_cells_over_limit;

/// Minimum length of slices with an offered rate. The schedule needs several requests on every connection.
const MIN_RATED_SLICE: Duration = Duration::from_millis(250);

/// Resources of a machine that a scenario can use.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Path of the `anello` command.
    pub executable: PathBuf,
    /// Usable cores in ascending order. Not empty.
    pub cores: Vec<usize>,
    /// For each of [`cores`](Self::cores), all hardware threads of its physical core, including itself.
    pub siblings: Vec<Vec<usize>>,
    /// Maximum number of connections that the lab may have open.
    pub connections_limit: usize,
    /// Echo servers among the built peers.
    pub peers: Vec<Contender>,
    /// Names of known echo servers that are not built.
    pub unbuilt_peers: Vec<String>,
    /// HTTP servers among the built peers.
    pub http_peers: Vec<Contender>,
    /// Names of known HTTP servers that are not built.
    pub unbuilt_http_peers: Vec<String>,
    /// File that disk workers use. Its directory must exist.
    pub disk_file: PathBuf,
}

impl Resources {
    /// Returns the resources of this machine, without peers. `executable` is the `anello` command, `disk_file` the
    /// file of the disk workers.
    #[must_use]
    pub fn of_this_machine(executable: PathBuf, disk_file: PathBuf) -> Resources {
        let cores = allowed_cores();
        Resources {
            executable,
            siblings: core_siblings(Path::new("/"), &cores),
            cores,
            connections_limit: connections_limit(),
            peers: Vec::new(),
            unbuilt_peers: Vec::new(),
            http_peers: Vec::new(),
            unbuilt_http_peers: Vec::new(),
            disk_file,
        }
    }

    /// Returns the cores in order of use: one hardware thread of each physical core in ascending order, then the
    /// others. Threads of one physical core share execution units, so the load would slow down the server.
    fn cores_by_independence(&self) -> Vec<usize> {
        let (mut separate, mut others): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for &core in &self.cores {
            let is_shared = separate.iter().any(|&used| self.are_siblings(core, used));
            if is_shared { others.push(core) } else { separate.push(core) }
        }
        separate.extend(others);
        separate
    }

    fn are_siblings(&self, one: usize, other: usize) -> bool {
        let index = self.cores.iter().position(|&core| core == one);
        let siblings = index.and_then(|index| self.siblings.get(index));
        one != other && siblings.is_some_and(|siblings| siblings.contains(&other))
    }
}

/// Creates a configuration from a scenario file. `file_name` is used in error messages.
///
/// # Errors
/// Returns the first problem in the file, with its position and remedy.
pub fn resolve(file_name: &str, text: &str, resources: &Resources) -> Result<LabConfig, ScenarioError> {
    let file = ScenarioFile::parse(file_name, text)?;
    let mut resolver = Resolver { file_name, text, file: &file, resources, notes: file.notes.clone() };
    resolver.config()
}

struct Resolver<'a> {
    file_name: &'a str,
    text: &'a str,
    file: &'a ScenarioFile,
    resources: &'a Resources,
    /// Notes about reduced and omitted parts.
    notes: Vec<String>,
}

impl Resolver<'_> {
    fn config(&mut self) -> Result<LabConfig, ScenarioError> {
        let (passes, rounds) = (&self.file.passes, &self.file.rounds);
        for (number, passes, rounds) in [(passes, *passes.get_ref(), 1), (rounds, 1, *rounds.get_ref())] {
            if let Err(message) = check_extent(passes, rounds, 1, 1) {
                return self.error(number.span(), message);
            }
        }
        if self.file.name.get_ref().trim().is_empty() {
            return self.error(self.file.name.span(), "name must not be empty");
        }
        self.check_protocol_keys()?;
        let mut contenders = self.contenders()?;
        self.check_bases(&contenders)?;
        self.drop_contenders_without_target(&mut contenders);
        self.drop_contenders_without_tls(&mut contenders);
        self.check_not_empty(&contenders)?;
        let reference = self.add_twin(&mut contenders);
        let cells = self.cells()?;
        if cells.is_empty() {
            return self.error(
                self.file.name.span(),
                "no cells left to measure on this machine (add cells with fewer connections or cores)"
                    .to_owned(),
            );
        }
        let max_cores = cells.iter().map(|cell| cell.server_cores).max().unwrap_or(1);
        let cores = &self.resources.cores_by_independence();
        let server_cores = cores[..max_cores.min(cores.len())].to_vec();
        // The load uses a single thread. Fast servers on several cores can exceed it, which the results show.
        let load_core = cores.get(max_cores).or_else(|| cores.last()).copied().unwrap_or(0);
        let further_core = cores.get(max_cores + 1).copied();
        let further_core = self.assign_further_core(&mut contenders, further_core);
        self.clear_missing_bases(&mut contenders);
        if max_cores > 1 {
            self.notes.push(format!(
                "The load is one thread on core {load_core}. Servers on several cores may be faster than the load. In saturated \
                 cells, compare the CPU time per request."
            ));
        }
        let used = max_cores + 1 + usize::from(further_core.is_some());
        self.warn_about_siblings(&cores[..cores.len().min(used)]);
        let mut slice = self.file.slice;
        if cells.iter().any(|cell| cell.offered_per_second.is_some()) && slice < MIN_RATED_SLICE {
            slice = MIN_RATED_SLICE;
            self.notes.push("Slices last 250 ms, the minimum for offered rates.".to_owned());
        }
        let is_disk = self.file.protocol() == Protocol::Disk;
        let config = LabConfig {
            scenario: ScenarioRecord {
                name: self.file.name.get_ref().clone(),
                title: self.file.title.clone(),
                description: self.file.description.trim().to_owned(),
                source: self.file.source.clone(),
                text: self.text.to_owned(),
                scaling: std::mem::take(&mut self.notes),
            },
            contenders,
            cells,
            check: self.file.check,
            timing: Timing {
                slice,
                warm_up: self.file.warm_up,
                passes: *self.file.passes.get_ref(),
                rounds: *self.file.rounds.get_ref(),
                seed: self.file.seed,
                stolen_fraction_limit: 0.01,
            },
            cores: CoreLayout {
                further: further_core,
                server_share: self
                    .file
                    .server_share
                    .as_ref()
                    .map_or(DEFAULT_SERVER_CPU_SHARE, |share| *share.get_ref()),
                ..CoreLayout::new(server_cores, vec![load_core])
            },
            startup: Startup {
                // The first disk worker creates the file.
                start_timeout: Duration::from_secs(if is_disk { 300 } else { 10 }),
                ..Startup::default()
            },
            disk_file: if is_disk { self.resources.disk_file.to_str().map(str::to_owned) } else { None },
            reference,
            provenance: Provenance::default(),
        };
        match config.validate() {
            Ok(()) => Ok(config),
            Err(error) => {
                let share = self.file.server_share.as_ref();
                let span = match (&error, share) {
                    (ConfigError::UnknownReference(..), _) => self.file.reference.span(),
                    (ConfigError::ServerShare(_), Some(share)) => share.span(),
                    _ => self.file.name.span(),
                };
                self.error(span, error)
            }
        }
    }

    /// Returns an error if no contender is left. The notes about omitted contenders explain the cause.
    fn check_not_empty(&self, contenders: &[Contender]) -> Result<(), ScenarioError> {
        if !contenders.is_empty() {
            return Ok(());
        }
        let cause = self.notes[self.file.notes.len()..].join(" ");
        let cause = if cause.is_empty() { "The list of contenders is empty.".to_owned() } else { cause };
        let span = first(&self.file.contenders).unwrap_or_else(|| self.file.missing_key_span());
        self.error(span, format!("no contenders left (add others): {cause}"))
    }

    /// Adds a note if several of the used cores are hardware threads of one physical core.
    fn warn_about_siblings(&mut self, used: &[usize]) {
        let resources = self.resources;
        let later = |index: usize| used.iter().skip(index + 1);
        let pairs: Vec<String> = used
            .iter()
            .enumerate()
            .flat_map(|(index, &one)| later(index).map(move |&other| (one, other)))
            .filter(|&(one, other)| resources.are_siblings(one, other))
            .map(|(one, other)| format!("{one} and {other}"))
            .collect();
        if !pairs.is_empty() {
            self.notes.push(format!(
                "Cores {} are hardware threads of one physical core (SMT), and no other cores are usable. The load slows down \
                 every server. Compare servers with each other and do not rely on absolute values.",
                pairs.join(", ")
            ));
        }
    }

    fn error<T>(&self, span: Range<usize>, message: impl ToString) -> Result<T, ScenarioError> {
        Err(ScenarioError::at(self.file_name, self.text, span, message.to_string()))
    }

    /// Rejects keys that belong to another protocol.
    fn check_protocol_keys(&self) -> Result<(), ScenarioError> {
        use Protocol::{Disk, Echo, Http, Https, Idle};
        let file = self.file;
        let protocol = file.protocol();
        let key = |span, name, protocols: &'static [Protocol]| (span, name, protocols);
        let keys = [
            key(first(&file.depth), "depth", &[Disk]),
            key(first(&file.block_bytes), "block_bytes", &[Disk]),
            key(first(&file.operations), "operations", &[Disk]),
            key(first(&file.direct), "direct", &[Disk]),
            key(first(&file.connections), "connections", &[Echo, Http, Idle]),
            key(first(&file.connections_per_core), "connections_per_core", &[Echo, Http, Idle]),
            key(first(&file.server_cores), "server_cores", &[Echo, Http, Idle]),
            key(first(&file.cells), "cells", &[Echo, Http, Idle]),
            key(first(&file.message_bytes), "message_bytes", &[Echo]),
            key(first(&file.rates_per_second), "rates_per_second", &[Echo, Http]),
            key(first(&file.targets), "targets", &[Http]),
            key(first(&file.pipelining), "pipelining", &[Http]),
            key(first(&file.reconnect), "reconnect", &[Http]),
            key(first(&file.ciphers), "ciphers", &[Https]),
        ];
        let is_valid = |protocols: &[Protocol]| {
            protocols.contains(&protocol) || protocols.contains(&protocol.without_tls())
        };
        let foreign = keys.into_iter().filter(|(_, _, protocols)| !is_valid(protocols));
        let present = foreign.into_iter().find_map(|(span, key, protocols)| Some((span?, key, protocols)));
        match present {
            Some((span, key, protocols)) => {
                let protocols: Vec<String> = protocols.iter().map(Protocol::to_string).collect();
                let protocols = match protocols.split_last() {
                    Some((last, others @ [_, ..])) => format!("{} or {last}", others.join(", ")),
                    _ => protocols.concat(),
                };
                let message = format!("key {key} requires protocol {protocols}, not {protocol} (remove it)");
                self.error(span, message)
            }
            None => Ok(()),
        }
    }
}

/// Returns the position of a list's first value. `None` if the list is empty.
fn first<T>(values: &[toml::Spanned<T>]) -> Option<Range<usize>> {
    values.first().map(toml::Spanned::span)
}
