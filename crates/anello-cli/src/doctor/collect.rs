//! Collects facts about the host from `/proc`, `/sys`, the resource limits of the process, and driver probes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anello::server::{Core, Topology as CpuTopology};
use anello::{DriverKind, DriverOptions, Runtime, SubmissionPolling};
use rustix::process::{Resource, getrlimit};
use tracing::subscriber::NoSubscriber;

use super::facts::{
    Cause, Choice, Chosen, Epoll, Facts, Feature, Limit, Limits, Network, Node, Processor, Refusal,
    Restrictions, Topology, Uring,
};
use super::interfaces::{interfaces, irqbalance};
use super::tree::Tree;
use crate::common::cpu_limits::GroupLimits;

pub fn facts() -> Facts {
    let tree = Tree { root: PathBuf::from("/") };
    Facts {
        kernel_release: tree.line("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
        architecture: std::env::consts::ARCH.to_owned(),
        restrictions: restrictions(&tree),
        limits: Limits { open_files: limit(Resource::Nofile), locked_memory_bytes: limit(Resource::Memlock) },
        network: network(&tree),
        processor: Processor {
            allowed_cores: anello::doctor::allowed_cores().unwrap_or_default(),
            smt_active: tree.number::<u32>("sys/devices/system/cpu/smt/active").map(|active| active != 0),
            governor: tree.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            cgroup_cpus: GroupLimits::open(&tree.root).cpus(),
        },
        topology: topology(&tree, &anello::doctor::allowed_cores().unwrap_or_default()),
        interfaces: interfaces(&tree),
        irqbalance: irqbalance(&tree),
        uring: try_uring(),
        epoll: Epoll { error: start(DriverKind::Epoll, false).err() },
        choice: choice(),
    }
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

fn restrictions(tree: &Tree) -> Restrictions {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let seccomp_mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    Restrictions {
        io_uring_disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
        io_uring_group: tree.number("proc/sys/kernel/io_uring_group"),
        seccomp_mode: seccomp_mode.and_then(|mode| mode.trim().parse().ok()),
        container: container(tree),
    }
}

/// Returns the name of the container runtime and where it was detected; `None` outside a container.
fn container(tree: &Tree) -> Option<String> {
    for (name, file) in [("docker", ".dockerenv"), ("podman", "run/.containerenv")] {
        if tree.root.join(file).exists() {
            return Some(format!("{name} (/{file})"));
        }
    }
    if let Some(manager) = tree.line("run/systemd/container") {
        return Some(format!("{manager} (/run/systemd/container)"));
    }
    let groups = tree.text("proc/self/cgroup")?;
    let known = ["kubepods", "docker", "containerd", "libpod", "lxc"];
    known.iter().find(|name| groups.contains(**name)).map(|name| format!("{name} (/proc/self/cgroup)"))
}

fn network(tree: &Tree) -> Network {
    let three_numbers = |path| {
        let line = tree.line(path)?;
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers.ok()?.try_into().ok()
    };
    Network {
        somaxconn: tree.number("proc/sys/net/core/somaxconn"),
        congestion_control: tree.line("proc/sys/net/ipv4/tcp_congestion_control"),
        receive_memory_bytes: three_numbers("proc/sys/net/ipv4/tcp_rmem"),
        send_memory_bytes: three_numbers("proc/sys/net/ipv4/tcp_wmem"),
    }
}

fn topology(tree: &Tree, allowed_cores: &[usize]) -> Topology {
    let topology = CpuTopology::read_from(&tree.root);
    let mut nodes: Vec<Node> = Vec::new();
    for (number, core) in topology.cores().iter().filter_map(|core| Some((core.node?, core.number))) {
        match nodes.iter_mut().find(|node| node.number == number) {
            Some(node) => node.cores.push(core),
            None => nodes.push(Node { number, cores: vec![core] }),
        }
    }
    nodes.sort_by_key(|node| node.number);
    let groups = |cores_of: fn(&Core) -> &[usize]| {
        // Listed once, at its first core.
        let first = |core: &&Core| cores_of(core).first() == Some(&core.number);
        topology.cores().iter().filter(first).map(|core| cores_of(core).to_vec()).collect()
    };
    let cpuinfo = tree.text("proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    Topology {
        nodes,
        caches: groups(|core| &core.cache_sharers),
        physical_cores: groups(|core| &core.siblings),
        worker_cores: topology.preferred_order(allowed_cores),
        hypervisor: flags.map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
    }
}

fn try_uring() -> Uring {
    match anello::doctor::probe_uring(&DriverOptions::default()) {
        Ok(features) => {
            // The driver warns of each option that the kernel rejects; the report says so as well.
            let on_request = tracing::subscriber::with_default(NoSubscriber::new(), || {
                uring_options().map(|options| anello::doctor::probe_uring(&options).unwrap_or_default())
            });
            let is_available = |name| on_request.iter().flatten().any(|feature| *feature == (name, true));
            let features = features.into_iter().map(|(name, used)| Feature {
                name: name.to_owned(),
                used,
                available: used || is_available(name),
            });
            Uring { features: features.collect(), refusal: None }
        }
        Err(error) => {
            let cause = match error.kind() {
                io::ErrorKind::PermissionDenied => Cause::Forbidden,
                io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => Cause::Missing,
                io::ErrorKind::OutOfMemory => Cause::Memory,
                _ => Cause::Other,
            };
            let refusal = Some(Refusal { cause, error: error.to_string() });
            Uring { features: Vec::new(), refusal }
        }
    }
}

/// Returns options that each request a feature that is not used by default. Separate, because an option that the kernel
/// rejects can fail the whole probe.
fn uring_options() -> [DriverOptions; 2] {
    let default = DriverOptions::default;
    [
        default().max_batch_delay(Duration::from_micros(50)),
        default().submission_polling(Some(SubmissionPolling::default().idle_ms(1))),
    ]
}

fn choice() -> Choice {
    let environment = std::env::var_os("ANELLO_DRIVER").map(|value| value.to_string_lossy().into_owned());
    let overridden = environment.as_ref().map(|_| start(DriverKind::Auto, true));
    Choice { auto: start(DriverKind::Auto, false).ok(), environment, overridden }
}

/// Builds a runtime the way an application does, drops it, and returns its driver.
fn start(kind: DriverKind, from_environment: bool) -> Result<Chosen, String> {
    let built = Runtime::builder().driver(kind).driver_from_environment(from_environment).build();
    let driver = built.map_err(|error| error.to_string())?.driver();
    Ok(Chosen { driver: driver.name.to_owned(), features: driver.features, reason: driver.fallback_reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tree::tree;

    #[test]
    fn missing_or_malformed_files_give_no_facts() {
        let (_directory, empty) = tree(&[]);
        assert_eq!(restrictions(&empty).seccomp_mode, None);
        assert_eq!(container(&empty), None);
        assert_eq!(network(&empty).receive_memory_bytes, None);
        let (_directory, tree) = tree(&[
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\n"),
        ]);
        assert_eq!(network(&tree).receive_memory_bytes, Some([4096, 131_072, 6_291_456]));
        assert_eq!(network(&tree).send_memory_bytes, None);
    }

    #[test]
    fn reads_topology() {
        let mut files = vec![
            ("sys/devices/system/node/node0/cpulist".to_owned(), "0-1\n"),
            ("sys/devices/system/node/node1/cpulist".to_owned(), "2-3\n"),
            ("proc/cpuinfo".to_owned(), "processor\t: 0\nflags\t\t: fpu hypervisor\n"),
        ];
        for (core, pair) in ["0-1\n", "0-1\n", "2-3\n", "2-3\n"].into_iter().enumerate() {
            let directory = format!("sys/devices/system/cpu/cpu{core}");
            files.push((format!("{directory}/topology/thread_siblings_list"), pair));
            files.push((format!("{directory}/cache/index0/level"), "3\n"));
            files.push((format!("{directory}/cache/index0/shared_cpu_list"), "0-3\n"));
        }
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_directory, tree) = tree(&files);
        let topology = topology(&tree, &[0, 1, 2, 3]);
        let nodes: Vec<_> = topology.nodes.iter().map(|node| (node.number, &node.cores[..])).collect();
        assert_eq!(nodes, [(0, &[0, 1][..]), (1, &[2, 3])]);
        assert_eq!(topology.caches, [[0, 1, 2, 3]]);
        assert_eq!(topology.physical_cores, [[0, 1], [2, 3]]);
        assert_eq!(topology.worker_cores, [0, 2, 1, 3]);
        assert_eq!(topology.hypervisor, Some(true));
    }

    #[test]
    fn reads_restrictions() {
        let (_directory, tree) = tree(&[
            ("proc/sys/kernel/io_uring_disabled", "1\n"),
            ("proc/sys/kernel/io_uring_group", "-1\n"),
            ("proc/self/status", "Name:\tanello\nSeccomp:\t2\nSeccomp_filters:\t3\n"),
            ("proc/self/cgroup", "0::/kubepods/pod1/abc\n"),
        ]);
        let restrictions = restrictions(&tree);
        assert_eq!((restrictions.io_uring_disabled, restrictions.io_uring_group), (Some(1), Some(-1)));
        assert_eq!(restrictions.seccomp_mode, Some(2));
        assert_eq!(restrictions.container.as_deref(), Some("kubepods (/proc/self/cgroup)"));
    }
}
