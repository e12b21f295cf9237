//! The running server's side of the handover: transfers its sockets to a successor.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections};
use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use super::channel::{HandoverChannel, HandoverMessage};
use crate::common::error::Context;
use crate::common::listening::{Listening, SocketFile};

/// Maximum number of successors that wait in the queue while another is being served.
const BACKLOG: i32 = 16;

/// Time limit for the workers to pause or resume accepting connections.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The handover socket, to which successors connect.
pub struct HandoverListener {
    listener: UnixListener,
    /// The socket file, which must be kept until the process exits.
    pub file: Arc<SocketFile>,
}

/// The sockets to transfer, and control over the workers that use them.
pub struct ServerSockets {
    pub listening: Arc<Listening>,
    /// Accepts connections to /metrics and /health.
    pub metrics: Option<ListenerGroup<TcpListener>>,
}

impl ServerSockets {
    /// Waits until all workers have paused or resumed accepting connections, and returns the number of workers.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        self.metrics.as_ref().map(|group| group.wait_applied(timeout)).transpose()?;
        self.listening.wait_applied(timeout)
    }

    fn pause(&self, timeout: Duration) -> io::Result<()> {
        self.listening.pause();
        self.metrics.iter().for_each(ListenerGroup::pause);
        self.wait_applied(timeout).map(drop)
    }

    pub fn resume(&self, timeout: Duration) -> io::Result<()> {
        self.listening.resume();
        self.metrics.iter().for_each(ListenerGroup::resume);
        self.wait_applied(timeout).map(drop)
    }
}

impl HandoverListener {
    /// Binds a handover socket to an unused path, accessible only to this user.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let bind = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // bind(2) creates the file with the socket's mode, so the file is never accessible to other users.
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(&SockAddr::unix(path)?)?;
            let file = SocketFile::new_owned(path)?;
            socket.listen(BACKLOG)?;
            io::Result::Ok(Self { listener: OwnedFd::from(socket).into(), file: Arc::new(file) })
        };
        bind().context(format_args!("--handover {}", path.display()))
    }

    pub fn from_predecessor(listener: UnixListener, path: &Path) -> io::Result<Self> {
        Ok(Self { listener, file: Arc::new(SocketFile::new_unowned(path)?) })
    }

    /// Serves successors in a thread that exits after a transfer.
    pub fn spawn(self, server: ServerSockets) -> io::Result<()> {
        thread::Builder::new().name("handover".into()).spawn(move || self.serve(&server))?;
        Ok(())
    }

    fn serve(self, server: &ServerSockets) {
        loop {
            match self.listener.accept().and_then(|(stream, _)| self.serve_successor(stream, server)) {
                Ok(None) => {
                    // This process is shutting down.
                    server.metrics.iter().for_each(|group| group.close(PendingConnections::Leave));
                    return server.listening.close_transferred();
                }
                Ok(Some(successor)) => {
                    // This process is exiting. The path must be free before the successor notices the disconnect.
                    self.files(server).for_each(SocketFile::remove);
                    drop(self.listener);
                    return drop(successor);
                }
                Err(error) => {
                    tracing::warn!(%error, "handover failed; this server keeps running");
                    // A server that was stopped by a signal during the handover has not removed the leased files.
                    if server.listening.sockets().is_ok_and(|sockets| sockets.is_empty()) {
                        self.files(server).for_each(SocketFile::remove);
                    }
                    // Prevents a busy loop if the handover socket itself causes the error.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Serves a successor, or returns its connection if this process has permanently stopped accepting connections.
    fn serve_successor(
        &self,
        successor: UnixStream,
        server: &ServerSockets,
    ) -> io::Result<Option<UnixStream>> {
        // The files are leased before the sockets are read, so that a server that is stopped afterwards does not remove
        // them.
        let lease = FileLease::new(self.files(server));
        let sockets = server.listening.sockets()?;
        if sockets.is_empty() {
            return Ok(Some(successor));
        }
        self.run_handover(HandoverChannel::new(successor)?, &sockets, server, lease)?;
        Ok(None)
    }

    fn run_handover(
        &self,
        mut channel: HandoverChannel,
        sockets: &[OwnedFd],
        server: &ServerSockets,
        mut lease: FileLease<'_>,
    ) -> io::Result<()> {
        channel.send_hello()?;
        if let Err(error) = self.transfer(&mut channel, sockets, server) {
            drop(lease);
            // Sent before this server resumes, so that the two servers never accept connections at the same time. Always
            // sent; otherwise a successor would conclude from the disconnect that this server has died.
            channel.send(HandoverMessage::Withdrawn).ok();
            drop(channel);
            server.resume(PAUSE_TIMEOUT)?;
            return Err(error);
        }
        // From now on, the files belong to the successor.
        lease.0.clear();
        if let Err(error) = channel.send(HandoverMessage::Done) {
            tracing::debug!(%error, "successor disconnected before the final confirmation");
        }
        Ok(())
    }

    /// Transfers all sockets, pauses the server, and waits until the successor accepts connections.
    fn transfer(
        &self,
        channel: &mut HandoverChannel,
        sockets: &[OwnedFd],
        server: &ServerSockets,
    ) -> io::Result<()> {
        for socket in sockets {
            channel.send_fd(HandoverMessage::Socket, socket)?;
        }
        for metrics in server.metrics.as_ref().map(ListenerGroup::sockets).transpose()?.into_iter().flatten()
        {
            channel.send_fd(HandoverMessage::Metrics, &metrics)?;
        }
        channel.send_fd(HandoverMessage::HandoverSocket, &self.listener)?;
        channel.send(HandoverMessage::EndOfSockets)?;
        expect_message(channel, HandoverMessage::Ready)?;
        server.pause(PAUSE_TIMEOUT)?;
        channel.send(HandoverMessage::Stopped)?;
        expect_message(channel, HandoverMessage::Accepting)
    }

    /// Returns the socket files to transfer: the file of the handover socket and those of the listening sockets.
    fn files<'a>(&'a self, server: &'a ServerSockets) -> impl Iterator<Item = &'a SocketFile> {
        server.listening.files.iter().chain([&*self.file])
    }
}

/// Socket files leased to a successor: this process does not remove them at exit. Dropping the lease reclaims them.
struct FileLease<'a>(Vec<&'a SocketFile>);

impl<'a> FileLease<'a> {
    fn new(files: impl Iterator<Item = &'a SocketFile>) -> Self {
        Self(files.filter(|file| file.release()).collect())
    }
}

impl Drop for FileLease<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.claim());
    }
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
    use std::io::Read;
    use std::net::{TcpListener as StdTcpListener, TcpStream};

    use super::*;
    use crate::common::listening::ListeningSocket;

    #[test]
    fn fault_38_late_successor_receives_withdrawn() {
        let directory = tempfile::tempdir().unwrap();
        let handover_listener = HandoverListener::bind(&directory.path().join("handover")).unwrap();
        let socket = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listening = Listening::from_passed(vec![ListeningSocket::Internet(socket)], 1).unwrap();
        let server = ServerSockets { listening: Arc::new(listening), metrics: None };
        let listening = Arc::clone(&server.listening);
        let worker = thread::spawn(move || {
            anello::Runtime::new().unwrap().block_on(async {
                let member = listening.join(0).internet.unwrap();
                while member.accept().await.unwrap().is_some() {}
            })
        });
        // Either the successor never sends Ready, or it sends Ready but never Accepting.
        for sent in [&[][..], &[HandoverMessage::Ready]] {
            let (server_end, successor_end) = UnixStream::pair().unwrap();
            let mut successor = HandoverChannel::new(successor_end).unwrap();
            sent.iter().for_each(|message| successor.send(*message).unwrap());
            let channel = HandoverChannel::with_timeout(server_end, Duration::from_millis(20)).unwrap();
            let lease = FileLease::new(handover_listener.files(&server));
            let result = handover_listener.run_handover(channel, &[], &server, lease);
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
            successor.expect_hello().unwrap();
            let (mut received, mut last) = (0, HandoverMessage::EndOfSockets);
            while let Ok((message, _)) = successor.recv_fd() {
                (received, last) = (received + 1, message);
            }
            // Stopped is sent only in reply to Ready.
            assert_eq!((received, last), (3 + sent.len(), HandoverMessage::Withdrawn));
            // The server has resumed: it accepts the connection and closes it.
            let mut client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        server.listening.close();
        worker.join().unwrap();
        // The server owns the file again.
        drop(handover_listener);
        assert!(!directory.path().join("handover").exists());
    }
}
