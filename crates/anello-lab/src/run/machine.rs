//! Interface between the lab and the machine: clock, stolen time, and the control and resource usage of processes.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::config::LabConfig;
use crate::plan::contender::Contender;
pub use crate::plan::cores::{allowed_cores, connections_limit, core_siblings};
use crate::result::Environment;
use crate::result::executable::{Executable, Hashes};

/// System interface of the lab.
///
/// The machine can be another host. Every method except those of the clock then returns [`MachineError::Lost`] once the
/// connection to that host has been lost, which ends the run.
pub trait Machine {
    /// Prepares the lab's own process: pins it to the load cores and raises its limits. Returns notes for
    /// readers of the report.
    fn prepare(&mut self, config: &LabConfig) -> Result<Vec<String>, MachineError>;

    /// Returns how many connections the lab can have open at the same time: its open file limit minus a reserve.
    fn max_open_connections(&mut self) -> Result<usize, MachineError>;

    /// Returns the time of a monotonic clock, in nanoseconds since an arbitrary start.
    fn now_ns(&mut self) -> u64;

    /// Returns the time in seconds since 1970, for the report.
    fn unix_time_s(&mut self) -> u64;

    /// Returns the total time that the hypervisor has stolen from these cores since boot, in nanoseconds. `None` if it
    /// is unknown.
    fn stolen_ns(&mut self, cores: &[usize]) -> Result<Option<u64>, MachineError>;

    /// Returns how long the lab's control group, which includes its contenders, has been throttled by a CPU limit,
    /// in nanoseconds. 0 if there is no limit.
    fn throttled_ns(&mut self) -> Result<u64, MachineError>;

    /// Returns the resource usage of all threads of the process.
    ///
    /// # Errors
    /// Returns an error if the usage cannot be read, for example because the process has exited.
    fn usage(&mut self, pid: u32) -> Result<Usage, MachineError>;

    /// Returns the CPU time of the lab itself, which generates the load, in nanoseconds. 0 if it is unknown.
    fn load_cpu_ns(&mut self) -> Result<u64, MachineError>;

    /// Returns the CPU time that other programs have used on these cores since boot, in nanoseconds. Excludes the lab
    /// and the contenders that it has reaped. `None` if the time is unknown. Only the difference between two calls is
    /// meaningful, and only if no contender is running during either call.
    fn other_cpu_ns(&mut self, cores: &[usize]) -> Result<Option<u64>, MachineError>;

    /// Starts a contender on `cores` and waits for its ready line.
    ///
    /// # Errors
    /// Returns an error if the contender does not become ready.
    fn start(
        &mut self,
        contender: &Contender,
        config: &LabConfig,
        cores: &[usize],
    ) -> Result<Running, MachineError>;

    /// Waits until the process exits or is stopped by a signal, and describes the event. Returns `None` if it is
    /// still running after `timeout`.
    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Result<Option<String>, MachineError>;

    /// Sleeps for `duration` without using CPU time.
    fn sleep(&mut self, duration: Duration);

    /// Limits servers to this share (0 to 1) of these cores until [`unthrottle_servers`](Self::unthrottle_servers).
    ///
    /// # Errors
    /// Returns an error if the limit cannot be applied. In this case, the servers are not limited.
    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), MachineError>;

    /// Removes the limit set by [`throttle_servers`](Self::throttle_servers).
    fn unthrottle_servers(&mut self) -> Result<(), MachineError>;

    /// Pauses a process (SIGSTOP), or resumes it (SIGCONT) if it is paused. Unknown IDs are ignored.
    fn set_paused(&mut self, pid: u32, is_paused: bool) -> Result<(), MachineError>;

    /// Terminates and reaps these processes, including stopped ones. Unknown IDs are ignored.
    fn stop(&mut self, pids: &[u32]) -> Result<(), MachineError>;

    /// Returns the hashes of the contenders' programs, as far as they can be read.
    fn executables(&mut self, contenders: &[Contender]) -> Result<Vec<Vec<Executable>>, MachineError> {
        let mut hashes = Hashes::new();
        Ok(contenders.iter().map(|contender| hashes.of(contender)).collect())
    }

    /// Describes the current state of the machine, limited to the parts that a run with this configuration uses.
    fn environment(&mut self, config: &LabConfig) -> Result<Environment, MachineError>;
}

/// Failure of a contender's process, or of an operation on the machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The files that HTTP servers serve could not be created.
    #[error("cannot create the files to serve: {0}")]
    Site(io::Error),
    /// The contender serves TLS, but the machine has no TLS identity.
    #[error("no certificate for TLS (configure the machine with an identity)")]
    NoIdentity,
    /// The program could not be started.
    #[error("cannot start {}: {error}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error returned by the operating system.
        error: io::Error,
    },
    /// The process could not be pinned to its cores.
    #[error("cannot pin the server to cores {cores}: {error}")]
    Pin {
        /// Core numbers, separated by commas.
        cores: String,
        /// Error returned by the operating system.
        error: io::Error,
    },
    /// The process exited before it was ready. Contains its exit status and the last lines of its standard error.
    #[error("{0}")]
    Exited(String),
    /// The process printed no valid ready line. Contains a description with the last lines of its standard error.
    #[error("{0}")]
    NotReady(String),
    /// The resource usage of a process could not be read.
    #[error("cannot read the resource usage of process {pid}: {error}")]
    Usage {
        /// Process ID.
        pid: u32,
        /// Error returned by the operating system.
        error: io::Error,
    },
    /// An operation on another host failed.
    #[error("{0}")]
    Host(String),
    /// The connection to another host was lost, which ends the run.
    #[error("{0}")]
    Lost(String),
    /// The CPU share of servers could not be limited.
    #[error(transparent)]
    Throttle(io::Error),
}

/// Returns `None` for an error that concerns one call only.
///
/// # Errors
/// Returns the error if the machine is lost.
pub(crate) fn unless_lost<T>(result: Result<T, MachineError>) -> Result<Option<T>, MachineError> {
    match result {
        Err(lost @ MachineError::Lost(_)) => Err(lost),
        other => Ok(other.ok()),
    }
}

/// Resource usage of a process, summed over its threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user space and in the kernel, in nanoseconds.
    pub cpu_ns: u64,
    /// Number of voluntary context switches. `None` if it is unknown.
    pub voluntary_switches: Option<u64>,
    /// Number of involuntary context switches. `None` if it is unknown.
    pub involuntary_switches: Option<u64>,
    /// Resident memory in bytes. `None` if it is unknown.
    pub resident_bytes: Option<u64>,
}

/// A contender that is accepting connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Process ID.
    pub pid: u32,
    /// Address on which the contender listens.
    pub address: SocketAddr,
    /// Ready line of the contender, which contains its driver and features.
    pub ready_line: String,
}
