//! Description of the machine that a reader needs to interpret results: kernel, CPU, limits, disk, noise sources.
//!
//! All facts are read from files under `/proc` and `/sys`. A fact that cannot be read is omitted, never guessed.

mod disk;
mod mitigations;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use disk::Disk;
use mitigations::{Vulnerabilities, boot_parameter};

/// Kernel settings that affect connections, sockets and disk I/O and have no field of their own in [`Environment`].
const SYSCTLS: [&str; 8] = [
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
    /// `true` if the CPU reports that it runs under a hypervisor.
    pub virtual_machine: bool,
    /// Physical memory in kibibytes.
    pub memory_kib: Option<u64>,
    /// Load averages over 1, 5 and 15 minutes.
    pub load_average: Option<[f64; 3]>,
    /// Time stolen from all cores since boot, in kernel ticks (usually 10 ms).
    pub stolen_ticks: Option<u64>,
    /// Congestion control of new TCP connections.
    pub congestion_control: Option<String>,
    /// Maximum length of the accept queue (`net.core.somaxconn`).
    pub somaxconn: Option<u64>,
    /// The `io_uring_disabled` sysctl: 0 allowed, 1 allowed for one group only, 2 disabled.
    pub io_uring_disabled: Option<u64>,
    /// CPU frequency governor of the cores that the run used. If they differ, the governor of each group of cores.
    pub governor: Option<String>,
    /// Active mitigations of CPU vulnerabilities, by vulnerability.
    pub mitigations: Vec<String>,
    /// CPU vulnerabilities that the kernel reports as unmitigated or unknown, in the kernel's words. `None` if the
    /// kernel does not report vulnerabilities, or if the result was written by a version that did not read them.
    #[serde(default)]
    pub vulnerable: Option<Vec<String>>,
    /// Value of the `mitigations=` boot parameter, as in "off". `None` if it is not set.
    #[serde(default)]
    pub mitigations_at_boot: Option<String>,
    /// Evidence that the lab runs in a container.
    pub container: Option<String>,
    /// Seccomp mode of this process: off, strict, filter.
    pub seccomp: Option<String>,
    /// Limit of open files: soft, hard.
    pub open_files: Option<String>,
    /// Limit of locked memory: soft, hard.
    pub locked_memory: Option<String>,
    /// Limit of processes and threads of the user: soft, hard.
    #[serde(default)]
    pub processes: Option<String>,
    /// State of simultaneous multithreading, as the kernel reports it: "on", "off", "notsupported".
    #[serde(default)]
    pub smt: Option<String>,
    /// Hardware threads of the first physical core, in the kernel's list format. The server's core may share its
    /// physical core with another one.
    #[serde(default)]
    pub siblings: Option<String>,
    /// State of the CPU's temporary clock frequency boost: "on" or "off".
    #[serde(default)]
    pub boost: Option<String>,
    /// Clock source of the kernel.
    #[serde(default)]
    pub clock_source: Option<String>,
    /// Mode of transparent huge pages: "always", "madvise" or "never".
    #[serde(default)]
    pub transparent_huge_pages: Option<String>,
    /// CPU time limit of this process's control group, as in "200000 of 100000 us". `None` if there is no limit.
    #[serde(default)]
    pub cpu_limit: Option<String>,
    /// Sizes of a TCP socket's receive buffer in bytes: minimum, default, maximum.
    #[serde(default)]
    pub tcp_receive_buffer: Option<String>,
    /// Sizes of a TCP socket's send buffer in bytes: minimum, default, maximum.
    #[serde(default)]
    pub tcp_send_buffer: Option<String>,
    /// Group that may use io_uring if `io_uring_disabled` is 1. -1 for no group.
    #[serde(default)]
    pub io_uring_group: Option<i64>,
    /// State of the automatic migration of memory to the NUMA node of the tasks that use it.
    #[serde(default)]
    pub numa_balancing: Option<String>,
    /// Further sysctls by name, as in "net.core.rmem_max". Unreadable ones are omitted.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Storage of the disk workers' file. `None` if there are no disk workers, or if it cannot be determined.
    #[serde(default)]
    pub disk: Option<Disk>,
}

impl Environment {
    /// Reads the state of the machine from the file tree at `root` (`/` on a real machine). `cores` are the cores
    /// that the run uses. `disk_file` is the file of the disk workers, which need not exist yet.
    #[must_use]
    pub fn capture(root: &Path, cores: &[usize], disk_file: Option<&Path>) -> Environment {
        let tree = Tree { root };
        let vulnerabilities = Vulnerabilities::read(&tree);
        let cpuinfo = tree.text("proc/cpuinfo").unwrap_or_default();
        let status = tree.text("proc/self/status").unwrap_or_default();
        let limits = tree.text("proc/self/limits").unwrap_or_default();
        let stat = tree.text("proc/stat").unwrap_or_default();
        let ostype = tree.line("proc/sys/kernel/ostype").unwrap_or_else(|| "Linux".to_owned());
        let release = tree.line("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
        Environment {
            kernel: format!("{ostype} {release}"),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: cpu_model(&cpuinfo),
            cores_online: stat.lines().filter(|line| is_core_line(line)).count(),
            cores_allowed: field(&status, "Cpus_allowed_list").unwrap_or_default(),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_kib: tree.text("proc/meminfo").and_then(|text| first_number(&field(&text, "MemTotal")?)),
            load_average: tree.line("proc/loadavg").and_then(|line| load_average(&line)),
            stolen_ticks: stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok()),
            congestion_control: tree.line("proc/sys/net/ipv4/tcp_congestion_control"),
            somaxconn: tree.line("proc/sys/net/core/somaxconn").and_then(|line| line.parse().ok()),
            io_uring_disabled: tree
                .line("proc/sys/kernel/io_uring_disabled")
                .and_then(|line| line.parse().ok()),
            governor: tree.governor(cores),
            vulnerable: vulnerabilities.as_ref().map(|vulnerabilities| vulnerabilities.unmitigated.clone()),
            mitigations: vulnerabilities.unwrap_or_default().mitigated,
            mitigations_at_boot: boot_parameter(&tree),
            container: tree.container(),
            seccomp: field(&status, "Seccomp").map(|mode| seccomp_mode(&mode).to_owned()),
            open_files: limit(&limits, "Max open files"),
            locked_memory: limit(&limits, "Max locked memory"),
            processes: limit(&limits, "Max processes"),
            smt: tree.line("sys/devices/system/cpu/smt/control"),
            siblings: tree.line("sys/devices/system/cpu/cpu0/topology/thread_siblings_list"),
            boost: tree.boost(),
            clock_source: tree.line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            transparent_huge_pages: tree
                .line("sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|line| bracketed_option(&line)),
            cpu_limit: tree.cpu_limit(),
            tcp_receive_buffer: tree.words("proc/sys/net/ipv4/tcp_rmem"),
            tcp_send_buffer: tree.words("proc/sys/net/ipv4/tcp_wmem"),
            io_uring_group: tree.line("proc/sys/kernel/io_uring_group").and_then(|line| line.parse().ok()),
            numa_balancing: tree.line("proc/sys/kernel/numa_balancing"),
            sysctls: tree.sysctls(),
            disk: disk_file.and_then(|file| Disk::of(&tree, file)),
        }
    }

    /// Returns all known facts as pairs of label and value, for display.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("Kernel", format!("{} ({})", self.kernel, self.architecture)),
            ("CPU", format!("{}{}", self.cpu_model, if self.virtual_machine { ", virtual" } else { "" })),
            ("Cores", format!("{} online, allowed: {}", self.cores_online, self.cores_allowed)),
        ];
        let mut add = |label, value: Option<String>| facts.extend(value.map(|value| (label, value)));
        add("Memory", self.memory_kib.map(|kib| format!("{:.1} GiB", kib as f64 / 1_048_576.0)));
        add(
            "Load average",
            self.load_average.map(|[one, five, fifteen]| format!("{one:.2} {five:.2} {fifteen:.2}")),
        );
        add("Frequency governor", Some(self.governor.clone().unwrap_or_else(|| "not visible".to_owned())));
        add("Clock boost", self.boost.clone());
        add(
            "SMT",
            self.smt.clone().map(|smt| match &self.siblings {
                Some(siblings) => format!("{smt}; hardware threads of core 0: {siblings}"),
                None => smt,
            }),
        );
        add(
            "CPU limit of the control group",
            Some(self.cpu_limit.clone().unwrap_or_else(|| "none".to_owned())),
        );
        add("Clock source", self.clock_source.clone());
        add("Transparent huge pages", self.transparent_huge_pages.clone());
        add("NUMA balancing", self.numa_balancing.clone());
        add("Congestion control", self.congestion_control.clone());
        add("TCP receive buffer (min, default, max)", self.tcp_receive_buffer.clone());
        add("TCP send buffer (min, default, max)", self.tcp_send_buffer.clone());
        add("somaxconn", self.somaxconn.map(|value| value.to_string()));
        for name in SYSCTLS {
            add(name, self.sysctls.get(name).cloned());
        }
        add("io_uring sysctl", self.io_uring_disabled.map(|value| uring_sysctl(value).to_owned()));
        add("io_uring group", self.io_uring_group.filter(|&group| group >= 0).map(|group| group.to_string()));
        add("Seccomp", self.seccomp.clone());
        add("Container", Some(self.container.clone().unwrap_or_else(|| "not detected".to_owned())));
        add("Open files (soft, hard)", self.open_files.clone());
        add("Locked memory (soft, hard)", self.locked_memory.clone());
        add("Processes and threads (soft, hard)", self.processes.clone());
        add("Disk file", self.disk.as_ref().map(Disk::to_string));
        let listed = |names: &[String], none: &str| {
            if names.is_empty() { none.to_owned() } else { names.join("; ") }
        };
        // A kernel that does not report vulnerabilities may still mitigate some.
        let none = if self.vulnerable.is_some() { "none" } else { "none reported" };
        add("CPU mitigations", Some(listed(&self.mitigations, none)));
        add("Unmitigated CPU vulnerabilities", self.vulnerable.as_deref().map(|names| listed(names, "none")));
        add("Boot parameter mitigations=", self.mitigations_at_boot.clone());
        facts
    }
}

/// Returns, for each of `cores`, all hardware threads of its physical core, including itself. A core without
/// topology information in the file tree at `root` is returned alone.
#[must_use]
pub fn core_siblings(root: &Path, cores: &[usize]) -> Vec<Vec<usize>> {
    let tree = Tree { root };
    let siblings = |&core: &usize| {
        let line = tree.line(&format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
        line.and_then(|line| core_list(&line)).unwrap_or_else(|| vec![core])
    };
    cores.iter().map(siblings).collect()
}

/// Parses a list of cores in the kernel's format: "0,4" or "0-1,8".
fn core_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?);
    }
    Some(cores)
}

/// File tree in which any file may be missing.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Returns the frequency governor of these cores: one name if all cores have the same governor, else each
    /// governor with its cores. `None` if no governor is readable.
    fn governor(&self, cores: &[usize]) -> Option<String> {
        let mut groups: Vec<(Option<String>, Vec<String>)> = Vec::new();
        for core in cores {
            let governor = self.line(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
            match groups.iter_mut().find(|(known, _)| *known == governor) {
                Some((_, group)) => group.push(core.to_string()),
                None => groups.push((governor, vec![core.to_string()])),
            }
        }
        if let [(governor, _)] = groups.as_slice() {
            return governor.clone();
        }
        let describe = |(governor, group): &(Option<String>, Vec<String>)| {
            let plural = if group.len() == 1 { "core" } else { "cores" };
            format!("{} on {plural} {}", governor.as_deref().unwrap_or("not visible"), group.join(", "))
        };
        (!groups.is_empty()).then(|| groups.iter().map(describe).collect::<Vec<_>>().join("; "))
    }

    fn sysctls(&self) -> BTreeMap<String, String> {
        let value = |name: &str| self.words(&format!("proc/sys/{}", name.replace('.', "/")));
        SYSCTLS.iter().filter_map(|&name| Some((name.to_owned(), value(name)?))).collect()
    }

    /// Returns the first line of a file with its whitespace normalized to single spaces.
    fn words(&self, path: &str) -> Option<String> {
        Some(self.line(path)?.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Reads the boost state. `intel_pstate` reports the inverted state (`no_turbo`).
    fn boost(&self) -> Option<String> {
        let is_on = match self.line("sys/devices/system/cpu/intel_pstate/no_turbo") {
            Some(no_turbo) => no_turbo == "0",
            None => self.line("sys/devices/system/cpu/cpufreq/boost")? == "1",
        };
        Some(if is_on { "on" } else { "off" }.to_owned())
    }

    /// Reads the CPU time limit of the control group, version 1 or 2.
    fn cpu_limit(&self) -> Option<String> {
        let groups = self.text("proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let unified = [format!("sys/fs/cgroup/{own}/cpu.max"), "sys/fs/cgroup/cpu.max".to_owned()];
        if let Some(line) = unified.iter().find_map(|path| self.line(path)) {
            let (quota, period) = line.split_once(' ')?;
            return (quota != "max").then(|| format!("{quota} of {period} us"));
        }
        let quota = self.line("sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        let period = self.line("sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
        (quota != "-1").then(|| format!("{quota} of {period} us"))
    }

    fn container(&self) -> Option<String> {
        if self.root.join(".dockerenv").exists() {
            return Some("Docker (/.dockerenv)".to_owned());
        }
        if self.root.join("run/.containerenv").exists() {
            return Some("Podman (/run/.containerenv)".to_owned());
        }
        let cgroup = self.text("proc/1/cgroup")?;
        let sign = ["docker", "kubepods", "containerd", "lxc", "libpod"]
            .iter()
            .find(|&&sign| cgroup.contains(sign))?;
        Some(format!("{sign} (cgroup of process 1)"))
    }
}

fn is_core_line(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Returns the value of the first `name: value` line. Whitespace before the colon is ignored.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Returns the bracketed word of a line as in `always [madvise] never`.
fn bracketed_option(line: &str) -> Option<String> {
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn cpu_model(cpuinfo: &str) -> String {
    let names = ["model name", "Model", "Processor", "cpu model", "CPU part"];
    names.iter().find_map(|name| field(cpuinfo, name)).unwrap_or_else(|| "unknown".to_owned())
}

fn load_average(line: &str) -> Option<[f64; 3]> {
    let mut words = line.split_whitespace().map(str::parse);
    Some([words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?])
}

fn limit(limits: &str, name: &str) -> Option<String> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = rest.split_whitespace();
    Some(format!("{}, {}", words.next()?, words.next()?))
}

fn seccomp_mode(mode: &str) -> &'static str {
    match mode {
        "0" => "off",
        "1" => "strict",
        "2" => "filter",
        _ => "unknown",
    }
}

fn uring_sysctl(value: u64) -> &'static str {
    match value {
        0 => "0 (allowed)",
        1 => "1 (only for a group)",
        2 => "2 (forbidden)",
        _ => "unknown value",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn captures_facts_from_file_tree() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(
            root,
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Fast CPU 9000\nflags\t\t: fpu hypervisor sse\n",
        );
        write(root, "proc/stat", "cpu  1 2 3 4 5 6 7 42 0 0\ncpu0 1 2\ncpu1 1 2\nctxt 9\n");
        write(root, "proc/self/status", "Cpus_allowed_list:\t0-1\nSeccomp:\t2\n");
        write(
            root,
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  524288  files\nMax locked memory  8388608  unlimited  bytes\nMax processes  63000  63000  processes\n",
        );
        write(root, "proc/loadavg", "0.50 0.25 0.10 1/100 4242\n");
        write(root, "proc/meminfo", "MemTotal:        2097152 kB\n");
        write(root, "proc/sys/kernel/osrelease", "6.18.0\n");
        write(root, "proc/sys/kernel/io_uring_disabled", "2\n");
        write(root, "proc/sys/net/core/somaxconn", "4096\n");
        write(root, "proc/sys/net/ipv4/tcp_congestion_control", "cubic\n");
        write(root, "proc/1/cgroup", "0::/kubepods/burstable/x\n");
        write(root, "proc/self/cgroup", "0::/x\n");
        write(root, "sys/fs/cgroup/x/cpu.max", "150000 100000\n");
        write(root, "sys/devices/system/cpu/smt/control", "on\n");
        write(root, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,1\n");
        write(root, "sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
        write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write(root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        write(root, "proc/sys/kernel/io_uring_group", "-1\n");
        write(root, "proc/sys/net/core/rmem_max", "212992\n");
        write(root, "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        write(root, "proc/sys/fs/aio-max-nr", "65536\n");
        write(root, "sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n");
        write(root, "sys/devices/system/cpu/vulnerabilities/l1tf", "Not affected\n");
        write(root, "sys/devices/system/cpu/vulnerabilities/mds", "Vulnerable\n");
        write(root, "proc/cmdline", "quiet mitigations=auto,nosmt\n");
        write(root, "proc/self/mountinfo", "1 0 8:0 / / rw - ext4 /dev/sda rw\n");
        let environment = Environment::capture(root, &[0, 1], Some(Path::new("/no-such/file")));
        assert_eq!(environment.kernel, "Linux 6.18.0");
        assert_eq!(environment.cpu_model, "Fast CPU 9000");
        assert!(environment.virtual_machine);
        assert_eq!((environment.cores_online, environment.cores_allowed.as_str()), (2, "0-1"));
        assert_eq!(environment.stolen_ticks, Some(42));
        assert_eq!(environment.load_average, Some([0.5, 0.25, 0.1]));
        assert_eq!(environment.memory_kib, Some(2_097_152));
        assert_eq!(environment.open_files.as_deref(), Some("1024, 524288"));
        assert_eq!(environment.locked_memory.as_deref(), Some("8388608, unlimited"));
        assert_eq!(environment.processes.as_deref(), Some("63000, 63000"));
        assert_eq!(environment.mitigations, ["meltdown: PTI"]);
        assert_eq!(environment.vulnerable, Some(vec!["mds: Vulnerable".to_owned()]));
        let names: Vec<&str> = environment.sysctls.keys().map(String::as_str).collect();
        assert_eq!(names, ["fs.aio-max-nr", "net.core.rmem_max", "net.ipv4.ip_local_port_range"]);
        assert_eq!(environment.container.as_deref(), Some("kubepods (cgroup of process 1)"));
        assert_eq!(environment.seccomp.as_deref(), Some("filter"));
        assert_eq!(environment.io_uring_disabled, Some(2));
        let facts = environment.facts();
        assert!(facts.contains(&("io_uring sysctl", "2 (forbidden)".to_owned())));
        assert!(facts.contains(&("Memory", "2.0 GiB".to_owned())));
        assert!(facts.contains(&("SMT", "on; hardware threads of core 0: 0,1".to_owned())));
        assert!(facts.contains(&("CPU limit of the control group", "150000 of 100000 us".to_owned())));
        assert!(facts.contains(&("Clock boost", "off".to_owned())));
        assert!(facts.contains(&("Transparent huge pages", "madvise".to_owned())));
        assert!(facts.contains(&("net.ipv4.ip_local_port_range", "32768 60999".to_owned())));
        assert!(
            !facts.iter().any(|(label, _)| *label == "net.core.wmem_max"),
            "unreadable sysctl is omitted"
        );
        assert!(facts.contains(&("Unmitigated CPU vulnerabilities", "mds: Vulnerable".to_owned())));
        assert!(facts.contains(&("Boot parameter mitigations=", "auto,nosmt".to_owned())));
        let disk = "ext4 on no known device, I/O scheduler unknown";
        assert!(facts.contains(&("Disk file", disk.to_owned())));
        assert_eq!(environment.tcp_receive_buffer.as_deref(), Some("4096 131072 6291456"));
        assert!(!facts.iter().any(|(label, _)| *label == "io_uring group"), "-1 means no group");
    }

    #[test]
    fn different_governors_are_listed_with_their_cores() {
        let root = tempfile::tempdir().unwrap();
        let governor = |cores: &[usize]| Environment::capture(root.path(), cores, None).governor;
        for (core, word) in [(0, "performance"), (1, "performance"), (2, "powersave")] {
            write(
                root.path(),
                &format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
                &format!("{word}\n"),
            );
        }
        assert_eq!(governor(&[0, 1]).as_deref(), Some("performance"));
        assert_eq!(governor(&[2]).as_deref(), Some("powersave"), "governor of core 2, not of core 0");
        let several = "performance on cores 0, 1; powersave on core 2; not visible on core 3";
        assert_eq!(governor(&[0, 1, 2, 3]).as_deref(), Some(several));
        assert_eq!((governor(&[3]), governor(&[])), (None, None));
    }

    #[test]
    fn reads_older_results_without_newer_fields() {
        let root = tempfile::tempdir().unwrap();
        let mut old = serde_json::to_value(Environment::capture(root.path(), &[], None)).unwrap();
        for field in ["vulnerable", "mitigations_at_boot", "processes", "sysctls", "disk"] {
            old.as_object_mut().unwrap().remove(field).expect(field);
        }
        let environment: Environment = serde_json::from_value(old).unwrap();
        assert_eq!((environment.vulnerable.as_ref(), environment.processes.as_ref()), (None, None));
        assert!(!environment.facts().iter().any(|(label, _)| *label == "Unmitigated CPU vulnerabilities"));
    }

    #[test]
    fn core_siblings_default_to_core_itself() {
        let root = tempfile::tempdir().unwrap();
        let list = |core: usize| format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        write(root.path(), &list(0), "0,2\n");
        write(root.path(), &list(1), "1-2,8\n");
        write(root.path(), &list(2), "what?\n");
        let siblings = core_siblings(root.path(), &[0, 1, 2, 3]);
        assert_eq!(siblings, [vec![0, 2], vec![1, 2, 8], vec![2], vec![3]]);
    }

    #[test]
    fn empty_file_tree_yields_no_facts() {
        let root = tempfile::tempdir().unwrap();
        let environment = Environment::capture(root.path(), &[0], Some(Path::new("/no-such/file")));
        assert_eq!(environment.governor, None);
        assert_eq!((environment.vulnerable.clone(), environment.disk.clone()), (None, None));
        assert!(environment.sysctls.is_empty());
        assert_eq!(environment.stolen_ticks, None);
        assert_eq!(environment.kernel, "Linux unknown");
        assert!(!environment.facts().is_empty());
    }
}
