//! Process-wide state: the limit on open files, and the stop flag of commands that print a result.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code after a second signal: 128 plus the signal number of SIGINT, following the shell convention.
const INTERRUPTED: i32 = 130;

/// Raises the soft limit on open files to the hard limit, because each connection needs a file descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the soft limit on open files");
    }
}

/// Returns a flag that the first SIGINT or SIGTERM sets. A second signal terminates the process immediately.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The conditional shutdown is registered first, because it must run before the same signal sets the flag.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
