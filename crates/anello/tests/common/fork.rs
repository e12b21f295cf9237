//! Child processes of `fork(2)`, for tests in a process of their own. A child must neither use the objects of its parent
//! nor return.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// Seconds after which a child that hangs is killed.
const MAX_CHILD_SECONDS: u32 = 100;

/// Forks. Returns the child to its parent, and `None` to the child.
pub fn fork() -> Option<Pid> {
    // SAFETY: glibc permits all calls after a fork of a process with threads, apart from those that need a lock of the
    // application. The tests have none.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: has no preconditions.
        unsafe { libc::alarm(MAX_CHILD_SECONDS) };
    }
    Pid::from_raw(child)
}

/// Ends the child without the exit handlers of its parent.
pub fn exit_child(succeeded: bool) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(i32::from(!succeeded)) }
}

/// Waits until the child has ended.
pub fn wait_for(child: Pid) -> WaitStatus {
    waitpid(Some(child), WaitOptions::empty()).unwrap().expect("the child has ended").1
}

/// Runs `body` in a child process, which must not panic.
#[track_caller]
pub fn in_child(name: &str, body: impl FnOnce()) {
    match fork() {
        Some(child) => {
            let status = wait_for(child);
            assert_eq!(status.exit_status(), Some(0), "{name}: {status:?}");
        }
        None => exit_child(catch_unwind(AssertUnwindSafe(body)).is_ok()),
    }
}
