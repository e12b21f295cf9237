//! Facts about the host. A value that cannot be read is `None`; values are never guessed.

use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// Kernel release as printed by `uname -r`, such as `6.1.0-13-amd64`.
    pub kernel_release: String,
    pub architecture: String,
    pub restrictions: Restrictions,
    pub limits: Limits,
    pub network: Network,
    pub processor: Processor,
    pub topology: Topology,
    /// Network interfaces that belong to a device.
    pub interfaces: Vec<Interface>,
    /// True if irqbalance, which moves interrupts, is running. `None` if not all processes of the host are visible.
    pub irqbalance: Option<bool>,
    pub uring: Uring,
    pub epoll: Epoll,
    pub choice: Choice,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Restrictions {
    /// `kernel.io_uring_disabled` (Linux 6.6): 0 allows all processes, 1 only privileged ones and members of a group, 2
    /// none.
    pub io_uring_disabled: Option<u32>,
    /// `kernel.io_uring_group`: the group that may use io_uring if `io_uring_disabled` is 1; -1 for no group.
    pub io_uring_group: Option<i64>,
    /// Seccomp mode of this process: 0 is off, 1 is strict, 2 is filtered.
    pub seccomp_mode: Option<u32>,
    /// Container runtime and where it was detected, such as `docker (/.dockerenv)`.
    pub container: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    pub open_files: Limit,
    pub locked_memory_bytes: Limit,
}

/// A resource limit; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Network {
    pub somaxconn: Option<u64>,
    pub congestion_control: Option<String>,
    /// Minimum, default and maximum size of a TCP receive buffer (`tcp_rmem`).
    pub receive_memory_bytes: Option<[u64; 3]>,
    /// The same for a send buffer (`tcp_wmem`).
    pub send_memory_bytes: Option<[u64; 3]>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Processor {
    pub allowed_cores: Vec<usize>,
    pub smt_active: Option<bool>,
    /// Frequency scaling governor of core 0.
    pub governor: Option<String>,
    /// CPU limit of the control group, in cores; `None` if there is no limit.
    pub cgroup_cpus: Option<f64>,
}

/// The online cores, as described by the kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Topology {
    /// NUMA nodes that have cores; empty if unknown.
    pub nodes: Vec<Node>,
    /// Groups of cores that share their last-level cache; empty if unknown.
    pub caches: Vec<Vec<usize>>,
    /// The hardware threads of each physical core; empty if unknown.
    pub physical_cores: Vec<Vec<usize>>,
    /// Cores of the workers of a server with `--cores all`, in the order of the workers.
    pub worker_cores: Vec<usize>,
    /// True if the CPU reports a hypervisor. `None` on architectures where it does not report this.
    pub hypervisor: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Node {
    pub number: usize,
    pub cores: Vec<usize>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Interface {
    pub name: String,
    pub driver: Option<String>,
    /// NUMA node of the device.
    pub node: Option<usize>,
    pub receive_queues: Vec<Queue>,
    pub transmit_queues: Vec<Queue>,
    /// Interrupts of the device in `/proc/interrupts`.
    pub interrupts: Vec<Interrupt>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    pub number: usize,
    /// Cores in `rps_cpus` of a receive queue, or in `xps_cpus` of a transmit queue. `None` if the file cannot be read.
    pub cores: Option<Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupt {
    pub number: u32,
    pub name: String,
    /// Cores that handle it. `None` if they cannot be read.
    pub cores: Option<Vec<usize>>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Uring {
    /// All features, whether used or not; empty if io_uring is unavailable.
    pub features: Vec<Feature>,
    pub refusal: Option<Refusal>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Feature {
    pub name: String,
    /// Set if the driver uses it by default.
    pub used: bool,
    /// Set if the kernel accepts it, by default or on request.
    pub available: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    pub cause: Cause,
    /// Complete error message of the driver.
    pub error: String,
}

/// Category of the failure, determined by the error from `io_uring_setup(2)`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// EPERM or EACCES.
    Forbidden,
    /// ENOSYS, or a kernel without a required feature.
    Missing,
    /// ENOMEM.
    Memory,
    Other,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Epoll {
    /// Error from starting the driver; `None` if the driver works.
    pub error: Option<String>,
}

/// Drivers selected for applications run by this user.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Choice {
    /// Driver that `auto` selects without the environment variable; `None` if no driver works.
    pub auto: Option<Chosen>,
    /// The value of `ANELLO_DRIVER`.
    pub environment: Option<String>,
    /// Driver selected with the environment variable, or the error; `None` if the variable is not set.
    pub overridden: Option<Result<Chosen, String>>,
}

/// A driver that has been started successfully.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    pub driver: String,
    pub features: String,
    /// Reason why io_uring was not selected.
    pub reason: Option<String>,
}
