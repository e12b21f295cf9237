//! TCP echo on mio's epoll loop, with one buffer for all connections, so that it stays in the CPU cache.
//!
//! Events are edge-triggered. The server reads from a connection until a short read shows that the socket is empty.
//! Bytes that the peer does not accept immediately are stored, and the connection is not read until they are sent, so
//! memory per connection is bounded by one buffer. After `MAX_ROUNDS_PER_EVENT` full buffers, the connection is
//! queued behind the others.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use peer_flags::{ACCEPT_RETRY, Flags, thread_per_core};

const LISTENER: Token = Token(usize::MAX);
const MAX_ROUNDS_PER_EVENT: usize = 16;

fn main() -> io::Result<()> {
    thread_per_core(&Flags::from_arguments(64 * 1024), "driver=epoll", |flags, listener, ready| {
        listener.set_nonblocking(true)?;
        let (poll, listener) = (Poll::new()?, TcpListener::from_std(listener));
        ready.announce()?;
        Server { poll, listener, connections: HashMap::new(), next_token: 0 }.run(flags.buffer_bytes)
    })
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    connections: HashMap<Token, Connection>,
    next_token: usize,
}

impl Server {
    fn run(mut self, buffer_bytes: usize) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; buffer_bytes];
        let mut accept_pending = false;
        self.poll.registry().register(&mut self.listener, LISTENER, Interest::READABLE)?;
        loop {
            match self.poll.poll(&mut events, accept_pending.then_some(ACCEPT_RETRY)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                if event.token() == LISTENER {
                    accept_pending = true;
                } else {
                    self.serve(event, &mut buffer);
                }
            }
            if accept_pending {
                accept_pending = self.accept();
            }
        }
    }

    /// Accepts until the queue is empty. Returns `true` after an error, when connections can remain in the queue
    /// without an event.
    fn accept(&mut self) -> bool {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.add_connection(stream) {
                        eprintln!("connection: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => {
                    eprintln!("accept: {error}");
                    return true;
                }
            }
        }
    }

    fn add_connection(&mut self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let token = Token(self.next_token);
        self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.next_token += 1;
        self.connections.insert(token, Connection { stream, unsent: Vec::new() });
        Ok(())
    }

    fn serve(&mut self, event: &Event, buffer: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(&event.token()) else { return };
        match connection.serve(event, buffer, self.poll.registry()) {
            Ok(State::Open) => return,
            Ok(State::Closed) => {}
            Err(error) => eprintln!("connection: {error}"),
        }
        // Closing the socket removes it from epoll.
        self.connections.remove(&event.token());
    }
}

enum State {
    Open,
    Closed,
}

struct Connection {
    stream: TcpStream,
    /// Bytes that the peer has not accepted yet; almost always empty.
    unsent: Vec<u8>,
}

impl Connection {
    fn serve(&mut self, event: &Event, buffer: &mut [u8], registry: &Registry) -> io::Result<State> {
        if !self.unsent.is_empty() {
            let sent = write_some(&mut self.stream, &self.unsent)?;
            self.unsent.drain(..sent);
            if !self.unsent.is_empty() {
                return Ok(State::Open);
            }
        }
        for _ in 0..MAX_ROUNDS_PER_EVENT {
            let received = match self.stream.read(buffer) {
                Ok(0) => return Ok(State::Closed),
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(State::Open),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let sent = write_some(&mut self.stream, &buffer[..received])?;
            if sent < received {
                self.unsent.extend_from_slice(&buffer[sent..received]);
                return Ok(State::Open);
            }
            // An EOF before this read is part of the event; a later one causes a new event.
            if received < buffer.len() && !event.is_read_closed() {
                return Ok(State::Open);
            }
        }
        registry.reregister(&mut self.stream, event.token(), Interest::READABLE | Interest::WRITABLE)?;
        Ok(State::Open)
    }
}

/// Writes until the send buffer is full or all bytes are written. Returns the number of written bytes.
fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
