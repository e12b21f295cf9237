//! TCP echo on monoio's io_uring driver, based on the echo example in monoio's README: one runtime per core.

#![forbid(unsafe_code)]

use std::io;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use peer_flags::{ACCEPT_RETRY, Flags, Ready, thread_per_core};

fn main() -> io::Result<()> {
    thread_per_core(&Flags::from_arguments(4096), "driver=io_uring", |flags, listener, ready| {
        monoio::RuntimeBuilder::<monoio::IoUringDriver>::new()
            .build()?
            .block_on(serve(flags, listener, ready))
    })
}

async fn serve(flags: &Flags, listener: std::net::TcpListener, ready: &Ready) -> io::Result<()> {
    let buffer_bytes = flags.buffer_bytes;
    let listener = TcpListener::from_std(listener)?;
    ready.announce()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                monoio::spawn(async move {
                    if let Err(error) = echo(stream, buffer_bytes).await {
                        eprintln!("connection: {error}");
                    }
                });
            }
            Err(error) => {
                eprintln!("accept: {error}");
                // The timer driver is off, as in the example. Each accept passes through the ring, so other tasks run.
                std::thread::sleep(ACCEPT_RETRY);
            }
        }
    }
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer: Vec<u8> = Vec::with_capacity(buffer_bytes);
    let mut result;
    loop {
        (result, buffer) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        (result, buffer) = stream.write_all(buffer).await;
        result?;
        buffer.clear();
    }
}
