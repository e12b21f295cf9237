//! Signals as futures.
//!
//! A signal handler may do almost nothing; this one writes a byte into a pair of sockets (the `signal-hook` crate),
//! whose other end is a stream of the runtime, so that a signal ends the driver's wait like any message.

mod default_action;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use self::default_action::Catching;
use crate::net::UnixStream;

/// Signals of the process that this runtime waits for.
///
/// Several may exist, in several threads; each sees every signal. Signals that arrive while no task waits are not lost. As
/// often as one was caught, [`recv`](Self::recv) returns; the kernel itself counts those of one kind together that it has
/// not delivered yet.
///
/// When the last of them that catches a signal is dropped, the default action of the signal is restored: SIGTERM then
/// terminates the process. A signal that was ignored or had another handler when it was first caught is ignored or
/// handled by that again. Real-time signals and others that `signal-hook` has no name for are ignored from then on.
#[derive(Debug)]
pub struct Signals {
    caught: Vec<Caught>,
    /// Where [`recv`](Self::recv) looks first, so that no signal keeps the others waiting.
    next: usize,
}

/// One of the signals.
#[derive(Debug)]
struct Caught {
    signal: i32,
    /// Yields a byte for each time.
    stream: UnixStream,
    /// How often it was caught and not yet waited for.
    count: usize,
    _catching: Catching,
}

/// The signal that asks a process to end, as `kill` sends it.
pub const TERMINATE: i32 = signal_hook::consts::SIGTERM;
/// The signal of Ctrl-C.
pub const INTERRUPT: i32 = signal_hook::consts::SIGINT;
/// The signal by which services are asked to read their configuration again.
pub const HANGUP: i32 = signal_hook::consts::SIGHUP;

impl Signals {
    /// Catches these signals (`sigaction(2)`) as long as this lives, instead of their default action.
    ///
    /// # Errors
    /// For a signal that cannot be caught, when there are no descriptors left, or on the simulated driver.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        if let Some(signal) = signals.iter().find(|signal| signal_hook::consts::FORBIDDEN.contains(signal)) {
            let message = format!("signal {signal} cannot be caught");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let caught = signals.iter().map(|&signal| Caught::new(signal)).collect::<io::Result<_>>()?;
        Ok(Self { caught, next: 0 })
    }

    /// Waits for the next of the signals, and returns its number. Of several that have arrived, the order is not kept.
    /// Cancel-safe.
    ///
    /// # Errors
    /// When other code has closed the pair of sockets.
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
        Ok(Self { signal, stream, count: 0, _catching: Catching::new(signal, far)? })
    }

    /// Takes one of the times that it was caught.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.count == 0 {
            // There are several bytes when they came one shortly after the other.
            let bytes = ready!(pin!(self.stream.recv()).poll(context))?;
            self.count = bytes.map_or(0, |bytes| bytes.len());
        }
        let Some(left) = self.count.checked_sub(1) else {
            return Poll::Ready(Err(io::Error::other("the signals' socket was closed")));
        };
        self.count = left;
        Poll::Ready(Ok(()))
    }
}
