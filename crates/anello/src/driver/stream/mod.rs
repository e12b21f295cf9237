//! Streams and listeners, independent of the kernel: the queue of sends, direct reads, accepted connections, and counts of
//! open connections.

pub(super) mod accepted;
pub(super) mod direct_read;
pub(super) mod open_count;
pub(super) mod send_queue;
pub(super) mod send_side;
