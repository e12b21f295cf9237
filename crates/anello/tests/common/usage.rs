//! Resource usage and limits of processes.

use std::io;
use std::time::Duration;

/// Resource usage of a process. It is read from another process, so that the measurement itself uses no descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time, with a resolution of 10 ms.
    pub processor: Duration,
    pub descriptors: usize,
    /// Anonymous memory in use. Files do not count: code does so only once it has run, and on `tmpfs` as shared memory.
    pub resident_bytes: usize,
}

/// Returns the current resource usage of a process.
pub fn usage_of(process: u32) -> Usage {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
    let (stat, status) = (read("stat"), read("status"));
    // The name in parentheses may contain spaces. The times are fields 14 and 15.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let kilobytes = |name: &str| -> usize {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    Usage {
        processor: Duration::from_millis(ticks * 10),
        descriptors: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
        resident_bytes: kilobytes("RssAnon:") * 1024,
    }
}

/// Returns the current resource usage of this process.
pub fn usage() -> Usage {
    let usage = usage_of(std::process::id());
    // One descriptor belongs to the directory listing.
    Usage { descriptors: usage.descriptors - 1, ..usage }
}

/// Returns whether a checker keeps freed memory to detect later accesses (`ANELLO_FREED_IS_KEPT`). The memory usage of
/// the process is then meaningless.
pub fn freed_is_kept() -> bool {
    std::env::var_os("ANELLO_FREED_IS_KEPT").is_some()
}

/// Fails if memory has grown by `bound_bytes` or more. If freed memory is kept, only prints the growth.
#[track_caller]
pub fn assert_grown_less(name: &str, grown_bytes: usize, bound_bytes: usize) {
    if grown_bytes >= bound_bytes && freed_is_kept() {
        return eprintln!("skipped on {name}: memory grew by {grown_bytes} bytes, including freed memory");
    }
    assert!(grown_bytes < bound_bytes, "{name}: memory grew by {grown_bytes} bytes (limit {bound_bytes})");
}

/// Limits the number of open files in this process.
pub fn limit_open_files(count: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })?)
}

/// Raises the open-file limit to its maximum and returns it.
pub fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
}
