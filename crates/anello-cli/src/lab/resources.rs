//! Resources of this machine: its cores and the peers built on it.

use std::io;
use std::path::Path;

use anello_lab::peers::{Peers, Protocol, State};
use anello_lab::{Contender, Resources};

/// Returns the resources of this machine: its cores and the peers built on it.
pub fn resources(peers_directory: Option<&Path>, disk_file: &Path) -> io::Result<Resources> {
    let mut resources = Resources::of_this_machine(std::env::current_exe()?, disk_file.to_owned());
    let peers = match Peers::find(peers_directory) {
        Ok(peers) => peers,
        // Peers are optional: a binary that was installed without its sources has none.
        Err(error) if peers_directory.is_none() && error.kind() == io::ErrorKind::NotFound => {
            return Ok(resources);
        }
        Err(error) => return Err(error),
    };
    (resources.peers, resources.unbuilt_peers) = contenders_for(&peers, Protocol::Echo);
    (resources.http_peers, resources.unbuilt_http_peers) = contenders_for(&peers, Protocol::Http);
    Ok(resources)
}

/// Returns the peers of a protocol: the contenders of built peers, and the names of the contenders of other peers.
fn contenders_for(peers: &Peers, protocol: Protocol) -> (Vec<Contender>, Vec<String>) {
    let built = peers.contenders(protocol, "{cores}");
    let unbuilt = peers.speaking(protocol).filter(|peer| !matches!(peer.state(), State::Built(_)));
    let contenders = unbuilt.flat_map(|peer| &peer.manifest.contenders);
    (built, contenders.map(|contender| contender.name.clone()).collect())
}
