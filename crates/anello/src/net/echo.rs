//! The echo service (RFC 862).

use std::io;

use super::TcpStream;

/// Sends back whatever arrives until the peer ends its side, then everything that is still owed; returns the bytes
/// echoed. The connection stays open for the caller to close.
///
/// No copy and no allocation per message: chunks are sent from the memory they were received into. Not cancel-safe: a
/// chunk taken and not yet accepted for sending is dropped with the future.
///
/// # Errors
/// When the connection breaks.
pub async fn echo(stream: &mut TcpStream) -> io::Result<u64> {
    let mut echoed_bytes = 0;
    while let Some(chunk) = stream.recv().await? {
        echoed_bytes += chunk.len() as u64;
        stream.send(chunk).await?;
    }
    stream.flush().await?;
    Ok(echoed_bytes)
}
