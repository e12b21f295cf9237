//! An HTTP client for the tests.

use std::io;

use anello::net::TcpStream;

/// Sends a request with the token `secret` on a connection of its own. Returns the status and the body.
pub async fn request(address: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: service\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.recv().await? {
        bytes.extend_from_slice(&chunk);
    }
    let text = String::from_utf8_lossy(&bytes);
    let response = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    response.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
