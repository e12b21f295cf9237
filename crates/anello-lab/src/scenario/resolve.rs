//! From a scenario file and a machine to what is really run, with a word for everything that was scaled down.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::cell::{Cell, Workload};
use crate::contender::{Contender, Role};
use crate::environment::core_siblings;
use crate::machine::{allowed_cores, connections_limit};
use crate::result::ScenarioRecord;
use crate::scenario::file::{ContenderEntry, InlineContender, Protocol, ScenarioError, ScenarioFile};
use crate::scenario::{LabConfig, SERVER_SHARE, check_against, check_cell, check_extent, names_but_twins};

/// Slices with an offered rate are at least so long: the schedule needs some requests on every connection.
const RATED_SLICE: std::time::Duration = std::time::Duration::from_millis(250);

/// In the words of a command: a core of its own, that of neither servers nor load.
const FURTHER_CORE: &str = "{further_core}";

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
    /// Peers that are built.
    pub peers: Vec<Contender>,
    /// Names of peers that are known and not built.
    pub unbuilt_peers: Vec<String>,
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
                return self.wrong(number.span(), why);
            }
        }
        if self.file.name.get_ref().trim().is_empty() {
            return self.wrong(self.file.name.span(), "a scenario needs a name".to_owned());
        }
        self.keys_of_the_protocol()?;
        let mut contenders = self.contenders()?;
        self.check_bases(&contenders)?;
        let cells = self.cells()?;
        if cells.is_empty() {
            return self.wrong(
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
        let further_core = self.give_further_core(&mut contenders, further_core);
        self.forget_missing_bases(&mut contenders);
        if most_cores > 1 {
            self.notes.push(format!(
                "The load is one thread on core {load_core}: servers on several cores may be faster than it can ask. Where \
                 it sets the pace, CPU per request is the figure to read."
            ));
        }
        let used = most_cores + 1 + usize::from(further_core.is_some());
        self.caution_about_siblings(&cores[..cores.len().min(used)]);
        let mut slice = self.file.slice;
        if cells.iter().any(|cell| cell.offered_per_second.is_some()) && slice < RATED_SLICE {
            slice = RATED_SLICE;
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
            server_share: self.file.server_share.as_ref().map_or(SERVER_SHARE, |share| *share.get_ref()),
            further_core,
            disk_file: match self.file.protocol() {
                Protocol::Disk => self.resources.disk_file.to_str().map(str::to_owned),
                Protocol::Echo | Protocol::Idle => None,
            },
            reference: self.file.reference.get_ref().clone(),
            start_timeout: match self.file.protocol() {
                // The first worker makes its file.
                Protocol::Disk => std::time::Duration::from_secs(300),
                Protocol::Echo | Protocol::Idle => std::time::Duration::from_secs(10),
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
            return self.wrong(self.file.reference.span(), why);
        }
        match (config.check(), &self.file.server_share) {
            (Ok(()), _) => Ok(config),
            (Err(why), Some(share)) if why.starts_with("server_share") => self.wrong(share.span(), why),
            (Err(why), _) => self.wrong(self.file.name.span(), why),
        }
    }

    /// Says which of the cores in use are threads of one physical core.
    fn caution_about_siblings(&mut self, used: &[usize]) {
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

    /// Puts the core in the place of [`FURTHER_CORE`], and gives it back if anybody asked for it. Where there is none, who
    /// asks for it is left out: on a core of servers or load it would not be what it is called.
    fn give_further_core(&mut self, contenders: &mut Vec<Contender>, core: Option<usize>) -> Option<usize> {
        let asks = |contender: &Contender| contender.arguments.iter().any(|word| word.contains(FURTHER_CORE));
        let asking: Vec<String> =
            contenders.iter().filter(|one| asks(one)).map(|contender| contender.name.clone()).collect();
        if asking.is_empty() {
            return None;
        }
        let Some(core) = core else {
            contenders.retain(|contender| !asks(contender));
            self.notes.push(format!(
                "Left out, since they need a core beyond those of servers and load, and {} may be used here: {}.",
                self.resources.cores.len(),
                asking.join(", ")
            ));
            return None;
        };
        for word in contenders.iter_mut().flat_map(|contender| &mut contender.arguments) {
            *word = word.replace(FURTHER_CORE, &core.to_string());
        }
        Some(core)
    }

    /// Refuses a contender that is to be set against itself, or against one that this scenario does not have. A peer that
    /// it has and that is not built here is one.
    fn check_bases(&self, contenders: &[Contender]) -> Result<(), ScenarioError> {
        let entries = || self.file.contenders.iter().map(toml::Spanned::get_ref);
        let is_asked_for = |peer: &&str| {
            entries()
                .any(|entry| matches!(entry, ContenderEntry::Name(name) if name == peer || name == "peers"))
        };
        let unbuilt = self.resources.unbuilt_peers.iter().map(String::as_str);
        let names: Vec<&str> =
            names_but_twins(contenders).into_iter().chain(unbuilt.filter(is_asked_for)).collect();
        for entry in entries() {
            let ContenderEntry::Inline(InlineContender { name, against: Some(base), .. }) = entry else {
                continue;
            };
            if let Err(why) = check_against(name.trim(), base.get_ref().trim(), &names) {
                return self.wrong(base.span(), why);
            }
        }
        Ok(())
    }

    /// Who is to be set against a contender that takes no part on this machine stands alone, and this is said.
    fn forget_missing_bases(&mut self, contenders: &mut [Contender]) {
        let names: Vec<String> = names_but_twins(contenders).into_iter().map(str::to_owned).collect();
        let mut alone = Vec::new();
        for contender in contenders {
            if let Some(base) = contender.against.take_if(|base| !names.contains(base)) {
                alone.push(format!("{} ({base})", contender.name));
            }
        }
        if !alone.is_empty() {
            self.notes.push(format!(
                "Not set against the one that differs in nothing else, since that takes no part here: {}.",
                alone.join(", ")
            ));
        }
    }

    fn wrong<T>(&self, span: Range<usize>, message: String) -> Result<T, ScenarioError> {
        Err(ScenarioError::at(self.file_name, self.text, span, message))
    }

    /// Refuses keys that another protocol would read.
    fn keys_of_the_protocol(&self) -> Result<(), ScenarioError> {
        let file = self.file;
        let protocol = file.protocol();
        let disk = [
            (first(&file.depth), "depth"),
            (first(&file.block_bytes), "block_bytes"),
            (first(&file.operations), "operations"),
            (first(&file.direct), "direct"),
        ];
        let network = [
            (first(&file.connections), "connections"),
            (first(&file.connections_per_core), "connections_per_core"),
            (first(&file.server_cores), "server_cores"),
            (first(&file.cells), "cells"),
            (first(&file.message_bytes).filter(|_| protocol != Protocol::Echo), "message_bytes"),
            (first(&file.rates_per_second), "rates_per_second"),
        ];
        let (keys, only): (&[_], _) = match protocol {
            Protocol::Echo => (&disk, "disk"),
            Protocol::Idle => (&[disk.as_slice(), &network[4..]].concat(), "another protocol"),
            Protocol::Disk => (&network, "echo and idle"),
        };
        match keys.iter().find_map(|(span, key)| Some((span.clone()?, key))) {
            Some((span, key)) => {
                let protocol = format!("{protocol:?}").to_lowercase();
                self.wrong(
                    span,
                    format!("the key {key} is for {only}, and the protocol is {protocol}: remove it"),
                )
            }
            None => Ok(()),
        }
    }

    fn contenders(&mut self) -> Result<Vec<Contender>, ScenarioError> {
        let built_in = match self.file.protocol() {
            Protocol::Disk => Contender::disk_workers(&self.resources.executable, &self.resources.disk_file),
            Protocol::Echo | Protocol::Idle => Contender::all_of_anello(&self.resources.executable),
        };
        let built_in: Vec<Contender> =
            built_in.into_iter().filter(|contender| contender.twin_of.is_none()).collect();
        let mut contenders: Vec<Contender> = Vec::new();
        for entry in &self.file.contenders {
            let span = entry.span();
            let found = match entry.get_ref() {
                ContenderEntry::Name(name) if name == "peers" => self.all_peers(),
                ContenderEntry::Name(name) => self.named(name, &built_in, span.clone())?,
                ContenderEntry::Inline(inline) => vec![self.inline(inline, span.clone())?],
            };
            for contender in found {
                // A peer that was named for itself is one of "peers", too.
                if !contenders.contains(&contender) {
                    if contenders.iter().any(|other| other.name == contender.name) {
                        let why = format!("two contenders are called \"{}\": rename one", contender.name);
                        return self.wrong(span, why);
                    }
                    contenders.push(contender);
                }
            }
        }
        // In every run the reference is there twice: what the two differ by is what this machine cannot tell.
        let reference =
            contenders.iter().position(|contender| contender.name == *self.file.reference.get_ref());
        if let Some(reference) = reference {
            contenders.insert(reference + 1, contenders[reference].twin());
        }
        Ok(contenders)
    }

    fn all_peers(&mut self) -> Vec<Contender> {
        if !self.resources.unbuilt_peers.is_empty() {
            self.notes.push(format!(
                "Peers that are not built here and take no part: {} (`anello lab peers build`).",
                self.resources.unbuilt_peers.join(", ")
            ));
        }
        self.resources.peers.clone()
    }

    fn named(
        &mut self,
        name: &str,
        built_in: &[Contender],
        span: Range<usize>,
    ) -> Result<Vec<Contender>, ScenarioError> {
        let all = || built_in.iter().chain(&self.resources.peers);
        if let Some(contender) = all().find(|contender| contender.name == name) {
            return Ok(vec![contender.clone()]);
        }
        if self.resources.unbuilt_peers.iter().any(|peer| peer == name) {
            self.notes.push(format!(
                "{name} is not built here and takes no part: `anello lab peers build {name}`."
            ));
            return Ok(Vec::new());
        }
        let names: Vec<&str> = all().map(|contender| contender.name.as_str()).collect();
        self.wrong(
            span,
            format!(
                "no contender is called \"{name}\": choose one of {}, \"peers\" for all that are built, or give a command: \
                 {{ name = \"…\", command = \"…\" }}",
                names.join(", ")
            ),
        )
    }

    fn inline(&self, inline: &InlineContender, span: Range<usize>) -> Result<Contender, ScenarioError> {
        let executable = self.resources.executable.to_string_lossy();
        let mut words = inline.command.split_whitespace().map(|word| {
            word.replace("{anello}", &executable)
                .replace("{file}", &self.resources.disk_file.to_string_lossy())
        });
        let Some(program) = words.next().filter(|_| !inline.name.trim().is_empty()) else {
            return self.wrong(span, "a contender needs a name and a command".to_owned());
        };
        let own = inline.role != Role::Peer;
        Ok(Contender {
            name: inline.name.trim().to_owned(),
            role: inline.role,
            arguments: words.collect(),
            driver: inline.driver.clone(),
            version: inline.version.clone().or_else(|| own.then(|| env!("CARGO_PKG_VERSION").to_owned())),
            connections_limit: inline.connections_limit,
            against: inline.against.as_ref().map(|base| base.get_ref().trim().to_owned()),
            ..Contender::new("", Path::new(&program), &[])
        })
    }

    fn cells(&mut self) -> Result<Vec<Cell>, ScenarioError> {
        let mut cells = match self.file.protocol() {
            Protocol::Disk => self.disk_cells()?,
            Protocol::Echo | Protocol::Idle => self.network_cells()?,
        };
        self.notes.extend(leave_out_beyond(&mut cells, self.resources.connections_limit));
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
            return self.wrong(file.place_of_missing(), why);
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
        let workloads: Vec<(Workload, Range<usize>)> = match file.protocol() {
            Protocol::Idle => vec![(Workload::Idle, file.place_of_missing())],
            _ => file
                .message_bytes
                .iter()
                .map(|bytes| (Workload::Echo { message_bytes: *bytes.get_ref() }, bytes.span()))
                .collect(),
        };
        let product = !file.connections.is_empty() || !file.connections_per_core.is_empty();
        if file.cells.is_empty() && (!product || workloads.is_empty()) {
            let what = if file.protocol() == Protocol::Idle { "" } else { "message_bytes with " };
            let why = format!("give {what}connections or connections_per_core, or single [[cells]]");
            return self.wrong(file.place_of_missing(), why);
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
            let workload = match (file.protocol(), cell.message_bytes) {
                (Protocol::Idle, None) => Workload::Idle,
                (Protocol::Idle, Some(_)) => {
                    return self.wrong(entry.span(), "idle connections have no message_bytes".to_owned());
                }
                (_, Some(message_bytes)) => Workload::Echo { message_bytes },
                (_, None) => {
                    return self.wrong(entry.span(), "a cell for echo needs message_bytes".to_owned());
                }
            };
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

    fn add(&self, cells: &mut Vec<Cell>, cell: Cell, span: Range<usize>) -> Result<(), ScenarioError> {
        if let Err(why) = check_cell(&cell, self.resources.cores.len()) {
            return self.wrong(span, why);
        }
        if cells.contains(&cell) {
            return self.wrong(span, format!("the cell \"{cell}\" is there twice: name it once"));
        }
        cells.push(cell);
        Ok(())
    }

    /// The numbers of server cores that this machine has; says which it has not.
    fn core_counts(&mut self) -> Result<Vec<usize>, ScenarioError> {
        let wanted: Vec<usize> = match self.file.server_cores.as_slice() {
            [] => vec![1],
            counts => counts.iter().map(|count| *count.get_ref()).collect(),
        };
        if let Some(zero) = self.file.server_cores.iter().find(|count| *count.get_ref() == 0) {
            return self.wrong(zero.span(), "servers need at least 1 core".to_owned());
        }
        let most = self.cores_for_servers();
        let (fitting, beyond): (Vec<usize>, Vec<usize>) =
            wanted.into_iter().partition(|&count| count <= most);
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
pub fn leave_out_beyond(cells: &mut Vec<Cell>, limit: usize) -> Option<String> {
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

/// The place of a list's first value, if it has one.
fn first<T>(all: &[toml::Spanned<T>]) -> Option<Range<usize>> {
    all.first().map(toml::Spanned::span)
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
