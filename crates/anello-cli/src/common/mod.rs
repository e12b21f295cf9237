//! Flags, value parsers, sockets and output that several commands share.

pub mod activation;
pub mod address;
pub mod admin;
pub mod bind_retry;
pub mod boxed_handler;
pub mod build_identity;
pub mod cpu_limits;
pub mod driver_flags;
pub mod error;
pub mod format;
pub mod listening;
pub mod log_limit;
pub mod notify;
pub mod output;
pub mod process;
#[cfg(test)]
pub mod simulation;
pub mod terminal;
pub mod values;
pub mod worker_flags;
