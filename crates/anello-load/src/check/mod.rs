//! Correctness checks for echo servers. The checks for HTTP servers are in [`http`].
//!
//! Each of the three checks detects errors that occur in real servers:
//!
//! - [`complete_bytes`]: bytes that are lost, duplicated or shifted when a message is larger than a buffer.
//! - [`stalled_reader`]: bytes that are lost, a server that hangs or spins when a client does not read, and other
//!   clients that are not served in the meantime.
//! - [`many_connections`]: connections that are refused or mixed up when there are thousands of them.
//!
//! A check returns, in bounded time, a description of what it has verified or of what the server did wrong. Checks run
//! on the runtime of the calling thread. Dropping the future of a check closes its connections.

mod common;
mod echo;
pub mod http;

pub use self::echo::{complete_bytes, many_connections, stalled_reader};
