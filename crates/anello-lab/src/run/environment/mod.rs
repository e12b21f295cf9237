//! Description of the machine that a reader needs to interpret results: kernel, CPU, limits, disk, noise sources.
//!
//! All facts are read from files under `/proc` and `/sys`. A fact that cannot be read is omitted, never guessed.

mod disk;
mod mitigations;
mod tree;

use std::path::Path;

use crate::result::{Disk, Environment};
use mitigations::{Vulnerabilities, boot_parameter};
use tree::{Tree, bracketed_option};

impl Environment {
    /// Reads the state of the machine from the file tree at `root` (`/` on a real machine). `cores` are the cores
    /// that the run uses. `disk_file` is the disk workers' file, which need not exist yet.
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
