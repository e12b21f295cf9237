//! TCP echo on glommio, which supports only io_uring, based on its documentation: one executor per core, one task per
//! connection.

#![deny(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use peer_flags::{ACCEPT_RETRY, Flags, Ready, thread_per_core};

fn main() -> io::Result<()> {
    thread_per_core(&Flags::from_arguments(4096), "driver=io_uring", |flags, listener, ready| {
        // The thread is already pinned.
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make()?;
        executor.run(serve(flags, listener, ready))
    })
}

async fn serve(flags: &Flags, listener: std::net::TcpListener, ready: &Ready) -> io::Result<()> {
    let buffer_bytes = flags.buffer_bytes;
    let listener = from_std(listener);
    ready.announce()?;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                glommio::spawn_local(async move {
                    if let Err(error) = echo(stream, buffer_bytes).await {
                        eprintln!("connection: {error}");
                    }
                })
                .detach();
            }
            Err(error) => {
                eprintln!("accept: {error}");
                glommio::timer::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

#[allow(unsafe_code)]
fn from_std(listener: std::net::TcpListener) -> TcpListener {
    // SAFETY: the descriptor is a listening socket and has no other owner.
    unsafe { TcpListener::from_raw_fd(listener.into_raw_fd()) }
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
