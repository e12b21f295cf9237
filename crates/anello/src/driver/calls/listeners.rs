//! Calls on listeners.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};

use crate::driver::Driver;
use crate::driver::backend::{dispatch, dispatch_by_model};
use crate::driver::kernel::Kernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::detached::DetachedSocket;
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{Family, ListenOptions, Sockets, Target, check_linger, gone};
use crate::driver::stream::accepted::{AcceptSink, Accepted};
use crate::driver::wake::queue::PollIo;

/// `Proactor` documents the calls that both state machines have.
impl Driver {
    pub fn listen(&mut self, address: SocketAddr, listen: &ListenOptions) -> io::Result<Key> {
        let socket = self.open_tcp(address.is_ipv6())?;
        let target = Target::Unattached(&socket);
        self.set_option(target, SocketOption::ReuseAddress, 1)?;
        for (option, value) in &listen.options {
            self.set_option(target, *option, *value)?;
        }
        if let Some(device) = &listen.device {
            self.bind_device(target, Some(device))?;
        }
        self.bind(&socket, address)?;
        dispatch!(self.open_backend()?, machine => {
            let socket = socket.into().ok_or_else(gone)?;
            machine.kernel.sockets_mut().start_listening(&socket, listen.backlog)?;
            machine.attach_listener(socket, Family::Internet)
        })
    }

    pub fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let socket = machine.kernel.sockets_mut().listen_unix(address, backlog)?;
            machine.attach_listener(socket, Family::Unix)
        })
    }

    pub fn import_listener(&mut self, socket: DetachedSocket) -> io::Result<Key> {
        if let DetachedSocket::Os(listener) = &socket {
            check_linger(listener);
        }
        dispatch!(self.open_backend()?, machine => {
            let (socket, family) = machine.kernel.sockets_mut().import(socket)?;
            machine.attach_listener(socket, family)
        })
    }

    /// Declares that other workers accept connections from the same socket.
    pub fn share_listener(&mut self, key: Key) {
        dispatch_by_model!(
            &mut *self.backend,
            completion machine => machine.share_listener(key),
            // Each connection is reported to all workers.
            readiness _ => {}
        );
    }

    pub fn poll_accept(&mut self, key: Key, waker: &Waker) -> PollIo<Key> {
        dispatch!(&mut *self.backend, machine => {
            let (socket, family) = ready!(machine.poll_accepted(key, waker))?;
            configure_accepted(machine.kernel.sockets(), &socket, family)?;
            Poll::Ready(machine.attach(socket, family, false))
        })
    }

    /// Accepts a connection. If `should_attach` returns `false`, returns it without attaching it.
    pub fn poll_accept_if(
        &mut self,
        key: Key,
        waker: &Waker,
        should_attach: impl FnOnce() -> bool,
    ) -> PollIo<Accepted> {
        dispatch!(&mut *self.backend, machine => {
            let (socket, family) = ready!(machine.poll_accepted(key, waker))?;
            if !should_attach() {
                return Poll::Ready(machine.kernel.sockets_mut().export(socket).map(Accepted::Detached));
            }
            configure_accepted(machine.kernel.sockets(), &socket, family)?;
            Poll::Ready(machine.attach(socket, family, false).map(Accepted::Stream))
        })
    }

    pub fn set_accept_ahead(&mut self, key: Key, accepts_ahead: bool) {
        dispatch_by_model!(
            &mut *self.backend,
            completion machine => machine.set_accept_ahead(key, accepts_ahead),
            // A reactor accepts a connection only when a task polls for one.
            readiness _ => {}
        );
    }

    /// Rejects pending connections when no descriptors are left. Returns the number of rejected connections.
    pub fn reject_pending(&mut self, key: Key) -> usize {
        dispatch!(&mut *self.backend, machine => machine.reject_pending(key))
    }

    pub fn release_listener(&mut self, key: Key) {
        if !self.is_foreign() {
            dispatch!(&mut *self.backend, machine => machine.release_listener(key));
        }
    }

    /// The caller must call the sink's wakers.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        dispatch!(&mut *self.backend, machine => machine.release_listener_to(key, accept_sink));
    }
}

/// Sets the option that an accepted Unix socket, unlike a TCP socket, does not inherit from its listener.
fn configure_accepted<S: Sockets>(sockets: &S, socket: &S::Socket, family: Family) -> io::Result<()> {
    match family {
        Family::Internet => Ok(()),
        Family::Unix => sockets.set_option(socket, SocketOption::UrgentInline, 1),
    }
}
