//! Converts a scenario file to the configuration of a run for a machine, with notes about what was reduced or omitted.

mod cells;
mod contenders;
mod resolver;

use std::time::Duration;

use crate::plan::config::{
    CoreLayout, DEFAULT_SERVER_CPU_SHARE, LabConfig, Provenance, ScenarioRecord, Startup, Timing,
};
use crate::plan::contender::Contender;
use crate::plan::limits::{ConfigError, check_extent};
use crate::plan::scenario::file::{Protocol, ScenarioError, ScenarioFile};
use crate::plan::scenario::resources::Resources;

pub use cells::drop_cells_over_limit;
use resolver::{Resolver, first};

/// Minimum length of slices with an offered rate. The schedule needs several requests on every connection.
const MIN_RATED_SLICE: Duration = Duration::from_millis(250);

/// Creates a configuration from a scenario file. `file_name` is used in error messages.
///
/// # Errors
/// Returns the first problem in the file, with its position and remedy.
pub fn resolve(file_name: &str, text: &str, resources: &Resources) -> Result<LabConfig, ScenarioError> {
    let file = ScenarioFile::parse(file_name, text)?;
    let (protocol, notes) = (file.protocol(), file.notes.clone());
    Resolver { file_name, text, file: &file, protocol, resources, notes }.config()
}

impl Resolver<'_> {
    fn config(mut self) -> Result<LabConfig, ScenarioError> {
        let file = self.file;
        let (passes, rounds) = (*file.passes.get_ref(), *file.rounds.get_ref());
        for (number, passes, rounds) in [(&file.passes, passes, 1), (&file.rounds, 1, rounds)] {
            if let Err(error) = check_extent(passes, rounds, 1, 1) {
                return self.error(number.span(), error);
            }
        }
        if file.name.get_ref().trim().is_empty() {
            return self.error(file.name.span(), "name must not be empty");
        }
        self.check_protocol_keys()?;
        let mut contenders = self.contenders()?;
        self.check_bases(&contenders)?;
        self.drop_unsuitable(&mut contenders);
        self.check_not_empty(&contenders)?;
        let reference = self.add_twin(&mut contenders);
        let cells = self.cells()?;
        if cells.is_empty() {
            let message =
                "no cells left to measure on this machine (add cells with fewer connections or cores)";
            return self.error(file.name.span(), message);
        }
        let cores = self.core_layout(cells.iter().map(|cell| cell.server_cores).max(), &mut contenders);
        self.clear_missing_bases(&mut contenders);
        let mut slice = file.slice;
        if cells.iter().any(|cell| cell.offered_per_second.is_some()) && slice < MIN_RATED_SLICE {
            slice = MIN_RATED_SLICE;
            self.notes.push("Slices last 250 ms, the minimum for offered rates.".to_owned());
        }
        let is_disk = self.protocol == Protocol::Disk;
        let config = LabConfig {
            scenario: ScenarioRecord {
                name: file.name.get_ref().clone(),
                title: file.title.clone(),
                description: file.description.trim().to_owned(),
                source: file.source.clone(),
                text: self.text.to_owned(),
                scaling: std::mem::take(&mut self.notes),
            },
            contenders,
            reference,
            cells,
            check: file.check.unwrap_or(true),
            keep_going: false,
            timing: Timing {
                slice,
                warm_up: file.warm_up,
                passes,
                rounds,
                seed: file.seed.unwrap_or(1),
                stolen_fraction_limit: 0.01,
            },
            cores,
            startup: Startup {
                // The first disk worker creates the file.
                start_timeout: Duration::from_secs(if is_disk { 300 } else { 10 }),
                ..Startup::default()
            },
            disk_file: self.resources.disk_file.to_str().filter(|_| is_disk).map(str::to_owned),
            network: None,
            provenance: Provenance::default(),
        };
        let Err(error) = config.validate() else { return Ok(config) };
        let span = match (&error, &file.server_share) {
            (ConfigError::UnknownReference(..), _) => file.reference.span(),
            (ConfigError::ServerShare(_), Some(share)) => share.span(),
            _ => file.name.span(),
        };
        self.error(span, error)
    }

    fn core_layout(&mut self, max_cores: Option<usize>, contenders: &mut Vec<Contender>) -> CoreLayout {
        let max_cores = max_cores.unwrap_or(1);
        let cores = self.resources.cores_by_independence();
        // The load generator uses a single thread. Fast servers on several cores can outpace it; the results show this.
        let is_remote = self.resources.load_core.is_some();
        let load =
            self.resources.load_core.or_else(|| cores.get(max_cores).or_else(|| cores.last()).copied());
        let load = load.unwrap_or(0);
        let used = max_cores + usize::from(!is_remote);
        let further = self.assign_further_core(contenders, cores.get(used).copied());
        if max_cores > 1 {
            self.notes.push(format!(
                "The load generator has one thread, on core {load}. Servers on several cores may be faster than this \
                 thread. In saturated cells, compare the CPU time per request."
            ));
        }
        let used = used + usize::from(further.is_some());
        self.warn_about_siblings(&cores[..cores.len().min(used)]);
        let share = self.file.server_share.as_ref();
        CoreLayout {
            server: cores[..max_cores.min(cores.len())].to_vec(),
            load: vec![load],
            further,
            server_share: share.map_or(DEFAULT_SERVER_CPU_SHARE, |share| *share.get_ref()),
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
        let others = |index: usize| used[index + 1..].iter().map(move |&other| (used[index], other));
        let pairs: Vec<String> = (0..used.len())
            .flat_map(others)
            .filter(|&(one, other)| self.resources.are_siblings(one, other))
            .map(|(one, other)| format!("{one} and {other}"))
            .collect();
        if !pairs.is_empty() {
            self.notes.push(format!(
                "Cores {} are hardware threads of one physical core (SMT), and no other cores are usable. The load \
                 generator slows down every server. Compare servers with each other and do not rely on absolute \
                 values.",
                pairs.join(", ")
            ));
        }
    }
}
