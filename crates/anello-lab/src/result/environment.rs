//! Description of the machine, which a reader needs to interpret results: kernel, CPU, limits, disk, noise sources.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Kernel settings that affect connections, sockets and disk I/O and have no field of their own in [`Environment`].
pub(crate) const SYSCTLS: [&str; 8] = [
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.default_qdisc",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.ip_local_port_range",
    "fs.aio-max-nr",
];

/// State of the machine at one point in time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Kernel name and release.
    pub kernel: String,
    /// Processor architecture.
    pub architecture: String,
    /// Name of the CPU.
    pub cpu_model: String,
    /// Number of online cores.
    pub cores_online: usize,
    /// Cores that this process may use, in the kernel's list format.
    pub cores_allowed: String,
    /// `true` if the CPU reports that it is running under a hypervisor.
    pub virtual_machine: bool,
    /// Physical memory in kibibytes.
    pub memory_kib: Option<u64>,
    /// Load averages over 1, 5 and 15 minutes.
    pub load_average: Option<[f64; 3]>,
    /// Time stolen from all cores since boot, in kernel ticks (usually 10 ms).
    pub stolen_ticks: Option<u64>,
    /// Congestion control algorithm for new TCP connections.
    pub congestion_control: Option<String>,
    /// Maximum length of the accept queue (`net.core.somaxconn`).
    pub somaxconn: Option<u64>,
    /// The `io_uring_disabled` sysctl: 0 allowed, 1 allowed for one group only, 2 disabled.
    pub io_uring_disabled: Option<u64>,
    /// CPU frequency governor of the cores that the run used. If the governors differ, each governor with its cores.
    pub governor: Option<String>,
    /// Active mitigations for CPU vulnerabilities, by vulnerability.
    pub mitigations: Vec<String>,
    /// CPU vulnerabilities that the kernel reports as unmitigated or unknown, in the kernel's words. `None` if the
    /// kernel does not report vulnerabilities, or if the result was written by a version that did not read them.
    pub vulnerable: Option<Vec<String>>,
    /// Value of the `mitigations=` boot parameter, such as "off". `None` if it is not set.
    pub mitigations_at_boot: Option<String>,
    /// Evidence that the lab is running in a container.
    pub container: Option<String>,
    /// Seccomp mode of this process: "off", "strict" or "filter".
    pub seccomp: Option<String>,
    /// Soft and hard limit on open files.
    pub open_files: Option<String>,
    /// Soft and hard limit on locked memory.
    pub locked_memory: Option<String>,
    /// Soft and hard limit on the user's processes and threads.
    pub processes: Option<String>,
    /// State of simultaneous multithreading, as the kernel reports it: "on", "off", "notsupported".
    pub smt: Option<String>,
    /// Hardware threads of the first physical core, in the kernel's list format. If there are several, other threads
    /// may run on the server's physical core.
    pub siblings: Option<String>,
    /// State of the CPU's frequency boost (turbo): "on" or "off".
    pub boost: Option<String>,
    /// Clock source used by the kernel.
    pub clock_source: Option<String>,
    /// Mode of transparent huge pages: "always", "madvise" or "never".
    pub transparent_huge_pages: Option<String>,
    /// CPU time limit of this process's control group, for example "200000 of 100000 us". `None` if there is no limit.
    pub cpu_limit: Option<String>,
    /// Sizes of a TCP socket's receive buffer in bytes: minimum, default, maximum.
    pub tcp_receive_buffer: Option<String>,
    /// Sizes of a TCP socket's send buffer in bytes: minimum, default, maximum.
    pub tcp_send_buffer: Option<String>,
    /// ID of the group that may use io_uring if `io_uring_disabled` is 1; -1 if there is no such group.
    pub io_uring_group: Option<i64>,
    /// State of automatic NUMA balancing, which migrates memory to the node of the tasks that use it.
    pub numa_balancing: Option<String>,
    /// Other sysctls by name, such as "net.core.rmem_max". Unreadable ones are omitted.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Storage that holds the disk workers' file. `None` if there are no disk workers, or if the storage is unknown.
    pub disk: Option<Disk>,
}

impl Environment {
    /// Returns all known facts as label-value pairs for display.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let or = |text: &Option<String>, none: &str| Some(text.clone().unwrap_or_else(|| none.to_owned()));
        let listed = |names: &[String], none: &str| match names {
            [] => none.to_owned(),
            names => names.join("; "),
        };
        let smt = self.smt.as_ref().map(|smt| match &self.siblings {
            Some(siblings) => format!("{smt}; hardware threads of core 0: {siblings}"),
            None => smt.clone(),
        });
        let uring_sysctl = self.io_uring_disabled.map(|value| match value {
            0 => "0 (allowed)",
            1 => "1 (only for a group)",
            2 => "2 (forbidden)",
            _ => "unknown value",
        });
        let uring_group = self.io_uring_group.filter(|&group| group >= 0);
        // A kernel that does not report vulnerabilities may still mitigate some.
        let no_mitigations = if self.vulnerable.is_some() { "none" } else { "none reported" };
        let cpu = format!("{}{}", self.cpu_model, if self.virtual_machine { ", virtual" } else { "" });
        let before_sysctls = [
            ("Kernel", Some(format!("{} ({})", self.kernel, self.architecture))),
            ("CPU", Some(cpu)),
            ("Cores", Some(format!("{} online, allowed: {}", self.cores_online, self.cores_allowed))),
            ("Memory", self.memory_kib.map(|kib| format!("{:.1} GiB", kib as f64 / 1_048_576.0))),
            ("Load average", self.load_averages()),
            ("Frequency governor", or(&self.governor, "not visible")),
            ("Clock boost", self.boost.clone()),
            ("SMT", smt),
            ("CPU limit of the control group", or(&self.cpu_limit, "none")),
            ("Clock source", self.clock_source.clone()),
            ("Transparent huge pages", self.transparent_huge_pages.clone()),
            ("NUMA balancing", self.numa_balancing.clone()),
            ("Congestion control", self.congestion_control.clone()),
            ("TCP receive buffer (min, default, max)", self.tcp_receive_buffer.clone()),
            ("TCP send buffer (min, default, max)", self.tcp_send_buffer.clone()),
            ("somaxconn", self.somaxconn.map(|value| value.to_string())),
        ];
        let after_sysctls = [
            ("io_uring sysctl", uring_sysctl.map(str::to_owned)),
            ("io_uring group", uring_group.map(|group| group.to_string())),
            ("Seccomp", self.seccomp.clone()),
            ("Container", or(&self.container, "not detected")),
            ("Open files (soft, hard)", self.open_files.clone()),
            ("Locked memory (soft, hard)", self.locked_memory.clone()),
            ("Processes and threads (soft, hard)", self.processes.clone()),
            ("Disk file", self.disk.as_ref().map(Disk::to_string)),
            ("CPU mitigations", Some(listed(&self.mitigations, no_mitigations))),
            (
                "Unmitigated CPU vulnerabilities",
                self.vulnerable.as_deref().map(|names| listed(names, "none")),
            ),
            ("Boot parameter mitigations=", self.mitigations_at_boot.clone()),
        ];
        let sysctls = SYSCTLS.map(|name| (name, self.sysctls.get(name).cloned()));
        let facts = before_sysctls.into_iter().chain(sysctls).chain(after_sysctls);
        facts.filter_map(|(label, value)| Some((label, value?))).collect()
    }

    /// Formats the load averages.
    pub(crate) fn load_averages(&self) -> Option<String> {
        self.load_average.map(|[one, five, fifteen]| format!("{one:.2} {five:.2} {fifteen:.2}"))
    }
}

/// File system and block device of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Type of the file system: "ext4", "tmpfs".
    pub file_system: String,
    /// Kernel name of the block device under the file system: "nvme0n1p2". `None` if there is none or it is unknown.
    pub device: Option<String>,
    /// I/O scheduler of the device: "mq-deadline", "none". `None` if it is unknown.
    pub scheduler: Option<String>,
}

impl fmt::Display for Disk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_deref().unwrap_or("no known device");
        let scheduler = self.scheduler.as_deref().unwrap_or("unknown");
        write!(formatter, "{} on {device}, I/O scheduler {scheduler}", self.file_system)
    }
}
