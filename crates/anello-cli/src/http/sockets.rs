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
use super::worker::Service;
use crate::common::activation::PassedSockets;
use crate::common::address::Address;
use crate::common::admin;
use crate::common::error::{Context, invalid_input};
use crate::common::listening::{Listening, ListeningSocket, SocketFile, conflicting_flag_error};

pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

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
        let address = match &flags.addr {
            Some(address) => address.clone(),
            None => DEFAULT_ADDRESS.parse().map_err(io::Error::other)?,
        };
        let Some(path) = &flags.handover else { return Self::bind(flags, workers, &address) };
        let _lock = lock_startup(path)?;
        match request_handover(path).context(format_args!("--handover {}", path.display()))? {
            Some(received) => Self::from_predecessor(flags, workers, &address, path, received),
            None => Self::bind(flags, workers, &address),
        }
    }

    fn bind(flags: &Arguments, workers: usize, address: &Address) -> io::Result<Self> {
        let listening = Arc::new(Listening::bind(address, workers)?);
        let metrics = flags.observer.admin.listener(None)?;
        let handover_listener = flags.handover.as_deref().map(HandoverListener::bind).transpose()?;
        Ok(Self { listening, metrics, startup: Startup { handover_listener, successor: None } })
    }

    fn from_passed(flags: &Arguments, workers: usize, passed: PassedSockets) -> io::Result<Self> {
        for (flag, is_given) in [("--handover", flags.handover.is_some()), ("--addr", flags.addr.is_some())] {
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
        address: &Address,
        path: &Path,
        received: ReceivedSockets,
    ) -> io::Result<Self> {
        for socket in &received.listening {
            let actual = socket.address()?;
            if !matches_request(address, &actual) {
                return Err(invalid_input(format!(
                    "--handover {}: the running server listens on {actual}, not on {address} (pass --addr {actual} or \
                     stop the running server)",
                    path.display()
                )));
            }
        }
        let file = match &received.listening[..] {
            [ListeningSocket::Unix(listener), ..] => {
                listener.local_addr()?.as_pathname().map(inherited_socket_file).transpose()?
            }
            _ => None,
        };
        let listening = Listening::new(received.listening, workers, PendingConnections::Serve, file)?;
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
            listening.file.iter().chain(exit_guard.handover_file.as_deref()).for_each(SocketFile::claim);
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
