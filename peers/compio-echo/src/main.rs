//! TCP echo on compio's io_uring driver, based on its documentation: one runtime per core.

#![forbid(unsafe_code)]

use std::io;

use compio::BufResult;
use compio::driver::DriverType;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::Runtime;
use peer_flags::{ACCEPT_RETRY, Flags, Ready, thread_per_core};

fn main() -> io::Result<()> {
    thread_per_core(&Flags::from_arguments(4096), "driver=io_uring", run)
}

fn run(flags: &Flags, listener: std::net::TcpListener, ready: &Ready) -> io::Result<()> {
    let runtime = Runtime::new()?;
    if runtime.driver_type() != DriverType::IoUring {
        return Err(io::Error::other("compio did not select io_uring (check that this kernel allows it)"));
    }
    runtime.block_on(serve(flags, listener, ready))
}

async fn serve(flags: &Flags, listener: std::net::TcpListener, ready: &Ready) -> io::Result<()> {
    let buffer_bytes = flags.buffer_bytes;
    let listener = TcpListener::from_std(listener)?;
    ready.announce()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => compio::runtime::spawn(async move {
                if let Err(error) = echo(stream, buffer_bytes).await {
                    eprintln!("connection: {error}");
                }
            })
            .detach(),
            Err(error) => {
                eprintln!("accept: {error}");
                // Each accept passes through the ring, so other tasks run in between.
                std::thread::sleep(ACCEPT_RETRY);
            }
        }
    }
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer: Vec<u8> = Vec::with_capacity(buffer_bytes);
    loop {
        let BufResult(received, filled) = stream.read(buffer).await;
        if received? == 0 {
            return Ok(());
        }
        let BufResult(written, emptied) = stream.write_all(filled).await;
        written?;
        buffer = emptied;
        buffer.clear();
    }
}
