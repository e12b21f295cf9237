//! An echo server: returns all bytes to the client that sent them.

use std::io;

use anello::net::{TcpListener, TcpStream};

/// Serves connections until accepting fails.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        anello::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    while let Some(chunk) = stream.recv().await? {
        stream.send(chunk).await?;
    }
    Ok(())
}
