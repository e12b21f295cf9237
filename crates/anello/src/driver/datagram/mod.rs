//! Datagrams, independent of the kernel: their metadata, the buffers for several of them, and the message headers of the
//! system calls.

pub(super) mod info;
pub(super) mod messages;
pub(super) mod recv_batch;
