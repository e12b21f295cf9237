//! The successor's side of the handover: receives the sockets of the running server.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;

use super::channel::{HandoverChannel, HandoverMessage, is_disconnected};
use crate::common::error::Context;
use crate::common::listening::ListeningSocket;

/// Maximum number of attempts. If the server exits during a request, its successor may already be listening on the same
/// path.
const MAX_ATTEMPTS: usize = 5;

pub struct Successor {
    channel: HandoverChannel,
    /// Whether the predecessor has died.
    predecessor_gone: bool,
}

pub struct ReceivedSockets {
    pub successor: Successor,
    pub listening: Vec<ListeningSocket>,
    pub metrics: Option<TcpListener>,
    pub handover: UnixListener,
}

/// Serializes the startup of servers that use the same handover path. The returned file must be held until this process
/// has bound its own handover socket or has received the sockets of the running server.
pub fn lock_startup(path: &Path) -> io::Result<File> {
    let mut lock_path = path.to_owned();
    lock_path.as_mut_os_string().push(".lock");
    // The directory can belong to an unprivileged user, so root must not follow links or block on a FIFO.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let open_result =
        File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(&lock_path);
    let lock_result = open_result.and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "not a regular file (remove it)"));
        }
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    });
    let remedy = "use a path in a directory writable by this user";
    lock_result.context_and_remedy(format_args!("--handover: {}", lock_path.display()), remedy)
}

/// Requests the sockets of the server at this path. If there is no server, removes a stale socket file and returns
/// `None`.
pub fn request_handover(path: &Path) -> io::Result<Option<ReceivedSockets>> {
    for _ in 0..MAX_ATTEMPTS {
        let stream = match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                if !fs::symlink_metadata(path)?.file_type().is_socket() {
                    let message = "exists and is not a socket (choose another path)";
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
                }
                return fs::remove_file(path).map(|()| None);
            }
            result => result?,
        };
        match HandoverChannel::new(stream).and_then(receive) {
            Err(error) if is_disconnected(&error) => {}
            result => return result.map(Some),
        }
    }
    let message = "path in use by a process without handover support (stop it or choose another path)";
    Err(io::Error::new(io::ErrorKind::AddrInUse, message))
}

fn receive(mut channel: HandoverChannel) -> io::Result<ReceivedSockets> {
    channel.expect_hello()?;
    let (mut listening, mut metrics, mut handover) = (Vec::new(), None, None);
    loop {
        match channel.recv_fd()? {
            (HandoverMessage::Socket, Some(descriptor)) => {
                listening.push(ListeningSocket::from_descriptor(descriptor)?);
            }
            (HandoverMessage::Metrics, Some(descriptor)) => metrics = Some(TcpListener::from(descriptor)),
            (HandoverMessage::HandoverSocket, Some(descriptor)) => handover = Some(descriptor.into()),
            (HandoverMessage::EndOfSockets, None) => break,
            (HandoverMessage::Withdrawn, _) => return Err(withdrawn_error()),
            (message, _) => return Err(unexpected_message(message)),
        }
    }
    match handover {
        Some(handover) if !listening.is_empty() => {
            let successor = Successor { channel, predecessor_gone: false };
            Ok(ReceivedSockets { successor, listening, metrics, handover })
        }
        _ => Err(unexpected_message(HandoverMessage::EndOfSockets)),
    }
}

impl Successor {
    /// Reports that this process is ready, and waits until the predecessor has stopped accepting connections.
    pub fn report_ready(&mut self) -> io::Result<()> {
        self.exchange(HandoverMessage::Ready, HandoverMessage::Stopped)
    }

    /// Reports that this process is accepting connections, and waits for confirmation from the predecessor.
    pub fn report_accepting(&mut self) -> io::Result<()> {
        if self.predecessor_gone {
            return Ok(());
        }
        match self.exchange(HandoverMessage::Accepting, HandoverMessage::Done) {
            // The predecessor cannot resume before it has read ACCEPTING, which makes it exit, so this process must
            // serve.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(
                    "no confirmation from the old server, which no longer accepts connections; continuing"
                );
                Ok(())
            }
            result => result,
        }
    }

    /// Sends a message and waits for the expected reply. If the predecessor has died, succeeds without a reply.
    fn exchange(&mut self, message: HandoverMessage, expected: HandoverMessage) -> io::Result<()> {
        // If the send fails, messages that the predecessor sent before it exited can still be received.
        let send_result = self.channel.send(message);
        match self.channel.recv() {
            Ok(message) if message == expected => Ok(()),
            Ok(HandoverMessage::Withdrawn) => Err(withdrawn_error()),
            Ok(message) => Err(unexpected_message(message)),
            Err(error) if is_disconnected(&error) => {
                tracing::warn!("old server exited during the handover; continuing without it");
                self.predecessor_gone = true;
                Ok(())
            }
            Err(error) => Err(send_result.err().unwrap_or(error)),
        }
    }
}

fn withdrawn_error() -> io::Error {
    let message = "handover aborted by the running server (see its log)";
    io::Error::new(io::ErrorKind::ConnectionAborted, message)
}

fn unexpected_message(message: HandoverMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected handover message {message:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a successor with the given timeout, and the predecessor's end of its channel.
    fn pair(timeout: Duration) -> (Successor, HandoverChannel) {
        let (successor_end, server_end) = UnixStream::pair().unwrap();
        let channel = HandoverChannel::with_timeout(successor_end, timeout).unwrap();
        (Successor { channel, predecessor_gone: false }, HandoverChannel::new(server_end).unwrap())
    }

    const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

    #[test]
    fn fault_38_withdrawn_successor_fails_although_server_disconnects() {
        for report in [Successor::report_ready, Successor::report_accepting] {
            let (mut successor, mut server) = pair(LONG_TIMEOUT);
            server.send(HandoverMessage::Withdrawn).unwrap();
            drop(server);
            let error = report(&mut successor).unwrap_err();
            assert!(error.to_string().contains("aborted by the running server"), "{error}");
            assert!(!successor.predecessor_gone);
        }
    }

    #[test]
    fn fault_38_successor_continues_after_server_death() {
        let (mut successor, server) = pair(LONG_TIMEOUT);
        drop(server);
        successor.report_ready().unwrap();
        assert!(successor.predecessor_gone);
        successor.report_accepting().unwrap();
    }

    #[test]
    fn fault_38_successor_continues_if_stopped_server_does_not_reply() {
        let (mut successor, mut server) = pair(Duration::from_millis(20));
        // A timeout before STOPPED is an error.
        assert_eq!(successor.report_ready().unwrap_err().kind(), io::ErrorKind::TimedOut);
        successor.report_accepting().unwrap();
        // The predecessor can still read both messages.
        let received = [(); 2].map(|()| server.recv().unwrap());
        assert_eq!(received, [HandoverMessage::Ready, HandoverMessage::Accepting]);
    }
}
