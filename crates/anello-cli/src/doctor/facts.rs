//! What was found on the machine. What could not be read is `None`, never guessed.

use serde::Serialize;

/// All facts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// As `uname -r` says, such as `6.1.0-13-amd64`.
    pub kernel_release: String,
    pub architecture: String,
    pub restrictions: Restrictions,
    pub limits: Limits,
    pub network: Network,
    pub processor: Processor,
    pub uring: Uring,
    pub epoll: Epoll,
    pub choice: Choice,
}

/// What may stand in the way of io_uring.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Restrictions {
    /// `kernel.io_uring_disabled` (Linux 6.6): 0 for everybody, 1 for a group, 2 for nobody.
    pub io_uring_disabled: Option<u32>,
    /// `kernel.io_uring_group`: the group that may use io_uring when the other is 1; -1 is none.
    pub io_uring_group: Option<i64>,
    /// Seccomp mode of this process: 0 off, 1 strict, 2 filtered.
    pub seccomp_mode: Option<u32>,
    /// What says that this is a container, such as `docker (/.dockerenv)`.
    pub container: Option<String>,
}

/// Limits of the process; an absent value is unlimited.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    pub open_files: Limit,
    pub locked_memory_bytes: Limit,
}

/// One limit; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// Settings of the network.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Network {
    /// Bound of every listener's backlog.
    pub somaxconn: Option<u64>,
    pub congestion_control: Option<String>,
    /// Least, default and most bytes of a TCP receive buffer.
    pub receive_memory_bytes: Option<[u64; 3]>,
    /// Least, default and most bytes of a TCP send buffer.
    pub send_memory_bytes: Option<[u64; 3]>,
}

/// Cores and what bounds their use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Processor {
    /// Cores that this process may run on.
    pub allowed_cores: Vec<usize>,
    /// Whether cores share their hardware with a sibling.
    pub smt_active: Option<bool>,
    /// Frequency governor of the first core.
    pub governor: Option<String>,
    /// Cores' worth of time that the control group grants; `None` when it sets no limit.
    pub cgroup_cpus: Option<f64>,
}

/// A ring that was set up and tried.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Uring {
    /// Each feature with whether it would be used; empty when there is no io_uring.
    pub features: Vec<Feature>,
    pub refusal: Option<Refusal>,
}

/// One feature of io_uring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    pub name: String,
    pub used: bool,
}

/// Why there is no io_uring.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    pub cause: Cause,
    /// The driver's error in full.
    pub error: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// EPERM, EACCES.
    Forbidden,
    /// ENOSYS, or a kernel that has too little.
    Missing,
    /// ENOMEM.
    Memory,
    Other,
}

/// Whether the other driver works.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Epoll {
    pub error: Option<String>,
}

/// What a program of this user would run on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Choice {
    /// What `auto` takes, without the environment variable; `None` when nothing works.
    pub auto: Option<Chosen>,
    /// The value of `ANELLO_DRIVER`.
    pub environment: Option<String>,
    /// What it leads to, or the error: present when the variable is set.
    pub overridden: Option<Result<Chosen, String>>,
}

/// A driver that started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chosen {
    pub driver: String,
    pub features: String,
    /// Why io_uring was not taken.
    pub reason: Option<String>,
}
