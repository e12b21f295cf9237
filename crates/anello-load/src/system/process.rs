//! CPU time, context switches and memory of a process, summed over all its threads.
//!
//! ```text
//!  CPU-time clock of the process       user and kernel time of all threads, including exited ones, in nanoseconds
//!  /proc/PID/task/TID/status           context switches of one thread; they are lost when the thread exits, so
//!                                      ProcessMeter keeps the last reading
//!  /proc/PID/status                    VmRSS
//! ```
//!
//! [`ProcessUsage::of`] takes one reading. [`ProcessMeter`] takes repeated readings and keeps the context switches of
//! threads that have exited in between.

use std::collections::HashMap;
use std::fs;
use std::io;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Resource usage of a process, since its start or within an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// CPU time in user space and in the kernel, in nanoseconds, including threads that have exited.
    pub cpu_ns: u64,
    /// Number of times that a thread blocked (voluntary context switches).
    pub voluntary_switches: u64,
    /// Number of times that a thread was preempted (involuntary context switches).
    pub involuntary_switches: u64,
    /// Resident memory (RSS) at the end of the interval, in bytes.
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// Returns the usage of the process since its start (`clock_getcpuclockid(3)`, `/proc/PID/status`). Context
    /// switches are those of the threads that are alive (`/proc/PID/task/*/status`).
    ///
    /// # Errors
    /// Returns an error if the process does not exist, or if the caller may not inspect it.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(ProcessSnapshot::read(pid)?.usage())
    }

    /// Returns the usage since `earlier`, with the current memory. A counter that has decreased counts as 0. This
    /// happens to the context switches of [`of`](Self::of) when a thread exits.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            resident_bytes: self.resident_bytes,
        }
    }

    /// Adds CPU time and context switches. Memory stays unchanged.
    pub(crate) fn add_work(&mut self, other: &Self) {
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.add_switches(Switches {
            voluntary: other.voluntary_switches,
            involuntary: other.involuntary_switches,
        });
    }

    fn add_switches(&mut self, switches: Switches) {
        self.voluntary_switches = self.voluntary_switches.saturating_add(switches.voluntary);
        self.involuntary_switches = self.involuntary_switches.saturating_add(switches.involuntary);
    }
}

/// A meter that reads the usage of one process repeatedly. It keeps the last known context switches of threads that
/// have exited.
#[derive(Debug)]
pub struct ProcessMeter {
    pid: u32,
    /// Last reading of each live thread.
    threads: HashMap<u32, Switches>,
    /// Last readings of the threads that have exited since the first reading.
    exited_threads: Vec<Switches>,
}

impl ProcessMeter {
    /// Creates a meter and takes the first reading.
    ///
    /// # Errors
    /// Returns the errors of [`ProcessUsage::of`].
    pub fn new(pid: u32) -> io::Result<Self> {
        let snapshot = ProcessSnapshot::read(pid)?;
        Ok(Self { pid, threads: snapshot.threads.into_iter().collect(), exited_threads: Vec::new() })
    }

    /// Returns the usage of the process up to now. For context switches, only differences between readings are
    /// meaningful ([`ProcessUsage::since`]): threads that exited before the first reading are not counted.
    ///
    /// # Errors
    /// Returns the errors of [`ProcessUsage::of`], for example if the process has exited.
    pub fn read(&mut self) -> io::Result<ProcessUsage> {
        Ok(self.update(ProcessSnapshot::read(self.pid)?))
    }

    fn update(&mut self, snapshot: ProcessSnapshot) -> ProcessUsage {
        let mut exited = std::mem::take(&mut self.threads);
        for (thread, switches) in &snapshot.threads {
            // A reused thread id starts at 0 again.
            if exited.get(thread).is_some_and(|previous| switches.voluntary >= previous.voluntary) {
                exited.remove(thread);
            }
        }
        self.exited_threads.extend(exited.into_values());
        let mut usage = snapshot.usage();
        self.exited_threads.iter().for_each(|&switches| usage.add_switches(switches));
        self.threads = snapshot.threads.into_iter().collect();
        usage
    }
}

/// Context switches of one thread.
#[derive(Clone, Copy, Debug)]
struct Switches {
    voluntary: u64,
    involuntary: u64,
}

/// One reading of a process.
struct ProcessSnapshot {
    /// All live threads, by id.
    threads: Vec<(u32, Switches)>,
    cpu_ns: u64,
    resident_bytes: u64,
}

impl ProcessSnapshot {
    fn read(pid: u32) -> io::Result<Self> {
        let cpu_ns = process_cpu_ns(pid)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        let status = status.map_err(|error| with_context(pid, "the memory", error))?;
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .map_err(|error| with_context(pid, "the threads", error))?;
        let mut threads = Vec::new();
        for task in tasks {
            let task = task.map_err(|error| with_context(pid, "a thread", error))?;
            let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // A thread can exit between the listing and this read.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let switches = Switches {
                voluntary: field(&status, "voluntary_ctxt_switches:").unwrap_or(0),
                involuntary: field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0),
            };
            threads.push((thread, switches));
        }
        // An exiting process has no `VmRSS` line.
        let resident_bytes = field(&status, "VmRSS:").unwrap_or(0).saturating_mul(1024);
        Ok(Self { threads, cpu_ns, resident_bytes })
    }

    fn usage(&self) -> ProcessUsage {
        let mut usage = ProcessUsage {
            cpu_ns: self.cpu_ns,
            resident_bytes: self.resident_bytes,
            ..ProcessUsage::default()
        };
        self.threads.iter().for_each(|&(_, switches)| usage.add_switches(switches));
        usage
    }
}

/// Returns the CPU time that all threads of a process have spent in user space and in the kernel since its start, in
/// nanoseconds, including threads that have exited. The value is exact at any time (`clock_gettime(2)` on the clock of
/// `clock_getcpuclockid(3)`, Linux 2.6.12).
///
/// # Errors
/// Returns an error if the process does not exist.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    // Values that are not valid process ids become an id that does not exist. 0 would mean the calling process.
    let id = i32::try_from(pid).ok().filter(|&id| id > 0).unwrap_or(i32::MAX);
    let clock = clock_getcpuclockid(Pid::from_raw(id));
    let time =
        clock.and_then(clock_gettime).map_err(|error| with_context(pid, "the CPU time", error.into()))?;
    Ok(nanoseconds(time.tv_sec(), time.tv_nsec()))
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(nanoseconds).unwrap_or(0)
}

fn with_context(pid: u32, what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {what} of process {pid}: {error}"))
}

/// Returns the number that follows a field name in a status file.
fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use nix::time::ClockId;

    use super::*;

    fn snapshot(cpu_ns: u64, threads: &[(u32, u64)]) -> ProcessSnapshot {
        let threads =
            threads.iter().map(|&(thread, voluntary)| (thread, Switches { voluntary, involuntary: 1 }));
        ProcessSnapshot { threads: threads.collect(), cpu_ns, resident_bytes: 4096 }
    }

    #[test]
    fn usage_grows_over_time_and_missing_process_is_error() {
        let pid = std::process::id();
        let first = ProcessUsage::of(pid).unwrap();
        let mut sink = 0u64;
        while process_cpu_ns(pid).unwrap() <= first.cpu_ns {
            sink = std::hint::black_box(sink + 1);
        }
        let now = ProcessUsage::of(pid).unwrap();
        assert!(now.resident_bytes > 100_000 && now.since(&first).resident_bytes == now.resident_bytes);
        for pid in [0, u32::MAX] {
            let error = ProcessUsage::of(pid).unwrap_err().to_string();
            assert!(error.contains(&format!("process {pid}")), "{error}");
            assert!(ProcessMeter::new(pid).is_err());
        }
    }

    #[test]
    fn meter_keeps_switches_of_exited_threads() {
        let mut meter = ProcessMeter { pid: 0, threads: HashMap::new(), exited_threads: Vec::new() };
        let both = meter.update(snapshot(10, &[(1, 11), (2, 22)]));
        assert_eq!((both.cpu_ns, both.voluntary_switches, both.involuntary_switches), (10, 33, 2));
        // Thread 2 exits after its last reading. Thread 1 continues.
        let one = meter.update(snapshot(15, &[(1, 12)]));
        assert_eq!((one.since(&both).cpu_ns, one.since(&both).voluntary_switches), (5, 1));
        // The id of an exited thread is reused.
        let again = meter.update(snapshot(15, &[(1, 3)]));
        assert_eq!(again.since(&one).voluntary_switches, 3);
    }

    #[test]
    fn cpu_time_includes_exited_threads() {
        let pid = std::process::id();
        let before_ns = process_cpu_ns(pid).unwrap();
        let spent_ns = || {
            clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
                .map(|time| nanoseconds(time.tv_sec(), time.tv_nsec()))
                .unwrap()
        };
        let spinning = std::thread::spawn(move || {
            let mut sink = 0u64;
            while spent_ns() < 5_000_000 {
                sink = std::hint::black_box(sink + 1);
            }
        });
        spinning.join().unwrap();
        assert!(process_cpu_ns(pid).unwrap() >= before_ns + 5_000_000);
    }

    #[test]
    fn status_field_matches_full_name() {
        let status =
            "Name:\tVmRSS:\nVmRSS:\t  12 kB\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(field(status, "VmRSS:"), Some(12));
        assert_eq!(
            (field(status, "voluntary_ctxt_switches:"), field(status, "nonvoluntary_ctxt_switches:")),
            (Some(3), Some(4))
        );
        assert_eq!(field(status, "Nothing:"), None);
    }
}
