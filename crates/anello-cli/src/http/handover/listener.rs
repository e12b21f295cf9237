//! The running server's side of the handover: transfers its sockets to a successor.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use super::channel::{HandoverChannel, HandoverMessage};
use crate::common::error::Context;
use crate::common::listening::SocketFile;

/// Maximum number of queued successors while one is being served.
const BACKLOG: i32 = 16;

/// Time limit for the workers to pause or resume accepting connections.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The handover socket, to which successors connect.
#[derive(Debug)]
pub struct HandoverListener {
    listener: UnixListener,
    file: Arc<SocketFile>,
}

/// Access to the sockets to transfer, and control over the workers that use them.
pub trait HandoverSource: Send + 'static {
    /// Returns duplicates of the listening sockets; none once this process has permanently stopped accepting
    /// connections.
    fn sockets(&self) -> io::Result<Vec<OwnedFd>>;
    /// Returns the file of the listening socket, if it has one.
    fn file(&self) -> Option<&SocketFile>;
    /// Returns a duplicate of the listening socket for /metrics, if there is one.
    fn metrics(&self) -> io::Result<Option<TcpListener>>;
    /// Pauses accepting connections in this process.
    fn pause(&self, timeout: Duration) -> io::Result<()>;
    /// Resumes accepting connections.
    fn resume(&self, timeout: Duration) -> io::Result<()>;
    /// Shuts this process down after the sockets have been transferred.
    fn transfer_done(&self);
}

impl HandoverListener {
    /// Binds a handover socket to an unused path, accessible only to this user.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let bind = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // bind(2) creates the file with the socket's mode, reduced by the umask, so the file is never accessible to
            // other users.
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(&SockAddr::unix(path)?)?;
            let file = SocketFile::new_owned(path)?;
            socket.listen(BACKLOG)?;
            io::Result::Ok(Self { listener: OwnedFd::from(socket).into(), file: Arc::new(file) })
        };
        bind().context(format_args!("--handover {}", path.display()))
    }

    /// Uses the predecessor's handover socket.
    pub fn from_predecessor(listener: UnixListener, path: &Path) -> io::Result<Self> {
        Ok(Self { listener, file: Arc::new(SocketFile::new_unowned(path)?) })
    }

    /// Returns the socket file, which must be kept until the process exits.
    pub fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }

    /// Serves successors in a thread that exits after a transfer.
    pub fn spawn(self, source: impl HandoverSource) -> io::Result<()> {
        thread::Builder::new().name("handover".into()).spawn(move || self.serve(&source))?;
        Ok(())
    }

    fn serve(self, source: &impl HandoverSource) {
        loop {
            match self.listener.accept().and_then(|(stream, _)| self.serve_successor(stream, source)) {
                Ok(None) => return source.transfer_done(),
                Ok(Some(successor)) => {
                    // This process is exiting. The path must be free before the successor notices the disconnect.
                    self.files(source).for_each(SocketFile::remove);
                    drop(self.listener);
                    return drop(successor);
                }
                Err(error) => {
                    tracing::warn!(%error, "handover failed; this server continues");
                    // If a signal stopped the server in the meantime, it has left the files to the successor.
                    if source.sockets().is_ok_and(|sockets| sockets.is_empty()) {
                        self.files(source).for_each(SocketFile::remove);
                    }
                    // Prevents a busy loop if the handover socket itself causes the error.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Serves a successor. If this process has permanently stopped accepting connections, returns the unserved
    /// connection.
    fn serve_successor(
        &self,
        successor: UnixStream,
        source: &impl HandoverSource,
    ) -> io::Result<Option<UnixStream>> {
        // Leased before the sockets are read, so that a server that is stopped afterwards leaves the files to the
        // successor.
        let lease = FileLease::new(self.files(source));
        let sockets = source.sockets()?;
        if sockets.is_empty() {
            return Ok(Some(successor));
        }
        run_handover(HandoverChannel::new(successor)?, &sockets, source, &self.listener, lease)?;
        Ok(None)
    }

    /// Returns the socket files to transfer: the handover socket file and, if there is one, the file of the listening
    /// socket.
    fn files<'a>(&'a self, source: &'a impl HandoverSource) -> impl Iterator<Item = &'a SocketFile> {
        source.file().into_iter().chain([&*self.file])
    }
}

/// Socket files leased to a successor: this process does not remove them at exit. Dropping the lease reclaims them.
struct FileLease<'a>(Vec<&'a SocketFile>);

impl<'a> FileLease<'a> {
    /// Leases the files that this process owns.
    fn new(files: impl Iterator<Item = &'a SocketFile>) -> Self {
        Self(files.filter(|file| file.release()).collect())
    }

    /// Transfers the files to the successor permanently.
    fn commit(mut self) {
        self.0.clear();
    }
}

impl Drop for FileLease<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.claim());
    }
}

/// Runs the handover with one successor.
fn run_handover(
    mut channel: HandoverChannel,
    sockets: &[OwnedFd],
    source: &impl HandoverSource,
    handover_listener: &UnixListener,
    lease: FileLease<'_>,
) -> io::Result<()> {
    channel.send_hello()?;
    if let Err(error) = transfer(&mut channel, sockets, source, handover_listener) {
        drop(lease);
        // Sent before this server resumes, so that the two servers never accept connections at the same time. Always
        // sent; otherwise a successor would conclude from the disconnect that this server has died.
        channel.send(HandoverMessage::Withdrawn).ok();
        drop(channel);
        source.resume(PAUSE_TIMEOUT)?;
        return Err(error);
    }
    lease.commit();
    if let Err(error) = channel.send(HandoverMessage::Done) {
        tracing::debug!(%error, "successor disconnected before the final confirmation");
    }
    Ok(())
}

/// Transfers all sockets, pauses accepting, and waits until the successor is accepting connections.
fn transfer(
    channel: &mut HandoverChannel,
    sockets: &[OwnedFd],
    source: &impl HandoverSource,
    handover_listener: &UnixListener,
) -> io::Result<()> {
    for socket in sockets {
        channel.send_fd(HandoverMessage::Socket, socket)?;
    }
    if let Some(metrics) = source.metrics()? {
        channel.send_fd(HandoverMessage::Metrics, &metrics)?;
    }
    channel.send_fd(HandoverMessage::HandoverSocket, handover_listener)?;
    channel.send(HandoverMessage::EndOfSockets)?;
    expect_message(channel, HandoverMessage::Ready)?;
    source.pause(PAUSE_TIMEOUT)?;
    channel.send(HandoverMessage::Stopped)?;
    expect_message(channel, HandoverMessage::Accepting)
}

fn expect_message(channel: &mut HandoverChannel, expected: HandoverMessage) -> io::Result<()> {
    match channel.recv()? {
        message if message == expected => Ok(()),
        message => {
            let cause = format!("successor sent {message:?} instead of {expected:?}");
            Err(io::Error::new(io::ErrorKind::InvalidData, cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Records the calls made by the handover.
    #[derive(Default)]
    struct RecordedCalls(Mutex<Vec<&'static str>>);

    impl RecordedCalls {
        fn record(&self, call: &'static str) -> io::Result<()> {
            self.0.lock().unwrap().push(call);
            Ok(())
        }
    }

    impl HandoverSource for RecordedCalls {
        fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
            Ok(Vec::new())
        }
        fn file(&self) -> Option<&SocketFile> {
            None
        }
        fn metrics(&self) -> io::Result<Option<TcpListener>> {
            Ok(None)
        }
        fn pause(&self, _: Duration) -> io::Result<()> {
            self.record("pause")
        }
        fn resume(&self, _: Duration) -> io::Result<()> {
            self.record("resume")
        }
        fn transfer_done(&self) {}
    }

    #[test]
    fn fault_38_late_successor_receives_withdrawn() {
        let directory = tempfile::tempdir().unwrap();
        let handover_listener = HandoverListener::bind(&directory.path().join("handover")).unwrap();
        // The successor never sends Ready; or it sends Ready, and then never Accepting.
        for (sent, expected_calls) in
            [(&[][..], &["resume"][..]), (&[HandoverMessage::Ready], &["pause", "resume"])]
        {
            let (server, successor) = UnixStream::pair().unwrap();
            let (source, mut successor) =
                (RecordedCalls::default(), HandoverChannel::new(successor).unwrap());
            sent.iter().for_each(|message| successor.send(*message).unwrap());
            let channel = HandoverChannel::with_timeout(server, Duration::from_millis(20)).unwrap();
            let lease = FileLease::new(handover_listener.files(&source));
            let error = run_handover(channel, &[], &source, &handover_listener.listener, lease).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(*source.0.lock().unwrap(), expected_calls);
            successor.expect_hello().unwrap();
            let (mut received, mut last) = (0, HandoverMessage::EndOfSockets);
            while let Ok((message, _)) = successor.recv_fd() {
                (received, last) = (received + 1, message);
            }
            assert_eq!((received, last), (3 + sent.len(), HandoverMessage::Withdrawn));
        }
        // The server owns the file again.
        drop(handover_listener);
        assert!(!directory.path().join("handover").exists());
    }
}
