//! TCP echo on mio's epoll loop, with one buffer for all connections, so that it stays in the cache.
//!
//! Events are edge-triggered. A connection is read until a short read says that the socket is empty; what its peer does
//! not take at once is kept apart, and the connection is not read again until that is gone, so memory per connection is
//! bounded by one buffer. After `ROUNDS_PER_EVENT` full buffers a connection goes back to the end of the queue.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use peer_flags::{ACCEPT_RETRY, Flags, thread_per_core};

const LISTENER: Token = Token(usize::MAX);
const ROUNDS_PER_EVENT: usize = 16;

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
        let mut accept_again = false;
        self.poll.registry().register(&mut self.listener, LISTENER, Interest::READABLE)?;
        loop {
            match self.poll.poll(&mut events, accept_again.then_some(ACCEPT_RETRY)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                if event.token() == LISTENER {
                    accept_again = true;
                } else {
                    self.serve(event, &mut buffer);
                }
            }
            if accept_again {
                accept_again = self.accept();
            }
        }
    }

    /// Accepts until the queue is empty; true when an error left connections in it and no event will say so.
    fn accept(&mut self) -> bool {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.welcome(stream) {
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

    fn welcome(&mut self, mut stream: TcpStream) -> io::Result<()> {
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
        // Closing the socket takes it out of epoll.
        self.connections.remove(&event.token());
    }
}

enum State {
    Open,
    Closed,
}

struct Connection {
    stream: TcpStream,
    /// What the peer has not taken yet; almost always empty.
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
        for _ in 0..ROUNDS_PER_EVENT {
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
            // An end of stream that came before this read was in the event; one that comes later is a new event.
            if received < buffer.len() && !event.is_read_closed() {
                return Ok(State::Open);
            }
        }
        registry.reregister(&mut self.stream, event.token(), Interest::READABLE | Interest::WRITABLE)?;
        Ok(State::Open)
    }
}

/// Writes until the socket is full or the bytes are gone, and says how many it took.
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
