//! Messages between the lab and its agents.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::cell::Cell;
use crate::plan::config::LabConfig;
use crate::plan::contender::Contender;
use crate::plan::cores::{allowed_cores, connections_limit, core_siblings};
use crate::result::Environment;
use crate::run::load::Check;
use crate::run::tls::IdentityPem;

/// Line of input that interrupts a check. It has no reply.
pub(super) const STOP: &str = "stop";

/// Interval at which the lab sends an empty line to an agent.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time after which an agent that has received nothing assumes that the connection is lost.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(60);

/// First line of an agent's output.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Greeting {
    /// Version and build of the agent, which must be those of the lab.
    pub version: String,
    /// Identifies the machine and its boot.
    pub(super) boot_id: String,
    pub(super) cores: Vec<usize>,
    pub(super) siblings: Vec<Vec<usize>>,
    pub(super) connections_limit: usize,
    pub(super) kernel: String,
    pub(super) cpu_model: String,
}

impl Greeting {
    /// Describes this machine. `version` identifies the build of the agent.
    pub fn of_this_machine(version: &str) -> Greeting {
        let cores = allowed_cores();
        let Environment { kernel, cpu_model, .. } = Environment::capture(Path::new("/"), &[], None);
        Greeting {
            version: version.to_owned(),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            siblings: core_siblings(Path::new("/"), &cores),
            cores,
            connections_limit: connections_limit(),
            kernel,
            cpu_model,
        }
    }
}

/// Configuration of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Configuration of the run, with the cores of the agent's host.
    pub config: LabConfig,
    /// Certificate and key of TLS servers.
    pub identity: Option<IdentityPem>,
    /// Driver of the load generator.
    pub load_driver: String,
}

/// Call to an agent. The comment names the type of the reply; `Result` has the error as a string.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Call {
    /// `Result<IpAddr>`
    Resolve(String),
    /// `Result<SocketAddr>`
    Listen(IpAddr),
    /// `Result<Vec<u64>>`: durations of TCP handshakes in nanoseconds.
    RoundTrips(SocketAddr),
    /// `Result<Interface>` to this peer.
    Interface(IpAddr),
    /// `String`: name of the load generator's driver. The calls above precede this call, and the others follow it.
    Setup(Box<Setup>),
    /// `Result<Vec<String>>`
    Prepare,
    /// `Result<usize>`
    MaxOpenConnections,
    /// `Result<Option<u64>>`
    Stolen(Vec<usize>),
    /// `Result<u64>`
    Throttled,
    /// `Result<Usage>`
    Usage(u32),
    /// `Result<u64>`
    LoadCpu,
    /// `Result<Option<u64>>`
    OtherCpu(Vec<usize>),
    /// `Result<Running>`
    Start { contender: Box<Contender>, cores: Vec<usize> },
    /// `Result<Option<String>>`
    ExitDescription { pid: u32, timeout: Duration },
    /// `Result<()>`
    Throttle { cores: Vec<usize>, share: f64 },
    /// `Result<()>`
    Unthrottle,
    /// `Result<()>`
    SetPaused { pid: u32, is_paused: bool },
    /// `Result<()>`
    Stop(Vec<u32>),
    /// `Result<Vec<Vec<Executable>>>`
    Executables(Vec<Contender>),
    /// `Result<Environment>`
    Environment,
    /// `Result<usize>`: number of the session.
    Connect { target: SocketAddr, cell: Cell },
    /// `Result<Vec<String>>`
    Check { target: SocketAddr, check: Check },
    /// `Result<SliceLoad>`
    RunSlice { session: usize, duration: Duration },
    /// `Result<()>`
    Settle { session: usize },
    /// `()`
    Close { session: usize },
    /// `Result<Vec<String>>`
    Notes,
}
