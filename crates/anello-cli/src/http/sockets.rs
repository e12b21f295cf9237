//! Acquires the listening sockets, which this process binds, a service manager passes or a running server transfers,
//! and runs the remaining startup sequence.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anello::net::{ListenerGroup, PendingConnections, TcpListener};

use super::flags::Arguments;
use super::handover::{HandoverListener, HandoverSource, StartLock, Successor, request_handover};
use crate::common::activation::PassedSockets;
use crate::common::address::Address;
use crate::common::error::{Context, invalid_input};
use crate::common::listening::{Listening, ListeningSocket, SocketFile, conflicting_flag_error};

/// Default address to listen on.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// Time limit for the workers to become ready, and again for them to start accepting connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The acquired sockets, and the startup steps to run once the workers are ready.
pub struct Sockets {
    pub listening: Arc<Listening>,
    /// Socket for the /metrics and /health endpoints.
    pub metrics: Option<StdTcpListener>,
    pub startup: Startup,
}

/// The remaining startup steps, which need running workers.
pub struct Startup {
    handover_listener: Option<HandoverListener>,
    successor: Option<Successor>,
    /// File of the handover socket, to be removed at exit.
    handover_file: Option<Arc<SocketFile>>,
}

impl Sockets {
    /// Acquires the sockets.
    pub fn open(flags: &Arguments, workers: usize, passed: PassedSockets) -> io::Result<Self> {
        if !passed.sockets.is_empty() {
            return Self::from_passed(flags, workers, passed);
        }
        let address = match &flags.addr {
            Some(address) => address.clone(),
            None => DEFAULT_ADDRESS.parse().map_err(io::Error::other)?,
        };
        let Some(path) = &flags.handover else { return Self::bind(flags, workers, &address) };
        // Held until this process has bound its own handover socket, or has received the sockets of the running
        // server.
        let _lock = StartLock::acquire(path)?;
        match request_handover(path)? {
            Some(successor) => Self::from_predecessor(flags, workers, &address, path, successor),
            None => Self::bind(flags, workers, &address),
        }
    }

    fn bind(flags: &Arguments, workers: usize, address: &Address) -> io::Result<Self> {
        let listening = Listening::bind(address, workers)?;
        let metrics = flags.observer.metrics_addr.map(listen_for_metrics).transpose()?;
        let handover_listener = flags.handover.as_deref().map(HandoverListener::bind).transpose()?;
        Ok(Self::new(listening, metrics, handover_listener, None))
    }

    fn from_passed(flags: &Arguments, workers: usize, passed: PassedSockets) -> io::Result<Self> {
        let metrics_addr = flags.observer.metrics_addr;
        for (flag, is_given) in [
            ("--handover", flags.handover.is_some()),
            ("--metrics-addr", metrics_addr.is_some() && passed.metrics.is_some()),
            ("--addr", flags.addr.is_some()),
        ] {
            if is_given {
                return Err(conflicting_flag_error(flag));
            }
        }
        let own_metrics = metrics_addr.map(listen_for_metrics).transpose()?;
        let listening = Listening::from_passed(passed.sockets, workers)?;
        Ok(Self::new(listening, passed.metrics.or(own_metrics), None, None))
    }

    fn from_predecessor(
        flags: &Arguments,
        workers: usize,
        address: &Address,
        path: &Path,
        mut successor: Successor,
    ) -> io::Result<Self> {
        for socket in &successor.sockets {
            let actual = socket.address()?;
            if !matches_request(address, &actual) {
                return Err(invalid_input(format!(
                    "--handover {}: the running server listens on {actual}, not on {address} (pass --addr {actual} or \
                     stop the running server)",
                    path.display()
                )));
            }
        }
        let file = match &successor.sockets[..] {
            [ListeningSocket::Unix(listener), ..] => {
                listener.local_addr()?.as_pathname().map(inherited_socket_file).transpose()?
            }
            _ => None,
        };
        let sockets = std::mem::take(&mut successor.sockets);
        let listening = Listening::new(sockets, workers, PendingConnections::Serve, file)?;
        let metrics = match (successor.metrics.take(), flags.observer.metrics_addr) {
            (_, None) => None,
            (Some(listener), Some(address)) if is_same_address(address, listener.local_addr()?) => {
                Some(listener)
            }
            (_, Some(address)) => Some(listen_for_metrics(address)?),
        };
        let handover_listener =
            HandoverListener::from_predecessor(successor.handover_listener.try_clone()?, path)?;
        Ok(Self::new(listening, metrics, Some(handover_listener), Some(successor)))
    }

    fn new(
        listening: Listening,
        metrics: Option<StdTcpListener>,
        handover_listener: Option<HandoverListener>,
        successor: Option<Successor>,
    ) -> Self {
        let handover_file = handover_listener.as_ref().map(HandoverListener::file);
        let startup = Startup { handover_listener, successor, handover_file };
        Self { listening: Arc::new(listening), metrics, startup }
    }
}

/// Creates the guard for another process's socket file. That process may have bound a path relative to its own working
/// directory.
fn inherited_socket_file(path: &Path) -> io::Result<SocketFile> {
    let remedy = match path.is_relative() {
        true => "start in the working directory of the running server",
        false => "stop the running server, whose socket file was removed",
    };
    let flag = format_args!("--addr unix:{}", path.display());
    SocketFile::new_unowned(path).context_and_remedy(flag, remedy)
}

/// Returns `true` if the actual address satisfies the requested address.
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

fn listen_for_metrics(address: SocketAddr) -> io::Result<StdTcpListener> {
    StdTcpListener::bind(address).context(format_args!("--metrics-addr {address}"))
}

/// The sockets of this process, which it transfers to a successor.
struct ServerHandover {
    listening: Arc<Listening>,
    metrics: Option<ListenerGroup<TcpListener>>,
}

impl Startup {
    /// Completes the startup: waits until all workers are ready, has the predecessor stop accepting, and starts
    /// accepting. Returns `false` if a signal stopped the server in the meantime. The guard must be kept until the
    /// process exits.
    ///
    /// # Errors
    /// Returns an error if the workers are not ready within [`START_TIMEOUT`] or the handover fails.
    pub fn start_accepting(
        self,
        listening: &Arc<Listening>,
        metrics: Option<ListenerGroup<TcpListener>>,
        workers: usize,
    ) -> io::Result<(bool, ExitGuard)> {
        let Self { handover_listener, mut successor, handover_file } = self;
        let exit_guard = ExitGuard { took_over: successor.is_some(), handover_file };
        let handover = ServerHandover { listening: Arc::clone(listening), metrics };
        let ready_workers = handover.wait_applied(START_TIMEOUT)?;
        if listening.is_closed() {
            return Ok((false, exit_guard));
        }
        if ready_workers != workers {
            return Err(io::Error::other(format!("{ready_workers} of {workers} workers started")));
        }
        if let Some(successor) = &mut successor {
            successor.report_ready()?;
        }
        handover.resume(START_TIMEOUT)?;
        if listening.is_closed() {
            return Ok((false, exit_guard));
        }
        if let Some(successor) = &mut successor {
            successor.report_accepting()?;
            listening
                .file()
                .into_iter()
                .chain(exit_guard.handover_file.as_deref())
                .for_each(SocketFile::claim);
        }
        if let Some(handover_listener) = handover_listener {
            handover_listener.spawn(handover)?;
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
        // The handover thread also holds a reference and does not exit.
        self.handover_file.iter().for_each(|file| file.remove());
    }
}

impl ServerHandover {
    fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        self.metrics.as_ref().map(|group| group.wait_applied(timeout)).transpose()?;
        self.listening.wait_applied(timeout)
    }
}

impl HandoverSource for ServerHandover {
    fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.listening.sockets()
    }

    fn file(&self) -> Option<&SocketFile> {
        self.listening.file()
    }

    fn metrics(&self) -> io::Result<Option<StdTcpListener>> {
        let sockets = self.metrics.as_ref().map(ListenerGroup::sockets).transpose()?;
        Ok(sockets.and_then(|mut sockets| sockets.pop()))
    }

    fn pause(&self, timeout: Duration) -> io::Result<()> {
        self.listening.pause();
        self.metrics.iter().for_each(ListenerGroup::pause);
        self.wait_applied(timeout).map(drop)
    }

    fn resume(&self, timeout: Duration) -> io::Result<()> {
        self.listening.resume();
        self.metrics.iter().for_each(ListenerGroup::resume);
        self.wait_applied(timeout).map(drop)
    }

    fn transfer_done(&self) {
        self.metrics.iter().for_each(|group| group.close(PendingConnections::Leave));
        self.listening.close_transferred();
    }
}
