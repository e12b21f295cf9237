//! State machine for kernels that complete operations: io_uring and the simulated kernel.
//!
//! # Receiving
//!
//! ```text
//!              poll                      small messages
//!   Idle ───────────────> Ring ──────────────────────────────> chunks from the buffer ring
//!    ^  \                  │  full buffer and more data, no buffer left, queue full: cancel
//!    │   \                 v
//!    │    \           Cancelling ── terminal completion ──> Idle
//!    │     \  direct
//!    │      └───────────> Polling ── readable ──> recv(2) into memory in the CPU cache
//!    └── small messages again: cancel ──┘
//! ```
//!
//! A stream whose messages do not fit into a ring buffer is *direct*: the ring only polls it for readability, and the
//! driver receives its data with system calls. Streams are also direct when the buffer ring is exhausted, when the
//! kernel has no buffer rings, and when multishot receive is unreliable on their sockets.
//!
//! On kernels where a receive into the ring can miss a connection reset, a hangup poll is also in flight. Its
//! completion cancels the receive, and the next receive reports the reset. The invariants below apply to this poll as
//! they do to a receive.
//!
//! # Sending
//!
//! One send is in flight per stream: the front of its queue. An inline send is confirmed when the kernel has consumed
//! its entry and all completions have been read. If there is no completion for it, all its bytes were sent.
//!
//! # Invariants
//!
//! - A stream is removed from the table only when `receiving` and `sending` are `Idle` and neither a hangup poll nor a
//!   connect is in flight. The kernel then uses neither its descriptor nor its memory, except memory in
//!   `zero_copy_sends`.
//! - The front of the send queue is neither replaced nor dropped while `sending` is not `Idle`.
//! - A direct receive is made only while no ring receive is armed and the queue of chunks is empty. This preserves the
//!   byte order of the stream.
//! - While `receiving` is `Ring`, neither EOF nor an error is pending; while `sending` is `Idle`, the send queue is
//!   empty. The fast paths of `poll_receive` and `poll_send` rely on both.

mod accept;
mod dropped_completions;
mod receive;
mod release;
mod send;
mod state;
mod stream;
mod turn;

pub(crate) use self::state::Proactor;
