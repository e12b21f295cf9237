//! Where the sockets of a server come from: it makes them, is passed them by a service manager, or takes them over from the
//! server that runs; and how it begins, and goes.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anello::net::{ListenerGroup, PendingConnections, TcpListener};

use super::handover::{HandoverListener, HandoverSource, StartLock, Successor, request_handover};
use crate::activation::Passed;
use crate::address::Address;
use crate::listening::{Listening, ListeningSocket, SocketFile, conflicting_flag_error};

/// Where a server listens that is not told where.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// How long the workers may take to be ready, and then to accept.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Where it is to listen.
pub struct SocketRequest<'a> {
    pub address: Option<&'a Address>,
    pub metrics: Option<SocketAddr>,
    /// Where servers ask, and are asked, to hand over.
    pub handover: Option<&'a Path>,
    pub workers: usize,
}

/// The sockets, and what is to be done with them when the workers are there.
pub struct Sockets {
    pub listening: Arc<Listening>,
    /// Where metrics and health are to be told.
    pub metrics: Option<StdTcpListener>,
    pub startup: Startup,
}

/// What is to be done when the workers are there.
pub struct Startup {
    handover_listener: Option<HandoverListener>,
    successor: Option<Successor>,
    /// Of the door, to be removed at the end.
    handover_file: Option<Arc<SocketFile>>,
}

impl Sockets {
    /// Finds them.
    pub fn open(request: &SocketRequest<'_>, passed: Passed) -> io::Result<Self> {
        if !passed.sockets.is_empty() {
            return Self::from_passed(request, passed);
        }
        let address = match request.address {
            Some(address) => address.clone(),
            None => DEFAULT_ADDRESS.parse().map_err(io::Error::other)?,
        };
        let Some(path) = request.handover else { return Self::bind(request, &address, None) };
        // Until this one can be asked, or has asked.
        let _lock = StartLock::acquire(path)?;
        match request_handover(path)? {
            Some(successor) => Self::from_predecessor(request, &address, path, successor),
            None => Self::bind(request, &address, Some(path)),
        }
    }

    fn bind(
        request: &SocketRequest<'_>,
        address: &Address,
        handover_listener: Option<&Path>,
    ) -> io::Result<Self> {
        let listening = Listening::bind(address, request.workers)?;
        let metrics = request.metrics.map(listen_for_metrics).transpose()?;
        let handover_listener = handover_listener.map(HandoverListener::bind).transpose()?;
        Ok(Self::new(listening, metrics, handover_listener, None))
    }

    fn from_passed(request: &SocketRequest<'_>, passed: Passed) -> io::Result<Self> {
        if request.handover.is_some() {
            return Err(conflicting_flag_error("--handover"));
        }
        let metrics = match (passed.metrics, request.metrics) {
            (Some(_), Some(_)) => return Err(conflicting_flag_error("--metrics-addr")),
            (Some(listener), None) => Some(listener),
            (None, address) => address.map(listen_for_metrics).transpose()?,
        };
        if request.address.is_some() {
            return Err(conflicting_flag_error("--addr"));
        }
        let listening = Listening::from_passed(passed.sockets, request.workers)?;
        Ok(Self::new(listening, metrics, None, None))
    }

    fn from_predecessor(
        request: &SocketRequest<'_>,
        address: &Address,
        path: &Path,
        mut successor: Successor,
    ) -> io::Result<Self> {
        for socket in &successor.sockets {
            let actual = socket.address()?;
            if !matches_request(address, &actual) {
                let message = format!(
                    "--handover {}: the running server listens on {actual}, and not on {address}: give that as --addr, or \
                     stop that server first",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        let file = match &successor.sockets[..] {
            [ListeningSocket::Unix(listener), ..] => {
                listener.local_addr()?.as_pathname().map(inherited_socket_file).transpose()?
            }
            _ => None,
        };
        let sockets = std::mem::take(&mut successor.sockets);
        let listening = Listening::new(sockets, request.workers, PendingConnections::Serve, file)?;
        let metrics = match (successor.metrics.take(), request.metrics) {
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

/// The file of a socket that another process has made, which it may have named by a path that counts from where it is.
fn inherited_socket_file(path: &Path) -> io::Result<SocketFile> {
    SocketFile::new_unowned(path).map_err(|error| {
        let remedy = match path.is_relative() {
            true => "start in the folder in which the running server was started",
            false => "it was removed: stop the running server, which nobody can reach by it",
        };
        io::Error::new(error.kind(), format!("--addr unix:{}: {error}: {remedy}", path.display()))
    })
}

/// Whether a socket at the second address is one that was asked for by the first.
fn matches_request(requested: &Address, actual: &Address) -> bool {
    match (requested, actual) {
        (Address::Internet(requested), Address::Internet(actual)) => is_same_address(*requested, *actual),
        (requested, actual) => requested.to_string() == actual.to_string(),
    }
}

/// The same, where port 0 is any.
fn is_same_address(requested: SocketAddr, actual: SocketAddr) -> bool {
    requested == actual || (requested.port() == 0 && requested.ip() == actual.ip())
}

fn listen_for_metrics(address: SocketAddr) -> io::Result<StdTcpListener> {
    StdTcpListener::bind(address)
        .map_err(|error| io::Error::new(error.kind(), format!("--metrics-addr {address}: {error}")))
}

/// What a door hands over.
struct ServerHandover {
    listening: Arc<Listening>,
    metrics: Option<ListenerGroup<TcpListener>>,
}

impl Startup {
    /// Has so many workers accept, when all are there and whoever accepted before has stopped. Whether they do, and the
    /// server has not been told to end meanwhile. What is returned is to be held until the process ends.
    pub fn start_accepting(
        self,
        listening: &Arc<Listening>,
        metrics: Option<ListenerGroup<TcpListener>>,
        workers: usize,
    ) -> io::Result<(bool, ExitGuard)> {
        let Self { handover_listener, mut successor, handover_file } = self;
        let exit_guard = ExitGuard { took_over: successor.is_some(), handover_file };
        let handover = ServerHandover { listening: Arc::clone(listening), metrics };
        let check_worker_count = |count: usize| match count {
            count if count == workers => Ok(()),
            count => Err(io::Error::other(format!("only {count} of {workers} workers have started"))),
        };
        let ready_workers = handover.wait_applied(START_TIMEOUT)?;
        if listening.is_closed() {
            return Ok((false, exit_guard));
        }
        check_worker_count(ready_workers)?;
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

/// What ends with the process.
pub struct ExitGuard {
    pub took_over: bool,
    handover_file: Option<Arc<SocketFile>>,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        // The thread at the door has it, too, and does not end.
        self.handover_file.iter().for_each(|file| file.remove());
    }
}

impl ServerHandover {
    fn wait_applied(&self, within: Duration) -> io::Result<usize> {
        self.metrics.as_ref().map(|group| group.wait_applied(within)).transpose()?;
        self.listening.wait_applied(within)
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

    fn pause(&self, within: Duration) -> io::Result<()> {
        self.listening.pause();
        self.metrics.iter().for_each(ListenerGroup::pause);
        self.wait_applied(within).map(drop)
    }

    fn resume(&self, within: Duration) -> io::Result<()> {
        self.listening.resume();
        self.metrics.iter().for_each(ListenerGroup::resume);
        self.wait_applied(within).map(drop)
    }

    fn transfer_done(&self) {
        self.metrics.iter().for_each(|group| group.close(PendingConnections::Leave));
        self.listening.close_transferred();
    }
}
