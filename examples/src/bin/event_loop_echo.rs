//! An echo server on the driver alone, with its own loop instead of the executor.
//!
//! ```console
//! $ cargo run --release -p anello-examples --bin event_loop_echo -- 127.0.0.1:7000 [auto|uring|epoll]
//! ```

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use anello::DriverKind;
use anello::event_loop::{EventKind, EventLoop, Events, ListenerId, SendBuf, StreamId};

/// Token of the listener. Connections use their index.
const LISTENER: usize = anello::event_loop::MAX_TOKEN;

/// Maximum number of chunks that are echoed for one connection before the others are served.
const MAX_CHUNKS_PER_TURN: usize = 16;

/// Time after which accepting is retried when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Server {
    event_loop: EventLoop,
    listener: ListenerId,
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    /// Connections that have reached `MAX_CHUNKS_PER_TURN`.
    unfinished: Vec<usize>,
}

struct Connection {
    stream: StreamId,
    /// A chunk that did not fit into the send queue.
    outgoing: Option<SendBuf>,
}

enum Step {
    Waiting,
    Unfinished,
    Closed,
}

impl Connection {
    #[inline]
    fn echo(&mut self, event_loop: &mut EventLoop) -> io::Result<Step> {
        for _ in 0..MAX_CHUNKS_PER_TURN {
            if self.outgoing.is_some() && event_loop.send(self.stream, &mut self.outgoing)?.is_pending() {
                return Ok(Step::Waiting);
            }
            match event_loop.recv(self.stream)? {
                Poll::Ready(Some(chunk)) => self.outgoing = Some(chunk.into()),
                Poll::Ready(None) => return Ok(Step::Closed),
                Poll::Pending => return Ok(Step::Waiting),
            }
        }
        Ok(Step::Unfinished)
    }
}

impl Server {
    fn accept_all(&mut self) {
        loop {
            let token = self.vacant.last().copied().unwrap_or(self.connections.len());
            match self.event_loop.accept(self.listener, token) {
                Poll::Ready(Ok(stream)) => {
                    let connection = Some(Connection { stream, outgoing: None });
                    match self.vacant.pop() {
                        Some(index) => self.connections[index] = connection,
                        None => self.connections.push(connection),
                    }
                    self.echo(token);
                }
                Poll::Ready(Err(error)) => {
                    let rejected = self.event_loop.reject_pending(self.listener);
                    eprintln!("cannot accept connections: {error} (rejected {rejected} clients)");
                    self.event_loop.add_timer(ACCEPT_PAUSE, LISTENER);
                    return;
                }
                Poll::Pending => return,
            }
        }
    }

    #[inline]
    fn echo(&mut self, index: usize) {
        // An event of a closed connection can still be in the list.
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        match connection.echo(&mut self.event_loop) {
            Ok(Step::Waiting) => {}
            Ok(Step::Unfinished) => self.unfinished.push(index),
            Ok(Step::Closed) | Err(_) => {
                self.event_loop.close(connection.stream);
                self.connections[index] = None;
                self.vacant.push(index);
            }
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        self.accept_all();
        let mut events = Events::with_capacity(1024);
        loop {
            let timeout = if self.unfinished.is_empty() { None } else { Some(Duration::ZERO) };
            self.event_loop.turn(&mut events, timeout)?;
            for event in events.iter() {
                match event.kind() {
                    EventKind::Receive | EventKind::Send => self.echo(event.token()),
                    EventKind::Accept | EventKind::Timer => self.accept_all(),
                    _ => {}
                }
            }
            for index in std::mem::take(&mut self.unfinished) {
                self.echo(index);
            }
        }
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let kind: DriverKind = arguments.next().as_deref().unwrap_or("auto").parse()?;
    let mut event_loop = EventLoop::builder().driver(kind).build()?;
    let listener = event_loop.listen(address, LISTENER)?;
    println!("listening on {}", event_loop.local_addr(listener)?);
    Server { event_loop, listener, connections: Vec::new(), vacant: Vec::new(), unfinished: Vec::new() }
        .serve()
}
