//! The one that takes over.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;

use super::channel::{HandoverChannel, HandoverMessage, is_disconnected, is_timeout};
use crate::listening::ListeningSocket;

/// How often a server that goes while it is asked is asked again: another may have taken its place.
const MAX_ATTEMPTS: usize = 5;

/// What a newcomer was given, and its word with the server that gave it.
#[derive(Debug)]
pub struct Successor {
    channel: HandoverChannel,
    pub sockets: Vec<ListeningSocket>,
    pub metrics: Option<TcpListener>,
    pub handover_listener: UnixListener,
    /// The server has died: there is nobody to talk to.
    predecessor_gone: bool,
}

/// Keeps others from starting at the same path until this one has a door of its own, or has asked whoever has one.
#[derive(Debug)]
pub struct StartLock(#[expect(dead_code, reason = "held")] File);

impl StartLock {
    pub fn acquire(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let name = PathBuf::from(name);
        // The folder may belong to an unprivileged user: what root opens there may be anything.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(&name);
        let locked = opened.and_then(|file| {
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no regular file: remove it"));
            }
            retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(Self(file))
        });
        locked.map_err(|error| {
            let remedy = "name a path in a folder that this user may write to";
            io::Error::new(error.kind(), format!("--handover: {}: {error}: {remedy}", name.display()))
        })
    }
}

/// Asks whoever serves at this path for the sockets. `None` when nobody does; what a server that has died left there is
/// removed then.
pub fn request_handover(path: &Path) -> io::Result<Option<Successor>> {
    let with_path =
        |error: io::Error| io::Error::new(error.kind(), format!("--handover {}: {error}", path.display()));
    for _ in 0..MAX_ATTEMPTS {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_stale(path).map_err(with_path)?;
                return Ok(None);
            }
            Err(error) => return Err(with_path(error)),
        };
        match HandoverChannel::new(stream).and_then(Successor::receive) {
            Ok(successor) => return Ok(Some(successor)),
            Err(error) if is_disconnected(&error) => {}
            Err(error) => return Err(with_path(error)),
        }
    }
    let message = "somebody listens there, and hands nothing over: stop that, or name another path";
    Err(with_path(io::Error::new(io::ErrorKind::AddrInUse, message)))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let message = "it exists, and is no socket: name another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    fs::remove_file(path)
}

impl Successor {
    fn receive(mut channel: HandoverChannel) -> io::Result<Self> {
        channel.expect_hello()?;
        let (mut sockets, mut metrics, mut handover_listener) = (Vec::new(), None, None);
        loop {
            match channel.recv_fd()? {
                (HandoverMessage::Socket, Some(descriptor)) => {
                    sockets.push(ListeningSocket::from_descriptor(descriptor)?);
                }
                (HandoverMessage::Metrics, Some(descriptor)) => metrics = Some(TcpListener::from(descriptor)),
                (HandoverMessage::HandoverSocket, Some(descriptor)) => {
                    handover_listener = Some(UnixListener::from(descriptor))
                }
                (HandoverMessage::EndOfSockets, None) => break,
                (HandoverMessage::Withdrawn, _) => return Err(withdrawn_error()),
                (message, _) => return Err(unexpected_message(message)),
            }
        }
        match handover_listener {
            Some(handover_listener) if !sockets.is_empty() => {
                Ok(Self { channel, sockets, metrics, handover_listener, predecessor_gone: false })
            }
            _ => Err(unexpected_message(HandoverMessage::EndOfSockets)),
        }
    }

    /// Says that everything is prepared, and waits until the server has stopped accepting.
    pub fn report_ready(&mut self) -> io::Result<()> {
        self.exchange(HandoverMessage::Ready, HandoverMessage::Stopped)
    }

    /// Says that this process accepts, and waits until the server knows.
    pub fn report_accepting(&mut self) -> io::Result<()> {
        if self.predecessor_gone {
            return Ok(());
        }
        match self.exchange(HandoverMessage::Accepting, HandoverMessage::Done) {
            // It has stopped accepting, and hears this first when it goes on: there is to be one that serves.
            Err(error) if is_timeout(&error) => {
                tracing::warn!("the server that has stopped accepting says nothing more: this one goes on");
                Ok(())
            }
            result => result,
        }
    }

    /// Says a word, and waits for the answer to it. Without one from a server that has gone, this process is alone.
    fn exchange(&mut self, message: HandoverMessage, expected: HandoverMessage) -> io::Result<()> {
        // What it has said before it went is heard, whether or not this is.
        let send_result = self.channel.send(message);
        match self.channel.recv() {
            Ok(message) if message == expected => Ok(()),
            Ok(HandoverMessage::Withdrawn) => Err(withdrawn_error()),
            Ok(message) => Err(unexpected_message(message)),
            Err(error) if is_disconnected(&error) => {
                tracing::warn!("the server that handed its sockets over has died: this one goes on alone");
                self.predecessor_gone = true;
                Ok(())
            }
            Err(error) => Err(send_result.err().unwrap_or(error)),
        }
    }
}

fn withdrawn_error() -> io::Error {
    let message = "the running server has not waited for this one, and goes on: see its log";
    io::Error::new(io::ErrorKind::ConnectionAborted, message)
}

fn unexpected_message(message: HandoverMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{message:?} was not to be said by the server now"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A newcomer that waits for so long, and the server that has given it what it has.
    fn pair(timeout: Duration) -> (Successor, HandoverChannel) {
        let (one, other) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let successor = Successor {
            channel: HandoverChannel::with_timeout(one, timeout).unwrap(),
            sockets: Vec::new(),
            metrics: None,
            handover_listener: UnixListener::bind(folder.path().join("door")).unwrap(),
            predecessor_gone: false,
        };
        (successor, HandoverChannel::new(other).unwrap())
    }

    const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

    #[test]
    fn fault_38_who_is_told_to_be_late_does_not_take_the_server_for_dead() {
        for report in [Successor::report_ready, Successor::report_accepting] {
            let (mut successor, mut server) = pair(LONG_TIMEOUT);
            server.send(HandoverMessage::Withdrawn).unwrap();
            drop(server);
            let error = report(&mut successor).unwrap_err();
            assert!(error.to_string().contains("goes on"), "{error}");
            assert!(!successor.predecessor_gone);
        }
    }

    #[test]
    fn fault_38_a_server_that_has_died_leaves_the_newcomer_alone() {
        let (mut successor, server) = pair(LONG_TIMEOUT);
        drop(server);
        successor.report_ready().unwrap();
        assert!(successor.predecessor_gone);
        successor.report_accepting().unwrap();
    }

    #[test]
    fn fault_38_a_server_that_has_stopped_and_says_nothing_consents() {
        let (mut successor, mut server) = pair(Duration::from_millis(20));
        // Before it has stopped, it does not.
        assert!(is_timeout(&successor.report_ready().unwrap_err()));
        successor.report_accepting().unwrap();
        // It hears what was said when it goes on.
        assert_eq!(
            (server.recv().unwrap(), server.recv().unwrap()),
            (HandoverMessage::Ready, HandoverMessage::Accepting)
        );
    }
}
