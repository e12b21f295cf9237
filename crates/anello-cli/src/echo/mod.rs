//! `anello echo`: an echo server on TCP or a Unix socket.
//!
//! There is one worker per core. Each has its own TCP listener; a Unix socket is shared by all workers. On a signal,
//! the server stops accepting connections, echoes the bytes already received, and closes the connections. A second
//! signal or the drain timeout closes them immediately.

mod flags;
mod run;
#[cfg(test)]
mod simulation;

pub use self::flags::Arguments;
pub use self::run::run;
