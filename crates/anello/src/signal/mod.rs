//! Asynchronous handling of Unix signals.
//!
//! The signal handler, installed by the `signal-hook` crate, writes a byte to a socket pair. The other end of the pair
//! is a stream on the runtime, so a signal wakes the driver just as received data does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use signal_hook::{SigId, low_level};

use crate::net::UnixStream;

/// A listener for Unix signals sent to the process.
///
/// A process can have several `Signals`, including on different threads; each of them receives every signal. Signals
/// that arrive while no task is waiting are not lost: [`recv`](Self::recv) returns once for each signal that was
/// caught. The kernel merges pending signals with the same number before it delivers them.
///
/// When the last `Signals` that catches a signal is dropped, the default action of the signal is restored: SIGTERM then
/// terminates the process. If the signal was ignored or had another handler when it was first caught, that disposition
/// takes effect again. Real-time signals, and others without a name in `signal-hook`, are ignored from then on.
#[derive(Debug)]
pub struct Signals {
    caught: Vec<Caught>,
    /// Index of the signal that [`recv`](Self::recv) checks first. It rotates, so that no signal starves the others.
    next: usize,
}

#[derive(Debug)]
struct Caught {
    signal: i32,
    id: SigId,
    /// Receives one byte per caught signal.
    stream: UnixStream,
    /// Number of occurrences that have been received but not returned yet.
    count: usize,
}

/// Signals that have been caught at least once. `signal-hook` never uninstalls its handler, so each of them has a second
/// handler that performs the default action while no `Signals` catches the signal.
static EVER_CAUGHT: Mutex<BTreeMap<i32, EverCaught>> = Mutex::new(BTreeMap::new());

struct EverCaught {
    /// Number of `Signals` that currently catch the signal.
    users: usize,
    /// Read by the signal handler.
    performs_default: Arc<AtomicBool>,
}

/// SIGTERM: requests termination. The default signal of `kill(1)`.
pub const TERMINATE: i32 = signal_hook::consts::SIGTERM;
/// SIGINT: sent by the terminal on Ctrl-C.
pub const INTERRUPT: i32 = signal_hook::consts::SIGINT;
/// SIGHUP: by convention, requests that a service reload its configuration.
pub const HANGUP: i32 = signal_hook::consts::SIGHUP;

impl Signals {
    /// Catches the given signals (`sigaction(2)`) until the returned value is dropped. Until then, their default
    /// actions are not performed.
    ///
    /// # Errors
    /// Returns an error if a signal cannot be caught, if the open-file limit is reached, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        if let Some(signal) = signals.iter().find(|signal| signal_hook::consts::FORBIDDEN.contains(signal)) {
            let message = format!("signal {signal} cannot be caught");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let caught = signals.iter().map(|&signal| Caught::new(signal)).collect::<io::Result<_>>()?;
        Ok(Self { caught, next: 0 })
    }

    /// Waits for the next signal and returns its number. Pending signals with different numbers are returned in an
    /// unspecified order. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if other code has closed the socket pair.
    pub async fn recv(&mut self) -> io::Result<i32> {
        poll_fn(|context| {
            for step in 0..self.caught.len() {
                let index = (self.next + step) % self.caught.len();
                if self.caught[index].poll_take(context)?.is_ready() {
                    self.next = index + 1;
                    return Poll::Ready(Ok(self.caught[index].signal));
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Caught {
    fn new(signal: i32) -> io::Result<Self> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        let stream = UnixStream::from_std(near)?;
        let mut ever_caught = EVER_CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match ever_caught.entry(signal) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(new) => {
                let performs_default = Arc::new(AtomicBool::new(true));
                if is_default_in_force(signal) && low_level::signal_name(signal).is_some() {
                    signal_hook::flag::register_conditional_default(signal, Arc::clone(&performs_default))?;
                }
                new.insert(EverCaught { users: 0, performs_default })
            }
        };
        let id = low_level::pipe::register(signal, far)?;
        entry.users += 1;
        entry.performs_default.store(false, Ordering::SeqCst);
        Ok(Self { signal, id, stream, count: 0 })
    }

    /// Consumes one occurrence of the signal.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.count == 0 {
            // Several signals in quick succession are received as several bytes.
            let bytes = ready!(pin!(self.stream.recv()).poll(context))?;
            self.count = bytes.map_or(0, |bytes| bytes.len());
        }
        let Some(remaining) = self.count.checked_sub(1) else {
            return Poll::Ready(Err(io::Error::other("signal socket closed")));
        };
        self.count = remaining;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        let mut ever_caught = EVER_CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = ever_caught.get_mut(&self.signal) {
            entry.users -= 1;
            // Set before the handler is unregistered, so that a signal that arrives in between is not lost.
            entry.performs_default.store(entry.users == 0, Ordering::SeqCst);
        }
        low_level::unregister(self.id);
    }
}

/// Returns whether a signal is neither ignored nor caught, or `true` if `/proc/self/status` cannot be read.
fn is_default_in_force(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let contains = |name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
    };
    !contains("SigIgn:") && !contains("SigCgt:")
}
