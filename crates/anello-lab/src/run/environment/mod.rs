//! Description of the machine, read from files under `/proc` and `/sys`. A fact that cannot be read is omitted.

mod disk;
mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::result::{Disk, Environment};
use tree::{Tree, bracketed_option};

impl Environment {
    /// Reads the state of the machine from the file tree at `root`, for a run on `cores`. `disk_file` is the disk
    /// workers' file, which need not exist yet.
    pub fn capture(root: &Path, cores: &[usize], disk_file: Option<&Path>) -> Environment {
        let tree = Tree { root };
        let (mitigations, vulnerable) = vulnerabilities(&tree).unzip();
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
            cores_online: stat
                .lines()
                .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
                .count(),
            cores_allowed: field(&status, "Cpus_allowed_list").unwrap_or_default(),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_kib: tree
                .text("proc/meminfo")
                .and_then(|text| field(&text, "MemTotal")?.split(' ').next()?.parse().ok()),
            load_average: tree.line("proc/loadavg").and_then(|line| load_average(&line)),
            stolen_ticks: stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok()),
            congestion_control: tree.line("proc/sys/net/ipv4/tcp_congestion_control"),
            somaxconn: tree.number("proc/sys/net/core/somaxconn"),
            io_uring_disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
            governor: tree.governor(cores),
            vulnerable,
            mitigations: mitigations.unwrap_or_default(),
            mitigations_at_boot: boot_parameter(&tree),
            container: tree.container(),
            seccomp: field(&status, "Seccomp").map(|mode| {
                let modes = ["off", "strict", "filter"];
                mode.parse()
                    .ok()
                    .and_then(|mode: usize| modes.get(mode).copied())
                    .unwrap_or("unknown")
                    .to_owned()
            }),
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
            io_uring_group: tree.number("proc/sys/kernel/io_uring_group"),
            numa_balancing: tree.line("proc/sys/kernel/numa_balancing"),
            sysctls: tree.sysctls(),
            disk: disk_file.and_then(|file| Disk::of(&tree, file)),
        }
    }
}

/// Returns the value of the first `name: value` line. Whitespace before the colon is ignored.
pub(super) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
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

/// Returns the active mitigations (for example, "meltdown: PTI") and the vulnerabilities that are unmitigated, partly
/// mitigated or of unknown status, as described by the kernel. A partly mitigated vulnerability is in both lists.
fn vulnerabilities(tree: &Tree<'_>) -> Option<(Vec<String>, Vec<String>)> {
    let directory = "sys/devices/system/cpu/vulnerabilities";
    let entries = fs::read_dir(tree.root.join(directory)).ok()?;
    let names: BTreeSet<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let (mut mitigated, mut unmitigated) = (Vec::new(), Vec::new());
    for name in names {
        let Some(line) = tree.line(&format!("{directory}/{name}")) else { continue };
        // The prefix marks a statement about virtual machines hosted by this machine.
        let status = line.strip_prefix("KVM: ").unwrap_or(&line);
        if let Some(mitigation) = status.strip_prefix("Mitigation: ") {
            let mut clauses = mitigation.split([';', ',']).map(str::trim);
            mitigated.push(format!("{name}: {}", clauses.next().unwrap_or_default()));
            let open: Vec<&str> = clauses.filter(|clause| clause.contains("ulnerable")).collect();
            if !open.is_empty() {
                unmitigated.push(format!("{name}: {}", open.join(", ")));
            }
        } else if line.contains("ulnerable") || status.starts_with("Unknown") {
            unmitigated.push(format!("{name}: {}", line.split(';').next().unwrap_or(&line).trim()));
        }
    }
    Some((mitigated, unmitigated))
}

/// Returns the last value of the `mitigations=` boot option, such as "auto,nosmt". Arguments after "--" belong to init.
fn boot_parameter(tree: &Tree<'_>) -> Option<String> {
    let line = tree.line("proc/cmdline")?;
    let words = line.split_whitespace().take_while(|word| *word != "--");
    Some(words.filter_map(|word| word.strip_prefix("mitigations=")).last()?.to_owned())
}
