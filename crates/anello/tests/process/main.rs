//! Child processes and signals, and faults that concern the whole process: descriptors, memory, and system calls that
//! fail. Tests that change the state of the process, or measure it, run in a process of their own (`anello_test::in_own_process`).

#[path = "../common/mod.rs"]
mod common;

mod children;
mod descriptors;
mod fallbacks;
mod faults_kernel;
mod faults_peers;
mod fork;
mod server;
mod signals;
