//! Streams, listeners and datagram sockets, connections that move between workers, and the traits of other crates.

#![allow(clippy::duplicate_mod, reason = "the suites of streams run on each stream family")]

#[path = "../common/mod.rs"]
mod common;

mod acceptors;
mod connect;
mod datagram_faults;
mod distribution;
mod endings;
mod groups;
mod least_loaded;
mod listener_group;
mod move_to;
mod rebalancer;
mod sockets;
mod tcp;
mod udp;
mod unix;
