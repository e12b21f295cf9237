//! Submission queue entries in the kernel's 64-byte format, with a constructor for each operation in use.
//!
//! ```text
//!  0      1      2       4       8          16        24      28         32          40     42   44    48 … 63
//! ┌──────┬──────┬───────┬───────┬──────────┬─────────┬───────┬──────────┬───────────┬──────┬────┬─────┬────────┐
//! │opcode│flags │ioprio │ fd    │ offset   │ address │ length│ op_flags │ user_data │group │ –  │ –   │ –      │
//! └──────┴──────┴───────┴───────┴──────────┴─────────┴───────┴──────────┴───────────┴──────┴────┴─────┴────────┘
//! ```

use rustix::io_uring::{IoringOp, IoringSqeFlags};

/// `struct io_uring_sqe`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    op_flags: u32,
    pub user_data: u64,
    buffer_group: u16,
    personality: u16,
    file_index: u32,
    unused: [u64; 2],
}

const _: () = assert!(size_of::<Sqe>() == 64);

const ACCEPT_MULTISHOT: u16 = 1;
const RECEIVE_MULTISHOT: u16 = 2;
const POLL_MULTISHOT: u32 = 1;

impl Sqe {
    #[inline(always)]
    fn new(opcode: IoringOp, descriptor: i32) -> Self {
        Self { opcode: opcode as u8, fd: descriptor, ..Self::default() }
    }

    /// `IORING_OP_ACCEPT` (5.5; multishot 5.19).
    pub fn accept(listener: i32, multishot: bool) -> Self {
        let ioprio = if multishot { ACCEPT_MULTISHOT } else { 0 };
        let op_flags = libc::SOCK_CLOEXEC.cast_unsigned();
        Self { ioprio, op_flags, ..Self::new(IoringOp::Accept, listener) }
    }

    /// `IORING_OP_CONNECT` (5.5). The kernel may read the address until the operation completes.
    pub fn connect(socket: i32, address: *const libc::sockaddr, length: u32) -> Self {
        let offset = u64::from(length);
        let connect = Self::new(IoringOp::Connect, socket);
        Self { address: address as u64, offset, ..connect }
    }

    /// `IORING_OP_RECV` (5.6; multishot 6.0) into a buffer of the given group.
    pub fn receive(socket: i32, buffer_group: u16, multishot: bool) -> Self {
        let mut receive = Self::new(IoringOp::Recv, socket);
        receive.flags |= IoringSqeFlags::BUFFER_SELECT.bits();
        let ioprio = if multishot { RECEIVE_MULTISHOT } else { 0 };
        Self { ioprio, buffer_group, ..receive }
    }

    /// `IORING_OP_SEND` (5.6). The kernel may read the data until the operation completes or, for an inline send, until
    /// the entry is consumed.
    #[inline(always)]
    pub fn send(socket: i32, data: *const u8, length: u32, flags: i32) -> Self {
        let op_flags = flags.cast_unsigned();
        Self { address: data as u64, length, op_flags, ..Self::new(IoringOp::Send, socket) }
    }

    /// `IORING_OP_SEND_ZC` (6.0). The kernel may read the data until the notification is posted.
    pub fn send_zero_copy(socket: i32, data: *const u8, length: u32, flags: i32) -> Self {
        Self { opcode: IoringOp::SendZc as u8, ..Self::send(socket, data, length, flags) }
    }

    /// `IORING_OP_POLL_ADD` (5.1; multishot 5.13): posts a completion each time the socket becomes ready.
    pub fn poll(descriptor: i32, mask: u32) -> Self {
        Self { length: POLL_MULTISHOT, ..Self::poll_once(descriptor, mask) }
    }

    /// `IORING_OP_POLL_ADD` (5.1): posts a single completion when the socket is ready.
    pub fn poll_once(descriptor: i32, mask: u32) -> Self {
        // The kernel defines the mask as two 16-bit halves in little-endian order; see `poll32_events`.
        let op_flags = if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask };
        Self { op_flags, ..Self::new(IoringOp::PollAdd, descriptor) }
    }

    /// `IORING_OP_READ` (5.6) at an offset. The kernel may write to the memory until the operation completes.
    pub fn read(file: i32, data: *mut u8, length: u32, offset: u64) -> Self {
        let read = Self::new(IoringOp::Read, file);
        Self { address: data as u64, length, offset, ..read }
    }

    /// `IORING_OP_WRITE` (5.6) at an offset. The kernel may read the memory until the operation completes.
    pub fn write(file: i32, data: *const u8, length: u32, offset: u64) -> Self {
        let write = Self::new(IoringOp::Write, file);
        Self { address: data as u64, length, offset, ..write }
    }

    /// Changes a read or write to `IORING_OP_READ_FIXED` or `IORING_OP_WRITE_FIXED` (5.1). The data must be part of the
    /// registered buffer.
    pub fn with_registered_buffer(mut self, slot: u16) -> Self {
        let is_read = self.opcode == IoringOp::Read as u8;
        self.opcode = if is_read { IoringOp::ReadFixed } else { IoringOp::WriteFixed } as u8;
        Self { buffer_group: slot, ..self }
    }

    /// `IORING_OP_ASYNC_CANCEL` (5.5) of the operation with the given `user_data`.
    pub fn cancel(target: u64) -> Self {
        Self { address: target, ..Self::new(IoringOp::AsyncCancel, -1) }
    }

    /// `IORING_OP_MSG_RING` (Linux 5.18): posts a completion with the given `user_data` on another ring.
    pub fn message(ring: i32, user_data: u64) -> Self {
        Self { offset: user_data, ..Self::new(IoringOp::MsgRing, ring) }
    }

    pub fn with_user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// Suppresses the completion if the operation succeeds (`IOSQE_CQE_SKIP_SUCCESS`, Linux 5.17).
    #[inline(always)]
    pub fn skip_success_cqe(mut self) -> Self {
        self.flags |= IoringSqeFlags::CQE_SKIP_SUCCESS.bits();
        self
    }
}
