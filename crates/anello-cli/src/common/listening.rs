//! The workers' listening sockets and their socket files. The sockets are bound by this process, or passed to it by a
//! service manager or by the server that it replaces.

use std::fs;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener as StdUnixListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello::JoinHandle;
use anello::net::{TcpListener, UnixListener};
use anello::server::{self, GroupMember, ListenerGroup, PendingConnections};
use anello::signal::Signals;
use anello::time::timeout;
use clap::ValueEnum;
use futures_util::future::{Either, select};
use rustix::fs::Mode;
use rustix::process::umask;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::address::Address;
use super::bind_retry::bind_with_retry;
use super::error::{Context, invalid_input, usage_error};
use super::values::Cores;

/// Backlog of a listening socket, capped by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Time limit at shutdown for accepting queued connections. Those above the connection limit are rejected one by one.
pub const FINAL_ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for the accept tasks, which finish once their sockets are closed and the accept queues are empty.
pub async fn finish_accepting(accept_tasks: &mut [JoinHandle<()>]) {
    for task in accept_tasks {
        if timeout(FINAL_ACCEPT_TIMEOUT, &mut *task).await.is_err() {
            tracing::warn!("exiting with connections still in the accept queue");
            task.abort();
        }
    }
}

/// Waits for the signal that aborts the drain. If signals cannot be received, logs the error and never returns.
pub async fn second_signal(signals: &mut Signals, signal_received: bool) {
    // If another worker stopped accepting, this worker has not yet received the first signal.
    let missing_signals = if signal_received { 1 } else { 2 };
    for _ in 0..missing_signals {
        if let Err(error) = signals.recv().await {
            tracing::error!(%error, "cannot wait for signals");
            return pending().await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Evenly: a worker with more connections than the average transfers new connections to the worker with the fewest.
    Balanced,
    /// To the worker with the fewest open connections. For connections that stay open for long.
    LeastLoaded,
    /// By the kernel: a hash of the addresses selects a worker's socket.
    Kernel,
    /// By the kernel: each connection goes to the worker on the core where it arrives. Needs --cores, and a network card
    /// that distributes connections over these cores.
    ByCore,
}

impl Distribution {
    fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::LeastLoaded => "least-loaded",
            Self::Kernel => "kernel",
            Self::ByCore => "by-core",
        }
    }
}

pub enum ListeningSocket {
    Internet(StdTcpListener),
    Unix(StdUnixListener),
}

impl ListeningSocket {
    /// Checks that an inherited descriptor is a listening socket.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        let cause = match (socket.domain(), socket.r#type()) {
            (Ok(Domain::IPV4 | Domain::IPV6 | Domain::UNIX), Ok(Type::STREAM))
                if !socket.is_listener()? =>
            {
                "socket is not listening".to_owned()
            }
            (Ok(Domain::UNIX), Ok(Type::STREAM)) => return Ok(Self::Unix(descriptor.into())),
            (Ok(Domain::IPV4 | Domain::IPV6), Ok(Type::STREAM)) => {
                // Accepted sockets inherit this option.
                socket.set_tcp_nodelay(true)?;
                return Ok(Self::Internet(descriptor.into()));
            }
            (Ok(domain), Ok(kind)) => format!("unsupported socket type {domain:?}, {kind:?}"),
            _ => "not a socket".to_owned(),
        };
        Err(invalid_input(format!(
            "{cause} (pass listening TCP or Unix stream sockets, e.g. with ListenStream=)"
        )))
    }

    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Internet(listener) => listener.local_addr().map(Address::Internet),
            Self::Unix(listener) => listener.local_addr().map(Address::Unix),
        }
    }
}

/// The sockets of all addresses, and the socket files of Unix addresses.
#[derive(Default)]
struct Bound {
    sockets: Vec<ListeningSocket>,
    files: Vec<SocketFile>,
}

impl Bound {
    /// Creates the listening sockets for `workers` workers at an address. For TCP, creates one socket per worker with
    /// `SO_REUSEPORT`. For a Unix address, creates a single socket shared by all workers.
    fn listen(&mut self, address: &Address, workers: usize, mode: Option<SocketMode>) -> io::Result<()> {
        match address {
            Address::Internet(address) => self.listen_tcp(*address, workers),
            Address::Host(_) => {
                let (count, mut unavailable) = (self.sockets.len(), None);
                for resolved in address.resolve()? {
                    match self.listen(&resolved, workers, mode) {
                        // IPv6 may be disabled on this machine.
                        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                            unavailable = Some(error)
                        }
                        result => result?,
                    }
                }
                unavailable.filter(|_| self.sockets.len() == count).map_or(Ok(()), Err)
            }
            Address::Unix(name) => self.listen_unix(address, name, mode),
        }
    }

    fn listen_tcp(&mut self, address: SocketAddr, workers: usize) -> io::Result<()> {
        let is_shared = workers > 1;
        let first = bind_tcp(address, false, is_shared)?;
        // If the requested port is 0, the remaining sockets use the port that the kernel assigned to the first.
        let bound = first.local_addr()?;
        self.sockets.push(ListeningSocket::Internet(first));
        for _ in 1..workers {
            self.sockets.push(ListeningSocket::Internet(bind_tcp(bound, true, is_shared)?));
        }
        Ok(())
    }

    fn listen_unix(
        &mut self,
        address: &Address,
        name: &UnixAddress,
        mode: Option<SocketMode>,
    ) -> io::Result<()> {
        let path = name.as_pathname();
        // Set before the file exists, so that no other user can connect in between.
        let previous = mode.map(|SocketMode(mode)| umask(Mode::from_raw_mode(!mode & 0o777)));
        let result = bind_with_retry(|| bind_unix(name));
        previous.map(umask);
        let listener = match result {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && path.is_some() => Err(error)
                .context_and_remedy(
                    address,
                    "used by a running server, or not a socket; choose another path",
                ),
            result => result.context(address),
        }?;
        self.files.extend(path.map(SocketFile::new_owned).transpose()?);
        self.sockets.push(ListeningSocket::Unix(listener));
        Ok(())
    }
}

/// The permissions of a socket file.
#[derive(Clone, Copy, Debug)]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| format!("invalid mode {text:?} (expected an octal number, such as 660)"))
    }
}

pub fn conflicting_flag_error(flag: &str) -> io::Error {
    invalid_input(format!("{flag} conflicts with the sockets passed in LISTEN_FDS (remove one of them)"))
}

/// Binds a socket to an address. `is_further` means that another socket of this process is already bound to the
/// address; `is_shared` means that several sockets of this process use it.
fn bind_tcp(address: SocketAddr, is_further: bool, is_shared: bool) -> io::Result<StdTcpListener> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(is_further)?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SockAddr::from(address))?;
        // Set after bind(2), so that bind(2) fails with EADDRINUSE if another server owns the address. Otherwise the
        // kernel would distribute the clients across both servers.
        socket.set_reuse_port(is_shared)?;
        socket.listen(BACKLOG)?;
        io::Result::Ok(socket.into())
    };
    bind_with_retry(listen).context(address)
}

/// Binds a Unix listener. Replaces a stale socket file, so that a restart after a crash needs no manual cleanup.
fn bind_unix(name: &UnixAddress) -> io::Result<StdUnixListener> {
    match (StdUnixListener::bind_addr(name), name.as_pathname()) {
        (Err(error), Some(path)) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path)? => {
            tracing::warn!(path = %path.display(), "replacing stale socket file");
            fs::remove_file(path)?;
            StdUnixListener::bind_addr(name)
        }
        (listener, _) => listener,
    }
}

/// Returns `true` if the path is a socket file on which no process is listening.
fn is_stale_socket(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Nonblocking: connecting to a live server with a full accept queue fails with EAGAIN instead of blocking.
    socket.set_nonblocking(true)?;
    let connected = socket.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// The listening sockets of all workers, which stay open until the last worker has exited.
pub struct Listening {
    /// The addresses in the format of the ready line.
    pub addresses: String,
    pub(super) internet: Option<ListenerGroup<TcpListener>>,
    pub(super) unix: Option<ListenerGroup<UnixListener>>,
    pub(super) sockets: usize,
    /// What to do with connections in the accept queue at shutdown.
    pub(super) pending: PendingConnections,
    pub files: Vec<SocketFile>,
    pub is_transferred: AtomicBool,
}

/// One worker's listeners, one from each listener group.
pub struct WorkerListeners {
    pub internet: Option<GroupMember<TcpListener>>,
    pub unix: Option<GroupMember<UnixListener>>,
}

impl Listening {
    /// Binds the addresses. A socket file is created with these permissions.
    pub fn bind(addresses: &[Address], workers: usize, mode: Option<SocketMode>) -> io::Result<Self> {
        let mut bound = Bound::default();
        addresses.iter().try_for_each(|address| bound.listen(address, workers, mode))?;
        Self::new(bound.sockets, workers, PendingConnections::Serve, bound.files)
    }

    /// Uses sockets passed by the service manager. Connections queued at shutdown are left to the next process.
    pub fn from_passed(sockets: Vec<ListeningSocket>, workers: usize) -> io::Result<Self> {
        Self::new(sockets, workers, PendingConnections::Leave, Vec::new())
    }

    /// Creates the listener groups for `workers` workers, initially paused.
    pub fn new(
        sockets: Vec<ListeningSocket>,
        workers: usize,
        pending: PendingConnections,
        files: Vec<SocketFile>,
    ) -> io::Result<Self> {
        let count = sockets.len();
        let (mut addresses, mut internet, mut unix) = (Vec::new(), Vec::new(), Vec::new());
        for socket in sockets {
            let address = socket.address()?.to_string();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
            match socket {
                ListeningSocket::Internet(listener) => internet.push(listener),
                ListeningSocket::Unix(listener) => unix.push(listener),
            }
        }
        Ok(Self {
            addresses: addresses.join(","),
            internet: (!internet.is_empty()).then(|| ListenerGroup::new_paused(internet, workers)),
            unix: (!unix.is_empty()).then(|| ListenerGroup::new_paused(unix, workers)),
            sockets: count,
            pending,
            files,
            is_transferred: AtomicBool::new(false),
        })
    }

    /// Sets the distribution over workers that are pinned to `cores`.
    pub fn set_distribution(&self, distribution: Distribution, cores: Option<&Cores>) -> io::Result<()> {
        let policy = match distribution {
            Distribution::Balanced => server::Distribution::Balanced,
            Distribution::LeastLoaded => server::Distribution::LeastLoaded,
            Distribution::Kernel | Distribution::ByCore => server::Distribution::Kernel,
        };
        self.internet.iter().for_each(|group| group.set_distribution(policy));
        self.unix.iter().for_each(|group| group.set_distribution(policy));
        if distribution == Distribution::ByCore {
            let (Some(group), Some(Cores(cores))) = (&self.internet, cores) else {
                let cause = "--distribution by-core needs a TCP address and --cores (add them)";
                return Err(usage_error(cause));
            };
            group.steer_by_core(cores).context("--distribution by-core")?;
        }
        Ok(())
    }

    /// Returns a URL with the first IP address, if there is one. `localhost` stands for all addresses.
    pub fn url(&self, has_tls: bool) -> Option<String> {
        let scheme = if has_tls { "https" } else { "http" };
        let address = self.addresses.split(',').find_map(|address| address.parse::<SocketAddr>().ok())?;
        Some(match address.ip().is_unspecified() {
            true => format!("{scheme}://localhost:{}/", address.port()),
            false => format!("{scheme}://{address}/"),
        })
    }

    /// Returns the fields of the ready line that describe the sockets and the distribution of connections.
    pub fn summary(&self, distribution: Distribution) -> String {
        format!("sockets={} distribution={}", self.sockets, distribution.name())
    }

    pub fn join(&self, worker: usize) -> WorkerListeners {
        WorkerListeners {
            internet: self.internet.as_ref().map(|group| group.join(worker)),
            unix: self.unix.as_ref().map(|group| group.join(worker)),
        }
    }

    pub fn resume(&self) {
        self.internet.iter().for_each(ListenerGroup::resume);
        self.unix.iter().for_each(ListenerGroup::resume);
    }

    /// Pauses accepting connections in all workers. New connections stay in the accept queues.
    pub fn pause(&self) {
        self.internet.iter().for_each(ListenerGroup::pause);
        self.unix.iter().for_each(ListenerGroup::pause);
    }

    /// Waits until all workers have paused or resumed, and returns the number of workers.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        let internet = self.internet.as_ref().map(|group| group.wait_applied(timeout)).transpose()?;
        let unix = self.unix.as_ref().map(|group| group.wait_applied(timeout)).transpose()?;
        Ok(internet.or(unix).unwrap_or(0))
    }

    pub fn close(&self) {
        self.close_with(self.pending);
    }

    pub fn close_transferred(&self) {
        self.is_transferred.store(true, Ordering::Relaxed);
        self.close_with(PendingConnections::Leave);
    }

    pub fn close_with(&self, pending: PendingConnections) {
        self.internet.iter().for_each(|group| group.close(pending));
        self.unix.iter().for_each(|group| group.close(pending));
    }

    pub fn is_closed(&self) -> bool {
        let internet = self.internet.as_ref().is_some_and(ListenerGroup::is_closed);
        internet || self.unix.as_ref().is_some_and(ListenerGroup::is_closed)
    }

    /// Waits for a signal. Returns `false` if another worker received the signal first and stopped accepting.
    pub async fn wait_for_shutdown(&self, signals: &mut Signals) -> io::Result<bool> {
        let closed = async {
            match (&self.internet, &self.unix) {
                (Some(group), _) => group.closed().await,
                (None, Some(group)) => group.closed().await,
                // There is no socket to wait for.
                (None, None) => {}
            }
        };
        match select(pin!(signals.recv()), pin!(closed)).await {
            Either::Left((signal, _)) => signal.map(|_| true),
            Either::Right(_) => Ok(false),
        }
    }

    /// Returns duplicates of the sockets, to transfer to another process.
    pub fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let internet = self.internet.as_ref().map(ListenerGroup::sockets).transpose()?;
        let unix = self.unix.as_ref().map(ListenerGroup::sockets).transpose()?;
        let internet = internet.into_iter().flatten().map(OwnedFd::from);
        Ok(internet.chain(unix.into_iter().flatten().map(OwnedFd::from)).collect())
    }
}

/// A socket file. Removed on drop if this process owns it and the path still refers to the same file.
pub struct SocketFile {
    pub path: PathBuf,
    file_id: FileId,
    /// Whether this process is responsible for removing the file.
    is_own: AtomicBool,
}

impl SocketFile {
    pub fn new_owned(path: &Path) -> io::Result<Self> {
        let file = Self::new_unowned(path)?;
        file.claim();
        Ok(file)
    }

    /// Creates a guard for another process's file. The guard removes the file only after [`claim`](Self::claim) has
    /// been called.
    pub fn new_unowned(path: &Path) -> io::Result<Self> {
        // Absolute, because the working directory may change before the file is removed.
        let path = std::path::absolute(path)?;
        Ok(Self { file_id: file_id(&fs::symlink_metadata(&path)?), path, is_own: AtomicBool::new(false) })
    }

    pub fn claim(&self) {
        self.is_own.store(true, Ordering::Relaxed);
    }

    /// Leaves the removal of the file to another process. Returns `true` if this process was responsible for it.
    pub fn release(&self) -> bool {
        self.is_own.swap(false, Ordering::Relaxed)
    }

    pub fn remove(&self) {
        if !self.release() {
            return;
        }
        let removed = fs::symlink_metadata(&self.path).and_then(|current| {
            if file_id(&current) == self.file_id { fs::remove_file(&self.path) } else { Ok(()) }
        });
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket file");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Device and inode number.
pub type FileId = (u64, u64);

pub fn file_id(file: &fs::Metadata) -> FileId {
    (file.dev(), file.ino())
}
