//! Simulated kernels: in-memory sockets, a virtual clock and seeded faults. They use neither
//! threads nor real time. The only file descriptors are those in messages of Unix sockets, and process descriptors.
//!
//! ```text
//!   Proactor ── Op ───> SimCompletion ─┐                       Rng: all decisions, in order
//!            <─ Completion ────────────┤                         │
//!                                      ├──> SimNetwork ──> Network: endpoints, listeners, timers, clock
//!   Reactor ─── wait ──> SimReadiness ─┘
//!            <─ Edge ──────────────────┘
//! ```
//!
//! [`network`] models TCP: bounded buffers, half-close, resets and accept queues. [`unix_sockets`] adds Unix streams and
//! [`unix_datagrams`] Unix datagram sockets. [`datagrams`] models UDP: bounded queues, loss, duplication and reordering.
//! [`sockets`], [`datagram_socket`] and [`unix_datagram_socket`] provide system calls on top of them, and inject faults.
//! [`world`] connects the networks of several hosts, and [`remote`] is the part of a network that reaches other hosts.
//!
//! [`completion`] runs the operations of [`operation`] like io_uring, and [`readiness`] reports edge-triggered events
//! like epoll.
//!
//! # Invariants
//!
//! These hold under every fault:
//! - The bytes of a stream arrive exactly once and in order, or the connection fails. The completions of one operation
//!   keep their order.
//! - The kernel uses the socket and memory of an operation until its terminal completion: it reads the driver's memory
//!   when the operation runs, not when it is submitted.
//! - Bytes withheld by a fault are reported again later, like bytes that have just arrived.
//! - If no event can end a wait, the wait returns an error instead of hanging.
//! - The same seed, options and application produce the same run.

mod bytes;
mod completion;
mod datagram_socket;
mod datagram_state;
mod datagrams;
mod event_queue;
mod link;
mod network;
mod operation;
mod readiness;
mod remote;
mod remote_state;
mod segment;
mod signal;
mod socket;
mod socket_options;
mod sockets;
#[cfg(test)]
mod tests;
mod trace;
mod unix_datagram_socket;
mod unix_datagrams;
mod unix_sockets;
mod unix_state;
mod world;

pub(super) use completion::SimCompletion;
pub(super) use datagram_socket::SimDatagramSocket;
pub use link::{LinkOptions, LinkStatistics};
pub(super) use readiness::SimReadiness;
pub(crate) use remote_state::Uplink;
pub(crate) use signal::SimSignal;
pub(super) use socket::SimSocket;
pub(crate) use sockets::SimNetwork;
pub(super) use unix_datagram_socket::SimUnixDatagram;
pub(crate) use world::{Due, World, duration_ns};
