//! Socket activation (sd_listen_fds(3)): sockets that a service manager passes with `LISTEN_FDS` and `LISTEN_FDNAMES`.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;

use super::error::{Context, invalid_input};
use super::listening::ListeningSocket;

/// Number of the first passed descriptor.
const FIRST_DESCRIPTOR: usize = 3;

/// Name (`FileDescriptorName=`) of the socket for /metrics.
const METRICS: &str = "metrics";

#[derive(Default)]
pub struct PassedSockets {
    pub sockets: Vec<ListeningSocket>,
    pub metrics: Option<TcpListener>,
}

/// Takes the sockets passed to this process, if any. Must be called before the process opens any descriptor.
pub fn take() -> io::Result<PassedSockets> {
    let mut passed_descriptors = ListenFd::from_env();
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = PassedSockets::default();
    for index in 0..passed_descriptors.len() {
        let name = names.next().unwrap_or_default();
        let source = format!("descriptor {} of LISTEN_FDS ({name:?})", index + FIRST_DESCRIPTOR);
        let Some(descriptor) = descriptor(&mut passed_descriptors, index).context(&source)? else { continue };
        match ListeningSocket::from_descriptor(descriptor).context(&source)? {
            ListeningSocket::Internet(listener) if name == METRICS && passed.metrics.is_none() => {
                passed.metrics = Some(listener);
            }
            _ if name == METRICS => {
                let cause = "duplicate or non-TCP metrics socket";
                let remedy = "pass at most one TCP socket with this name";
                return Err(invalid_input(cause)).context_and_remedy(source, remedy);
            }
            socket => passed.sockets.push(socket),
        }
    }
    if passed.sockets.is_empty() && passed.metrics.is_some() {
        let remedy = "also pass a listening socket under another name";
        return Err(invalid_input("LISTEN_FDS contains only the metrics socket")).remedy(remedy);
    }
    Ok(passed)
}

fn descriptor(passed_descriptors: &mut ListenFd, index: usize) -> io::Result<Option<OwnedFd>> {
    // `take_tcp_listener` fails for a Unix socket and leaves the descriptor in place for the second attempt.
    let not_tcp = match passed_descriptors.take_tcp_listener(index) {
        Ok(listener) => return Ok(listener.map(OwnedFd::from)),
        Err(error) => error,
    };
    let listener = passed_descriptors.take_unix_listener(index);
    let remedy = "pass listening TCP or Unix stream sockets, e.g. with ListenStream=";
    Ok(listener.context_and_remedy(format_args!("{not_tcp}, and"), remedy)?.map(OwnedFd::from))
}
