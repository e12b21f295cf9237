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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::environment::tree::write;

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
