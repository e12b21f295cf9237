//! Sockets that a service manager passes: `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES`, as sd_listen_fds(3) has them.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;

use crate::listening::ListeningSocket;

/// The first descriptor that is passed.
const FIRST_DESCRIPTOR: usize = 3;

/// The name, `FileDescriptorName=`, of the socket for /metrics.
const METRICS: &str = "metrics";

/// What was passed.
#[derive(Debug, Default)]
pub struct Passed {
    pub sockets: Vec<ListeningSocket>,
    pub metrics: Option<TcpListener>,
}

impl Passed {
    /// The sockets for a server that tells no metrics.
    ///
    /// # Errors
    /// When one for them was passed.
    pub fn without_metrics(self) -> io::Result<Vec<ListeningSocket>> {
        match self.metrics {
            None => Ok(self.sockets),
            Some(_) => {
                let message =
                    "LISTEN_FDS has a socket for /metrics, which this server does not tell: leave it out";
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }
}

/// Takes the sockets that were passed to this process, if any. To be called before anything opens descriptors.
///
/// # Errors
/// When one is not of a kind that can be listened on.
pub fn take() -> io::Result<Passed> {
    let mut given = ListenFd::from_env();
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = Passed::default();
    for index in 0..given.len() {
        let name = names.next().unwrap_or_default();
        let refused = |error: io::Error| {
            let message =
                format!("descriptor {} of LISTEN_FDS ({name:?}): {error}", index + FIRST_DESCRIPTOR);
            io::Error::new(error.kind(), message)
        };
        let Some(descriptor) = descriptor(&mut given, index).map_err(refused)? else { continue };
        match ListeningSocket::from_descriptor(descriptor).map_err(refused)? {
            ListeningSocket::Internet(listener) if name == METRICS && passed.metrics.is_none() => {
                passed.metrics = Some(listener);
            }
            _ if name == METRICS => {
                let message = "/metrics is told at one TCP socket: pass no other one of this name";
                return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, message)));
            }
            socket => passed.sockets.push(socket),
        }
    }
    if passed.sockets.is_empty() && passed.metrics.is_some() {
        let message =
            "of LISTEN_FDS, the only socket is that for /metrics: pass one to serve, with another name";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(passed)
}

/// A descriptor that is a stream socket.
fn descriptor(given: &mut ListenFd, index: usize) -> io::Result<Option<OwnedFd>> {
    // What is a Unix socket is no TCP socket: the first says so, and leaves it.
    match given.take_tcp_listener(index) {
        Ok(listener) => Ok(listener.map(OwnedFd::from)),
        Err(not_tcp) => match given.take_unix_listener(index) {
            Ok(listener) => Ok(listener.map(OwnedFd::from)),
            Err(not_unix) => {
                let remedy = "pass stream sockets that listen, of TCP or Unix (ListenStream= of systemd)";
                Err(io::Error::new(not_tcp.kind(), format!("{not_tcp}, and {not_unix}: {remedy}")))
            }
        },
    }
}
