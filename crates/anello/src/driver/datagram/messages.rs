//! Message headers of the system calls that send and receive batches of datagrams.

use std::mem::{MaybeUninit, zeroed};
use std::ops::Range;
use std::ptr;

/// Maximum number of datagrams in one call.
pub(crate) const MAX_BATCH_DATAGRAMS: usize = 64;

/// Space for the control messages of one received datagram: `in6_pktinfo`, `in_pktinfo`, two traffic classes and the
/// segment size take 144 bytes.
pub(in crate::driver) const RECEIVE_CONTROL_WORDS: usize = 20;

/// Socket address of one of the two Internet families.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::driver) union Name {
    pub family: libc::sa_family_t,
    pub v4: libc::sockaddr_in,
    pub v6: libc::sockaddr_in6,
}

/// Memory that the message headers of one call point to. Its fields are initialised as far as they are used.
pub(in crate::driver) struct Messages<const DATAGRAMS: usize, const CONTROL_WORDS: usize> {
    pub names: [MaybeUninit<Name>; DATAGRAMS],
    pub slices: [MaybeUninit<libc::iovec>; DATAGRAMS],
    pub controls: [MaybeUninit<[u64; CONTROL_WORDS]>; DATAGRAMS],
    pub headers: [MaybeUninit<libc::mmsghdr>; DATAGRAMS],
}

/// Memory for received datagrams.
pub(in crate::driver) type IncomingMessages<const DATAGRAMS: usize> =
    Messages<DATAGRAMS, RECEIVE_CONTROL_WORDS>;

impl<const DATAGRAMS: usize, const CONTROL_WORDS: usize> Messages<DATAGRAMS, CONTROL_WORDS> {
    /// Inlined, so that the memory is not moved.
    #[inline(always)]
    pub(in crate::driver) fn new() -> Self {
        Self {
            names: [MaybeUninit::uninit(); DATAGRAMS],
            slices: [MaybeUninit::uninit(); DATAGRAMS],
            controls: [MaybeUninit::uninit(); DATAGRAMS],
            headers: [MaybeUninit::uninit(); DATAGRAMS],
        }
    }
}

impl<const DATAGRAMS: usize> IncomingMessages<DATAGRAMS> {
    /// Initialises headers. Each points to the part of `buffer` with its index, of `datagram_bytes` bytes.
    ///
    /// # Panics
    /// Panics if the buffer is too small for the last one.
    #[inline]
    pub(in crate::driver) fn prepare(
        &mut self,
        indices: Range<usize>,
        buffer: &mut [u8],
        datagram_bytes: usize,
    ) {
        assert!(indices.end * datagram_bytes <= buffer.len(), "buffer too small for the batch");
        let data = buffer.as_mut_ptr();
        for index in indices {
            // `wrapping_add` does not go beyond the buffer, as asserted above.
            let slice = libc::iovec {
                iov_base: data.wrapping_add(index * datagram_bytes).cast(),
                iov_len: datagram_bytes,
            };
            let slice = ptr::from_mut(self.slices[index].write(slice));
            // SAFETY: all fields of `msghdr` are integers and pointers, for which zero is a valid value.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_name = self.names[index].as_mut_ptr().cast();
            header.msg_namelen = size_of::<Name>() as _;
            (header.msg_iov, header.msg_iovlen) = (slice, 1);
            header.msg_control = self.controls[index].as_mut_ptr().cast();
            header.msg_controllen = (RECEIVE_CONTROL_WORDS * 8) as _;
            self.headers[index].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
        }
    }
}

/// Message headers for a buffer that does not move, which are kept between calls. Initialising all of them for each call
/// would cost more than receiving a single datagram.
#[derive(Default)]
pub(in crate::driver) struct RecvMessages {
    messages: Option<Box<IncomingMessages<MAX_BATCH_DATAGRAMS>>>,
    /// Number of headers that the last call has changed.
    changed: usize,
}

// SAFETY: the headers point into the box and to the buffer, which have the same owner. They are used only through
// `&mut`, during a system call.
unsafe impl Send for RecvMessages {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for RecvMessages {}

impl RecvMessages {
    /// Returns headers that are initialised for `count` datagrams. The caller passes the same arguments to each call, and
    /// reports the number of received datagrams with [`set_changed`](Self::set_changed).
    #[inline]
    pub(in crate::driver) fn prepared(
        &mut self,
        buffer: &mut [u8],
        datagram_bytes: usize,
        count: usize,
    ) -> &mut IncomingMessages<MAX_BATCH_DATAGRAMS> {
        let messages = self.messages.get_or_insert_with(|| {
            self.changed = count;
            Box::new(Messages::new())
        });
        messages.prepare(0..self.changed, buffer, datagram_bytes);
        messages
    }

    #[inline]
    pub(in crate::driver) fn set_changed(&mut self, count: usize) {
        self.changed = count;
    }
}
