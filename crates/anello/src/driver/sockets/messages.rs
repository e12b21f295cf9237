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
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::ptr;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::address::kernel_address;
use crate::driver::sockets::options::PeerCredentials;

/// Maximum number of descriptors in one message (`SCM_MAX_FD` of the kernel).
pub(crate) const MAX_MESSAGE_FDS: usize = 253;

const FDS_SPACE_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS));

/// Space for received descriptors, credentials, and the messages that other options of the socket cause: 2048 bytes.
const CONTROL_WORDS: usize = 256;
const _: () = assert!(CONTROL_WORDS * 8 > FDS_SPACE_BYTES);

/// Type of the control message with a process descriptor (Linux 6.5).
const SCM_PIDFD: libc::c_int = 4;

/// Result of [`recv_with_fds`].
#[derive(Debug, Default)]
pub(crate) struct ReceivedMessage {
    pub bytes: usize,
    /// Name of the sender's socket, only for datagrams: a path, or a zero and an abstract name. Empty if it is unnamed.
    pub source: Vec<u8>,
    /// True if the datagram was longer than the buffer.
    pub is_truncated: bool,
    /// True if the kernel has discarded descriptors: the process has no free descriptors, or the message contained
    /// other control data that did not fit.
    pub are_fds_truncated: bool,
    /// Credentials of the sender. Only if the socket requests them (`SO_PASSCRED`).
    pub credentials: Option<PeerCredentials>,
}

/// Descriptors received from a Unix stream.
#[derive(Debug, Default)]
pub(crate) struct ReceivedFds {
    pub fds: Vec<OwnedFd>,
    /// See [`ReceivedMessage::are_fds_truncated`].
    pub are_truncated: bool,
}

/// Returns an error if a message cannot hold this number of descriptors.
pub(in super::super) fn check_fd_count(count: usize) -> io::Result<()> {
    if count <= MAX_MESSAGE_FDS {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("cannot send {count} descriptors: a message holds at most {MAX_MESSAGE_FDS}"),
    ))
}

/// Sends bytes and descriptors in one message without blocking (`sendmsg(2)` with `SCM_RIGHTS`). Returns the number of
/// bytes that the kernel has taken. If it is an error, no descriptor was sent.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    to: Option<&UnixAddress>,
) -> io::Result<usize> {
    check_fd_count(fds.len())?;
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
///
/// Does not use rustix, whose type for credentials cannot represent a process of another PID namespace.
pub(crate) fn recv_with_fds(
    socket: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<ReceivedMessage> {
    // SAFETY: these structures consist of integers and pointers, for which zero is a valid value.
    let (mut name, mut header) = unsafe { (zeroed::<libc::sockaddr_un>(), zeroed::<libc::msghdr>()) };
    let mut space = MaybeUninit::<[u64; CONTROL_WORDS]>::uninit();
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of_val(&name) as _;
    // `IoSliceMut` has the layout of `iovec`.
    (header.msg_iov, header.msg_iovlen) = (buffers.as_mut_ptr().cast(), buffers.len() as _);
    (header.msg_control, header.msg_controllen) = (space.as_mut_ptr().cast(), size_of_val(&space) as _);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let bytes = retry_on_intr(|| {
        // SAFETY: the header points to memory with the given sizes, which is borrowed or local. The kernel accesses it
        // only during the call.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        usize::try_from(result)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    })?;
    let mut message = ReceivedMessage {
        bytes,
        source: name_bytes(&name, header.msg_namelen as usize).to_vec(),
        is_truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        are_fds_truncated: header.msg_flags & libc::MSG_CTRUNC != 0,
        credentials: None,
    };
    // SAFETY: the kernel has written the control messages that the header describes.
    unsafe { take_control(&header, fds, &mut message) };
    Ok(message)
}

/// Returns the bytes of the name that the kernel has written: a path, possibly followed by zeros, or a zero and an
/// abstract name. Empty for an unnamed socket.
fn name_bytes(name: &libc::sockaddr_un, length: usize) -> &[u8] {
    let bytes = length.saturating_sub(offset_of!(libc::sockaddr_un, sun_path)).min(name.sun_path.len());
    // SAFETY: the range is within the array, and `c_char` has the layout of `u8`.
    unsafe { std::slice::from_raw_parts(name.sun_path.as_ptr().cast(), bytes) }
}

/// Takes ownership of the descriptors in the control messages, and stores the credentials.
///
/// # Safety
/// `header` must describe control messages that the kernel has written, and whose descriptors nothing else owns.
#[allow(clippy::unnecessary_cast, reason = "the type of the length differs between C libraries")]
unsafe fn take_control(header: &libc::msghdr, fds: &mut Vec<OwnedFd>, message: &mut ReceivedMessage) {
    // SAFETY: the macros of the C library visit the messages within `msg_controllen`. No reference to a header is
    // created, because it would not cover the payload. Payloads are read unaligned, and only as far as the message
    // extends. The kernel has created the descriptors for this process, and each is wrapped once.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(header);
        while !part.is_null() {
            let data = libc::CMSG_DATA(part);
            let bytes = ((*part).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let count = bytes / size_of::<libc::c_int>();
            let number = |index| ptr::read_unaligned(data.cast::<libc::c_int>().add(index));
            match ((*part).cmsg_level, (*part).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    fds.extend((0..count).map(|index| OwnedFd::from_raw_fd(number(index))));
                }
                // The application has set SO_PASSPIDFD. The descriptor is closed, because it is not reported. The kernel
                // stores a negated error number if it could not open one.
                (libc::SOL_SOCKET, SCM_PIDFD) if count > 0 && number(0) >= 0 => {
                    drop(OwnedFd::from_raw_fd(number(0)));
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    message.credentials =
                        Some(PeerCredentials::from(ptr::read_unaligned(data.cast::<libc::ucred>())));
                }
                _ => {}
            }
            part = libc::CMSG_NXTHDR(header, part);
        }
    }
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

    /// The kernel stores an error number in place of the process descriptor if it cannot open one, for example because
    /// the process has no free descriptors.
    #[test]
    fn error_in_place_of_process_descriptor_is_ignored() {
        let mut control = [0_u64; 3];
        // SAFETY: this function only computes a size.
        let length = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as _) };
        let part = control.as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: the message fits into the array, which is aligned for its header.
        unsafe {
            (*part).cmsg_len = length as _;
            ((*part).cmsg_level, (*part).cmsg_type) = (libc::SOL_SOCKET, SCM_PIDFD);
            ptr::write_unaligned(libc::CMSG_DATA(part).cast(), -libc::EMFILE);
        }
        // SAFETY: zero is a valid value for all fields.
        let mut header: libc::msghdr = unsafe { zeroed() };
        (header.msg_control, header.msg_controllen) =
            (control.as_mut_ptr().cast(), size_of_val(&control) as _);
        let (mut fds, mut message) = (Vec::new(), ReceivedMessage::default());
        // SAFETY: the header describes the message above, which contains no descriptor.
        unsafe { take_control(&header, &mut fds, &mut message) };
        assert!(fds.is_empty());
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
