//! The machine a run happens on: its clock, what the hypervisor steals, what a process costs, and the processes.
//!
//! [`Machine`] is the lab's only door to all of these, so that a simulated one can stand in its place.
//! [`LocalMachine`] is the real one. It reads
//! - stolen time from `/proc/stat`, in ticks of 10 ms: one tick within a slice is enough to distrust the slice;
//! - CPU time from the clock of the process (`clock_getcpuclockid(3)`): exact at any moment, and with the threads that
//!   have ended.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{clock_getcpuclockid, clock_gettime};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::contender::{Contender, ServerProcess};
use crate::cpu_throttle::CpuThrottle;
use crate::environment::Environment;
use crate::scenario::LabConfig;
use crate::site::{Site, with_site};
use crate::tls::{Identity, with_certificate};

/// Descriptors that the lab needs besides its connections.
const SPARE_DESCRIPTORS: usize = 256;

/// What the lab needs of the machine it runs on.
pub trait Machine {
    /// Makes the lab itself ready: pins it to the load core, raises its limits. Returns what the reader of the report
    /// should know about it.
    fn prepare(&mut self, config: &LabConfig) -> Vec<String>;

    /// How many connections the lab can have open at once: its open files, but for a few that it needs otherwise.
    fn max_open_connections(&mut self) -> usize;

    /// A clock that never goes back, in nanoseconds from some fixed moment.
    fn now_ns(&mut self) -> u64;

    /// Seconds since 1970, for the report.
    fn unix_time_s(&mut self) -> u64;

    /// Time that the hypervisor has taken from these cores since boot, summed, in nanoseconds.
    ///
    /// # Errors
    /// The cause in words, if it cannot be read.
    fn stolen_ns(&mut self, cores: &[usize]) -> Result<u64, String>;

    /// Time that the lab's own group of processes, to which its contenders belong, has been held back by a CPU limit, in
    /// nanoseconds; 0 where there is no limit.
    fn throttled_ns(&mut self) -> u64;

    /// What all live threads of the process have used so far.
    ///
    /// # Errors
    /// The cause in words, if it cannot be read, as when the process has ended.
    fn usage(&mut self, pid: u32) -> Result<Usage, String>;

    /// CPU time of the lab itself, that is of the load, in nanoseconds; 0 if it cannot be told.
    fn load_cpu_ns(&mut self) -> u64;

    /// CPU time that programs other than the lab and the contenders it has reaped have spent, on these cores since
    /// boot, in nanoseconds; none if it cannot be told. Only differences mean something, and only between moments at
    /// which no contender runs.
    fn other_cpu_ns(&mut self, cores: &[usize]) -> Option<u64>;

    /// Starts a contender on `cores` and waits until it is ready.
    ///
    /// # Errors
    /// What the contender did instead.
    fn start(
        &mut self,
        contender: &Contender,
        config: &LabConfig,
        cores: &[usize],
    ) -> Result<Running, String>;

    /// How the process ended, or that somebody has halted it; none if it still runs after `timeout`. A process that is
    /// about to end is waited for no longer than its end takes.
    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Option<String>;

    /// Waits without using any of the cores.
    fn sleep(&mut self, duration: Duration);

    /// Leaves servers this part of these cores, of 1, until [`unthrottle_servers`](Self::unthrottle_servers).
    ///
    /// # Errors
    /// They keep all of their cores, for this reason.
    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), String>;

    /// Gives servers all of their cores again.
    fn unthrottle_servers(&mut self);

    /// Halts a process (SIGSTOP) until [`resume`](Self::resume). Unknown ids are ignored.
    fn pause(&mut self, pid: u32);

    /// Lets a halted process run on (SIGCONT). Does nothing to one that runs.
    fn resume(&mut self, pid: u32);

    /// Ends these processes, halted or not, and reaps them. Unknown ids are ignored.
    fn stop(&mut self, pids: &[u32]);

    /// Describes the machine as it is now, in what a run of this configuration uses of it.
    fn environment(&mut self, config: &LabConfig) -> Environment;
}

/// What the threads of a process have used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user space and kernel, in nanoseconds.
    pub cpu_ns: u64,
    /// Context switches by waiting; none if they cannot be told.
    pub voluntary_switches: Option<u64>,
    /// Context switches forced by others; none if they cannot be told.
    pub involuntary_switches: Option<u64>,
    /// Resident memory in bytes; none if it cannot be told.
    pub resident_bytes: Option<u64>,
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
    /// The statistics of this process's control group.
    throttled_file: Option<PathBuf>,
    /// What holds servers back; none before it is first needed.
    cpu_throttle: Option<CpuThrottle>,
    /// CPU time of brakes on other cores, which are gone.
    stopped_throttles_cpu_ns: u64,
    /// What HTTP servers serve; none before one is started.
    site: Option<Site>,
    /// What they serve TLS with.
    identity: Option<Identity>,
}

impl LocalMachine {
    /// The machine as it is; nothing is changed until [`Machine::prepare`].
    #[must_use]
    pub fn new() -> LocalMachine {
        let throttled_file = cpu_statistics(Path::new("/"));
        LocalMachine {
            processes: HashMap::new(),
            started: Instant::now(),
            original_cores: None,
            throttled_file,
            cpu_throttle: None,
            stopped_throttles_cpu_ns: 0,
            site: None,
            identity: None,
        }
    }

    /// The same machine, on which contenders serve TLS with this identity.
    #[must_use]
    pub fn with_identity(mut self, identity: Option<Identity>) -> LocalMachine {
        self.identity = identity;
        self
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
        if let Err(error) = sched_setaffinity(None, &cpu_set(&config.load_cores)) {
            notes.push(format!("The load could not be pinned to cores {:?}: {error}.", config.load_cores));
        }
        raise_descriptor_limit();
        let (most, all) = (config.max_connections(), self.max_open_connections());
        if most * config.contenders.len() > all {
            notes.push(format!(
                "The lab may have {} files open (`ulimit -Hn`), too few for the connections of all contenders at once in \
                 the largest cells: there each contender is connected to anew for every slice, and warmed up.",
                all + SPARE_DESCRIPTORS
            ));
        }
        notes
    }

    fn max_open_connections(&mut self) -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(SPARE_DESCRIPTORS)
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

    fn throttled_ns(&mut self) -> u64 {
        let stat = self.throttled_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
        stat.and_then(|text| throttled_ns(&text)).unwrap_or(0)
    }

    fn usage(&mut self, pid: u32) -> Result<Usage, String> {
        let failed = |error: io::Error| format!("cannot read the threads of process {pid}: {error}");
        let mut usage = Usage {
            cpu_ns: process_cpu_ns(pid)?,
            voluntary_switches: Some(0),
            involuntary_switches: Some(0),
            resident_bytes: fs::read_to_string(format!("/proc/{pid}/status"))
                .ok()
                .and_then(|status| Some(status_number(&status, "VmRSS")? * 1024)),
        };
        for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
            // A thread may end between the listing and the reading; its switches are then lost to the slice.
            if let Ok(status) = fs::read_to_string(task.map_err(failed)?.path().join("status")) {
                let sum = |total: Option<u64>, name: &str| Some(total? + status_number(&status, name)?);
                usage.voluntary_switches = sum(usage.voluntary_switches, "voluntary_ctxt_switches");
                usage.involuntary_switches = sum(usage.involuntary_switches, "nonvoluntary_ctxt_switches");
            }
        }
        Ok(usage)
    }

    fn load_cpu_ns(&mut self) -> u64 {
        let throttle_cpu_ns =
            self.stopped_throttles_cpu_ns + self.cpu_throttle.as_ref().map_or(0, CpuThrottle::cpu_ns);
        self.usage(std::process::id()).map_or(0, |usage| usage.cpu_ns.saturating_sub(throttle_cpu_ns))
    }

    fn other_cpu_ns(&mut self, cores: &[usize]) -> Option<u64> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let busy: u64 = cores.iter().map(|&core| busy_ticks(&stat, core)).sum::<Option<u64>>()?;
        let ticks = busy.saturating_sub(family_ticks(&own)?);
        Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
    }

    fn start(
        &mut self,
        contender: &Contender,
        config: &LabConfig,
        cores: &[usize],
    ) -> Result<Running, String> {
        let contender = with_certificate(with_site(contender, &mut self.site)?, self.identity.as_ref())?;
        let (process, running) =
            ServerProcess::start(&contender, &config.launcher, cores, config.start_timeout)?;
        self.processes.insert(running.pid, process);
        Ok(running)
    }

    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Option<String> {
        match self.processes.get_mut(&pid) {
            Some(process) => process.exit_description(timeout),
            None => Some("was never started".to_owned()),
        }
    }

    fn sleep(&mut self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), String> {
        let cpu_throttle = match self.cpu_throttle.take() {
            Some(cpu_throttle) if cpu_throttle.is_on_cores(cores) => cpu_throttle,
            other => {
                self.stopped_throttles_cpu_ns += other.map_or(0, CpuThrottle::stop);
                CpuThrottle::new(cores).map_err(|error| error.to_string())?
            }
        };
        cpu_throttle.throttle(share);
        self.cpu_throttle = Some(cpu_throttle);
        Ok(())
    }

    fn unthrottle_servers(&mut self) {
        if let Some(cpu_throttle) = &self.cpu_throttle {
            cpu_throttle.release();
        }
    }

    fn pause(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.signal(Signal::STOP);
        }
    }

    fn resume(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.signal(Signal::CONT);
        }
    }

    fn stop(&mut self, pids: &[u32]) {
        let mut ending: Vec<ServerProcess> =
            pids.iter().filter_map(|pid| self.processes.remove(pid)).collect();
        // All at once first, so that they wind down side by side; each drop then waits for one.
        ending.iter_mut().for_each(ServerProcess::terminate);
    }

    fn environment(&mut self, config: &LabConfig) -> Environment {
        let disk_file = config.disk_file.as_deref().map(Path::new);
        Environment::capture(Path::new("/"), &config.all_cores(), disk_file)
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

/// Confines every thread of a process to these cores; threads it starts later inherit that. A thread that has chosen
/// among them for itself keeps its choice: a server with a thread for each core would float otherwise. So does a thread
/// of io_uring that was given one core of its own, wherever that is.
///
/// # Errors
/// What `sched_setaffinity(2)` says, except about threads that have ended meanwhile or belong to the kernel.
pub(crate) fn pin_process(pid: u32, cores: &[usize]) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let name = task.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let now = sched_getaffinity(thread).ok();
        if now.is_some_and(|now| is_placed_on_purpose(&task.path(), &now, cores)) {
            continue;
        }
        match sched_setaffinity(thread, &cpu_set(cores)) {
            Err(Errno::SRCH) | Ok(()) => {}
            // Some kernels do not let go of io_uring's own threads; they say so with EINVAL.
            Err(Errno::INVAL) if name.to_str() != Some(pid.to_string().as_str()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a thread that may run on the cores of `now` is where it should be, or where somebody has put it on purpose.
fn is_placed_on_purpose(task: &Path, now: &CpuSet, cores: &[usize]) -> bool {
    let chosen: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| now.is_set(core)).collect();
    let of_kernel = || fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("iou-"));
    chosen.iter().all(|core| cores.contains(core)) || (chosen.len() == 1 && of_kernel())
}

/// Does something with this thread on these cores, which children started meanwhile inherit, then goes back.
pub(crate) fn on_cores<T>(cores: &[usize], work: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None);
    // A core that cannot be had is an error when the child is pinned, which names it.
    sched_setaffinity(None, &cpu_set(cores)).ok();
    let done = work();
    if let Ok(before) = before {
        sched_setaffinity(None, &before).ok();
    }
    done
}

fn cpu_set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    set
}

/// Most connections that the lab may have open once it has raised its limit: the hard limit of open files, but for a
/// few that it needs otherwise.
#[must_use]
pub fn connections_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(SPARE_DESCRIPTORS)
}

/// Raises the soft limit of open files to the hard one, for the lab and, by inheritance, for its contenders: a server
/// is judged by the connections it can hold, not by a shell's default.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A limit that stays as it is shows in the number of connections that fit.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
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

/// The file that tells how often this process's control group was held back; none if there is no such group.
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
    // Within a container the group's own path may not be visible, and the root is the container's.
    candidates.push(PathBuf::from("sys/fs/cgroup"));
    candidates.push(PathBuf::from("sys/fs/cgroup/cpu"));
    let files = candidates.into_iter().map(|group| root.join(group).join("cpu.stat"));
    files.into_iter().find(|path| fs::read_to_string(path).is_ok_and(|text| throttled_ns(&text).is_some()))
}

/// The time a control group was held back: `throttled_usec` (version 2) or `throttled_time` in nanoseconds (version 1).
fn throttled_ns(cpu_stat: &str) -> Option<u64> {
    cpu_stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", value) => Some(value.trim().parse::<u64>().ok()? * 1000),
        ("throttled_time", value) => value.trim().parse().ok(),
        _ => None,
    })
}

/// The number of a line `name: number` in a status file.
fn status_number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPU time of all threads of a process, ended ones included, in nanoseconds.
fn process_cpu_ns(pid: u32) -> Result<u64, String> {
    // A number that is no process id stands for none.
    let id = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
    let time = clock_getcpuclockid(id).and_then(clock_gettime);
    let time = time.map_err(|error| format!("cannot read the CPU time of process {pid}: {error}"))?;
    Ok(u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0))
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
    }

    #[test]
    fn a_group_that_is_held_back_is_found_in_both_versions() {
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

    #[test]
    fn the_local_machine_tells_its_own_figures() {
        let mut machine = LocalMachine::new();
        let before = machine.usage(std::process::id()).unwrap();
        assert!(before.voluntary_switches.is_some() && before.resident_bytes.is_some(), "{before:?}");
        let mut sink = 0u64;
        while machine.usage(std::process::id()).unwrap().cpu_ns <= before.cpu_ns {
            sink = std::hint::black_box(sink + 1);
        }
        assert!(machine.stolen_ns(&allowed_cores()).is_ok());
        assert!(machine.other_cpu_ns(&allowed_cores()).is_some());
        assert!(machine.usage(u32::MAX).unwrap_err().contains("cannot read"));
        assert!(machine.exit_description(u32::MAX, Duration::ZERO).is_some());
        machine.stop(&[u32::MAX]);
    }

    #[test]
    fn a_contender_is_pinned_with_all_its_threads_and_ends_with_the_machine() {
        let config = LabConfig::smoke("/bin/sh".into());
        let script = "sleep 60 & echo addr=127.0.0.1:9; wait";
        let contender = Contender::new("shell", Path::new("/bin/sh"), &["-c", script]);
        let mut machine = LocalMachine::new();
        let running = machine.start(&contender, &config, &config.server_cores[..1]).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), config.server_cores[0].to_string());
        assert_eq!(machine.exit_description(running.pid, Duration::ZERO), None);
        drop(machine);
        assert!(!Path::new(&format!("/proc/{}", running.pid)).exists());
    }

    #[test]
    fn whoever_asks_for_the_site_is_told_where_it_is_and_it_goes_with_the_machine() {
        let config = LabConfig::smoke("/bin/sh".into());
        let script = "test -s $0/page.html && echo addr=127.0.0.1:9 root=$0; exec sleep 60";
        let contender = Contender::new("shell", Path::new("/bin/sh"), &["-c", script, "{root}"]);
        let mut machine = LocalMachine::new();
        let mut root = || {
            let running = machine.start(&contender, &config, &config.server_cores[..1]).unwrap();
            running.ready_line.split_once("root=").unwrap().1.to_owned()
        };
        let first = root();
        assert_eq!(root(), first, "one for all");
        drop(machine);
        assert!(!Path::new(&first).exists(), "{first}");
    }

    #[test]
    fn threads_that_have_chosen_a_core_keep_it_and_others_are_confined() {
        let cores = allowed_cores();
        let of = |pid: u32| sched_getaffinity(Pid::from_raw(pid as i32)).unwrap();
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let last = &cores[cores.len() - 1..];
        sched_setaffinity(Pid::from_raw(child.id() as i32), &cpu_set(last)).unwrap();
        let confined = pin_process(child.id(), &cores).map(|()| of(child.id()));
        let moved = pin_process(child.id(), &cores[..1]).map(|()| of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(confined.unwrap(), cpu_set(last), "one of its cores, and its own choice");
        assert_eq!(moved.unwrap(), cpu_set(&cores[..1]));
    }

    #[test]
    fn a_thread_of_the_kernel_keeps_its_one_core_and_nobody_all_cores() {
        let task = tempfile::tempdir().unwrap();
        for (name, own_core) in [("iou-sqp-7", true), ("iou-wrk-7", true), ("echo", false)] {
            fs::write(task.path().join("comm"), name).unwrap();
            assert_eq!(is_placed_on_purpose(task.path(), &cpu_set(&[3]), &[0]), own_core, "{name}");
            assert!(!is_placed_on_purpose(task.path(), &cpu_set(&[0, 3]), &[0]), "{name}");
            assert!(is_placed_on_purpose(task.path(), &cpu_set(&[1]), &[0, 1]), "{name}");
        }
    }
}
