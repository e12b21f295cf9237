//! Messages with control data: descriptor passing on Unix sockets, streams and datagrams alike.
//!
//! [`send_with_fds`] sends a slice of bytes and up to [`MAX_MESSAGE_FDS`] descriptors in one message. On a stream
//! socket, the kernel attaches the descriptors to the first byte that it takes: after a short send, the remaining bytes
//! must be sent without them. An empty message cannot carry descriptors on a stream socket; the kernel discards them.
//!
//! [`recv_with_fds`] receives bytes, and appends the descriptors to the caller's vector. A receive on a stream socket
//! stops after the bytes that belong to a message with descriptors. If a process receives such a message with a call
//! that has no room for control data, such as `recv(2)`, the kernel closes the descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny,
};

use super::kernel_address;

/// Maximum number of descriptors in one message (`SCM_MAX_FD` of the kernel).
pub(crate) const MAX_MESSAGE_FDS: usize = 253;

const FDS_SPACE_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS));

/// Result of [`recv_with_fds`].
#[derive(Debug, Default)]
pub(crate) struct ReceivedMessage {
    pub bytes: usize,
    /// Address of the sender, if the kernel reports one. Only for datagrams.
    pub source: Option<SocketAddrAny>,
    /// True if the datagram was longer than the buffer.
    pub is_truncated: bool,
    /// True if the kernel has discarded descriptors: the process has no free descriptors, or the message contained
    /// other control data that did not fit.
    pub are_fds_truncated: bool,
}

/// Sends bytes and descriptors in one message without blocking (`sendmsg(2)` with `SCM_RIGHTS`). Returns the number of
/// bytes that the kernel has taken. If it is an error, no descriptor was sent.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    to: Option<&UnixAddress>,
) -> io::Result<usize> {
    if fds.len() > MAX_MESSAGE_FDS {
        let count = fds.len();
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot send {count} descriptors: a message holds at most {MAX_MESSAGE_FDS}"),
        ));
    }
    let to = to.map(kernel_address).transpose()?;
    let mut space = [MaybeUninit::uninit(); FDS_SPACE_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "the buffer has space for the maximum number of descriptors");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| match &to {
        Some(to) => rustix::net::sendmsg_addr(socket, to, slices, &mut control, flags),
        None => rustix::net::sendmsg(socket, slices, &mut control, flags),
    })?)
}

/// Receives bytes and appends received descriptors to `fds`, without blocking (`recvmsg(2)`). The descriptors are
/// close-on-exec.
pub(crate) fn recv_with_fds(
    socket: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<ReceivedMessage> {
    let mut space = [MaybeUninit::uninit(); FDS_SPACE_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = retry_on_intr(|| rustix::net::recvmsg(socket, &mut *buffers, &mut control, flags))?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok(ReceivedMessage {
        bytes: message.bytes,
        source: message.address,
        is_truncated: message.flags.contains(ReturnFlags::TRUNC),
        are_fds_truncated: message.flags.contains(ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support these sockets")]
    fn descriptors_arrive_with_bytes_of_their_message() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let sent = send_with_fds(one.as_fd(), &[IoSlice::new(b"fds")], &[writer.as_fd()], None);
        assert_eq!(sent.unwrap(), 3);
        (&one).write_all(b"more").unwrap();
        writer.write_all(b"in the pipe").unwrap();
        drop(writer);
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        let message = recv_with_fds(other.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut fds).unwrap();
        assert_eq!((message.bytes, &bytes[..3], fds.len()), (3, &b"fds"[..], 1));
        assert!(!message.is_truncated && !message.are_fds_truncated);
        drop(fds);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "in the pipe");
        let message = recv_with_fds(other.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut Vec::new());
        assert_eq!(message.unwrap().bytes, 4);
        let empty = recv_with_fds(other.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut Vec::new());
        assert_eq!(empty.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support these sockets")]
    fn maximum_number_of_descriptors_is_accepted_and_more_are_refused() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut fds = vec![file.as_fd(); MAX_MESSAGE_FDS];
        send_with_fds(one.as_fd(), &[IoSlice::new(b"all")], &fds, None).unwrap();
        fds.push(file.as_fd());
        let refused = send_with_fds(one.as_fd(), &[IoSlice::new(b"all")], &fds, None);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let mut received = Vec::new();
        let message =
            recv_with_fds(other.as_fd(), &mut [IoSliceMut::new(&mut [0; 1])], &mut received).unwrap();
        assert_eq!((message.bytes, message.is_truncated, received.len()), (1, true, MAX_MESSAGE_FDS));
    }
}
