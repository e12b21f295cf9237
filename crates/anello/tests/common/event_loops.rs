//! Helpers for the tests of event loops.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use anello::event_loop::{EventLoop, Events, StreamId};

use super::Setup;

pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub fn open(setup: &Setup) -> EventLoop {
    let builder = EventLoop::builder().driver(setup.kind.clone()).options(setup.options.clone());
    builder.build().unwrap_or_else(|error| panic!("{}: {error}", setup.name))
}

/// Runs turns until `poll` returns a result. Repeats it after every turn.
pub fn wait<T>(event_loop: &mut EventLoop, mut poll: impl FnMut(&mut EventLoop) -> Poll<T>) -> T {
    let mut events = Events::new();
    loop {
        if let Poll::Ready(output) = poll(event_loop) {
            return output;
        }
        event_loop.turn(&mut events, None).unwrap();
    }
}

/// Returns the two ends of a connection: those of the client and the server, with the tokens 1 and 2.
pub fn pair(event_loop: &mut EventLoop) -> (StreamId, StreamId) {
    let listener = event_loop.listen(ANY_PORT, 0).unwrap();
    let address = event_loop.local_addr(listener).unwrap();
    let client = event_loop.connect(address, 1).unwrap();
    let server = wait(event_loop, |event_loop| event_loop.accept(listener, 2)).unwrap();
    wait(event_loop, |event_loop| event_loop.poll_connect(client)).unwrap();
    event_loop.close_listener(listener);
    (client, server)
}
