//! The CPUs that the process may use: its CPU affinity, and the limits of its control groups.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The CPU limits of the process's control groups. Their files stay open, so that they can be read inside a sandbox.
pub struct GroupLimits {
    groups: Vec<Group>,
}

struct Group {
    /// `cpu.max`, or `cpu.cfs_quota_us` in version 1 of control groups.
    quota: File,
    /// `cpu.cfs_period_us` in version 1. In version 2, the quota and the period are in the same file.
    period: Option<File>,
}

impl GroupLimits {
    /// Opens the files of the groups in a file system whose root is `root`. Files that are missing set no limit.
    pub fn open(root: &Path) -> Self {
        let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut groups = Vec::new();
        for line in memberships.lines() {
            let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
            else {
                continue;
            };
            let hierarchy = match controllers {
                "" if root.join("sys/fs/cgroup/unified").exists() => "sys/fs/cgroup/unified",
                "" => "sys/fs/cgroup",
                names if names.split(',').any(|name| name == "cpu") => "sys/fs/cgroup/cpu",
                _ => continue,
            };
            // Limits of parent groups apply as well. Inside a container, the path can contain groups that are not
            // visible; the root of the mounted hierarchy is then the container's own group.
            for group in Path::new(path.trim_start_matches('/')).ancestors() {
                groups.extend(Group::open(&root.join(hierarchy).join(group)));
            }
        }
        Self { groups }
    }

    /// Returns the lowest limit in CPUs, or `None` if there is no limit.
    pub fn cpus(&self) -> Option<f64> {
        self.groups.iter().filter_map(Group::cpus).min_by(f64::total_cmp)
    }
}

impl Group {
    fn open(directory: &Path) -> Option<Self> {
        let open = |name| File::open(directory.join(name)).ok();
        let version_2 = open("cpu.max").map(|quota| Self { quota, period: None });
        version_2
            .or_else(|| Some(Self { quota: open("cpu.cfs_quota_us")?, period: open("cpu.cfs_period_us") }))
    }

    fn cpus(&self) -> Option<f64> {
        let mut text = read(&self.quota)?;
        if let Some(period) = &self.period {
            text = format!("{text} {}", read(period)?);
        }
        let mut numbers = text.split_whitespace().map(|number| number.parse::<f64>().ok());
        let (quota, period) = (numbers.next()??, numbers.next()??);
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }
}

fn read(file: &File) -> Option<String> {
    let mut buffer = [0; 64];
    let length = file.read_at(&mut buffer, 0).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).trim().to_owned())
}

/// Logs a warning if the quota is lower than the number of workers, and then each change of the number of usable CPUs,
/// in a thread that exits with the process or once `is_closed` returns `true`. The runtime watches the CPU affinity of
/// workers that are pinned.
pub fn watch(limits: GroupLimits, workers: usize, is_closed: impl Fn() -> bool + Send + 'static) {
    let mut usable = usable_cpus(&limits);
    if let Some(problem) = limits.cpus().and_then(|cpus| excess_workers(cpus, workers)) {
        tracing::warn!("{problem}");
    }
    let spawned = thread::Builder::new().name("cpu-limits".into()).spawn(move || {
        while !is_closed() {
            let current = usable_cpus(&limits);
            if current != usable {
                tracing::warn!(
                    before = usable,
                    now = current,
                    workers,
                    "number of usable CPUs changed (affinity or cgroup quota); restart to change the number of workers"
                );
                usable = current;
            }
            thread::sleep(POLL_INTERVAL);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot watch the CPU limits");
    }
}

/// Returns a warning if a quota of `cpus` CPUs cannot keep `workers` workers running. One worker is never too many.
fn excess_workers(cpus: f64, workers: usize) -> Option<String> {
    let max_workers = (cpus.floor() as usize).max(1);
    (workers > max_workers).then(|| {
        format!(
            "{workers} workers share a CPU quota of {cpus:.2} CPUs (cgroup): under load, the kernel stops all of them \
             for a part of each period (start at most {max_workers} with --workers, or raise the quota)"
        )
    })
}

/// Returns the number of CPUs that the threads of this process can use together, or 0 if it is unknown.
fn usable_cpus(limits: &GroupLimits) -> f64 {
    let allowed = anello::doctor::allowed_cores().map_or(0, |cores| cores.len()) as f64;
    limits.cpus().map_or(allowed, |cpus| cpus.min(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    }

    #[test]
    fn smallest_limit_of_parent_groups_applies() {
        let version_2 = [
            ("proc/self/cgroup", "0::/service/worker\n"),
            ("sys/fs/cgroup/service/worker/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/service/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "400000 100000\n"),
        ];
        let version_1 = [
            ("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/unified/cgroup.procs", "\n"),
        ];
        for (files, cpus) in [(version_2, 1.5), (version_1, 0.5)] {
            let directory = tempfile::tempdir().unwrap();
            files.iter().for_each(|(path, text)| write(directory.path(), path, text));
            assert_eq!(GroupLimits::open(directory.path()).cpus(), Some(cpus));
        }
    }

    #[test]
    fn quota_below_number_of_workers_is_reported() {
        for (cpus, workers) in [(2.0, 2), (2.9, 2), (0.5, 1), (64.0, 2)] {
            assert_eq!(excess_workers(cpus, workers), None, "{cpus} {workers}");
        }
        assert!(excess_workers(2.9, 3).unwrap().contains("at most 2 with"));
        assert!(excess_workers(0.5, 2).unwrap().contains("at most 1 with"));
    }

    #[test]
    fn missing_and_malformed_files_set_no_limit() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(GroupLimits::open(directory.path()).cpus(), None);
        write(directory.path(), "proc/self/cgroup", "0::/a\nb\n");
        for text in ["", "max 100000", "100000", "x 100000", "100000 0", "-1 100000"] {
            write(directory.path(), "sys/fs/cgroup/a/cpu.max", text);
            assert_eq!(GroupLimits::open(directory.path()).cpus(), None, "{text:?}");
        }
    }

    #[test]
    fn changed_limit_is_read_from_open_files() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "proc/self/cgroup", "0::/a\n");
        write(directory.path(), "sys/fs/cgroup/a/cpu.max", "max 100000\n");
        let limits = GroupLimits::open(directory.path());
        let unlimited = usable_cpus(&limits);
        write(directory.path(), "sys/fs/cgroup/a/cpu.max", "25000 100000\n");
        assert_eq!((limits.cpus(), usable_cpus(&limits)), (Some(0.25), 0.25));
        write(directory.path(), "sys/fs/cgroup/a/cpu.max", "max 100000\n");
        assert_eq!(usable_cpus(&limits), unlimited);
    }
}
