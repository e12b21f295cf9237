//! TCP as the stream family of the test suites.

#![allow(dead_code, reason = "each suite uses only a part of this module")]

use std::io;

use anello::net::TcpListener;
pub use anello::net::TcpStream as Stream;

use crate::common::ANY_PORT;
pub use crate::common::{on_every_driver_and_sim as on_every_setup, pair};

/// Error numbers of calls after a reset by the peer.
pub const SHUTDOWN_AFTER_RESET: Option<i32> = Some(libc::ENOTCONN);
pub const SEND_AFTER_RESET: i32 = libc::ECONNRESET;

pub fn listen() -> io::Result<TcpListener> {
    TcpListener::bind(ANY_PORT)
}

pub async fn connect(listener: &TcpListener) -> io::Result<Stream> {
    Stream::connect(listener.local_addr()?).await
}
