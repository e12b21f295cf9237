//! TCP echo on tokio's current-thread runtime, after the echo example in tokio's documentation.

#![forbid(unsafe_code)]

use std::io;

use peer_flags::{ACCEPT_RETRY, Flags, announce_ready};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() -> io::Result<()> {
    let flags = Flags::from_arguments(4096);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(flags))
}

async fn serve(flags: Flags) -> io::Result<()> {
    let listener = TcpListener::bind(flags.addr).await?;
    announce_ready(listener.local_addr()?)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    if let Err(error) = echo(stream, flags.buffer_bytes).await {
                        eprintln!("connection: {error}");
                    }
                });
            }
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let received = stream.read(&mut buffer).await?;
        if received == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..received]).await?;
    }
}
