//! CPU time, context switches and memory usage of a process, summed over all its threads.
//!
//! ```text
//!  CPU-time clock of the process       user and kernel time of all threads, including exited ones, in nanoseconds
//!  /proc/PID/task/TID/status           context switches of one thread; they are lost when the thread exits, so
//!                                      ProcessMeter keeps the last reading
//!  /proc/PID/status                    VmRSS
//! ```

use std::collections::HashMap;
use std::fs;
use std::io;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::system::nanoseconds;

/// Resource usage of a process, since its start or within an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// CPU time in user space and in the kernel, in nanoseconds, including that of threads that have exited.
    pub cpu_ns: u64,
    /// Number of times that a thread blocked (voluntary context switches).
    pub voluntary_switches: u64,
    /// Number of times that a thread was preempted (involuntary context switches).
    pub involuntary_switches: u64,
    /// Resident memory (RSS) at the end of the interval, in bytes.
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// Returns the usage since `earlier`, with the current memory usage.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            resident_bytes: self.resident_bytes,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_add(other.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_add(other.involuntary_switches),
            resident_bytes: self.resident_bytes.saturating_add(other.resident_bytes),
        }
    }
}

/// Reads the resource usage of one process repeatedly. Includes the last known context switches of threads that have
/// exited.
#[derive(Debug)]
pub struct ProcessMeter {
    pid: u32,
    /// Context switches of each live thread at the last reading.
    threads: HashMap<u32, ProcessUsage>,
    /// Last known context switches of the threads that have exited since the first reading.
    exited: ProcessUsage,
}

impl ProcessMeter {
    /// Takes the first reading. Returns an error if the process does not exist, or if the caller may not inspect it.
    pub fn new(pid: u32) -> io::Result<Self> {
        let (_, threads) = read(pid)?;
        Ok(Self { pid, threads, exited: ProcessUsage::default() })
    }

    /// Returns the usage of the process up to now. For context switches, only differences between readings are
    /// meaningful ([`ProcessUsage::since`]): threads that exited before the first reading are not counted.
    pub fn read(&mut self) -> io::Result<ProcessUsage> {
        let (usage, threads) = read(self.pid)?;
        Ok(self.update(usage, threads))
    }

    fn update(&mut self, usage: ProcessUsage, threads: HashMap<u32, ProcessUsage>) -> ProcessUsage {
        for (thread, last) in std::mem::replace(&mut self.threads, threads) {
            // The counters of a reused thread ID start at 0 again.
            let is_alive = |now: &ProcessUsage| now.voluntary_switches >= last.voluntary_switches;
            if !self.threads.get(&thread).is_some_and(is_alive) {
                self.exited = self.exited.plus(last);
            }
        }
        self.threads.values().copied().fold(usage.plus(self.exited), ProcessUsage::plus)
    }
}

/// Reads the CPU time and memory usage of a process, and the context switches of each live thread.
fn read(pid: u32) -> io::Result<(ProcessUsage, HashMap<u32, ProcessUsage>)> {
    let cpu_ns = process_cpu_ns(pid)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|error| with_context(pid, "the memory", error))?;
    let mut threads = HashMap::new();
    for thread in thread_ids(pid)? {
        // A thread can exit between the listing and this read.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")) else { continue };
        let switches = ProcessUsage {
            voluntary_switches: field(&status, "voluntary_ctxt_switches:").unwrap_or(0),
            involuntary_switches: field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0),
            ..ProcessUsage::default()
        };
        threads.insert(thread, switches);
    }
    // An exiting process has no `VmRSS` line.
    let resident_bytes = field(&status, "VmRSS:").unwrap_or(0).saturating_mul(1024);
    Ok((ProcessUsage { cpu_ns, resident_bytes, ..ProcessUsage::default() }, threads))
}

pub(crate) fn thread_ids(pid: u32) -> io::Result<Vec<u32>> {
    let failed = |error| with_context(pid, "the threads", error);
    let mut ids = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        ids.extend(task.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(ids)
}

/// Returns the CPU time that a process has used in user space and in the kernel since its start, in nanoseconds,
/// including that of exited threads (`clock_gettime(2)` on the clock returned by `clock_getcpuclockid(3)`, Linux
/// 2.6.12). Returns an error if the process does not exist.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    // Invalid process IDs are mapped to an ID that does not exist. 0 would mean the calling process.
    let id = i32::try_from(pid).ok().filter(|&id| id > 0).unwrap_or(i32::MAX);
    let clock = clock_getcpuclockid(Pid::from_raw(id));
    let time =
        clock.and_then(clock_gettime).map_err(|error| with_context(pid, "the CPU time", error.into()))?;
    Ok(nanoseconds(time.into()))
}

pub(crate) fn with_context(pid: u32, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {what} of process {pid}: {error}"))
}

/// Returns the number that follows a field name.
fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_keeps_switches_of_exited_threads() {
        let mut meter = ProcessMeter { pid: 0, threads: HashMap::new(), exited: ProcessUsage::default() };
        let mut update = |cpu_ns, threads: &[(u32, u64)]| {
            let usage = ProcessUsage { cpu_ns, ..ProcessUsage::default() };
            let thread = ProcessUsage { involuntary_switches: 1, ..ProcessUsage::default() };
            let switches = |&(id, voluntary_switches)| (id, ProcessUsage { voluntary_switches, ..thread });
            meter.update(usage, threads.iter().map(switches).collect())
        };
        let both = update(10, &[(1, 11), (2, 22)]);
        assert_eq!((both.cpu_ns, both.voluntary_switches, both.involuntary_switches), (10, 33, 2));
        // Thread 2 exits after its last reading. Thread 1 continues.
        let one = update(15, &[(1, 12)]);
        assert_eq!((one.since(&both).cpu_ns, one.since(&both).voluntary_switches), (5, 1));
        // The ID of an exited thread is reused.
        assert_eq!(update(15, &[(1, 3)]).since(&one).voluntary_switches, 3);
    }

    #[test]
    fn status_field_matches_full_name() {
        let status =
            "Name:\tVmRSS:\nVmRSS:\t  12 kB\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        let names = ["VmRSS:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:", "Nothing:"];
        assert_eq!(names.map(|name| field(status, name)), [Some(12), Some(3), Some(4), None]);
    }
}
