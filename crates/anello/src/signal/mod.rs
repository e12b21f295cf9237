//! Signals as futures.
//!
//! A signal handler may do almost nothing; this one writes a byte into a pair of sockets (the `signal-hook` crate),
//! whose other end is a stream of the runtime, so that a signal ends the driver's wait like any message.

use std::io;

use signal_hook::SigId;

use crate::net::UnixStream;

/// Signals of the process that this runtime waits for.
///
/// Several may exist, in several threads; each sees every signal. Signals that arrive while nobody waits are not lost. As
/// often as one was caught, [`wait`](Self::wait) returns; the kernel itself counts those of one kind together that it has
/// not delivered yet.
#[derive(Debug)]
pub struct Signals {
    stream: UnixStream,
    /// Signals that were caught and not yet waited for.
    caught: usize,
    registered: Vec<SigId>,
}

/// The signal that asks a process to end, as `kill` sends it.
pub const TERMINATE: i32 = signal_hook::consts::SIGTERM;
/// The signal of Ctrl-C.
pub const INTERRUPT: i32 = signal_hook::consts::SIGINT;
/// The signal by which services are asked to read their configuration again.
pub const HANG_UP: i32 = signal_hook::consts::SIGHUP;

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
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        let stream = UnixStream::from_std(near)?;
        let mut this = Self { stream, caught: 0, registered: Vec::new() };
        for signal in signals {
            this.registered.push(signal_hook::low_level::pipe::register(*signal, far.try_clone()?)?);
        }
        Ok(this)
    }

    /// Waits for the next of the signals. Cancel-safe.
    ///
    /// # Errors
    /// When the pair of sockets was closed by somebody else.
    pub async fn wait(&mut self) -> io::Result<()> {
        if self.caught == 0 {
            // A byte each; there are several when they came one shortly after the other.
            let caught = self.stream.recv().await?;
            self.caught = caught.map_or(0, |bytes| bytes.len());
        }
        match self.caught.checked_sub(1) {
            Some(left) => self.caught = left,
            None => return Err(io::Error::other("the signals' socket was closed")),
        }
        Ok(())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
