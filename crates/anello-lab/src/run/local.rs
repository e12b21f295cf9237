//! The machine on which this process is running.
//!
//! Stolen time comes from `/proc/stat`, in ticks of 10 ms: a single tick is enough to exclude a slice. CPU time comes
//! from the process clock (`clock_getcpuclockid(3)`), which is accurate at any time and includes exited threads.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{clock_getcpuclockid, clock_gettime};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use crate::plan::config::LabConfig;
use crate::plan::contender::Contender;
use crate::plan::cores::SPARE_DESCRIPTORS;
use crate::result::Environment;
use crate::run::affinity::cpu_set;
use crate::run::cpu_throttle::CpuThrottle;
use crate::run::environment::field;
use crate::run::machine::{Machine, MachineError, Running, Usage};
use crate::run::process::ServerProcess;
use crate::run::temporary::with_site;
use crate::run::tls::{Identity, with_certificate};

/// The machine on which this process is running. Dropping the handle terminates every contender started through it and
/// restores the CPU affinity of the thread.
#[derive(Debug)]
pub struct LocalMachine {
    processes: HashMap<u32, ServerProcess>,
    started: Instant,
    original_cores: Option<CpuSet>,
    /// Path of the `cpu.stat` file of this process's control group.
    throttled_file: Option<PathBuf>,
    /// Throttle of the server cores. `None` until first used.
    cpu_throttle: Option<CpuThrottle>,
    /// CPU time used by earlier throttles, which ran on other cores.
    stopped_throttles_cpu_ns: u64,
    /// Files that HTTP servers serve. `None` until the first server starts.
    site: Option<TempDir>,
    identity: Option<Identity>,
}

impl LocalMachine {
    /// Creates a handle to the machine with the TLS identity of the contenders, if they need one. Does not change
    /// anything until [`Machine::prepare`] is called.
    pub fn new(identity: Option<Identity>) -> LocalMachine {
        LocalMachine {
            processes: HashMap::new(),
            started: Instant::now(),
            original_cores: None,
            throttled_file: cpu_statistics(Path::new("/")),
            cpu_throttle: None,
            stopped_throttles_cpu_ns: 0,
            site: None,
            identity,
        }
    }
}

impl Machine for LocalMachine {
    fn prepare(&mut self, config: &LabConfig) -> Result<Vec<String>, MachineError> {
        let mut notes = Vec::new();
        if self.original_cores.is_none() {
            self.original_cores = sched_getaffinity(None).ok();
        }
        if let Err(error) = sched_setaffinity(None, &cpu_set(&config.cores.load)) {
            notes.push(format!(
                "The load generator could not be pinned to cores {:?}: {error}.",
                config.cores.load
            ));
        }
        // Raise the soft limit on open files to the hard limit, for the lab and, by inheritance, for its contenders. If
        // that fails, `max_open_connections` reports the lower number.
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
        let cells = config.cells.iter().filter(|cell| cell.workload.has_loops());
        let connections = cells.map(|cell| cell.connections).max().unwrap_or(0);
        let limit = self.max_open_connections()?;
        if connections * config.contenders.len() > limit {
            notes.push(format!(
                "The lab can open at most {} files (`ulimit -Hn`), too few to keep the connections of all contenders \
                 open at the same time in the largest cells. In these cells each contender gets new connections and a \
                 warm-up for every slice.",
                limit + SPARE_DESCRIPTORS
            ));
        }
        Ok(notes)
    }

    fn max_open_connections(&mut self) -> Result<usize, MachineError> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(SPARE_DESCRIPTORS))
    }

    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn unix_time_s(&mut self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn stolen_ns(&mut self, cores: &[usize]) -> Result<Option<u64>, MachineError> {
        let Ok(stat) = fs::read_to_string("/proc/stat") else { return Ok(None) };
        let ticks = cores.iter().map(|&core| core_ticks(&stat, core, STEAL).unwrap_or(0)).sum();
        Ok(Some(ticks_ns(ticks)))
    }

    fn throttled_ns(&mut self) -> Result<u64, MachineError> {
        let stat = self.throttled_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
        Ok(stat.and_then(|text| throttled_ns(&text)).unwrap_or(0))
    }

    fn usage(&mut self, pid: u32) -> Result<Usage, MachineError> {
        let failed = |error| MachineError::Usage { pid, error };
        let mut usage = Usage {
            cpu_ns: process_cpu_ns(pid).map_err(failed)?,
            voluntary_switches: Some(0),
            involuntary_switches: Some(0),
            resident_bytes: fs::read_to_string(format!("/proc/{pid}/status"))
                .ok()
                .and_then(|status| Some(status_number(&status, "VmRSS")? * 1024)),
        };
        for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
            // A thread may exit before its status is read. Its context switches are then not counted.
            if let Ok(status) = fs::read_to_string(task.map_err(failed)?.path().join("status")) {
                let sum = |total: Option<u64>, name: &str| Some(total? + status_number(&status, name)?);
                usage.voluntary_switches = sum(usage.voluntary_switches, "voluntary_ctxt_switches");
                usage.involuntary_switches = sum(usage.involuntary_switches, "nonvoluntary_ctxt_switches");
            }
        }
        Ok(usage)
    }

    fn load_cpu_ns(&mut self) -> Result<u64, MachineError> {
        let throttle_ns =
            self.stopped_throttles_cpu_ns + self.cpu_throttle.as_ref().map_or(0, CpuThrottle::cpu_ns);
        Ok(process_cpu_ns(std::process::id()).map_or(0, |cpu_ns| cpu_ns.saturating_sub(throttle_ns)))
    }

    fn other_cpu_ns(&mut self, cores: &[usize]) -> Result<Option<u64>, MachineError> {
        Ok(other_cpu_ns(cores))
    }

    fn start(
        &mut self,
        contender: &Contender,
        config: &LabConfig,
        cores: &[usize],
    ) -> Result<Running, MachineError> {
        let contender =
            with_certificate(with_site(contender.clone(), &mut self.site)?, self.identity.as_ref())?;
        let (process, running) =
            ServerProcess::start(&contender, &config.startup.launcher, cores, config.startup.start_timeout)?;
        self.processes.insert(running.pid, process);
        Ok(running)
    }

    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Result<Option<String>, MachineError> {
        Ok(match self.processes.get_mut(&pid) {
            Some(process) => process.exit_description(timeout),
            None => Some("was never started".to_owned()),
        })
    }

    fn sleep(&mut self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), MachineError> {
        let cpu_throttle = match self.cpu_throttle.take() {
            Some(cpu_throttle) if cpu_throttle.cores == cores => cpu_throttle,
            other => {
                self.stopped_throttles_cpu_ns += other.map_or(0, CpuThrottle::stop);
                CpuThrottle::new(cores).map_err(MachineError::Throttle)?
            }
        };
        cpu_throttle.throttle(share);
        self.cpu_throttle = Some(cpu_throttle);
        Ok(())
    }

    fn unthrottle_servers(&mut self) -> Result<(), MachineError> {
        if let Some(cpu_throttle) = &self.cpu_throttle {
            cpu_throttle.release();
        }
        Ok(())
    }

    fn set_paused(&mut self, pid: u32, is_paused: bool) -> Result<(), MachineError> {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.signal(if is_paused { Signal::STOP } else { Signal::CONT });
        }
        Ok(())
    }

    fn stop(&mut self, pids: &[u32]) -> Result<(), MachineError> {
        let mut ending: Vec<ServerProcess> =
            pids.iter().filter_map(|pid| self.processes.remove(pid)).collect();
        // Signal all processes first so that they exit in parallel. Dropping a handle then waits for its process.
        ending.iter_mut().for_each(ServerProcess::terminate);
        Ok(())
    }

    fn environment(&mut self, config: &LabConfig) -> Result<Environment, MachineError> {
        let disk_file = config.disk_file.as_deref().map(Path::new);
        Ok(Environment::capture(Path::new("/"), &config.all_cores(), disk_file))
    }
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        // Signal all processes first, as in `stop`.
        self.processes.values_mut().for_each(ServerProcess::terminate);
        self.processes.clear();
        if let Some(cores) = &self.original_cores {
            // On failure, the thread keeps the load generator's affinity, which only makes the analysis slower.
            sched_setaffinity(None, cores).ok();
        }
    }
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Columns of a core in `/proc/stat`: user, nice, system (without interrupts, which belong to no process), and steal.
const BUSY: Range<usize> = 0..3;
const STEAL: Range<usize> = 7..8;

/// Returns the sum of these columns of a core in `/proc/stat`.
fn core_ticks(stat: &str, core: usize, columns: Range<usize>) -> Option<u64> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    let columns = line.split_whitespace().skip(1 + columns.start).take(columns.len());
    columns.map(|column| column.parse::<u64>().ok()).sum()
}

/// Returns the CPU time of other programs on these cores.
fn other_cpu_ns(cores: &[usize]) -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let own = fs::read_to_string("/proc/self/stat").ok()?;
    let busy: u64 = cores.iter().map(|&core| core_ticks(&stat, core, BUSY)).sum::<Option<u64>>()?;
    Some(ticks_ns(busy.saturating_sub(family_ticks(&own)?)))
}

/// Returns the CPU time of a process and its reaped children, from `/proc/PID/stat`.
fn family_ticks(stat: &str) -> Option<u64> {
    // The process name in parentheses may contain any character, so count columns after the last parenthesis.
    let columns = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    columns.map(|column| column.parse::<u64>().ok()).sum()
}

/// Returns the file with the throttling statistics of this process's control group. `None` if there is no such file.
fn cpu_statistics(root: &Path) -> Option<PathBuf> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut candidates = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        match controllers {
            "" => candidates.push(Path::new("sys/fs/cgroup").join(group)),
            names if names.split(',').any(|name| name == "cpu") => {
                candidates.push(Path::new("sys/fs/cgroup").join(names).join(group));
                candidates.push(Path::new("sys/fs/cgroup/cpu").join(group));
            }
            _ => {}
        }
    }
    // In a container, the group's own path may be invisible. The root of the hierarchy is then the container's group.
    candidates.push(PathBuf::from("sys/fs/cgroup"));
    candidates.push(PathBuf::from("sys/fs/cgroup/cpu"));
    let files = candidates.into_iter().map(|group| root.join(group).join("cpu.stat"));
    files.into_iter().find(|path| fs::read_to_string(path).is_ok_and(|text| throttled_ns(&text).is_some()))
}

/// Parses `throttled_usec` (version 2) or `throttled_time` (version 1, in nanoseconds) of a control group.
fn throttled_ns(cpu_stat: &str) -> Option<u64> {
    cpu_stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", value) => Some(value.trim().parse::<u64>().ok()? * 1000),
        ("throttled_time", value) => value.trim().parse().ok(),
        _ => None,
    })
}

fn status_number(status: &str, name: &str) -> Option<u64> {
    field(status, name)?.split(' ').next()?.parse().ok()
}

/// Returns the CPU time of all threads of a process, including exited ones, in nanoseconds.
fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    // A number outside the range of process IDs maps to an ID that does not exist.
    let id = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
    let time = clock_getcpuclockid(id).and_then(clock_gettime)?;
    Ok(u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_proc_stat_columns_by_core() {
        let stat =
            "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 30 9 10\ncpu10 1 2 3 4 5 6 7 58 0 0\nintr 1\n";
        assert_eq!(core_ticks(stat, 0, STEAL), Some(30));
        assert_eq!(core_ticks(stat, 10, STEAL), Some(58));
        assert_eq!(core_ticks(stat, 1, STEAL), None);
        assert_eq!(core_ticks(stat, 0, BUSY), Some(6));
        assert_eq!(family_ticks("42 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0"), Some(127));
    }

    #[test]
    fn finds_throttling_statistics_of_both_cgroup_versions() {
        assert_eq!(throttled_ns("usage_usec 1\nnr_throttled 2\nthrottled_usec 30\n"), Some(30_000));
        assert_eq!(throttled_ns("nr_periods 1\nthrottled_time 31\n"), Some(31));
        assert_eq!(throttled_ns("usage_usec 1\n"), None);
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(cpu_statistics(root.path()), None);
        write("proc/self/cgroup", "1:cpu,cpuacct:/b\n0::/a\n");
        write("sys/fs/cgroup/cpu.stat", "throttled_usec 5\n");
        assert_eq!(cpu_statistics(root.path()), Some(root.path().join("sys/fs/cgroup/cpu.stat")));
        write("sys/fs/cgroup/a/cpu.stat", "throttled_usec 5\n");
        assert_eq!(cpu_statistics(root.path()), Some(root.path().join("sys/fs/cgroup/a/cpu.stat")));
    }
}
