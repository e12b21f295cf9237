//! Helpers for the tests of event loops.

use std::task::Poll;

use anello::event_loop::{EventLoop, Events};

use super::Setup;

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
