//! Errors of a simulation.

use std::fmt;
use std::io;
use std::time::Duration;

/// Error of a simulation, with the seed that reproduces it.
///
/// ```
/// use anello::sim::Simulation;
///
/// let mut sim = Simulation::builder().seed(17).build();
/// sim.client("client", async {
///     // Nothing listens there.
///     anello::net::TcpStream::connect("client:80").await?;
///     Ok(())
/// });
/// let error = sim.run().unwrap_err();
/// assert_eq!((error.seed, error.host.as_deref()), (17, Some("client")));
/// assert_eq!(error.source.kind(), std::io::ErrorKind::ConnectionRefused);
/// assert!(error.to_string().starts_with("seed 17, host client, after "));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// Seed of the simulation.
    pub seed: u64,
    /// Virtual time since the start of the simulation.
    pub elapsed: Duration,
    /// Host that has failed, or `None` if the simulation has failed as a whole: `Deadlock` if no host has anything to
    /// do and clients have not finished, `TimedOut` at the time limit.
    pub host: Option<String>,
    /// Cause.
    pub source: io::Error,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "seed {}, ", self.seed)?;
        if let Some(host) = &self.host {
            write!(formatter, "host {host}, ")?;
        }
        write!(formatter, "after {:.6} s: {}", self.elapsed.as_secs_f64(), self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), error)
    }
}
