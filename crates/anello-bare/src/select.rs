//! `select`: like `poll`, with sets of 1024 bits, so descriptors of 1024 or above are not supported. A connection
//! with such a descriptor is closed immediately and counted.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::select::{FD_SETSIZE, FdSet, select};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::accept::{ACCEPT_PAUSE, AcceptError, accept};
use crate::options::Options;
use crate::stream::{RECEIVE_BUFFER_BYTES, StepResult, Stream};

/// Maximum number of connections accepted before the other connections are served.
const MAX_ACCEPTS_PER_TURN: usize = 64;

pub(crate) fn run(listener: TcpListener, options: &Options) -> io::Result<()> {
    if !fits_fd_set(&listener) {
        return Err(io::Error::other(
            "descriptor of the listener is 1024 or above, which select does not support (use poll or epoll)",
        ));
    }
    listener.set_nonblocking(true)?;
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut streams: Vec<Stream> = Vec::new();
    let mut ready = Vec::new();
    let mut accept_paused = false;
    loop {
        let listener_ready = wait(&listener, &streams, accept_paused, &mut ready)?;
        // In reverse order, so that `swap_remove` only moves streams that have already been served.
        for index in ready.drain(..).rev() {
            if streams[index].step(&mut buffer) == StepResult::Closed {
                drop(streams.swap_remove(index));
            }
        }
        accept_paused = listener_ready && accept_batch(&listener, &mut streams, &options.refused)?;
    }
}

/// Waits for the next turn: stores the indices of the ready streams in `ready`, and returns whether the listener is
/// ready. While accepting is paused, the listener is not polled.
fn wait(
    listener: &TcpListener,
    streams: &[Stream],
    accept_paused: bool,
    ready: &mut Vec<usize>,
) -> io::Result<bool> {
    let (mut readable, mut writable) = (FdSet::new(), FdSet::new());
    let mut max_fd = listener.as_raw_fd();
    for stream in streams {
        let set = if stream.is_blocked() { &mut writable } else { &mut readable };
        set.insert(stream.as_fd());
        max_fd = max_fd.max(stream.as_fd().as_raw_fd());
    }
    let mut pause = None;
    if accept_paused {
        pause = Some(TimeVal::milliseconds(ACCEPT_PAUSE.subsec_millis().into()));
    } else {
        readable.insert(listener.as_fd());
    }
    match select(max_fd + 1, &mut readable, &mut writable, None, pause.as_mut()) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let is_ready = |stream: &Stream| readable.contains(stream.as_fd()) || writable.contains(stream.as_fd());
    ready.extend((0..streams.len()).filter(|&index| is_ready(&streams[index])));
    Ok(readable.contains(listener.as_fd()))
}

/// Accepts pending connections. Returns `true` if accepting must pause because descriptors ran out.
fn accept_batch(listener: &TcpListener, streams: &mut Vec<Stream>, refused: &AtomicU64) -> io::Result<bool> {
    for _ in 0..MAX_ACCEPTS_PER_TURN {
        match accept(listener) {
            Ok(socket) if fits_fd_set(&socket) => streams.push(Stream::new(socket)),
            Ok(socket) => {
                drop(socket);
                refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(AcceptError::WouldBlock | AcceptError::Transient) => break,
            Err(AcceptError::OutOfResources) => return Ok(true),
            Err(AcceptError::Fatal(errno)) => return Err(errno.into()),
        }
    }
    Ok(false)
}

fn fits_fd_set(socket: &impl AsRawFd) -> bool {
    usize::try_from(socket.as_raw_fd()).is_ok_and(|descriptor| descriptor < FD_SETSIZE)
}
