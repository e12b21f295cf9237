//! Ctrl-C for commands that have something to report: the first asks them to finish, the second ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code of a process that a second signal ended, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// A flag that SIGINT or SIGTERM sets; the next of them ends the process at once.
pub fn flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, so that the first signal does not count as the second.
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
