//! System calls on UDP sockets: batches of datagrams and their control messages.
//!
//! All calls pass `MSG_DONTWAIT`, so that they do not depend on the blocking mode of the socket.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags};

use crate::driver::datagram::info::{DatagramInfo, Ecn, OutgoingDatagram};
use crate::driver::datagram::messages::{IncomingMessages, MAX_BATCH_DATAGRAMS, Messages, Name};
use crate::driver::datagram::recv_batch::RecvBatch;

/// Space for the control messages of one sent datagram: `in6_pktinfo`, two traffic classes and the segment size take
/// 112 bytes.
const SEND_CONTROL_WORDS: usize = 16;

/// Memory for sent datagrams.
type OutgoingMessages<const DATAGRAMS: usize> = Messages<DATAGRAMS, SEND_CONTROL_WORDS>;

/// Repeats a call that was interrupted by a signal.
fn retry(mut action: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(action()) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

// ---- Single datagrams without control messages ------------------------------------------------------------------

pub(crate) fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (bytes, _) = retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, flags | RecvFlags::DONTWAIT))?;
    Ok(bytes)
}

pub(crate) fn recv_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, SocketAddr)> {
    let received = retry_on_intr(|| rustix::net::recvfrom(socket, &mut *buffer, flags | RecvFlags::DONTWAIT));
    let (bytes, _, source) = received?;
    let source = source.and_then(|source| SocketAddr::try_from(source).ok()).ok_or_else(not_an_ip_socket)?;
    Ok((bytes, source))
}

pub(crate) fn send(socket: BorrowedFd<'_>, payload: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| rustix::net::send(socket, payload, flags))?)
}

pub(crate) fn send_to(socket: BorrowedFd<'_>, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| rustix::net::sendto(socket, payload, flags, &to))?)
}

fn not_an_ip_socket() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "not an IP socket")
}

// ---- Receiving --------------------------------------------------------------------------------------------------

const RECEIVE_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;

/// Receives one datagram with its control messages (`recvmsg(2)`).
pub(crate) fn recv_message(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
    let mut messages = IncomingMessages::<1>::new();
    let datagram_bytes = buffer.len();
    messages.prepare(0..1, buffer, datagram_bytes);
    let message = messages.headers[0].as_mut_ptr();
    // SAFETY: the header is initialised, and points to the buffer, which is borrowed, and to entries of `messages`. The
    // kernel accesses them only during the call, and writes the control messages.
    unsafe {
        let header = &raw mut (*message).msg_hdr;
        let bytes = retry(|| libc::recvmsg(socket.as_raw_fd(), header, RECEIVE_FLAGS))?;
        (*message).msg_len = bytes as libc::c_uint;
        let (mut info, header) = received_info(&messages, 0, datagram_bytes);
        if header.msg_controllen > 0 {
            read_control(header, &mut info);
        }
        Ok(info)
    }
}

/// Replaces the datagrams in the batch by as many as have arrived (`recvmmsg(2)`). On error, the batch is empty.
pub(crate) fn recv_batch(socket: BorrowedFd<'_>, batch: &mut RecvBatch) -> io::Result<()> {
    batch.clear();
    let (datagram_bytes, count) = (batch.datagram_bytes(), batch.max_datagrams());
    let (bytes, infos, messages) = batch.parts_mut();
    let prepared = messages.prepared(bytes, datagram_bytes, count);
    let headers = prepared.headers.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: `count` headers are initialised, and point to separate memory of the batch with the given sizes. The kernel
    // accesses them only during the call.
    let received = retry(|| unsafe {
        let count = count as libc::c_uint;
        libc::recvmmsg(socket.as_raw_fd(), headers, count, RECEIVE_FLAGS as _, ptr::null_mut()) as _
    })?;
    for index in 0..received {
        // SAFETY: the kernel has received a datagram with this header, and has written its control messages.
        unsafe {
            let (info, header) = received_info(prepared, index, datagram_bytes);
            infos.push(info);
            // Stored in place, which costs less than moving the metadata.
            if header.msg_controllen > 0
                && let Some(info) = infos.last_mut()
            {
                read_control(header, info);
            }
        }
    }
    messages.set_changed(received);
    Ok(())
}

/// Returns the metadata of a received datagram, without its control messages.
///
/// # Safety
/// The kernel must have received a datagram with this header.
#[inline(always)]
unsafe fn received_info<const DATAGRAMS: usize>(
    messages: &IncomingMessages<DATAGRAMS>,
    index: usize,
    datagram_bytes: usize,
) -> (DatagramInfo, &libc::msghdr) {
    // SAFETY: the header is initialised, and the kernel has changed only its lengths and flags.
    let message = unsafe { messages.headers[index].assume_init_ref() };
    let header = &message.msg_hdr;
    // SAFETY: the kernel has written `msg_namelen` bytes of an address to the entry. `received_name` reads only as many
    // bytes as the family and the length allow.
    let source = unsafe { received_name(messages.names[index].as_ptr(), header.msg_namelen) };
    let mut info = DatagramInfo::new(source, (message.msg_len as usize).min(datagram_bytes));
    info.is_truncated = header.msg_flags & libc::MSG_TRUNC != 0;
    (info, header)
}

/// Returns the address that the kernel has written.
///
/// # Safety
/// The first `length` bytes of `name` must be initialised.
unsafe fn received_name(name: *const Name, length: libc::socklen_t) -> SocketAddr {
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    }
    // SAFETY: each field is read only if the kernel has written at least its size. Addresses consist of integers.
    unsafe {
        match libc::c_int::from((*name).family) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let v4 = &(*name).v4;
                SocketAddr::V4(SocketAddrV4::new(ipv4(v4.sin_addr), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let v6 = &(*name).v6;
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id))
            }
            _ => SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        }
    }
}

fn ipv4(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

/// Stores the contents of the control messages in `info`.
///
/// # Safety
/// `header` must describe control messages that the kernel has written.
#[allow(clippy::unnecessary_cast, reason = "the type of the length differs between C libraries")]
unsafe fn read_control(header: &libc::msghdr, info: &mut DatagramInfo) {
    // SAFETY: the macros of the C library visit the messages within `msg_controllen`. No reference to a header is
    // created, because it would not cover the payload. The payload is read unaligned, and only if the message is long
    // enough.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            let bytes = ((*message).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let has = |size: usize| bytes >= size;
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if has(size_of::<libc::in_pktinfo>()) => {
                    let packet: libc::in_pktinfo = ptr::read_unaligned(data.cast());
                    info.destination = Some(IpAddr::V4(ipv4(packet.ipi_addr)));
                    info.interface_index = u32::try_from(packet.ipi_ifindex).ok();
                    info.reply_source = Some(IpAddr::V4(ipv4(packet.ipi_spec_dst)));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if has(size_of::<libc::in6_pktinfo>()) => {
                    let packet: libc::in6_pktinfo = ptr::read_unaligned(data.cast());
                    let destination = Ipv6Addr::from(packet.ipi6_addr.s6_addr);
                    info.destination = Some(IpAddr::V6(destination));
                    info.interface_index = Some(packet.ipi6_ifindex);
                    info.reply_source =
                        Some(IpAddr::V6(destination)).filter(|address| !address.is_multicast());
                }
                // The kernel reports one byte.
                (libc::IPPROTO_IP, libc::IP_TOS) if has(1) => info.ecn = Some(Ecn::from_bits(*data)),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if has(size_of::<libc::c_int>()) => {
                    let class: libc::c_int = ptr::read_unaligned(data.cast());
                    info.ecn = Some(Ecn::from_bits(class as u8));
                }
                (libc::SOL_UDP, libc::UDP_GRO) if has(size_of::<libc::c_int>()) => {
                    let size: libc::c_int = ptr::read_unaligned(data.cast());
                    // A single datagram also has a size if it is the last one of a group.
                    info.segment_size = usize::try_from(size).ok().filter(|size| *size > 0);
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
}

// ---- Sending ----------------------------------------------------------------------------------------------------

/// Sends datagrams with their control messages, at most `MAX_BATCH_DATAGRAMS` (`sendmmsg(2)`). Returns the number of
/// datagrams that were sent, at least one. Returns an error only if the first one could not be sent.
pub(crate) fn send_batch(
    socket: BorrowedFd<'_>,
    is_ipv6: bool,
    datagrams: &[OutgoingDatagram<'_>],
) -> io::Result<usize> {
    if let [datagram] = datagrams {
        return send_message(socket, is_ipv6, datagram).map(|_| 1);
    }
    let datagrams = &datagrams[..datagrams.len().min(MAX_BATCH_DATAGRAMS)];
    let mut messages = OutgoingMessages::<MAX_BATCH_DATAGRAMS>::new();
    for (index, datagram) in datagrams.iter().enumerate() {
        write_header(&mut messages, index, datagram, is_ipv6);
    }
    let headers = messages.headers.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: one header per datagram was written, and points to the payload, which is borrowed, and to entries of
    // `messages` that are initialised up to the given lengths. The kernel accesses them only during the call.
    retry(|| unsafe {
        libc::sendmmsg(socket.as_raw_fd(), headers, datagrams.len() as libc::c_uint, SEND_FLAGS as _) as _
    })
}

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Sends one datagram: `sendto(2)`, or `sendmsg(2)` with control messages. Both cost less than `sendmmsg(2)`.
fn send_message(socket: BorrowedFd<'_>, is_ipv6: bool, datagram: &OutgoingDatagram<'_>) -> io::Result<usize> {
    if !has_control(datagram) {
        return match datagram.destination {
            Some(destination) => send_to(socket, datagram.payload, destination),
            None => send(socket, datagram.payload),
        };
    }
    let mut messages = OutgoingMessages::<1>::new();
    let header = &raw const write_header(&mut messages, 0, datagram, is_ipv6).msg_hdr;
    // SAFETY: as in `send_batch`.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), header, SEND_FLAGS) })
}

/// Initialises the header with an index, which points to the payload of the datagram.
#[inline]
fn write_header<'a, const DATAGRAMS: usize>(
    messages: &'a mut OutgoingMessages<DATAGRAMS>,
    index: usize,
    datagram: &OutgoingDatagram<'_>,
    is_ipv6: bool,
) -> &'a libc::mmsghdr {
    // The kernel does not write to the payload.
    let slice = libc::iovec {
        iov_base: datagram.payload.as_ptr().cast_mut().cast(),
        iov_len: datagram.payload.len(),
    };
    // SAFETY: all fields of `msghdr` are integers and pointers, for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    if let Some(destination) = datagram.destination {
        header.msg_name = messages.names[index].as_mut_ptr().cast();
        header.msg_namelen = write_name(&mut messages.names[index], destination);
    }
    (header.msg_iov, header.msg_iovlen) = (messages.slices[index].write(slice), 1);
    if has_control(datagram) {
        let (control, length) = write_control(&mut messages.controls[index], datagram, is_ipv6);
        (header.msg_control, header.msg_controllen) = (control.cast(), length as _);
    }
    messages.headers[index].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 })
}

fn write_name(name: &mut MaybeUninit<Name>, address: SocketAddr) -> libc::socklen_t {
    match address {
        SocketAddr::V4(address) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            name.write(Name { v4 });
            size_of::<libc::sockaddr_in>() as _
        }
        SocketAddr::V6(address) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            name.write(Name { v6 });
            size_of::<libc::sockaddr_in6>() as _
        }
    }
}

/// Returns `true` if the datagram may have control messages.
#[inline]
fn has_control(datagram: &OutgoingDatagram<'_>) -> bool {
    datagram.source.is_some()
        || datagram.interface_index != 0
        || datagram.ecn.is_some()
        || datagram.segment_size != 0
}

/// Writes the control messages of a datagram. Returns a pointer to them and their length, which is 0 if there are none.
///
/// If the kernel sends an IPv6 socket's datagram to an IPv4 address, it reads the control messages of IPv4.
fn write_control(
    space: &mut MaybeUninit<[u64; SEND_CONTROL_WORDS]>,
    datagram: &OutgoingDatagram<'_>,
    is_ipv6: bool,
) -> (*mut u64, usize) {
    let mut writer = ControlWriter { words: space.write([0; SEND_CONTROL_WORDS]), length: 0 };
    let destination = datagram.destination.map(|destination| destination.ip().to_canonical());
    let source = datagram.source.map(|source| source.to_canonical());
    if source.is_some() || datagram.interface_index != 0 {
        let is_v4 = source.or(destination).map_or(!is_ipv6, |address| address.is_ipv4());
        if is_v4 {
            let address = match source {
                Some(IpAddr::V4(address)) => address,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let packet = libc::in_pktinfo {
                ipi_ifindex: datagram.interface_index.cast_signed(),
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            writer.push(libc::IPPROTO_IP, libc::IP_PKTINFO, packet);
        } else {
            let address = match source {
                Some(IpAddr::V6(address)) => address,
                _ => Ipv6Addr::UNSPECIFIED,
            };
            let packet = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: address.octets() },
                ipi6_ifindex: datagram.interface_index,
            };
            writer.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, packet);
        }
    }
    if let Some(ecn) = datagram.ecn {
        let class = libc::c_int::from(ecn.bits());
        // Each family ignores the control message of the other one.
        if !is_ipv6 || destination.is_none_or(|address| address.is_ipv4()) {
            writer.push(libc::IPPROTO_IP, libc::IP_TOS, class);
        }
        if is_ipv6 && destination.is_none_or(|address| address.is_ipv6()) {
            writer.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
        }
    }
    // The kernel splits the payload even if it fits into one segment, but refuses some payloads that it need not split.
    if datagram.segment_count() > 1 {
        writer.push(libc::SOL_UDP, libc::UDP_SEGMENT, datagram.segment_size);
    }
    (writer.words.as_mut_ptr(), writer.length)
}

/// Appends control messages to zeroed memory.
struct ControlWriter<'a> {
    words: &'a mut [u64; SEND_CONTROL_WORDS],
    /// Number of bytes written, a multiple of the alignment of control messages.
    length: usize,
}

impl ControlWriter<'_> {
    /// Appends a control message whose payload is a structure of the C library without padding.
    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, payload: T) {
        // SAFETY: these functions only compute sizes.
        let (length, space) = unsafe {
            (libc::CMSG_LEN(size_of::<T>() as _) as usize, libc::CMSG_SPACE(size_of::<T>() as _) as usize)
        };
        assert!(self.length + space <= size_of_val(self.words), "control messages exceed their space");
        let start = self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.length).cast::<libc::cmsghdr>();
        // SAFETY: the message lies within `words`, as asserted above, and is aligned, because `words` and `length` are.
        // The payload follows the header within `length` bytes.
        unsafe {
            (*start).cmsg_len = length as _;
            (*start).cmsg_level = level;
            (*start).cmsg_type = kind;
            ptr::write_unaligned(libc::CMSG_DATA(start).cast(), payload);
        }
        self.length += space;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(datagram: &OutgoingDatagram<'_>, is_ipv6: bool) -> DatagramInfo {
        let mut space = MaybeUninit::uninit();
        let (control, length) = write_control(&mut space, datagram, is_ipv6);
        // SAFETY: zero is a valid value for all fields.
        let mut header: libc::msghdr = unsafe { zeroed() };
        (header.msg_control, header.msg_controllen) = (control.cast(), length as _);
        let mut info = DatagramInfo::new(SocketAddr::from(([0, 0, 0, 0], 0)), 0);
        if length > 0 {
            // SAFETY: the header describes the messages that were written above.
            unsafe { read_control(&header, &mut info) };
        }
        info
    }

    #[test]
    fn control_messages_round_trip() {
        let v4 = OutgoingDatagram::new(&[0; 10], SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(round_trip(&v4, false), DatagramInfo::new(SocketAddr::from(([0, 0, 0, 0], 0)), 0));
        let source = IpAddr::from([127, 0, 0, 9]);
        let info = round_trip(&v4.with_source(source).with_interface_index(7).with_ecn(Ecn::Ect0), false);
        assert_eq!((info.reply_source, info.interface_index), (Some(source), Some(7)));
        let v6 = OutgoingDatagram::new(&[0; 10], SocketAddr::from((Ipv6Addr::LOCALHOST, 1)));
        let source = IpAddr::from(Ipv6Addr::LOCALHOST);
        let all = v6.with_source(source).with_interface_index(7).with_ecn(Ecn::Ce).with_segment_size(3);
        let info = round_trip(&all, true);
        assert_eq!(
            (info.destination, info.interface_index, info.ecn),
            (Some(source), Some(7), Some(Ecn::Ce))
        );
        // All control messages fit into their space.
        let most = OutgoingDatagram::to_peer(&[0; 10]).with_source(source).with_ecn(Ecn::Ect1);
        assert_eq!(round_trip(&most.with_segment_size(3), true).ecn, Some(Ecn::Ect1));
    }

    #[test]
    fn segment_size_is_sent_only_if_payload_is_longer() {
        let mut space = MaybeUninit::uninit();
        let datagram = OutgoingDatagram::to_peer(&[0; 10]).with_segment_size(10);
        assert_eq!(write_control(&mut space, &datagram, false).1, 0);
        let datagram = OutgoingDatagram::to_peer(&[0; 11]).with_segment_size(10);
        assert!(write_control(&mut space, &datagram, false).1 > 0);
    }

    #[test]
    fn addresses_round_trip() {
        for address in ["192.0.2.1:53", "[2001:db8::1%5]:443", "[::ffff:192.0.2.1]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            let mut name = MaybeUninit::uninit();
            let length = write_name(&mut name, address);
            // SAFETY: the first `length` bytes are initialised.
            assert_eq!(unsafe { received_name(name.as_ptr(), length) }, address);
        }
    }
}
