//! HTTP/1.1 on hyper and tokio, based on the server in hyper's guide: one task per connection and a function as its
//! service. It uses the current-thread runtime on one core and the multi-thread runtime with one worker per core on
//! several.

#![forbid(unsafe_code)]

mod service;

use std::io;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use peer_flags::{ACCEPT_RETRY, Flags, HttpFlags, Ready, listen};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let flags = HttpFlags::from_arguments().flags;
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
                    if let Err(error) = serve_connection(stream).await {
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

async fn serve_connection(stream: TcpStream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(service::respond)).await?;
    Ok(())
}
