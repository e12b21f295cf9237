//! Signal handling of commands that print a result: the first Ctrl-C requests a stop, the second exits the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code after a second signal: 128 plus the signal number of SIGINT, following the shell convention.
const INTERRUPTED: i32 = 130;

/// Returns a flag that the first SIGINT or SIGTERM sets. A second signal exits the process immediately.
pub fn flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The conditional shutdown is registered first, because it must run before the same signal sets the flag.
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
