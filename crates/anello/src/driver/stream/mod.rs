//! Streams and listeners, independent of the kernel: the queue of sends, direct reads, accepted connections, counts of open
//! connections, and released streams that are still sending.

pub(super) mod accepted;
pub(super) mod direct_read;
pub(super) mod lingering;
pub(super) mod open_count;
pub(super) mod send_queue;
pub(super) mod send_side;
