//! Flags for sends, and the message header of a gathered send.

/// Flags for a send with inline completion, which sends what fits into the send buffer and reports a shorter count.
pub(super) const INLINE_SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
/// Flags for a blocking send, which waits until all bytes are accepted.
pub(super) const BLOCKING_SEND_FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Maximum number of chunks in one send.
pub(super) const MAX_IOVECS: usize = 16;

/// Header of a gathered send. For an inline send the kernel can read it until the submission returns, otherwise until
/// the completion of the send.
pub(super) struct Message {
    header: libc::msghdr,
    pub(super) iovecs: [libc::iovec; MAX_IOVECS],
}

impl Message {
    pub(super) fn empty() -> Message {
        // SAFETY: both are C structures of integers and pointers, for which zero is a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// Returns the header for the first `count` parts. The header points into this message, which must not move
    /// afterwards.
    #[inline]
    pub(super) fn prepare_header(&mut self, count: usize) -> *const libc::msghdr {
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        &raw const self.header
    }
}
