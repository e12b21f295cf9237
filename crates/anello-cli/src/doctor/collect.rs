//! Collects facts about the host from `/proc`, `/sys`, the resource limits of the process, and driver probes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anello::{DriverKind, DriverOptions, Runtime};
use rustix::process::{Resource, getrlimit};

use super::facts::{
    Cause, Choice, Chosen, Epoll, Facts, Feature, Limit, Limits, Network, Processor, Refusal, Restrictions,
    Uring,
};
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
            allowed_cores: anello::allowed_cores().unwrap_or_default(),
            smt_active: tree.number::<u32>("sys/devices/system/cpu/smt/active").map(|active| active != 0),
            governor: tree.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            cgroup_cpus: GroupLimits::open(&tree.root).cpus(),
        },
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

fn try_uring() -> Uring {
    match anello::probe_uring(&DriverOptions::default()) {
        Ok(features) => {
            let features = features.into_iter().map(|(name, used)| Feature { name: name.to_owned(), used });
            Uring { features: features.collect(), refusal: None }
        }
        Err(error) => {
            let cause = match error.kind() {
                io::ErrorKind::PermissionDenied => Cause::Forbidden,
                io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => Cause::Missing,
                io::ErrorKind::OutOfMemory => Cause::Memory,
                _ => Cause::Other,
            };
            Uring { features: Vec::new(), refusal: Some(Refusal { cause, error: error.to_string() }) }
        }
    }
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

/// A directory tree in which any file may be missing.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.line(path)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = directory.path().to_owned();
        (directory, Tree { root })
    }

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
