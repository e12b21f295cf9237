//! The machine a run happens on: its clock, what the hypervisor steals, what a process costs, and the processes.
//!
//! [`Machine`] is the lab's only door to all of these, so that a simulated one can stand in its place.
//! [`LocalMachine`] is the real one. It reads
//! - stolen time from `/proc/stat`, in ticks of 10 ms: one tick within a slice is enough to distrust the slice;
//! - CPU time from `/proc/PID/task/*/schedstat`, in nanoseconds, summed over all threads. A thread's figure is brought
//!   up to date when it goes to sleep, which is why nothing may be in flight at either end of a slice.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::contender::{Contender, ServerProcess};
use crate::environment::Environment;
use crate::scenario::LabConfig;

/// Descriptors that the lab needs besides its connections.
const SPARE_DESCRIPTORS: u64 = 128;

/// What the lab needs of the machine it runs on.
pub trait Machine {
    /// Makes the lab itself ready: pins it to the load core, raises its limits. Returns what the reader of the report
    /// should know about it.
    fn prepare(&mut self, config: &LabConfig) -> Vec<String>;

    /// A clock that never goes back, in nanoseconds from some fixed moment.
    fn now_ns(&mut self) -> u64;

    /// Seconds since 1970, for the report.
    fn unix_time_s(&mut self) -> u64;

    /// Time that the hypervisor has taken from these cores since boot, summed, in nanoseconds.
    ///
    /// # Errors
    /// The cause in words, if it cannot be read.
    fn stolen_ns(&mut self, cores: &[usize]) -> Result<u64, String>;

    /// CPU time of all live threads of the process, in user space and kernel, in nanoseconds.
    ///
    /// # Errors
    /// The cause in words, if it cannot be read, as when the process has ended.
    fn cpu_ns(&mut self, pid: u32) -> Result<u64, String>;

    /// CPU time that programs other than the lab and the contenders it has reaped have spent, on these cores since
    /// boot, in nanoseconds; none if it cannot be told. Only differences mean something, and only between moments at
    /// which no contender runs.
    fn foreign_ns(&mut self, cores: &[usize]) -> Option<u64>;

    /// Starts a contender on `core` and waits until it is ready.
    ///
    /// # Errors
    /// What the contender did instead.
    fn start(&mut self, contender: &Contender, config: &LabConfig) -> Result<Running, String>;

    /// How the process ended; none if it still runs after `patience`. A process that is about to end is waited for no
    /// longer than its end takes.
    fn ended(&mut self, pid: u32, patience: Duration) -> Option<String>;

    /// Ends these processes and reaps them. Unknown ids are ignored.
    fn stop(&mut self, pids: &[u32]);

    /// Describes the machine as it is now.
    fn environment(&mut self) -> Environment;
}

/// A contender that is ready for connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it said when it was ready: driver, features.
    pub ready_line: String,
}

/// The machine this process runs on. Dropping it ends every contender it has started and gives the thread its cores
/// back.
#[derive(Debug)]
pub struct LocalMachine {
    processes: HashMap<u32, ServerProcess>,
    started: Instant,
    original_cores: Option<CpuSet>,
}

impl LocalMachine {
    /// The machine as it is; nothing is changed until [`Machine::prepare`].
    #[must_use]
    pub fn new() -> LocalMachine {
        LocalMachine { processes: HashMap::new(), started: Instant::now(), original_cores: None }
    }
}

impl Default for LocalMachine {
    fn default() -> Self {
        LocalMachine::new()
    }
}

impl Machine for LocalMachine {
    fn prepare(&mut self, config: &LabConfig) -> Vec<String> {
        let mut notes = Vec::new();
        if self.original_cores.is_none() {
            self.original_cores = sched_getaffinity(None).ok();
        }
        if let Err(error) = sched_setaffinity(None, &only(config.load_core)) {
            notes.push(format!("The load could not be pinned to core {}: {error}.", config.load_core));
        }
        let most = config.connections.iter().max().copied().unwrap_or(0) * config.contenders.len();
        notes.extend(raise_descriptor_limit(most as u64 + SPARE_DESCRIPTORS));
        notes
    }

    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn unix_time_s(&mut self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn stolen_ns(&mut self, cores: &[usize]) -> Result<u64, String> {
        let stat =
            fs::read_to_string("/proc/stat").map_err(|error| format!("cannot read /proc/stat: {error}"))?;
        let ticks: u64 = cores.iter().map(|&core| stolen_ticks(&stat, core).unwrap_or(0)).sum();
        Ok(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
    }

    fn cpu_ns(&mut self, pid: u32) -> Result<u64, String> {
        let failed = |error: io::Error| format!("cannot read the CPU time of process {pid}: {error}");
        let mut total_ns = 0;
        for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
            // A thread may end between the listing and the reading; its time is then lost to both ends of the slice.
            if let Ok(text) = fs::read_to_string(task.map_err(failed)?.path().join("schedstat")) {
                total_ns += schedstat_run_ns(&text).ok_or_else(|| format!("unusable schedstat: {text}"))?;
            }
        }
        Ok(total_ns)
    }

    fn foreign_ns(&mut self, cores: &[usize]) -> Option<u64> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let busy: u64 = cores.iter().map(|&core| busy_ticks(&stat, core)).sum::<Option<u64>>()?;
        let ticks = busy.saturating_sub(family_ticks(&own)?);
        Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
    }

    fn start(&mut self, contender: &Contender, config: &LabConfig) -> Result<Running, String> {
        let (process, running) =
            ServerProcess::start(contender, &config.launcher, config.server_core, config.start_timeout)?;
        self.processes.insert(running.pid, process);
        Ok(running)
    }

    fn ended(&mut self, pid: u32, patience: Duration) -> Option<String> {
        match self.processes.get_mut(&pid) {
            Some(process) => process.ended(patience),
            None => Some("was never started".to_owned()),
        }
    }

    fn stop(&mut self, pids: &[u32]) {
        let mut ending: Vec<ServerProcess> =
            pids.iter().filter_map(|pid| self.processes.remove(pid)).collect();
        // All at once first, so that they wind down side by side; each drop then waits for one.
        ending.iter_mut().for_each(ServerProcess::ask_to_end);
    }

    fn environment(&mut self) -> Environment {
        Environment::capture(std::path::Path::new("/"))
    }
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        self.stop(&pids);
        if let Some(cores) = &self.original_cores {
            // Without its old cores the thread still works, only slower.
            sched_setaffinity(None, cores).ok();
        }
    }
}

/// The cores this thread may run on, lowest first. At least one: core 0 if they cannot be read.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    let cores = sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect::<Vec<_>>())
        .unwrap_or_default();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Pins every thread of a process to one core; threads it starts later inherit that.
///
/// # Errors
/// What `sched_setaffinity(2)` says, except about threads that have ended meanwhile or belong to the kernel.
pub(crate) fn pin_process(pid: u32, core: usize) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = task?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(thread, &only(core)) {
            Err(Errno::SRCH) | Ok(()) => {}
            // Some kernels do not let go of io_uring's own threads; they say so with EINVAL.
            Err(Errno::INVAL) if name.to_str() != Some(pid.to_string().as_str()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Does something with this thread on one core, which children started meanwhile inherit, then goes back.
pub(crate) fn on_core<T>(core: usize, work: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None);
    // A core that cannot be had is an error when the child is pinned, which names it.
    sched_setaffinity(None, &only(core)).ok();
    let done = work();
    if let Ok(before) = before {
        sched_setaffinity(None, &before).ok();
    }
    done
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    set
}

/// Raises the soft limit of open files so that all connections of a cell fit; says so if it cannot.
fn raise_descriptor_limit(needed: u64) -> Option<String> {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if soft >= needed {
        return None;
    }
    let raised = Rlimit { current: Some(needed.min(hard)), maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() || hard < needed {
        return Some(format!(
            "The largest cell needs {needed} open files and the limit is {}: raise it with `ulimit -n`.",
            soft.max(needed.min(hard))
        ));
    }
    None
}

/// The steal column of one core in `/proc/stat`.
fn stolen_ticks(stat: &str, core: usize) -> Option<u64> {
    core_columns(stat, core)?.get(7).copied()
}

/// Time that programs spent on one core. Interrupts are left out: they are charged to nobody.
fn busy_ticks(stat: &str, core: usize) -> Option<u64> {
    Some(core_columns(stat, core)?.get(..3)?.iter().sum())
}

/// The columns of one core in `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn core_columns(stat: &str, core: usize) -> Option<Vec<u64>> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    line.split_whitespace().skip(1).map(|column| column.parse().ok()).collect()
}

/// CPU time of a process and its reaped children, from `/proc/PID/stat`.
fn family_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything, so the columns are counted from its end.
    let columns = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    columns.map(|column| column.parse::<u64>().ok()).sum()
}

/// The first column of a schedstat file: time spent on a CPU, in nanoseconds.
fn schedstat_run_ns(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steal_column_is_found_by_core() {
        let stat =
            "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 30 9 10\ncpu10 1 2 3 4 5 6 7 58 0 0\nintr 1\n";
        assert_eq!(stolen_ticks(stat, 0), Some(30));
        assert_eq!(stolen_ticks(stat, 10), Some(58));
        assert_eq!(stolen_ticks(stat, 1), None);
        assert_eq!(busy_ticks(stat, 0), Some(6));
        assert_eq!(family_ticks("42 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0"), Some(127));
        assert_eq!(schedstat_run_ns("1234 5 6\n"), Some(1234));
        assert_eq!(schedstat_run_ns(""), None);
    }

    #[test]
    fn the_local_machine_tells_its_own_figures() {
        let mut machine = LocalMachine::new();
        let before = machine.cpu_ns(std::process::id()).unwrap();
        let mut sink = 0u64;
        while machine.cpu_ns(std::process::id()).unwrap() <= before {
            sink = std::hint::black_box(sink + 1);
        }
        assert!(machine.stolen_ns(&allowed_cores()).is_ok());
        assert!(machine.foreign_ns(&allowed_cores()).is_some());
        assert!(machine.cpu_ns(u32::MAX).unwrap_err().contains("cannot read"));
        assert!(machine.ended(u32::MAX, Duration::ZERO).is_some());
        machine.stop(&[u32::MAX]);
    }

    #[test]
    fn a_contender_is_pinned_with_all_its_threads_and_ends_with_the_machine() {
        let config = LabConfig::smoke("/bin/sh".into());
        let script = "sleep 60 & echo addr=127.0.0.1:9; wait";
        let contender = Contender::new("shell", std::path::Path::new("/bin/sh"), &["-c", script]);
        let mut machine = LocalMachine::new();
        let running = machine.start(&contender, &config).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), config.server_core.to_string());
        assert_eq!(machine.ended(running.pid, Duration::ZERO), None);
        drop(machine);
        assert!(!std::path::Path::new(&format!("/proc/{}", running.pid)).exists());
    }
}
