//! The parts of `anello echo` and `anello http` that requests pass.
//!
//! The release profile optimizes this crate, but not `anello-cli`, which contains the rest of these commands. Functions
//! that a request passes are therefore not generic in the interface: code is generated in the crate that selects the
//! types.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-servers requires Linux: it uses io_uring and epoll (build for a Linux target)");

pub mod echo;
pub mod http;
