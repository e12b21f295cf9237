//! `threads`: one thread per connection, which blocks in its system calls. The kernel's scheduler replaces an event
//! loop, and a peer that does not read blocks only its own thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::accept::accept_blocking;
use crate::stream::RECEIVE_BUFFER_BYTES;

/// Stack size of a connection's thread, in bytes. The buffer is on the heap.
const STACK_BYTES: usize = 64 * 1024;

pub(crate) fn run(listener: &TcpListener) -> io::Result<()> {
    accept_blocking(listener, |stream| {
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        // The closure owns the stream, so a failed spawn closes it.
        drop(builder.spawn(move || echo(stream)));
    })
}

/// Echoes until EOF or an error. Returning closes the connection.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(received) => {
                if stream.write_all(&buffer[..received]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
