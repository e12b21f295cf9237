//! Wire protocol of the handover: single-byte messages and descriptors over a Unix stream socket.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Greeting sent by the running server. Identifies the protocol and its version.
const HELLO: &[u8] = b"anello handover 1\n";

/// Time limit for a reply from the peer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Message types. The bytes are ASCII letters, so that they are readable in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverMessage {
    /// A listening socket; carries its descriptor.
    Socket = b's' as isize,
    /// The listening socket for /metrics; carries its descriptor.
    Metrics = b'm' as isize,
    /// The handover socket, which successors connect to; carries its descriptor.
    HandoverSocket = b'd' as isize,
    EndOfSockets = b'.' as isize,
    Ready = b'r' as isize,
    Stopped = b'p' as isize,
    Accepting = b'a' as isize,
    Done = b'q' as isize,
    /// The running server has aborted the handover and keeps accepting connections, because the successor took too
    /// long.
    Withdrawn = b'x' as isize,
}

impl HandoverMessage {
    fn from_byte(byte: u8) -> io::Result<Self> {
        use HandoverMessage::*;
        let all = [Socket, Metrics, HandoverSocket, EndOfSockets, Ready, Stopped, Accepting, Done, Withdrawn];
        all.into_iter().find(|message| *message as u8 == byte).ok_or_else(protocol_mismatch)
    }
}

/// One end of the connection between the running server and its successor.
pub struct HandoverChannel {
    stream: UnixStream,
}

impl HandoverChannel {
    /// Returns `PermissionDenied` if the peer runs as another user and is not root.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Self::with_timeout(stream, REPLY_TIMEOUT)
    }

    pub fn with_timeout(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let own = rustix::process::geteuid();
        // The kernel records peer credentials at connect(2) and listen(2), when a server with --user is still root.
        if peer.uid != own && !peer.uid.is_root() {
            let message = format!(
                "peer process {} runs as user {}, expected {} (run both servers as the same user)",
                peer.pid.as_raw_nonzero(),
                peer.uid.as_raw(),
                own.as_raw()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream })
    }

    pub fn send_hello(&mut self) -> io::Result<()> {
        self.stream.write_all(HELLO).map_err(describe_error)
    }

    pub fn expect_hello(&mut self) -> io::Result<()> {
        let mut hello = [0; HELLO.len()];
        self.stream.read_exact(&mut hello).map_err(describe_error)?;
        if hello == HELLO { Ok(()) } else { Err(protocol_mismatch()) }
    }

    pub fn send(&mut self, message: HandoverMessage) -> io::Result<()> {
        // If the peer has disconnected, writing returns an error, because the Rust runtime ignores SIGPIPE.
        self.stream.write_all(&[message as u8]).map_err(describe_error)
    }

    /// Returns `UnexpectedEof` if the peer has disconnected, and `TimedOut` if it does not reply in time.
    pub fn recv(&mut self) -> io::Result<HandoverMessage> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).map_err(describe_error)?;
        HandoverMessage::from_byte(byte[0])
    }

    pub fn send_fd(&mut self, message: HandoverMessage, descriptor: impl AsFd) -> io::Result<()> {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("descriptor does not fit into the ancillary buffer"));
        }
        // One byte per descriptor is sufficient, because the kernel does not merge messages that carry descriptors.
        let bytes = [message as u8];
        let sent = retry_on_intr(|| {
            sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
        });
        sent.map(drop).map_err(|error| describe_error(error.into()))
    }

    /// Receives a message, with its descriptor if it carries one.
    pub fn recv_fd(&mut self) -> io::Result<(HandoverMessage, Option<OwnedFd>)> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut bytes = [IoSliceMut::new(&mut byte)];
            recvmsg(&self.stream, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let received = received.map_err(|error| describe_error(error.into()))?;
        if received.bytes == 0 {
            return Err(describe_error(io::ErrorKind::UnexpectedEof.into()));
        }
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((HandoverMessage::from_byte(byte[0])?, descriptor))
    }
}

pub fn is_disconnected(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn protocol_mismatch() -> io::Error {
    let message =
        "handover protocol mismatch: incompatible anello version (stop the old server, then start this one)";
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn describe_error(error: io::Error) -> io::Error {
    use io::ErrorKind::{TimedOut, WouldBlock};
    match error.kind() {
        kind if is_disconnected(&error) => io::Error::new(kind, "peer process disconnected"),
        WouldBlock | TimedOut => {
            io::Error::new(TimedOut, format!("peer process did not reply within {REPLY_TIMEOUT:?}"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (first_end, second_end) = UnixStream::pair().unwrap();
        let mut first_end = HandoverChannel::new(first_end).unwrap();
        let mut second_end = HandoverChannel::new(second_end).unwrap();
        let (read_end, write_end) = std::io::pipe().unwrap();
        first_end.send_hello().unwrap();
        first_end.send_fd(HandoverMessage::Socket, &write_end).unwrap();
        first_end.send_fd(HandoverMessage::HandoverSocket, &write_end).unwrap();
        first_end.send(HandoverMessage::EndOfSockets).unwrap();
        drop(write_end);
        second_end.expect_hello().unwrap();
        let (message, first_descriptor) = second_end.recv_fd().unwrap();
        assert_eq!(message, HandoverMessage::Socket);
        let (message, second_descriptor) = second_end.recv_fd().unwrap();
        assert_eq!((message, second_descriptor.is_some()), (HandoverMessage::HandoverSocket, true));
        assert!(matches!(second_end.recv_fd().unwrap(), (HandoverMessage::EndOfSockets, None)));
        // The received descriptor refers to the pipe.
        rustix::io::write(first_descriptor.unwrap(), b"ciao").unwrap();
        drop(second_descriptor);
        let mut read = String::new();
        { read_end }.read_to_string(&mut read).unwrap();
        assert_eq!(read, "ciao");
        drop(first_end);
        assert!(is_disconnected(&second_end.recv_fd().unwrap_err()));
        assert!(is_disconnected(&second_end.recv().unwrap_err()));
    }
}
