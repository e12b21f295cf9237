//! Sends: how they complete, and the header of one that gathers several chunks.

/// A send that completes at submission: takes what there is room for and says so if that was not all.
pub(crate) const INLINE_SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
/// A send that waits until all is taken.
pub(crate) const BLOCKING_SEND_FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Chunks in one send.
pub(crate) const MAX_IOVECS: usize = 16;

/// The header of a send of several chunks. The kernel may read it until the submission returns if the send completes
/// there, else until the send's completion.
pub(crate) struct Message {
    header: libc::msghdr,
    pub(crate) iovecs: [libc::iovec; MAX_IOVECS],
}

impl Message {
    pub(crate) fn empty() -> Message {
        // SAFETY: both are C structures of integers and pointers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    /// The header, for the first `count` parts; it points into this message, which must not move from here on.
    #[inline]
    pub(crate) fn prepare_header(&mut self, count: usize) -> *const libc::msghdr {
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        &raw const self.header
    }
}
