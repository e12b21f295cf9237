//! TCP echo on tokio, based on the echo example in tokio's documentation: the current-thread runtime on one core, the
//! multi-thread runtime with one worker per core on several.

#![forbid(unsafe_code)]

use std::io;

use peer_flags::{ACCEPT_RETRY, Flags, Ready, listen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let flags = Flags::from_arguments(4096);
    let mut builder = match flags.threads() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(flags.threads()).enable_all().build()?.block_on(serve(flags))
}

async fn serve(flags: Flags) -> io::Result<()> {
    let listener = listen(flags.addr, false)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ready::new(1, listener.local_addr()?, "driver=epoll").announce()?;
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
