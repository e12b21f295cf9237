//! The one that hands over.

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
use crate::listening::SocketFile;

/// Newcomers that wait for one that is being served.
const BACKLOG: i32 = 16;

/// How long the workers may take to stop or go on.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where newcomers ask.
#[derive(Debug)]
pub struct HandoverListener {
    listener: UnixListener,
    file: Arc<SocketFile>,
}

/// What is handed over, and who has to stop for it.
pub trait HandoverSource: Send + 'static {
    /// Duplicates of the sockets that requests come from; none when this process accepts no more for good.
    fn sockets(&self) -> io::Result<Vec<OwnedFd>>;
    /// The file of the socket that requests come from, if it has one.
    fn file(&self) -> Option<&SocketFile>;
    /// A duplicate of the socket of /metrics, if there is one.
    fn metrics(&self) -> io::Result<Option<TcpListener>>;
    /// Has this process accept no more, for now.
    fn pause(&self, within: Duration) -> io::Result<()>;
    /// Has it accept again.
    fn resume(&self, within: Duration) -> io::Result<()>;
    /// Has it end: another has the sockets.
    fn transfer_done(&self);
}

impl HandoverListener {
    /// Makes a door at a path where there is nothing, for this user alone.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let make = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // The file that bind makes has the mode of the socket, less the umask: at no time may others connect.
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(&SockAddr::unix(path)?)?;
            let file = SocketFile::new_owned(path)?;
            socket.listen(BACKLOG)?;
            Ok(Self { listener: OwnedFd::from(socket).into(), file: Arc::new(file) })
        };
        make().map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("--handover {}: {error}", path.display()))
        })
    }

    /// The door that another server had at this path.
    pub fn from_predecessor(listener: UnixListener, path: &Path) -> io::Result<Self> {
        Ok(Self { listener, file: Arc::new(SocketFile::new_unowned(path)?) })
    }

    /// The file, to be held until the process ends.
    pub fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }

    /// Serves newcomers, by a thread that ends when one has taken over.
    pub fn spawn(self, source: impl HandoverSource) -> io::Result<()> {
        thread::Builder::new().name("handover".into()).spawn(move || self.serve(&source))?;
        Ok(())
    }

    fn serve(self, source: &impl HandoverSource) {
        loop {
            match self.listener.accept().and_then(|(stream, _)| self.serve_successor(stream, source)) {
                Ok(None) => return source.transfer_done(),
                Ok(Some(successor)) => {
                    // This process ends: whoever asks is to find that nobody is here, and only then that it was not heard.
                    self.files(source).for_each(SocketFile::remove);
                    drop(self.listener);
                    return drop(successor);
                }
                Err(error) => {
                    tracing::warn!(%error, "the sockets were not handed over: this process goes on");
                    // Unless it was told to end meanwhile: then the files have been left for the newcomer.
                    if source.sockets().is_ok_and(|sockets| sockets.is_empty()) {
                        self.files(source).for_each(SocketFile::remove);
                    }
                    // The fault may be the door's: it is not to keep a core busy.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Serves a newcomer. It is returned unheard when this process accepts no more for good.
    fn serve_successor(
        &self,
        successor: UnixStream,
        source: &impl HandoverSource,
    ) -> io::Result<Option<UnixStream>> {
        // Before the look at the sockets: a process that is told to end after that leaves the files to the newcomer.
        let lease = FileLease::new(self.files(source));
        let sockets = source.sockets()?;
        if sockets.is_empty() {
            return Ok(Some(successor));
        }
        run_handover(HandoverChannel::new(successor)?, &sockets, source, &self.listener, lease)?;
        Ok(None)
    }

    /// The files that go over: that of the door, and that of the sockets, if they have one.
    fn files<'a>(&'a self, source: &'a impl HandoverSource) -> impl Iterator<Item = &'a SocketFile> {
        source.file().into_iter().chain([&*self.file])
    }
}

/// Files that are a newcomer's for now: who ends leaves them alone. They are this process's again when this is dropped.
struct FileLease<'a>(Vec<&'a SocketFile>);

impl<'a> FileLease<'a> {
    /// Those of them that are this process's.
    fn new(files: impl Iterator<Item = &'a SocketFile>) -> Self {
        Self(files.filter(|file| file.release()).collect())
    }

    /// They are the newcomer's for good.
    fn commit(mut self) {
        self.0.clear();
    }
}

impl Drop for FileLease<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.claim());
    }
}

/// One newcomer, to the end.
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
        // Said before it is so, so that the two do not accept at once; and always said: a newcomer that finds nobody here
        // takes this process for dead.
        channel.send(HandoverMessage::Withdrawn).ok();
        drop(channel);
        source.resume(PAUSE_TIMEOUT)?;
        return Err(error);
    }
    lease.commit();
    if let Err(error) = channel.send(HandoverMessage::Done) {
        tracing::debug!(%error, "the newcomer has not waited to hear that it has the sockets");
    }
    Ok(())
}

/// Gives everything, stops accepting, and hears that the newcomer accepts.
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
        message => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the newcomer has said {message:?} instead of {expected:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What was asked of a server.
    #[derive(Default)]
    struct RecordedCalls(Mutex<Vec<&'static str>>);

    impl RecordedCalls {
        fn note(&self, what: &'static str) -> io::Result<()> {
            self.0.lock().unwrap().push(what);
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
            self.note("pause")
        }
        fn resume(&self, _: Duration) -> io::Result<()> {
            self.note("resume")
        }
        fn transfer_done(&self) {}
    }

    #[test]
    fn fault_38_a_newcomer_that_is_late_is_told_that_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let handover_listener = HandoverListener::bind(&folder.path().join("door")).unwrap();
        // It never says that it is ready; or it does, and then not that it accepts.
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
        // The file is the server's again.
        drop(handover_listener);
        assert!(!folder.path().join("door").exists());
    }
}
