//! TCP echo on smol, based on its documentation: a local executor on one core, one executor shared by one thread per
//! core on several. The epoll reactor is shared by the whole process.

#![forbid(unsafe_code)]

use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use peer_flags::{ACCEPT_RETRY, Flags, Ready, listen};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::TcpStream;
use smol::{Async, Executor, LocalExecutor, Timer};

fn main() -> io::Result<()> {
    let flags = Flags::from_arguments(4096);
    let listener = Async::new(listen(flags.addr, false)?)?;
    Ready::new(1, listener.get_ref().local_addr()?, "driver=epoll").announce()?;
    let buffer_bytes = flags.buffer_bytes;
    if flags.threads() == 1 {
        let executor = Rc::new(LocalExecutor::new());
        let spawn = |stream| executor.spawn(serve(stream, buffer_bytes)).detach();
        return smol::block_on(executor.run(accept(&listener, spawn)));
    }
    let executor = Arc::new(Executor::new());
    for _ in 1..flags.threads() {
        let executor = Arc::clone(&executor);
        thread::spawn(move || smol::block_on(executor.run(std::future::pending::<()>())));
    }
    let spawn = |stream| executor.spawn(serve(stream, buffer_bytes)).detach();
    smol::block_on(executor.run(accept(&listener, spawn)))
}

async fn accept(listener: &Async<TcpListener>, spawn: impl Fn(TcpStream)) -> io::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => spawn(stream.into()),
            Err(error) => {
                eprintln!("accept: {error}");
                Timer::after(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, buffer_bytes: usize) {
    if let Err(error) = echo(stream, buffer_bytes).await {
        eprintln!("connection: {error}");
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
