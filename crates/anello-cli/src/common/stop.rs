//! Signal handling of commands that print a result: the first Ctrl-C requests a stop, the second exits the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code after a second signal: 128 plus the number of SIGINT, as shells report it.
const INTERRUPTED: i32 = 130;

/// Returns a flag that the first SIGINT or SIGTERM sets. A second signal exits the process immediately.
pub fn flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The conditional shutdown is registered first: it must run before the flag is set by the same signal.
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
