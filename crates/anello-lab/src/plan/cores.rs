//! Usable cores and the open file limit of this machine.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};

/// Number of descriptors that the lab needs in addition to its connections.
pub(crate) const SPARE_DESCRIPTORS: usize = 256;

/// Returns the cores that this thread may run on, in ascending order. Returns core 0 if they cannot be read.
pub fn allowed_cores() -> Vec<usize> {
    let cores = sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect::<Vec<_>>())
        .unwrap_or_default();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Returns how many connections the lab can have open after it has raised its limit on open files.
pub fn connections_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(SPARE_DESCRIPTORS)
}

/// Returns, for each of `cores`, all hardware threads of its physical core, including itself. A core without
/// topology information in the file tree at `root` is returned alone.
pub fn core_siblings(root: &Path, cores: &[usize]) -> Vec<Vec<usize>> {
    let siblings = |&core: &usize| {
        let file = root.join(format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
        fs::read_to_string(file).ok().and_then(|text| core_list(text.trim())).unwrap_or_else(|| vec![core])
    };
    cores.iter().map(siblings).collect()
}

/// Parses a list of cores in the kernel's format: "0,4" or "0-1,8".
fn core_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?);
    }
    Some(cores)
}
