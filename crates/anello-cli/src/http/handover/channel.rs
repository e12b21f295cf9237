//! The words of the two, and descriptors between them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The first words: which language this is.
const HELLO: &[u8] = b"anello handover 1\n";

/// How long either may take to answer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a word says. Bytes that a person can read in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverMessage {
    /// With a descriptor: a socket that requests come from.
    Socket = b's' as isize,
    /// With a descriptor: the socket of /metrics.
    Metrics = b'm' as isize,
    /// With a descriptor: the socket that newcomers connect to.
    HandoverSocket = b'd' as isize,
    /// That were all of them.
    EndOfSockets = b'.' as isize,
    Ready = b'r' as isize,
    Stopped = b'p' as isize,
    Accepting = b'a' as isize,
    Done = b'q' as isize,
    /// The server goes on by itself: the newcomer was too late.
    Withdrawn = b'x' as isize,
}

impl HandoverMessage {
    fn from_byte(byte: u8) -> io::Result<Self> {
        let messages = [
            Self::Socket,
            Self::Metrics,
            Self::HandoverSocket,
            Self::EndOfSockets,
            Self::Ready,
            Self::Stopped,
            Self::Accepting,
            Self::Done,
            Self::Withdrawn,
        ];
        messages.into_iter().find(|message| message.to_byte() == byte).ok_or_else(protocol_mismatch)
    }

    fn to_byte(self) -> u8 {
        self as u8
    }
}

/// One side of the talk.
#[derive(Debug)]
pub struct HandoverChannel {
    stream: UnixStream,
}

impl HandoverChannel {
    /// Refuses to talk to another user's process.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Self::with_timeout(stream, REPLY_TIMEOUT)
    }

    /// The same, where the other may take so long to answer.
    pub fn with_timeout(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let own = rustix::process::geteuid();
        // One that has changed to another user has made its sockets as root, and so does the next one.
        if peer.uid != own && !peer.uid.is_root() {
            let message = format!(
                "process {} at the other end is of user {}, not {}: both have to be of the same user",
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
        // A peer that has gone is an error, not a signal: programs in Rust ignore SIGPIPE.
        self.stream.write_all(&[message.to_byte()]).map_err(describe_error)
    }

    /// The next word; an error of the kind `UnexpectedEof` when the other is gone.
    pub fn recv(&mut self) -> io::Result<HandoverMessage> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).map_err(describe_error)?;
        HandoverMessage::from_byte(byte[0])
    }

    /// Gives a duplicate of the descriptor away.
    pub fn send_fd(&mut self, message: HandoverMessage, descriptor: impl AsFd) -> io::Result<()> {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("there is no room for a descriptor in a message"));
        }
        // A byte each: the kernel joins no messages that carry descriptors.
        let bytes = [message.to_byte()];
        loop {
            let sent = rustix::net::sendmsg(
                &self.stream,
                &[IoSlice::new(&bytes)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Err(rustix::io::Errno::INTR) => {}
                sent => return sent.map(drop).map_err(|error| describe_error(error.into())),
            }
        }
    }

    /// The next word, with the descriptor that came with it.
    pub fn recv_fd(&mut self) -> io::Result<(HandoverMessage, Option<OwnedFd>)> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut bytes = [IoSliceMut::new(&mut byte)];
            match rustix::net::recvmsg(&self.stream, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received.map_err(|error| describe_error(error.into()))?,
            }
        };
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

/// Whether the other has gone.
pub fn is_disconnected(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Whether the other may be there, and has not answered.
pub fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

fn protocol_mismatch() -> io::Error {
    let message =
        "what was heard is not the hand-over of this version of anello: stop that server, and start again";
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn describe_error(error: io::Error) -> io::Error {
    let text = match error.kind() {
        _ if is_disconnected(&error) => "the other process has gone".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            return io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the other process has not answered within {REPLY_TIMEOUT:?}"),
            );
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (HandoverChannel, HandoverChannel) {
        let (one, other) = UnixStream::pair().unwrap();
        (HandoverChannel::new(one).unwrap(), HandoverChannel::new(other).unwrap())
    }

    #[test]
    fn words_and_descriptors_come_in_order() {
        let (mut one, mut other) = pair();
        let (read_end, write_end) = std::io::pipe().unwrap();
        one.send_hello().unwrap();
        one.send_fd(HandoverMessage::Socket, &write_end).unwrap();
        one.send_fd(HandoverMessage::HandoverSocket, &write_end).unwrap();
        one.send(HandoverMessage::EndOfSockets).unwrap();
        drop(write_end);
        other.expect_hello().unwrap();
        let (message, first) = other.recv_fd().unwrap();
        assert_eq!(message, HandoverMessage::Socket);
        let (message, second) = other.recv_fd().unwrap();
        assert_eq!((message, second.is_some()), (HandoverMessage::HandoverSocket, true));
        assert!(matches!(other.recv_fd().unwrap(), (HandoverMessage::EndOfSockets, None)));
        // They are what was given.
        rustix::io::write(first.unwrap(), b"ciao").unwrap();
        drop(second);
        let mut read = String::new();
        { read_end }.read_to_string(&mut read).unwrap();
        assert_eq!(read, "ciao");
        drop(one);
        assert!(
            is_disconnected(&other.recv_fd().unwrap_err()) && is_disconnected(&other.recv().unwrap_err())
        );
    }

    #[test]
    fn another_language_is_said_with_a_remedy() {
        let (mut one, mut other) = pair();
        one.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        let error = other.expect_hello().unwrap_err();
        assert!(error.to_string().contains("stop that server"), "{error}");
        assert!(other.recv().is_err());
    }
}
