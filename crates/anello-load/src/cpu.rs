//! CPU time of processes.

use std::fs;
use std::io;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that all live threads of a process have spent in user space and kernel, in nanoseconds
/// (`/proc/PID/task/*/schedstat`).
///
/// A thread's figure is brought up to date when it goes to sleep and at every tick of the clock (up to 10 ms). Threads
/// that have ended do not count any more.
///
/// # Errors
/// When the process does not exist, or belongs to somebody whose processes may not be looked at.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot read the CPU time of process {pid}: {error}"))
    };
    let mut total_ns = 0u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).map_err(named)? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(thread.map_err(named)?.path().join("schedstat")) else { continue };
        let run_ns: Option<u64> = text.split_whitespace().next().and_then(|column| column.parse().ok());
        let run_ns = run_ns.ok_or_else(|| named(io::Error::other(format!("unusable schedstat {text:?}"))))?;
        total_ns = total_ns.saturating_add(run_ns);
    }
    Ok(total_ns)
}

/// CPU time of this process, in nanoseconds, exact at any moment.
pub(crate) fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_this_process_grows_and_that_of_none_is_an_error() {
        let (before_ns, own_ns) = (process_cpu_ns(std::process::id()).unwrap(), own_cpu_ns());
        let mut sink = 0u64;
        while process_cpu_ns(std::process::id()).unwrap() <= before_ns {
            sink = std::hint::black_box(sink + 1);
        }
        assert!(own_cpu_ns() > own_ns);
        assert!(process_cpu_ns(u32::MAX).unwrap_err().to_string().contains("process 4294967295"));
    }
}
