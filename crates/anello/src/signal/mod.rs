//! Asynchronous handling of Unix signals.
//!
//! Few operations are allowed in a signal handler. The one installed here (by the `signal-hook` crate) writes a byte to
//! a socket pair. The other end of the pair is a stream on the runtime, so a signal wakes the driver in the same way as
//! received data.

mod default_action;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use self::default_action::CaughtSignal;
use crate::net::UnixStream;

/// A listener for Unix signals sent to the process.
///
/// A process can have several `Signals`, including on different threads; each of them receives every signal. Signals
/// that arrive while no task is waiting are not lost: [`recv`](Self::recv) returns once for each signal that was
/// caught. The kernel merges pending signals with the same number before it delivers them.
///
/// When the last `Signals` that catches a signal is dropped, the default action of the signal is restored: SIGTERM then
/// terminates the process. If the signal was ignored or had another handler when it was first caught, that disposition
/// takes effect again. Real-time signals, and other signals without a name in `signal-hook`, are ignored from then on.
#[derive(Debug)]
pub struct Signals {
    caught: Vec<Caught>,
    /// Index of the signal that [`recv`](Self::recv) checks first. It rotates, so that no signal starves the others.
    next: usize,
}

#[derive(Debug)]
struct Caught {
    signal: i32,
    /// Receives one byte per caught signal.
    stream: UnixStream,
    /// Number of caught signals that have not been returned yet.
    count: usize,
    _registration: CaughtSignal,
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
    /// unspecified order.
    ///
    /// # Cancel safety
    /// This function is cancel-safe.
    ///
    /// # Errors
    /// Returns an error if other code has closed the socket pair.
    pub async fn recv(&mut self) -> io::Result<i32> {
        poll_fn(|context| self.poll_wait(context)).await
    }

    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<i32>> {
        for step in 0..self.caught.len() {
            let index = (self.next + step) % self.caught.len();
            if self.caught[index].poll_take(context)?.is_ready() {
                self.next = index + 1;
                return Poll::Ready(Ok(self.caught[index].signal));
            }
        }
        Poll::Pending
    }
}

impl Caught {
    fn new(signal: i32) -> io::Result<Self> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        let stream = UnixStream::from_std(near)?;
        Ok(Self { signal, stream, count: 0, _registration: CaughtSignal::new(signal, far)? })
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
