//! Stored contenders of a run.

use serde::{Deserialize, Serialize};

use crate::plan::contender::{Kind, Role, Serves};
use crate::result::executable::Executable;

/// One contender of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContenderRecord {
    /// Unique name of the contender in this run.
    pub name: String,
    /// Role of the contender in the comparison.
    pub role: Role,
    /// Command line that starts the contender.
    pub command: String,
    /// Files of the program with their hashes, executable first. Files that could not be read are omitted.
    #[serde(default)]
    pub executables: Vec<Executable>,
    /// Line that the contender printed when it was ready; `None` if it never became ready.
    pub ready_line: Option<String>,
    /// Kind of I/O: "io_uring", "epoll", "poll", "select", "threads", or the engine of a disk worker. Taken from the
    /// ready line, otherwise from the declaration of the contender; `None` if unknown.
    pub driver: Option<String>,
    /// Version of the contender, or of the library that it represents.
    pub version: Option<String>,
    /// Commit of the contender's sources, or of the library that it represents. The suffix "+changes" ("-dirty" in
    /// older results) marks sources that were modified after the commit. `None` if unknown.
    #[serde(default)]
    pub commit: Option<String>,
    /// Checksum of the represented library from its lock file: "sha256:…" or "h1:…". `None` if there is no library or
    /// lock file, or if the checksum is unknown.
    #[serde(default)]
    pub library_checksum: Option<String>,
    /// Commit from which a server that wraps a library was built, with the same suffix as `commit`. `None` for other
    /// contenders, or if unknown.
    #[serde(default)]
    pub server_commit: Option<String>,
    /// Language, toolchain and other declared properties of the build.
    pub built_with: Option<String>,
    /// Other known properties of the contender.
    pub features: Vec<String>,
    /// Maximum number of connections that the contender supports.
    pub connections_limit: Option<usize>,
    /// `true` if the contender can be configured to use several cores.
    pub many_cores: bool,
    /// Fraction of a core that the contender used while idle. Set only if the CPU use was enough to disturb other
    /// contenders. In that case, the contender was suspended during their slices.
    #[serde(default)]
    pub idle_cpu_fraction: Option<f64>,
    /// Name of the contender that has this one as its twin, if any.
    pub twin_of: Option<String>,
    /// Kind of peer; `None` for other contenders, and for peers that do not declare it.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// Requests that an HTTP server supports; empty for other contenders.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// Contender that differs from this one only in the property under test; `None` if there is no such base.
    #[serde(default)]
    pub base: Option<String>,
}
