//! From a scenario file and a machine to what is really run, with a word for everything that was scaled down.

mod cells;
mod contenders;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::contender::Contender;
use crate::environment::core_siblings;
use crate::machine::{allowed_cores, connections_limit};
use crate::result::ScenarioRecord;
use crate::scenario::file::{Protocol, ScenarioError, ScenarioFile};
use crate::scenario::{DEFAULT_SERVER_CPU_SHARE, LabConfig, check_extent};

pub use cells::drop_cells_over_limit;

/// Slices with an offered rate are at least so long: the schedule needs some requests on every connection.
const MIN_RATED_SLICE: std::time::Duration = std::time::Duration::from_millis(250);

/// What a scenario finds on a machine.
#[derive(Debug, Clone)]
pub struct Resources {
    /// The `anello` command.
    pub executable: PathBuf,
    /// The cores that may be used, lowest first; at least one.
    pub cores: Vec<usize>,
    /// Of each of [`cores`](Self::cores), the cores that are threads of the same physical core, itself among them.
    pub siblings: Vec<Vec<usize>>,
    /// Most connections that the lab may have open.
    pub connections_limit: usize,
    /// Echo servers among the peers that are built.
    pub peers: Vec<Contender>,
    /// Names of those that are known and not built.
    pub unbuilt_peers: Vec<String>,
    /// HTTP servers among the peers that are built.
    pub http_peers: Vec<Contender>,
    /// Names of those that are known and not built.
    pub unbuilt_http_peers: Vec<String>,
    /// The file that disk workers use; its directory must exist.
    pub disk_file: PathBuf,
}

impl Resources {
    /// This machine, without peers. `executable` is the `anello` command, `disk_file` the file of disk workers.
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

    /// The cores in the order in which they are to be used: one thread of every physical core, lowest first, then the
    /// others. Two threads of one core take turns at the same units, so that a load would slow its server.
    fn cores_by_independence(&self) -> Vec<usize> {
        let (mut apart, mut others): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for &core in &self.cores {
            let is_shared = apart.iter().any(|&taken| self.are_siblings(core, taken));
            if is_shared { others.push(core) } else { apart.push(core) }
        }
        apart.extend(others);
        apart
    }

    fn are_siblings(&self, one: usize, other: usize) -> bool {
        let place = self.cores.iter().position(|&core| core == one);
        let siblings = place.and_then(|place| self.siblings.get(place));
        one != other && siblings.is_some_and(|siblings| siblings.contains(&other))
    }
}

/// Makes a configuration of a scenario file. `file_name` is shown in errors.
///
/// # Errors
/// What is wrong with the file, where, and the remedy.
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
    /// What was scaled, and how.
    notes: Vec<String>,
}

impl Resolver<'_> {
    fn config(&mut self) -> Result<LabConfig, ScenarioError> {
        let (passes, rounds) = (&self.file.passes, &self.file.rounds);
        for (number, passes, rounds) in [(passes, *passes.get_ref(), 1), (rounds, 1, *rounds.get_ref())] {
            if let Err(why) = check_extent(passes, rounds, 1, 1) {
                return self.error(number.span(), why);
            }
        }
        if self.file.name.get_ref().trim().is_empty() {
            return self.error(self.file.name.span(), "a scenario needs a name".to_owned());
        }
        self.keys_of_the_protocol()?;
        let mut contenders = self.contenders()?;
        self.check_bases(&contenders)?;
        self.drop_contenders_without_target(&mut contenders);
        self.drop_contenders_without_tls(&mut contenders);
        self.refuse_an_empty_field(&contenders)?;
        let reference = self.add_twin(&mut contenders);
        let cells = self.cells()?;
        if cells.is_empty() {
            return self.error(
                self.file.name.span(),
                "nothing is left to measure on this machine: give cells with fewer connections or cores"
                    .to_owned(),
            );
        }
        let most_cores = cells.iter().map(|cell| cell.server_cores).max().unwrap_or(1);
        let cores = &self.resources.cores_by_independence();
        let server_cores = cores[..most_cores.min(cores.len())].to_vec();
        // One thread makes the load; with more cores for the servers it sets the pace sooner, which the figures show.
        let load_core = cores.get(most_cores).or_else(|| cores.last()).copied().unwrap_or(0);
        let further_core = cores.get(most_cores + 1).copied();
        let further_core = self.assign_further_core(&mut contenders, further_core);
        self.clear_missing_bases(&mut contenders);
        if most_cores > 1 {
            self.notes.push(format!(
                "The load is one thread on core {load_core}: servers on several cores may be faster than it can ask. Where \
                 it sets the pace, CPU per request is the figure to read."
            ));
        }
        let used = most_cores + 1 + usize::from(further_core.is_some());
        self.warn_about_siblings(&cores[..cores.len().min(used)]);
        let mut slice = self.file.slice;
        if cells.iter().any(|cell| cell.offered_per_second.is_some()) && slice < MIN_RATED_SLICE {
            slice = MIN_RATED_SLICE;
            self.notes.push("Slices last 250 ms, the least for offered rates.".to_owned());
        }
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
            slice,
            warm_up: self.file.warm_up,
            passes: *self.file.passes.get_ref(),
            rounds: *self.file.rounds.get_ref(),
            seed: self.file.seed,
            server_cores,
            load_cores: vec![load_core],
            server_share: self
                .file
                .server_share
                .as_ref()
                .map_or(DEFAULT_SERVER_CPU_SHARE, |share| *share.get_ref()),
            further_core,
            disk_file: match self.file.protocol() {
                Protocol::Disk => self.resources.disk_file.to_str().map(str::to_owned),
                Protocol::Echo | Protocol::Http | Protocol::Https | Protocol::Idle => None,
            },
            reference,
            start_timeout: match self.file.protocol() {
                // The first worker makes its file.
                Protocol::Disk => std::time::Duration::from_secs(300),
                Protocol::Echo | Protocol::Http | Protocol::Https | Protocol::Idle => {
                    std::time::Duration::from_secs(10)
                }
            },
            ..LabConfig::empty()
        };
        if config.reference_index().is_none() {
            let names: Vec<&str> =
                config.contenders.iter().map(|contender| contender.name.as_str()).collect();
            let why = format!(
                "the reference \"{}\" is not among the contenders: choose one of {}",
                config.reference,
                names.join(", ")
            );
            return self.error(self.file.reference.span(), why);
        }
        match (config.validate(), &self.file.server_share) {
            (Ok(()), _) => Ok(config),
            (Err(why), Some(share)) if why.starts_with("server_share") => self.error(share.span(), why),
            (Err(why), _) => self.error(self.file.name.span(), why),
        }
    }

    /// Where nobody is left, the word about who was left out is the answer.
    fn refuse_an_empty_field(&self, contenders: &[Contender]) -> Result<(), ScenarioError> {
        if !contenders.is_empty() {
            return Ok(());
        }
        let why = self.notes[self.file.notes.len()..].join(" ");
        let why = if why.is_empty() { "The list of contenders is empty.".to_owned() } else { why };
        let span = first(&self.file.contenders).unwrap_or_else(|| self.file.missing_key_span());
        self.error(span, format!("nobody is left to compete; name others. {why}"))
    }

    /// Says which of the cores in use are threads of one physical core.
    fn warn_about_siblings(&mut self, used: &[usize]) {
        let resources = self.resources;
        let later = |place: usize| used.iter().skip(place + 1);
        let pairs: Vec<String> = used
            .iter()
            .enumerate()
            .flat_map(|(place, &one)| later(place).map(move |&other| (one, other)))
            .filter(|&(one, other)| resources.are_siblings(one, other))
            .map(|(one, other)| format!("{one} and {other}"))
            .collect();
        if !pairs.is_empty() {
            self.notes.push(format!(
                "Cores {} are threads of one physical core (SMT), and no others may be used here: what one does slows the \
                 other, so that the load takes part in every server's figures. Compare servers, and trust no absolute figure.",
                pairs.join(", ")
            ));
        }
    }

    fn error<T>(&self, span: Range<usize>, message: String) -> Result<T, ScenarioError> {
        Err(ScenarioError::at(self.file_name, self.text, span, message))
    }

    /// Refuses keys that another protocol would read.
    fn keys_of_the_protocol(&self) -> Result<(), ScenarioError> {
        use Protocol::{Disk, Echo, Http, Https, Idle};
        let file = self.file;
        let protocol = file.protocol();
        let key = |place, name, readers: &'static [Protocol]| (place, name, readers);
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
        let reads =
            |readers: &[Protocol]| readers.contains(&protocol) || readers.contains(&protocol.without_tls());
        let foreign = keys.into_iter().filter(|(_, _, readers)| !reads(readers));
        let given = foreign.into_iter().find_map(|(span, key, readers)| Some((span?, key, readers)));
        match given {
            Some((span, key, readers)) => {
                let readers: Vec<String> = readers.iter().map(Protocol::to_string).collect();
                let readers = match readers.split_last() {
                    Some((last, others @ [_, ..])) => format!("{} and {last}", others.join(", ")),
                    _ => readers.concat(),
                };
                let why =
                    format!("the key {key} is for {readers}, and the protocol is {protocol}: remove it");
                self.error(span, why)
            }
            None => Ok(()),
        }
    }
}

/// The place of a list's first value, if it has one.
fn first<T>(all: &[toml::Spanned<T>]) -> Option<Range<usize>> {
    all.first().map(toml::Spanned::span)
}
