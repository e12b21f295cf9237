//! Listeners and accepting.

use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Listener, Reactor};
use crate::driver::{
    AcceptSink, Family, Key, Kind, PollIo, ReadinessKernel, Socket, Sockets, Token, WakerSlot, gone,
    is_per_connection_error, log,
};

impl<K: ReadinessKernel> Reactor<K> {
    pub fn listener(&self, key: Key) -> Option<&Socket<K>> {
        self.listeners.get(key).map(|listener| &listener.socket)
    }

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.remove(key) else { return };
        // Closing the socket does not remove it from epoll while another descriptor of it exists, in this or another
        // process.
        if let Err(error) = self.kernel.unwatch(&listener.socket) {
            log(|| tracing::debug!(%error, "cannot remove a released listener from epoll"));
        }
    }

    /// Releases a listener. No connection is passed to the sink, because this driver accepts a connection only when a
    /// task polls for one.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        self.release_listener(key);
        accept_sink.listener_released();
    }

    pub fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        let key = self.listeners.insert(Listener { socket, family, waker: WakerSlot::default() });
        if let Some(listener) = self.listeners.get(key)
            && let Err(error) = self.kernel.watch(&listener.socket, Token::new(Kind::Accept, key))
        {
            self.listeners.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    pub fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(Socket<K>, Family)> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        loop {
            match self.kernel.sockets_mut().accept(&listener.socket) {
                Ok(socket) => {
                    self.metrics.accepted += 1;
                    return Poll::Ready(Ok((socket, listener.family)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error().is_some_and(is_per_connection_error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        listener.waker.wait(waker);
        Poll::Pending
    }
}
