//! The simulated kernels, and simulations of several hosts.

#[path = "../common/mod.rs"]
mod common;

mod clocks;
mod disk;
mod faults;
mod groups;
mod replicated_store;
mod signals;
mod simulation;
mod simulator;
mod swarm;
