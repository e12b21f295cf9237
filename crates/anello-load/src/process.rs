//! What a process costs: CPU time, context switches and memory, of all its threads.
//!
//! ```text
//!  the CPU-time clock of the process   user and kernel time of all its threads, ended ones included, to the nanosecond
//!  /proc/PID/task/TID/status           context switches of a thread: one that ends takes them with it, and what was
//!                                      last seen of it is kept by ProcessMeter
//!  /proc/PID/status                    VmRSS
//! ```
//!
//! [`ProcessUsage::of`] is one look. [`ProcessMeter`] looks again and again, and does not lose the switches of threads
//! that have ended in between.

use std::collections::HashMap;
use std::fs;
use std::io;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// What a process has used since it began, or within a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// CPU time in user space and kernel, in nanoseconds, of threads that have ended, too.
    pub cpu_ns: u64,
    /// How often its threads went to sleep.
    pub voluntary_switches: u64,
    /// How often its threads were made to let others run.
    pub involuntary_switches: u64,
    /// Memory in use (RSS) at the end of the stretch, in bytes.
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// What the process has used (`clock_getcpuclockid(3)`, `/proc/PID/status`), with the context switches of the threads
    /// that are alive (`/proc/PID/task/*/status`).
    ///
    /// # Errors
    /// When the process does not exist, or belongs to somebody whose processes may not be looked at.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(ProcessSnapshot::read(pid)?.usage())
    }

    /// What was used since `earlier`; the memory is that of now. Where a figure went back, as the switches of
    /// [`of`](Self::of) do when a thread ends, the difference is 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            resident_bytes: self.resident_bytes,
        }
    }

    /// Adds time and switches; the memory is left alone.
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

/// Reads the usage of one process repeatedly, and keeps the context switches of threads that have ended as they were
/// last seen.
#[derive(Debug)]
pub struct ProcessMeter {
    pid: u32,
    /// The last look at each thread alive.
    threads: HashMap<u32, Switches>,
    /// Switches of threads that have ended since the first look.
    exited_threads: Vec<Switches>,
}

impl ProcessMeter {
    /// Begins with a first look.
    ///
    /// # Errors
    /// Those of [`ProcessUsage::of`].
    pub fn new(pid: u32) -> io::Result<Self> {
        let snapshot = ProcessSnapshot::read(pid)?;
        Ok(Self { pid, threads: snapshot.threads.into_iter().collect(), exited_threads: Vec::new() })
    }

    /// What the process has used up to now. Of the switches only differences between readings mean something
    /// ([`ProcessUsage::since`]): those of threads that had ended before the first look are left out.
    ///
    /// # Errors
    /// Those of [`ProcessUsage::of`], as when the process has ended.
    pub fn read(&mut self) -> io::Result<ProcessUsage> {
        Ok(self.update(ProcessSnapshot::read(self.pid)?))
    }

    fn update(&mut self, snapshot: ProcessSnapshot) -> ProcessUsage {
        let mut exited = std::mem::take(&mut self.threads);
        for (thread, switches) in &snapshot.threads {
            // An id that is used again by a younger thread begins at 0.
            if exited.get(thread).is_some_and(|before| switches.voluntary >= before.voluntary) {
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

/// One look at a process.
struct ProcessSnapshot {
    /// All threads alive, by id.
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
            // A thread may end between the listing and the reading.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let switches = Switches {
                voluntary: field(&status, "voluntary_ctxt_switches:").unwrap_or(0),
                involuntary: field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0),
            };
            threads.push((thread, switches));
        }
        // A process that is ending has no memory any more.
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

/// CPU time that all threads of a process have spent in user space and kernel since it began, ended ones included, in
/// nanoseconds: exact at any moment (`clock_gettime(2)` on the clock of `clock_getcpuclockid(3)`, Linux 2.6.12).
///
/// # Errors
/// When there is no such process.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    // A number that is no process id stands for none; 0 would be the caller.
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

/// The number after a name in a status file.
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
    fn the_usage_of_this_process_grows_and_that_of_none_is_an_error() {
        let pid = std::process::id();
        let before = ProcessUsage::of(pid).unwrap();
        let mut sink = 0u64;
        while process_cpu_ns(pid).unwrap() <= before.cpu_ns {
            sink = std::hint::black_box(sink + 1);
        }
        let now = ProcessUsage::of(pid).unwrap();
        assert!(now.resident_bytes > 100_000 && now.since(&before).resident_bytes == now.resident_bytes);
        for pid in [0, u32::MAX] {
            let error = ProcessUsage::of(pid).unwrap_err().to_string();
            assert!(error.contains(&format!("process {pid}")), "{error}");
            assert!(ProcessMeter::new(pid).is_err());
        }
    }

    #[test]
    fn a_meter_keeps_the_switches_of_threads_that_have_ended() {
        let mut meter = ProcessMeter { pid: 0, threads: HashMap::new(), exited_threads: Vec::new() };
        let both = meter.update(snapshot(10, &[(1, 11), (2, 22)]));
        assert_eq!((both.cpu_ns, both.voluntary_switches, both.involuntary_switches), (10, 33, 2));
        // Thread 2 ends as last seen, while 1 goes on.
        let one = meter.update(snapshot(15, &[(1, 12)]));
        assert_eq!((one.since(&both).cpu_ns, one.since(&both).voluntary_switches), (5, 1));
        // The id of an ended thread comes back.
        let again = meter.update(snapshot(15, &[(1, 3)]));
        assert_eq!(again.since(&one).voluntary_switches, 3);
    }

    #[test]
    fn the_time_of_a_thread_that_has_ended_is_not_lost() {
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
    fn fields_are_found() {
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
