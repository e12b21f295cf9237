//! `poll`: the complete list of sockets is passed to the kernel and back on every turn.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::accept::{ACCEPT_PAUSE, AcceptError, accept};
use crate::stream::{RECEIVE_BUFFER_BYTES, StepResult, Stream};

/// Maximum number of connections accepted before the other connections are served.
const MAX_ACCEPTS_PER_TURN: usize = 64;

pub(crate) fn run(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let pause = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE.subsec_nanos().into() };
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut streams: Vec<Stream> = Vec::new();
    let mut ready = Vec::new();
    let mut accept_paused = false;
    loop {
        let listener_ready = wait(&listener, &streams, accept_paused.then_some(&pause), &mut ready)?;
        // In reverse order, so that `swap_remove` only moves streams that have already been served.
        for index in ready.drain(..).rev() {
            if streams[index].step(&mut buffer) == StepResult::Closed {
                drop(streams.swap_remove(index));
            }
        }
        accept_paused = listener_ready && accept_batch(&listener, &mut streams)?;
    }
}

/// Waits for the next turn: stores the indices of the ready streams in `ready`, and returns whether the listener is
/// ready. With a `pause`, the listener is not polled.
fn wait(
    listener: &TcpListener,
    streams: &[Stream],
    pause: Option<&Timespec>,
    ready: &mut Vec<usize>,
) -> io::Result<bool> {
    let listener_interest = if pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
    let mut descriptors = Vec::with_capacity(streams.len() + 1);
    descriptors.extend(streams.iter().map(|stream| {
        let interest = if stream.is_blocked() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(stream.as_fd(), interest)
    }));
    descriptors.push(PollFd::new(listener, listener_interest));
    match poll(&mut descriptors, pause) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let is_ready = |index: &usize| !descriptors[*index].revents().is_empty();
    ready.extend((0..streams.len()).filter(is_ready));
    Ok(is_ready(&streams.len()))
}

/// Accepts pending connections. Returns `true` if accepting must pause because descriptors ran out.
fn accept_batch(listener: &TcpListener, streams: &mut Vec<Stream>) -> io::Result<bool> {
    for _ in 0..MAX_ACCEPTS_PER_TURN {
        match accept(listener) {
            Ok(socket) => streams.push(Stream::new(socket)),
            Err(AcceptError::WouldBlock | AcceptError::Transient) => break,
            Err(AcceptError::OutOfResources) => return Ok(true),
            Err(AcceptError::Fatal(errno)) => return Err(errno.into()),
        }
    }
    Ok(false)
}
