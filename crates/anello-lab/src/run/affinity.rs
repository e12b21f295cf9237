//! CPU affinity of threads and processes.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Confines every thread of a process, and the threads that it starts later, to these cores. A thread that has pinned
/// itself to some of these cores stays pinned, as does an io_uring kernel thread that is pinned to any single core.
pub(crate) fn pin_process(pid: u32, cores: &[usize]) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let name = task.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let current = sched_getaffinity(thread).ok();
        if current.is_some_and(|current| is_pinned_deliberately(&task.path(), &current, cores)) {
            continue;
        }
        match sched_setaffinity(thread, &cpu_set(cores)) {
            Err(Errno::SRCH) | Ok(()) => {}
            // Some kernels do not allow changing the affinity of io_uring threads and return EINVAL.
            Err(Errno::INVAL) if name.to_str() != Some(pid.to_string().as_str()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns whether a thread with affinity `current` is confined to `cores`, or is a deliberately pinned kernel thread.
fn is_pinned_deliberately(task: &Path, current: &CpuSet, cores: &[usize]) -> bool {
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| current.is_set(core)).collect();
    let is_kernel_thread =
        || fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("iou-"));
    allowed.iter().all(|core| cores.contains(core)) || (allowed.len() == 1 && is_kernel_thread())
}

/// Runs `work`, and the child processes that it starts, on `cores`.
pub(crate) fn on_cores<T>(cores: &[usize], work: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None);
    // The error for an unavailable core is reported later, when the child is pinned.
    sched_setaffinity(None, &cpu_set(cores)).ok();
    let result = work();
    if let Ok(before) = before {
        sched_setaffinity(None, &before).ok();
    }
    result
}

pub(crate) fn cpu_set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cores::allowed_cores;

    #[test]
    fn pin_process_keeps_own_affinity_within_cores() {
        let cores = allowed_cores();
        let affinity = |pid: u32| sched_getaffinity(Pid::from_raw(pid as i32)).unwrap();
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let last = &cores[cores.len() - 1..];
        sched_setaffinity(Pid::from_raw(child.id() as i32), &cpu_set(last)).unwrap();
        let confined = pin_process(child.id(), &cores).map(|()| affinity(child.id()));
        let moved = pin_process(child.id(), &cores[..1]).map(|()| affinity(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(confined.unwrap(), cpu_set(last), "an affinity within the given cores is not changed");
        assert_eq!(moved.unwrap(), cpu_set(&cores[..1]));
    }

    #[test]
    fn kernel_thread_keeps_single_core_outside_cores() {
        let task = tempfile::tempdir().unwrap();
        for (name, own_core) in [("iou-sqp-7", true), ("iou-wrk-7", true), ("echo", false)] {
            fs::write(task.path().join("comm"), name).unwrap();
            assert_eq!(is_pinned_deliberately(task.path(), &cpu_set(&[3]), &[0]), own_core, "{name}");
            assert!(!is_pinned_deliberately(task.path(), &cpu_set(&[0, 3]), &[0]), "{name}");
            assert!(is_pinned_deliberately(task.path(), &cpu_set(&[1]), &[0, 1]), "{name}");
        }
    }
}
