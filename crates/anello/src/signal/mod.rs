//! Asynchronous handling of Unix signals.
//!
//! [`signal`] returns a listener for one signal, [`Signals`] listens for several, and [`ctrl_c`] waits for SIGINT once:
//!
//! ```no_run
//! # anello::example! {
//! # async fn serve() {}
//! use anello::signal::{SignalKind, Signals};
//!
//! let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
//! anello::spawn(serve()).detach();
//! let received = signals.recv().await?;
//! println!("received {received}, shutting down");
//! # }
//! ```
//!
//! # Semantics
//!
//! - Listeners are independent, including those on different threads: each of them receives every signal.
//! - Signals that arrive while no task is waiting are not lost: a listener returns once for each signal that was
//!   caught. The kernel merges pending signals with the same number before it delivers them.
//! - While at least one listener exists, the default action of the signal is not performed. When the last one is
//!   dropped, it is restored: SIGTERM then terminates the process. If the signal was ignored or had another handler
//!   when it was first caught, that disposition takes effect again. SIGIO, real-time signals, and others without a name
//!   in `signal-hook` are ignored from then on. tokio never restores the default action.
//! - The signal handler, installed by the `signal-hook` crate, counts the signal and writes a byte to a socket pair. The
//!   other end of the pair is a stream on the runtime, so a signal wakes the driver just as received data does. Each
//!   listener uses two descriptors per signal.
//! - A child process of `fork(2)` inherits the handler until it calls `execve(2)`. The listeners of the parent do not
//!   return the child's signals.
//! - On a [simulated host](crate::sim), a test sends signals with
//!   [`Control::signal`](crate::sim::Control::signal), and those of the process are not caught.

mod kind;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use signal_hook::{SigId, low_level};

pub use self::kind::SignalKind;
use crate::driver::{SimSignal, count_signal};
use crate::executor::current;
use crate::net::UnixStream;

/// Catches a signal (`sigaction(2)`) until the returned listener is dropped. See the [module](self) for the semantics.
///
/// ```
/// use anello::signal::{SignalKind, signal};
///
/// # anello::example! {
/// let mut resizes = signal(SignalKind::window_change())?;
/// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::WINCH)?;
/// // Returns once the terminal window is resized.
/// assert_eq!(resizes.recv().await, Some(()));
/// # }
/// ```
///
/// # Errors
/// Returns `InvalidInput` if the signal cannot be caught (SIGKILL, SIGSTOP, SIGILL, SIGFPE, SIGSEGV) or does not exist,
/// `Unsupported` on the simulated driver outside of a [simulated host](crate::sim), or `EMFILE` if the open-file limit is
/// reached.
///
/// # Panics
/// Panics if no runtime is running on this thread.
#[track_caller]
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    Ok(Signal { caught: Caught::new(kind)? })
}

/// Waits for SIGINT, which the terminal sends on Ctrl-C. The signal is caught from the first poll until the future
/// completes or is dropped. Cancel-safe.
///
/// SIGINT terminates the process again after this function has returned. tokio's function catches the signal for the
/// rest of the process; to do so here, keep the listener returned by [`signal`].
///
/// ```no_run
/// # anello::example! {
/// anello::signal::ctrl_c().await?;
/// println!("shutting down");
/// # }
/// ```
///
/// # Errors
/// See [`signal`]. Also returns an error if the runtime shuts down in the meantime.
///
/// # Panics
/// Panics if no runtime is running on this thread.
pub async fn ctrl_c() -> io::Result<()> {
    let mut caught = Caught::new(SignalKind::interrupt())?;
    poll_fn(|context| caught.poll_take(context)).await
}

/// Listener for one signal, returned by [`signal`].
///
/// ```
/// # anello::example! {
/// use anello::signal::{Signal, SignalKind, signal};
///
/// let mut reload: Signal = signal(SignalKind::hangup())?;
/// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP)?;
/// // After `kill -HUP`:
/// assert_eq!(reload.recv().await, Some(()));
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the listener restores the default action of the signal"]
pub struct Signal {
    caught: Caught,
}

impl Signal {
    /// Waits for the next signal. Returns `None` if the runtime has been shut down. Cancel-safe.
    ///
    /// ```
    /// # use anello::signal::{SignalKind, signal};
    /// # anello::example! {
    /// let mut signals = signal(SignalKind::user_defined1())?;
    /// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)?;
    /// signals.recv().await;
    /// # }
    /// ```
    pub async fn recv(&mut self) -> Option<()> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for the next signal, like [`recv`](Self::recv). Only the task that polled last is woken.
    ///
    /// ```
    /// # use anello::signal::{SignalKind, signal};
    /// # anello::example! {
    /// let mut signals = signal(SignalKind::user_defined2())?;
    /// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2)?;
    /// std::future::poll_fn(|context| signals.poll_recv(context)).await;
    /// # }
    /// ```
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<()>> {
        self.caught.poll_take(context).map(Result::ok)
    }
}

/// Listener for several signals. See the [module](self) for the semantics.
///
/// tokio has no counterpart: it needs one listener per signal and `select!`.
///
/// ```
/// # anello::example! {
/// use anello::signal::{SignalKind, Signals};
///
/// let mut signals = Signals::new([SignalKind::terminate(), SignalKind::hangup()])?;
/// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
/// // After `kill`:
/// assert_eq!(signals.recv().await?, SignalKind::terminate());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the listener restores the default actions of the signals"]
pub struct Signals {
    caught: Vec<Caught>,
    /// Index of the signal that [`recv`](Self::recv) checks first. It rotates, so that no signal starves the others.
    next: usize,
}

impl Signals {
    /// Catches the given signals until the returned listener is dropped.
    ///
    /// ```
    /// use anello::signal::{SignalKind, Signals};
    ///
    /// # anello::example! {
    /// let mut signals = Signals::new([SignalKind::terminate(), SignalKind::hangup()])?;
    /// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP)?;
    /// assert_eq!(signals.recv().await?, SignalKind::hangup());
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`signal`].
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn new(signals: impl IntoIterator<Item = SignalKind>) -> io::Result<Self> {
        let mut caught = Vec::new();
        for kind in signals {
            caught.push(Caught::new(kind)?);
        }
        Ok(Self { caught, next: 0 })
    }

    /// Waits for the next signal and returns it. Pending signals with different numbers are returned in an unspecified
    /// order. Never returns if the list of signals is empty. Cancel-safe.
    ///
    /// ```no_run
    /// # use anello::signal::{SignalKind, Signals};
    /// # anello::example! {
    /// let mut signals = Signals::new([SignalKind::terminate(), SignalKind::hangup()])?;
    /// while signals.recv().await? == SignalKind::hangup() {
    ///     println!("reloading the configuration");
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the runtime has been shut down.
    pub async fn recv(&mut self) -> io::Result<SignalKind> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Polls for the next signal, like [`recv`](Self::recv). Only the task that polled last is woken.
    ///
    /// ```
    /// # use anello::signal::{SignalKind, Signals};
    /// # anello::example! {
    /// let mut signals = Signals::new([SignalKind::user_defined2()])?;
    /// # rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2)?;
    /// let received = std::future::poll_fn(|context| signals.poll_recv(context)).await?;
    /// assert_eq!(received, SignalKind::user_defined2());
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`recv`](Self::recv).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<SignalKind>> {
        for step in 0..self.caught.len() {
            let index = (self.next + step) % self.caught.len();
            if self.caught[index].poll_take(context)?.is_ready() {
                self.next = index + 1;
                return Poll::Ready(Ok(self.caught[index].kind));
            }
        }
        Poll::Pending
    }
}

/// Signals that have been caught at least once. `signal-hook` never uninstalls its handler, so each of them has a
/// second handler that performs the default action while no listener catches the signal.
static EVER_CAUGHT: Mutex<BTreeMap<SignalKind, EverCaught>> = Mutex::new(BTreeMap::new());

struct EverCaught {
    /// Number of listeners that currently catch the signal.
    listeners: usize,
    /// Read by the signal handler.
    performs_default: Arc<AtomicBool>,
}

/// A caught signal of one listener.
#[derive(Debug)]
struct Caught {
    kind: SignalKind,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Process(ProcessSignal),
    /// The signal of a simulated host.
    Simulated(Rc<SimSignal>),
}

impl Caught {
    #[track_caller]
    fn new(kind: SignalKind) -> io::Result<Self> {
        let signal = kind.as_raw_value();
        if !(1..=libc::SIGRTMAX()).contains(&signal) {
            let message = format!("cannot catch {kind}: no such signal (use 1 to {})", libc::SIGRTMAX());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if signal_hook::consts::FORBIDDEN.contains(&signal) {
            let message = format!("cannot catch {kind}: its action cannot be changed (use another signal)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let shared = current();
        if !shared.is_simulated() {
            return Ok(Self { kind, source: Source::Process(ProcessSignal::new(kind)?) });
        }
        let simulated = shared.driver.borrow().catch_signal(signal);
        let simulated = simulated.ok_or_else(|| {
            let message = format!(
                "cannot catch {kind}: the simulated driver has no signals without a simulated host (use \
                 sim::Simulation, or the uring or epoll driver)"
            );
            io::Error::new(io::ErrorKind::Unsupported, message)
        })?;
        Ok(Self { kind, source: Source::Simulated(simulated) })
    }

    /// Consumes one occurrence of the signal.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.source {
            Source::Process(signal) => signal.poll_take(context),
            Source::Simulated(signal) => signal.poll_take(context),
        }
    }
}

/// A caught signal of this process.
#[derive(Debug)]
struct ProcessSignal {
    kind: SignalKind,
    /// The handlers that count the signal and wake the runtime, in this order.
    handlers: [SigId; 2],
    /// Number of occurrences, written by the signal handler. A forked child has its own.
    caught: Arc<AtomicU64>,
    /// Number of occurrences that have been returned.
    returned: u64,
    /// Receives a byte for each occurrence, which wakes the task that waits for it.
    stream: UnixStream,
}

impl ProcessSignal {
    fn new(kind: SignalKind) -> io::Result<Self> {
        let signal = kind.as_raw_value();
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        let stream = UnixStream::from_std(near)?;
        let mut ever_caught = EVER_CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match ever_caught.entry(kind) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(new) => {
                let performs_default = Arc::new(AtomicBool::new(true));
                if is_default_in_force(signal) && low_level::signal_name(signal).is_some() {
                    signal_hook::flag::register_conditional_default(signal, Arc::clone(&performs_default))?;
                }
                new.insert(EverCaught { listeners: 0, performs_default })
            }
        };
        let caught = Arc::new(AtomicU64::new(0));
        let counter = count_signal(signal, Arc::clone(&caught))?;
        let sender = low_level::pipe::register(signal, far).inspect_err(|_| {
            low_level::unregister(counter);
        })?;
        entry.listeners += 1;
        entry.performs_default.store(false, Ordering::SeqCst);
        Ok(Self { kind, handlers: [counter, sender], caught, returned: 0, stream })
    }

    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.caught.load(Ordering::SeqCst) == self.returned {
            // The bytes have no other meaning: a forked child writes to the same socket.
            if ready!(pin!(self.stream.recv()).poll(context))?.is_none() {
                return Poll::Ready(Err(io::Error::other("signal socket closed")));
            }
        }
        self.returned += 1;
        Poll::Ready(Ok(()))
    }
}

impl Drop for ProcessSignal {
    fn drop(&mut self) {
        let mut ever_caught = EVER_CAUGHT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = ever_caught.get_mut(&self.kind) {
            entry.listeners -= 1;
            // Set before the handler is unregistered, so that a signal that arrives in between is not lost.
            entry.performs_default.store(entry.listeners == 0, Ordering::SeqCst);
        }
        for handler in self.handlers {
            low_level::unregister(handler);
        }
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
