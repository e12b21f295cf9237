//! Calls of the driver by subject: streams, listeners and their sockets, datagram sockets, readiness sources, files, and
//! what only event loops or simulated kernels need.
//!
//! Each call is passed to the state machine in use. The calls stand above the state machines, which stand above the
//! types of each subject.

mod datagrams;
mod event_loops;
mod files;
mod listeners;
#[cfg(not(feature = "sim"))]
mod not_simulated;
#[cfg(feature = "sim")]
mod simulated;
mod sockets;
mod sources;
mod streams;
