//! `anello http`: a static file server for HTTP/1.1.
//!
//! Each worker has its own listener and file cache. On SIGINT or SIGTERM, the server stops accepting connections and
//! completes the requests in flight. A second signal or the drain timeout closes the connections immediately.
//! Privileges that serving does not need are dropped before the first request ([`sandbox`]).

mod check;
pub mod config;
mod descriptors;
mod directory_watch;
mod flags;
mod handover;
mod identity;
mod reload;
mod run;
mod sandbox;
#[cfg(test)]
mod simulation;
mod sockets;
mod worker;

pub use self::flags::Arguments;
pub use self::run::run;
