//! The default actions of signals that are not caught any more.
//!
//! `signal-hook` never takes its handler back: without an action of ours, a signal would be ignored when the last of our
//! `Signals` is dropped. So each signal that is caught gets an action that performs the default, while nothing catches it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::SigId;

/// Signals that were ever caught, by number.
static EVER_CAUGHT: Mutex<BTreeMap<i32, EverCaught>> = Mutex::new(BTreeMap::new());

struct EverCaught {
    /// How many `Signals` catch it now.
    users: usize,
    /// Whether the handler performs the default action.
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

/// Has a byte written to a socket each time that a signal is caught, instead of its default action.
#[derive(Debug)]
pub(super) struct Catching {
    signal: i32,
    id: SigId,
}

impl Catching {
    pub fn new(signal: i32, socket: UnixStream) -> io::Result<Self> {
        let mut signals = ever_caught();
        let known = match signals.entry(signal) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(EverCaught::new(signal)?),
        };
        let id = signal_hook::low_level::pipe::register(signal, socket)?;
        known.users += 1;
        known.performs_default.store(false, Ordering::SeqCst);
        Ok(Self { signal, id })
    }
}

impl Drop for Catching {
    fn drop(&mut self) {
        let mut signals = ever_caught();
        if let Some(known) = signals.get_mut(&self.signal) {
            known.users -= 1;
            // First, so that no signal is swallowed in between.
            known.performs_default.store(known.users == 0, Ordering::SeqCst);
        }
        signal_hook::low_level::unregister(self.id);
    }
}

/// Whether nothing ignores or catches a signal now. What cannot be read is taken to be so.
fn is_default_in_force(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let contains = |name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
    };
    !contains("SigIgn:") && !contains("SigCgt:")
}
