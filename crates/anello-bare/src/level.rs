//! `poll` and `select`: level-triggered. In every turn, the kernel receives and returns the complete list of sockets.
//!
//! `select` uses sets of 1024 bits. A connection with a descriptor of 1024 or above is closed immediately.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::select::{FD_SETSIZE, FdSet, select};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::accept::{ACCEPT_PAUSE, AcceptError, accept};
use crate::stream::{RECEIVE_BUFFER_BYTES, StepResult, Stream};

/// Prevents many new connections from delaying the existing ones.
const MAX_ACCEPTS_PER_TURN: usize = 64;

pub(crate) fn run_poll(listener: &TcpListener) -> io::Result<()> {
    serve(listener, wait_with_poll, |_| true)
}

pub(crate) fn run_select(listener: &TcpListener) -> io::Result<()> {
    if !fits_fd_set(listener.as_raw_fd()) {
        let text =
            "descriptor of the listener is 1024 or above, which select does not support (use poll or epoll)";
        return Err(io::Error::other(text));
    }
    serve(listener, wait_with_select, fits_fd_set)
}

fn fits_fd_set(descriptor: i32) -> bool {
    usize::try_from(descriptor).is_ok_and(|descriptor| descriptor < FD_SETSIZE)
}

/// Stores the indices of the ready streams and returns whether the listener is ready. While accepting is paused, the
/// listener is not polled.
type Wait = fn(&TcpListener, &[Stream], accept_paused: bool, ready: &mut Vec<usize>) -> Result<bool, Errno>;

fn serve(listener: &TcpListener, wait: Wait, is_supported: fn(i32) -> bool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut streams: Vec<Stream> = Vec::new();
    let mut ready = Vec::new();
    let mut accept_paused = false;
    loop {
        let listener_ready = match wait(listener, &streams, accept_paused, &mut ready) {
            Err(Errno::INTR) => false,
            result => result?,
        };
        // In reverse order, so that `swap_remove` only moves streams that have already been served.
        for index in ready.drain(..).rev() {
            if streams[index].step(&mut buffer) == StepResult::Closed {
                drop(streams.swap_remove(index));
            }
        }
        accept_paused = false;
        for _ in 0..if listener_ready { MAX_ACCEPTS_PER_TURN } else { 0 } {
            match accept(listener) {
                Ok(socket) if is_supported(socket.as_raw_fd()) => streams.push(Stream::new(socket)),
                Ok(socket) => drop(socket),
                Err(AcceptError::WouldBlock | AcceptError::Transient) => break,
                Err(AcceptError::OutOfResources) => {
                    accept_paused = true;
                    break;
                }
                Err(AcceptError::Fatal(errno)) => return Err(errno.into()),
            }
        }
    }
}

fn wait_with_poll(
    listener: &TcpListener,
    streams: &[Stream],
    accept_paused: bool,
    ready: &mut Vec<usize>,
) -> Result<bool, Errno> {
    let pause = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE.subsec_nanos().into() };
    let mut descriptors = Vec::with_capacity(streams.len() + 1);
    descriptors.extend(streams.iter().map(|stream| {
        let interest = if stream.is_blocked() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&stream.socket, interest)
    }));
    descriptors.push(PollFd::new(listener, if accept_paused { PollFlags::empty() } else { PollFlags::IN }));
    poll(&mut descriptors, accept_paused.then_some(&pause))?;
    let is_ready = |index: &usize| !descriptors[*index].revents().is_empty();
    ready.extend((0..streams.len()).filter(is_ready));
    Ok(is_ready(&streams.len()))
}

fn wait_with_select(
    listener: &TcpListener,
    streams: &[Stream],
    accept_paused: bool,
    ready: &mut Vec<usize>,
) -> Result<bool, Errno> {
    let (mut readable, mut writable) = (FdSet::new(), FdSet::new());
    let mut max_fd = listener.as_raw_fd();
    for stream in streams {
        let set = if stream.is_blocked() { &mut writable } else { &mut readable };
        set.insert(stream.socket.as_fd());
        max_fd = max_fd.max(stream.socket.as_raw_fd());
    }
    let mut pause = accept_paused.then(|| TimeVal::milliseconds(ACCEPT_PAUSE.subsec_millis().into()));
    if !accept_paused {
        readable.insert(listener.as_fd());
    }
    select(max_fd + 1, &mut readable, &mut writable, None, pause.as_mut())
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    let is_ready = |index: &usize| {
        let socket = streams[*index].socket.as_fd();
        readable.contains(socket) || writable.contains(socket)
    };
    ready.extend((0..streams.len()).filter(is_ready));
    Ok(readable.contains(listener.as_fd()))
}
