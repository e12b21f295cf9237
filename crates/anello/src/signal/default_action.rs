//! Emulation of default actions for signals that are no longer caught.
//!
//! `signal-hook` never uninstalls its handler. Without this emulation, a signal would be ignored once the last
//! `Signals` is dropped. Each caught signal therefore gets a handler that performs the default action while no
//! `Signals` catches it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::SigId;

/// Signals that have been caught at least once, keyed by signal number.
static EVER_CAUGHT: Mutex<BTreeMap<i32, EverCaught>> = Mutex::new(BTreeMap::new());

struct EverCaught {
    /// Number of `Signals` that currently catch the signal.
    users: usize,
    /// True if the signal handler performs the default action.
    performs_default: Arc<AtomicBool>,
}

impl EverCaught {
    fn new(signal: i32) -> io::Result<Self> {
        let performs_default = Arc::new(AtomicBool::new(true));
        if is_default_in_force(signal) && signal_hook::low_level::signal_name(signal).is_some() {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&performs_default))?;
        }
        Ok(Self { users: 0, performs_default })
    }
}

fn ever_caught() -> MutexGuard<'static, BTreeMap<i32, EverCaught>> {
    EVER_CAUGHT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registration of a signal: while it exists, the signal handler writes a byte to a socket instead of performing the
/// default action.
#[derive(Debug)]
pub(super) struct CaughtSignal {
    signal: i32,
    id: SigId,
}

impl CaughtSignal {
    pub fn new(signal: i32, socket: UnixStream) -> io::Result<Self> {
        let mut signals = ever_caught();
        let entry = match signals.entry(signal) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(new) => new.insert(EverCaught::new(signal)?),
        };
        let id = signal_hook::low_level::pipe::register(signal, socket)?;
        entry.users += 1;
        entry.performs_default.store(false, Ordering::SeqCst);
        Ok(Self { signal, id })
    }
}

impl Drop for CaughtSignal {
    fn drop(&mut self) {
        let mut signals = ever_caught();
        if let Some(entry) = signals.get_mut(&self.signal) {
            entry.users -= 1;
            // Set before the handler is unregistered, so that a signal that arrives in between is not lost.
            entry.performs_default.store(entry.users == 0, Ordering::SeqCst);
        }
        signal_hook::low_level::unregister(self.id);
    }
}

/// Returns whether the disposition of a signal is the default, that is, neither ignored nor caught. Returns `true` if
/// `/proc/self/status` cannot be read.
fn is_default_in_force(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let contains = |name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
    };
    !contains("SigIgn:") && !contains("SigCgt:")
}
