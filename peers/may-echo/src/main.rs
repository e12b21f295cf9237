//! TCP echo on may's stackful coroutines over epoll, based on the echo example in may's repository: one coroutine per
//! connection, one worker thread per core. The main thread only waits.

#![deny(unsafe_code)]

use std::io::{self, Read, Write};

use may::net::{TcpListener, TcpStream};
use peer_flags::{ACCEPT_RETRY, Flags, Ready};

fn main() -> io::Result<()> {
    let flags = Flags::from_arguments(4096);
    // may would pin to the first cores of the machine instead of the requested ones.
    may::config().set_workers(flags.threads()).set_worker_pin(false);
    let accept = may::go!(move || accept(&flags));
    accept.join().unwrap_or_else(|_| Err(io::Error::other("the accepting coroutine panicked")))
}

fn accept(flags: &Flags) -> io::Result<()> {
    let buffer_bytes = flags.buffer_bytes;
    let listener = TcpListener::bind(flags.addr)?;
    Ready::new(1, listener.local_addr()?, "driver=epoll").announce()?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                may::go!(move || if let Err(error) = echo(stream, buffer_bytes) {
                    eprintln!("connection: {error}");
                });
            }
            Err(error) => {
                eprintln!("accept: {error}");
                may::coroutine::sleep(ACCEPT_RETRY);
            }
        }
    }
}

fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // On the heap, because the stack of a coroutine is small.
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..received])?;
    }
}
