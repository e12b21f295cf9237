//! Acquires the listening sockets (bound by this process, passed by a service manager or transferred by a running
//! server) and runs the remaining startup sequence.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections};

use super::flags::Arguments;
use super::handover::{
    HandoverListener, ReceivedSockets, ServerSockets, Successor, lock_startup, request_handover,
};
use super::identity::Owner;
use super::worker::Service;
use crate::common::activation::PassedSockets;
use crate::common::address::Address;
use crate::common::admin;
use crate::common::error::{Context, invalid_input};
use crate::common::listening::{Listening, ListeningSocket, SocketFile, conflicting_flag_error};

/// Time limit for each of two steps: until the workers are ready, and until they accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The acquired sockets, and the startup steps to run once the workers are ready.
pub struct Sockets {
    pub listening: Arc<Listening>,
    /// Socket for the /metrics and /health endpoints.
    pub metrics: Option<StdTcpListener>,
    pub startup: Startup,
}

/// The remaining startup steps, which need running workers.
#[derive(Default)]
pub struct Startup {
    handover_listener: Option<HandoverListener>,
    successor: Option<Successor>,
}

impl Sockets {
    pub fn open(flags: &Arguments, workers: usize, passed: PassedSockets) -> io::Result<Self> {
        if !passed.sockets.is_empty() {
            return Self::from_passed(flags, workers, passed);
        }
        let Some(path) = &flags.handover else { return Self::bind(flags, workers) };
        let _lock = lock_startup(path)?;
        match request_handover(path).context(format_args!("--handover {}", path.display()))? {
            Some(received) => Self::from_predecessor(flags, workers, path, received),
            None => Self::bind(flags, workers),
        }
    }

    fn bind(flags: &Arguments, workers: usize) -> io::Result<Self> {
        let listening = Arc::new(Listening::bind(&flags.addresses()?, workers, flags.socket_mode)?);
        if let Some(owner) = &flags.socket_owner {
            let owner = Owner::find(owner)?;
            listening.files.iter().try_for_each(|file| owner.chown(&file.path))?;
        }
        let metrics = flags.observer.admin.listener(None)?;
        let handover_listener = flags.handover.as_deref().map(HandoverListener::bind).transpose()?;
        Ok(Self { listening, metrics, startup: Startup { handover_listener, successor: None } })
    }

    fn from_passed(flags: &Arguments, workers: usize, passed: PassedSockets) -> io::Result<Self> {
        for (flag, is_given) in [("--handover", flags.handover.is_some()), ("--addr", !flags.addr.is_empty())]
        {
            if is_given {
                return Err(conflicting_flag_error(flag));
            }
        }
        let metrics = flags.observer.admin.listener(passed.metrics)?;
        let listening = Arc::new(Listening::from_passed(passed.sockets, workers)?);
        Ok(Self { listening, metrics, startup: Startup::default() })
    }

    fn from_predecessor(
        flags: &Arguments,
        workers: usize,
        path: &Path,
        received: ReceivedSockets,
    ) -> io::Result<Self> {
        check_addresses(&flags.addresses()?, &received.listening)
            .context(format_args!("--handover {}", path.display()))?;
        let mut files = Vec::new();
        for socket in &received.listening {
            if let ListeningSocket::Unix(listener) = socket {
                files.extend(listener.local_addr()?.as_pathname().map(inherited_socket_file).transpose()?);
            }
        }
        let listening = Listening::new(received.listening, workers, PendingConnections::Serve, files)?;
        let metrics = match (received.metrics, flags.observer.admin.metrics_addr) {
            (_, None) => None,
            (Some(listener), Some(address)) if is_same_address(address, listener.local_addr()?) => {
                Some(listener)
            }
            (_, Some(address)) => Some(admin::listen(address)?),
        };
        let handover_listener = HandoverListener::from_predecessor(received.handover, path)?;
        let startup =
            Startup { handover_listener: Some(handover_listener), successor: Some(received.successor) };
        Ok(Self { listening: Arc::new(listening), metrics, startup })
    }
}

/// Creates the guard for another process's socket file, whose path may be relative to that process's working directory.
fn inherited_socket_file(path: &Path) -> io::Result<SocketFile> {
    let remedy = match path.is_relative() {
        true => "start in the working directory of the running server",
        false => "stop the running server, whose socket file was removed",
    };
    let flag = format_args!("--addr unix:{}", path.display());
    SocketFile::new_unowned(path).context_and_remedy(flag, remedy)
}

/// Checks that the running server listens on the requested addresses, and on no others.
fn check_addresses(requested: &[Address], sockets: &[ListeningSocket]) -> io::Result<()> {
    let mut actual = sockets.iter().map(ListeningSocket::address).collect::<io::Result<Vec<_>>>()?;
    actual.dedup_by_key(|address| address.to_string());
    let list = |addresses: &[Address], separator: &str| {
        addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(separator)
    };
    let mut resolved = Vec::new();
    for address in requested {
        let addresses = address.resolve()?;
        // Some addresses of a host name may be unavailable on this machine.
        let is_bound =
            addresses.iter().any(|address| actual.iter().any(|other| matches_request(address, other)));
        resolved.extend(addresses.into_iter().map(|address| (address, is_bound)));
    }
    let is_requested =
        |actual: &Address| resolved.iter().any(|(address, _)| matches_request(address, actual));
    if resolved.iter().all(|(_, is_bound)| *is_bound) && actual.iter().all(is_requested) {
        return Ok(());
    }
    Err(invalid_input(format!(
        "the running server listens on {}, not on {} (pass --addr {} or stop the running server)",
        list(&actual, ", "),
        list(requested, ", "),
        list(&actual, " --addr ")
    )))
}

fn matches_request(requested: &Address, actual: &Address) -> bool {
    match (requested, actual) {
        (Address::Internet(requested), Address::Internet(actual)) => is_same_address(*requested, *actual),
        (requested, actual) => requested.to_string() == actual.to_string(),
    }
}

/// Compares addresses; a requested port of 0 matches any port.
fn is_same_address(requested: SocketAddr, actual: SocketAddr) -> bool {
    requested == actual || (requested.port() == 0 && requested.ip() == actual.ip())
}

impl Startup {
    /// Waits until all workers are ready, seals the sandbox, makes the predecessor stop accepting connections, and
    /// starts accepting them. Returns `false` if a signal has stopped the server. The guard must be kept until the
    /// process exits.
    pub fn start_accepting(
        self,
        service: &Service,
        metrics: Option<ListenerGroup<TcpListener>>,
    ) -> io::Result<(bool, ExitGuard)> {
        let Self { handover_listener, mut successor } = self;
        let handover_file = handover_listener.as_ref().map(|listener| Arc::clone(&listener.file));
        let exit_guard = ExitGuard { took_over: successor.is_some(), handover_file };
        let listening = &service.listening;
        let server = ServerSockets { listening: Arc::clone(listening), metrics };
        let (ready_workers, workers) = (server.wait_applied(START_TIMEOUT)?, service.workers);
        if listening.is_closed() {
            return Ok((false, exit_guard));
        }
        if ready_workers != workers {
            return Err(io::Error::other(format!("{ready_workers} of {workers} workers started")));
        }
        service.sandbox.seal()?;
        if let Some(successor) = &mut successor {
            successor.report_ready()?;
        }
        server.resume(START_TIMEOUT)?;
        if listening.is_closed() {
            return Ok((false, exit_guard));
        }
        if let Some(successor) = &mut successor {
            successor.report_accepting()?;
            listening.files.iter().chain(exit_guard.handover_file.as_deref()).for_each(SocketFile::claim);
        }
        if let Some(handover_listener) = handover_listener {
            handover_listener.spawn(server)?;
        }
        Ok((true, exit_guard))
    }
}

/// Removes the file of the handover socket at exit.
pub struct ExitGuard {
    pub took_over: bool,
    handover_file: Option<Arc<SocketFile>>,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        // Not left to the file's own destructor, because the handover thread also holds a reference and does not exit.
        self.handover_file.iter().for_each(|file| file.remove());
    }
}
