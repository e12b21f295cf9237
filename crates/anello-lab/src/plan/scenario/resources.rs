use std::path::{Path, PathBuf};

use crate::plan::contender::Contender;
use crate::plan::cores::{allowed_cores, connections_limit, core_siblings};
use crate::plan::peers::{Peers, Protocol, State};

/// Resources of a machine that a scenario can use.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Path of the `anello` command.
    pub executable: PathBuf,
    /// Usable cores in ascending order. Not empty.
    pub cores: Vec<usize>,
    /// For each of [`cores`](Self::cores), all hardware threads of its physical core, including itself.
    pub siblings: Vec<Vec<usize>>,
    /// Core of the load generator if it runs on another host. `None` if it needs one of [`cores`](Self::cores).
    pub load_core: Option<usize>,
    /// Maximum number of connections that the lab may have open.
    pub connections_limit: usize,
    /// Peers that have been built and support the echo protocol.
    pub peers: Vec<Contender>,
    /// Names of echo contenders that are not built.
    pub unbuilt_peers: Vec<String>,
    /// Peers that have been built and support HTTP.
    pub http_peers: Vec<Contender>,
    /// Names of HTTP contenders that are not built.
    pub unbuilt_http_peers: Vec<String>,
    /// File that disk workers use. Its directory must exist.
    pub disk_file: PathBuf,
}

impl Resources {
    /// Returns the resources of this machine, without peers.
    pub fn of_this_machine(executable: PathBuf, disk_file: PathBuf) -> Resources {
        let cores = allowed_cores();
        Resources {
            executable,
            siblings: core_siblings(Path::new("/"), &cores),
            cores,
            load_core: None,
            connections_limit: connections_limit(),
            peers: Vec::new(),
            unbuilt_peers: Vec::new(),
            http_peers: Vec::new(),
            unbuilt_http_peers: Vec::new(),
            disk_file,
        }
    }

    /// Adds the peers: the contenders of built peers, and the names of other peers' contenders.
    #[must_use]
    pub fn with_peers(self, peers: &Peers) -> Resources {
        let contenders_of = |protocol| {
            let unbuilt = peers.speaking(protocol).filter(|peer| !matches!(peer.state(), State::Built(_)));
            let unbuilt = unbuilt.flat_map(|peer| &peer.manifest.contenders);
            let names = unbuilt.map(|contender| contender.name.clone()).collect();
            (peers.contenders(protocol, "{cores}"), names)
        };
        let (peers, unbuilt_peers) = contenders_of(Protocol::Echo);
        let (http_peers, unbuilt_http_peers) = contenders_of(Protocol::Http);
        Resources { peers, unbuilt_peers, http_peers, unbuilt_http_peers, ..self }
    }

    /// Returns the cores in the order in which they are used: one hardware thread of each physical core in ascending
    /// order, then the others. Threads of one physical core share execution units, so a load generator on the same
    /// physical core would slow down the server.
    pub(super) fn cores_by_independence(&self) -> Vec<usize> {
        let (mut separate, mut others): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for &core in &self.cores {
            let is_shared = separate.iter().any(|&used| self.are_siblings(core, used));
            if is_shared { others.push(core) } else { separate.push(core) }
        }
        separate.extend(others);
        separate
    }

    pub(super) fn are_siblings(&self, one: usize, other: usize) -> bool {
        let index = self.cores.iter().position(|&core| core == one);
        let siblings = index.and_then(|index| self.siblings.get(index));
        one != other && siblings.is_some_and(|siblings| siblings.contains(&other))
    }
}
