//! Cores of this machine: which of them a process may use, and how much time the hypervisor steals from them.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::system::process::{thread_ids, with_context};

/// Returns the cores that the calling thread may run on, in ascending order, or the error of `sched_getaffinity(2)`,
/// which fails on machines with more than 1024 cores.
pub fn current_thread_cores() -> io::Result<Vec<usize>> {
    Ok(cores_in_set(&sched_getaffinity(None)?).collect())
}

/// Returns the cores that at least one thread of a process may run on, in ascending order (`sched_getaffinity(2)` of
/// each thread). Returns an error if the process does not exist, or if the caller may not inspect it.
pub fn cores_of(pid: u32) -> io::Result<Vec<usize>> {
    let mut cores = BTreeSet::new();
    for thread in thread_ids(pid)? {
        match sched_getaffinity(i32::try_from(thread).ok().and_then(Pid::from_raw)) {
            Ok(set) => cores.extend(cores_in_set(&set)),
            // The thread has exited since it was listed.
            Err(Errno::SRCH) => {}
            Err(error) => return Err(with_context(pid, "the CPU affinity", error.into())),
        }
    }
    Ok(cores.into_iter().collect())
}

/// Returns the name of the hardware clock that the kernel reads, such as `tsc`; `None` if sysfs is not mounted.
pub(crate) fn clock_source() -> Option<String> {
    let name = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok()?;
    Some(name.trim().to_owned())
}

/// Returns the time that the hypervisor has stolen from these cores, in nanoseconds, summed over the cores. The source
/// is the steal column of `/proc/stat`, which counts clock ticks, usually of 10 ms. Duplicate entries in `cores` count
/// once, and offline cores count as 0. Only differences between two values are meaningful. Returns an error if
/// `/proc/stat` cannot be read or has no steal column (kernels before 2.6.11).
pub fn stolen_ns(cores: &[usize]) -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read /proc/stat: {error}")))?;
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "cannot parse /proc/stat: no steal column");
    stolen_ticks(&stat, cores).map(|ticks| ticks.saturating_mul(tick_ns)).ok_or_else(invalid)
}

fn stolen_ticks(stat: &str, cores: &[usize]) -> Option<u64> {
    // The columns after the core's number are user, nice, system, idle, iowait, irq, softirq and steal.
    let mut lines = stat.lines().filter_map(|line| {
        let (number, columns) = line.strip_prefix("cpu")?.split_once(' ')?;
        number.parse().is_ok_and(|core| cores.contains(&core)).then_some(columns)
    });
    lines.try_fold(0u64, |sum, columns| {
        let stolen: u64 = columns.split_whitespace().nth(7)?.parse().ok()?;
        Some(sum.saturating_add(stolen))
    })
}

fn cores_in_set(set: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_ticks_are_summed_over_requested_cores() {
        let stat =
            "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 30 9 10\ncpu10 1 2 3 4 5 6 7 58 0 0\nintr 1\n";
        assert_eq!(stolen_ticks(stat, &[0]), Some(30));
        assert_eq!(stolen_ticks(stat, &[10, 0, 0, 99]), Some(88));
        assert_eq!(stolen_ticks(stat, &[]), Some(0));
        assert_eq!(stolen_ticks("cpu0 1 2 3\n", &[0]), None);
    }
}
