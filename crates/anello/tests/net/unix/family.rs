//! Unix sockets as the stream family of the test suites.

#![allow(dead_code, reason = "each suite uses only a part of this module")]

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use anello::net::UnixListener;
pub use anello::net::UnixStream as Stream;

use super::socket_path::unique;
pub use crate::common::on_every_driver_and_sim as on_every_setup;

/// Error numbers of calls after a reset by the peer: there is no reset, only bytes that are lost.
pub const SHUTDOWN_AFTER_RESET: Option<i32> = None;
pub const SEND_AFTER_RESET: i32 = libc::EPIPE;

/// Returns an address that no other test uses: an abstract name, which leaves no file behind.
pub fn any_address() -> SocketAddr {
    SocketAddr::from_abstract_name(unique("test")).unwrap()
}

pub fn listen() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&any_address())
}

pub async fn connect(listener: &UnixListener) -> io::Result<Stream> {
    Stream::connect_addr(&listener.local_addr()?).await
}

/// Creates a connection within one runtime, and returns the client and server sides.
pub async fn pair() -> io::Result<(Stream, Stream)> {
    let listener = listen()?;
    let client = connect(&listener).await?;
    Ok((client, listener.accept().await?))
}
