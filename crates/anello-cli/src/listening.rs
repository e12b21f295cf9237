//! Where the workers listen: the sockets, whoever has made them, and what has to be held until the workers have ended.

use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener as StdUnixListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use anello::JoinHandle;
use anello::net::{self, GroupMember, ListenerGroup, PendingConnections, TcpListener, UnixListener};
use anello::signal::Signals;
use anello::time::timeout;
use clap::ValueEnum;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::address::Address;

/// Connections that the kernel keeps at a socket until they are accepted; at most `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// How long clients that wait at the end may take to be accepted; more than there is room for are refused one by one.
const FINAL_ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until what accepts has ended by itself, because its sockets were closed and nobody waits there.
pub async fn finish_accepting(accepting: &mut [JoinHandle<()>]) {
    for accepting in accepting {
        if timeout(FINAL_ACCEPT_TIMEOUT, &mut *accepting).await.is_err() {
            tracing::warn!("clients still waited to be accepted when the server ended");
            accepting.abort();
        }
    }
}

/// How connections are distributed over the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Evenly: a worker that was given more than the mean transfers further ones to the worker with the fewest.
    Balanced,
    /// As the kernel does: by a hash of the addresses where each worker has a socket.
    Kernel,
}

/// A socket that listens.
#[derive(Debug)]
pub enum ListeningSocket {
    Internet(StdTcpListener),
    Unix(StdUnixListener),
}

impl ListeningSocket {
    /// A socket that somebody else has made.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        let refused = |what: String| {
            let remedy = "give stream sockets that listen, of TCP (ListenStream=) or Unix";
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {remedy}")))
        };
        let (Ok(domain), Ok(kind)) = (socket.domain(), socket.r#type()) else {
            return refused("it is no socket".to_owned());
        };
        match (domain, kind) {
            (Domain::IPV4 | Domain::IPV6 | Domain::UNIX, Type::STREAM) if socket.is_listener()? => {}
            (Domain::IPV4 | Domain::IPV6 | Domain::UNIX, Type::STREAM) => {
                return refused("its socket does not listen".to_owned());
            }
            _ => return refused(format!("its socket is of the wrong kind ({domain:?}, {kind:?})")),
        }
        if domain == Domain::UNIX {
            return Ok(Self::Unix(descriptor.into()));
        }
        // Accepted sockets inherit it.
        socket.set_tcp_nodelay(true)?;
        Ok(Self::Internet(descriptor.into()))
    }

    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Internet(listener) => listener.local_addr().map(Address::Internet),
            Self::Unix(listener) => listener.local_addr().map(Address::Unix),
        }
    }
}

/// Sockets for so many workers at an address: one each, or one that they share where the kernel knows no `SO_REUSEPORT`.
/// With the file of a Unix socket.
pub fn listen(address: &Address, workers: usize) -> io::Result<(Vec<ListeningSocket>, Option<SocketFile>)> {
    let name = match address {
        Address::Internet(address) => {
            let first = bind_tcp(*address, if workers > 1 { SocketRole::First } else { SocketRole::Only })?;
            // With the port that the first one was given.
            let bound = first.local_addr()?;
            let mut sockets = vec![ListeningSocket::Internet(first)];
            for _ in 1..workers {
                sockets.push(ListeningSocket::Internet(bind_tcp(bound, SocketRole::Further)?));
            }
            return Ok((sockets, None));
        }
        Address::Unix(name) => name,
    };
    let listener = bind_unix(name).map_err(|error| {
        let remedy = match (error.kind(), name.as_pathname()) {
            (io::ErrorKind::AddrInUse, Some(_)) => {
                ": a server listens there, or it is no socket: choose another path"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{address}: {error}{remedy}"))
    })?;
    let file = name.as_pathname().map(SocketFile::new_owned).transpose()?;
    Ok((vec![ListeningSocket::Unix(listener)], file))
}

/// The error of a flag that says something else than sockets that were passed.
pub fn conflicting_flag_error(flag: &str) -> io::Error {
    let message = format!(
        "sockets were passed by the service manager (LISTEN_FDS), and {flag} says otherwise: leave one of the two out"
    );
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Which of the sockets at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketRole {
    Only,
    First,
    Further,
}

fn bind_tcp(address: SocketAddr, role: SocketRole) -> io::Result<StdTcpListener> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(role == SocketRole::Further)?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SockAddr::from(address))?;
        // Only now, so that the address is refused while another server has it, which would get a part of the clients.
        socket.set_reuse_port(role != SocketRole::Only)?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    listen().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}")))
}

/// A socket of this name. A file that a server which is gone has left is replaced: who starts again after a crash is not to
/// wait for somebody to remove it.
fn bind_unix(name: &UnixAddress) -> io::Result<StdUnixListener> {
    match (StdUnixListener::bind_addr(name), name.as_pathname()) {
        (Err(error), Some(path)) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path)? => {
            tracing::warn!(path = %path.display(), "a socket file at which nobody listens is replaced");
            fs::remove_file(path)?;
            StdUnixListener::bind_addr(name)
        }
        (listener, _) => listener,
    }
}

/// Whether it is the file of a socket that nobody has any more.
fn is_stale_socket(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A server that is too busy to accept is there all the same.
    socket.set_nonblocking(true)?;
    let connected = socket.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// The sockets of the workers, which outlive each of them.
#[derive(Debug)]
pub struct Listening {
    addresses: Vec<Address>,
    internet: Option<ListenerGroup<TcpListener>>,
    unix: Option<ListenerGroup<UnixListener>>,
    sockets: usize,
    /// What becomes of connections that wait when the process ends.
    pending: PendingConnections,
    file: Option<SocketFile>,
    is_transferred: AtomicBool,
}

/// A worker's part.
pub struct WorkerListeners {
    pub internet: Option<GroupMember<TcpListener>>,
    pub unix: Option<GroupMember<UnixListener>>,
}

impl Listening {
    /// Takes the sockets that were passed, or else makes some at the address, or at the one that is taken by default.
    pub fn from_passed_or_bind(
        address: Option<&Address>,
        default: &str,
        from_passed: Vec<ListeningSocket>,
        workers: usize,
    ) -> io::Result<Self> {
        match (from_passed.is_empty(), address) {
            (true, Some(address)) => Self::bind(address, workers),
            (true, None) => Self::bind(&default.parse().map_err(io::Error::other)?, workers),
            (false, None) => Self::from_passed(from_passed, workers),
            (false, Some(_)) => Err(conflicting_flag_error("--addr")),
        }
    }

    /// Makes sockets at the address.
    pub fn bind(address: &Address, workers: usize) -> io::Result<Self> {
        let (sockets, file) = listen(address, workers)?;
        Self::new(sockets, workers, PendingConnections::Serve, file)
    }

    /// Takes sockets that the service manager has passed: what waits at the end is left for the next process that it starts.
    pub fn from_passed(sockets: Vec<ListeningSocket>, workers: usize) -> io::Result<Self> {
        Self::new(sockets, workers, PendingConnections::Leave, None)
    }

    /// For so many workers, which accept when they are told to.
    pub fn new(
        sockets: Vec<ListeningSocket>,
        workers: usize,
        pending: PendingConnections,
        file: Option<SocketFile>,
    ) -> io::Result<Self> {
        let count = sockets.len();
        let (mut addresses, mut internet, mut unix) = (Vec::<Address>::new(), Vec::new(), Vec::new());
        for socket in sockets {
            let address = socket.address()?;
            if !addresses.iter().any(|known| known.to_string() == address.to_string()) {
                addresses.push(address);
            }
            match socket {
                ListeningSocket::Internet(listener) => internet.push(listener),
                ListeningSocket::Unix(listener) => unix.push(listener),
            }
        }
        Ok(Self {
            addresses,
            internet: (!internet.is_empty()).then(|| ListenerGroup::new_paused(internet, workers)),
            unix: (!unix.is_empty()).then(|| ListenerGroup::new_paused(unix, workers)),
            sockets: count,
            pending,
            file,
            is_transferred: AtomicBool::new(false),
        })
    }

    pub fn set_distribution(&self, distribution: Distribution) {
        let distribution = match distribution {
            Distribution::Balanced => net::Distribution::Balanced,
            Distribution::Kernel => net::Distribution::Kernel,
        };
        self.internet.iter().for_each(|group| group.set_distribution(distribution));
        self.unix.iter().for_each(|group| group.set_distribution(distribution));
    }

    /// Returns what the ready line tells of the sockets and of how their connections are distributed.
    pub fn summary(&self) -> String {
        let internet = self.internet.as_ref().map(ListenerGroup::distribution);
        let distribution = match internet.or_else(|| self.unix.as_ref().map(ListenerGroup::distribution)) {
            Some(net::Distribution::Kernel) => "kernel",
            _ => "balanced",
        };
        format!("sockets={} distribution={distribution}", self.sockets)
    }

    /// The part of the worker of this number.
    pub fn join(&self, worker: usize) -> WorkerListeners {
        WorkerListeners {
            internet: self.internet.as_ref().map(|group| group.join(worker)),
            unix: self.unix.as_ref().map(|group| group.join(worker)),
        }
    }

    /// Has the workers accept.
    pub fn resume(&self) {
        self.internet.iter().for_each(ListenerGroup::resume);
        self.unix.iter().for_each(ListenerGroup::resume);
    }

    /// Has the workers leave what comes in the sockets' queues.
    pub fn pause(&self) {
        self.internet.iter().for_each(ListenerGroup::pause);
        self.unix.iter().for_each(ListenerGroup::pause);
    }

    /// Waits until the workers have done as they were told; how many there are.
    pub fn wait_applied(&self, within: Duration) -> io::Result<usize> {
        let internet = self.internet.as_ref().map(|group| group.wait_applied(within)).transpose()?;
        let unix = self.unix.as_ref().map(|group| group.wait_applied(within)).transpose()?;
        Ok(internet.or(unix).unwrap_or(0))
    }

    /// Ends accepting, when the process ends.
    pub fn close(&self) {
        self.close_with(self.pending);
    }

    /// Ends accepting: another process has the sockets.
    pub fn close_transferred(&self) {
        self.is_transferred.store(true, Ordering::Relaxed);
        self.close_now();
    }

    /// Ends accepting, whoever waits.
    pub fn close_now(&self) {
        self.close_with(PendingConnections::Leave);
    }

    pub fn is_transferred(&self) -> bool {
        self.is_transferred.load(Ordering::Relaxed)
    }

    /// The file of the socket, if it has one.
    pub fn file(&self) -> Option<&SocketFile> {
        self.file.as_ref()
    }

    fn close_with(&self, pending: PendingConnections) {
        self.internet.iter().for_each(|group| group.close(pending));
        self.unix.iter().for_each(|group| group.close(pending));
    }

    pub fn is_closed(&self) -> bool {
        let internet = self.internet.as_ref().is_some_and(ListenerGroup::is_closed);
        internet || self.unix.as_ref().is_some_and(ListenerGroup::is_closed)
    }

    /// Waits until there is a reason to end; whether it is a signal, or otherwise that accepting has ended: another worker
    /// has heard the signal, before this one could or will.
    pub async fn wait_for_shutdown(&self, signals: &mut Signals) -> io::Result<bool> {
        let (mut signal, mut closed) = (pin!(signals.recv()), pin!(self.wait_closed()));
        poll_fn(|context| {
            if let Poll::Ready(signal) = signal.as_mut().poll(context) {
                return Poll::Ready(signal.map(|_| true));
            }
            closed.as_mut().poll(context).map(|()| Ok(false))
        })
        .await
    }

    /// Waits until accepting has ended for whatever reason.
    async fn wait_closed(&self) {
        match (&self.internet, &self.unix) {
            (Some(group), _) => group.closed().await,
            (None, Some(group)) => group.closed().await,
            // Nothing was ever open.
            (None, None) => {}
        }
    }

    /// Duplicates of the sockets, for another process.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let mut sockets = Vec::new();
        if let Some(group) = &self.internet {
            sockets.extend(group.sockets()?.into_iter().map(OwnedFd::from));
        }
        if let Some(group) = &self.unix {
            sockets.extend(group.sockets()?.into_iter().map(OwnedFd::from));
        }
        Ok(sockets)
    }
}

/// The addresses, as the ready line has them.
impl fmt::Display for Listening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{address}")?;
        }
        Ok(())
    }
}

/// A socket file; removed when dropped, if it is this process's and no other has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file_id: (u64, u64),
    /// Whether it is this process that removes it.
    is_own: AtomicBool,
}

impl SocketFile {
    /// The file at this path, which this process has made.
    pub fn new_owned(path: &Path) -> io::Result<Self> {
        let file = Self::new_unowned(path)?;
        file.claim();
        Ok(file)
    }

    /// The file at this path, which is to be this process's when that [claims](Self::claim) it.
    pub fn new_unowned(path: &Path) -> io::Result<Self> {
        // Workers may end elsewhere than they began.
        let path = std::path::absolute(path)?;
        Ok(Self { file_id: file_id(&path)?, path, is_own: AtomicBool::new(false) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This process is to remove it.
    pub fn claim(&self) {
        self.is_own.store(true, Ordering::Relaxed);
    }

    /// Another process is. Whether this one was to.
    pub fn release(&self) -> bool {
        self.is_own.swap(false, Ordering::Relaxed)
    }

    pub fn remove(&self) {
        if !self.release() {
            return;
        }
        let removed = file_id(&self.path).and_then(|current| match current == self.file_id {
            true => fs::remove_file(&self.path),
            false => Ok(()),
        });
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.path.display(), "the socket file could not be removed");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Device and number of a file.
fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let current = fs::symlink_metadata(path)?;
    Ok((current.dev(), current.ino()))
}
