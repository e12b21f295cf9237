//! Inputs of the subcommands: the resources of this machine, and stored runs.

use std::io;
use std::path::{Path, PathBuf};

use anello_lab::peers::Peers;
use anello_lab::raw::read_runs;
use anello_lab::{LabResult, Resources};

use crate::common::error::invalid_input;

#[derive(clap::Args)]
pub struct PeersFlag {
    /// Directory with the peers' sources, one subdirectory per peer; by default `peers` in the current directory or one
    /// of its parents, otherwise in a parent of the directory of this command.
    #[arg(long = "peers", value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
}

pub fn resources(peers_directory: Option<&Path>, disk_file: &Path) -> io::Result<Resources> {
    let resources = Resources::of_this_machine(std::env::current_exe()?, disk_file.to_owned());
    match Peers::find(peers_directory) {
        // Peers are optional: a binary installed without its sources has no peers.
        Err(error) if peers_directory.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(resources),
        peers => Ok(resources.with_peers(&peers?)),
    }
}

/// Reads a single run from its JSON or HTML report.
pub fn read_result(path: &Path) -> io::Result<LabResult> {
    let [run] = <[LabResult; 1]>::try_from(read_runs(path)?).map_err(|_| {
        let path = path.display();
        invalid_input(format!("{path} contains several runs (pass the JSON file of one of them)"))
    })?;
    Ok(run)
}
