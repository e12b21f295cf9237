//! A signal handler that counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use signal_hook::{SigId, low_level};

/// Adds the occurrences of a signal to a count, in memory of this process: a forked child inherits the handler, and counts
/// its own signals. Handlers of a signal run in the order in which they were registered.
pub(crate) fn count_signal(signal: i32, count: Arc<AtomicU64>) -> io::Result<SigId> {
    let add = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    // SAFETY: the handler only adds to an integer, which is safe in a signal handler.
    unsafe { low_level::register(signal, add) }
}
