//! Listeners and accepting.

use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Listener, Reactor};
use crate::driver::errors::log::log_event;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{ReadinessKernel, Socket};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Family, Sockets, gone, is_per_connection_error};
use crate::driver::stream::accepted::AcceptSink;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

/// Maximum number of connections accepted in one turn.
pub(super) const MAX_ACCEPT_BATCH: u32 = 64;

impl<K: ReadinessKernel> Reactor<K> {
    pub fn listener(&self, key: Key) -> Option<&Socket<K>> {
        self.listeners.get(key).map(|listener| &listener.socket)
    }

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.remove(key) else { return };
        if !listener.is_watched {
            return;
        }
        // Closing the socket does not remove it from epoll while another descriptor of it exists, in this or another
        // process.
        if let Err(error) = self.kernel.unwatch(&listener.socket) {
            log_event!(DEBUG, %error, "cannot remove a released listener from epoll");
        }
    }

    /// Releases a listener. No connection is passed to the sink, because this driver accepts a connection only when a
    /// task polls for one.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        self.release_listener(key);
        accept_sink.listener_released();
    }

    pub fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        let waker = WakerSlot::default();
        let (remaining, batch, event_turn) = (1, 1, 0);
        let listener = Listener { socket, family, waker, remaining, batch, event_turn, is_watched: true };
        let key = self.listeners.insert(listener);
        if let Some(listener) = self.listeners.get(key)
            && let Err(error) = self.kernel.watch_listener(&listener.socket, Token::new(Kind::Accept, key))
        {
            self.listeners.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    pub fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(Socket<K>, Family)> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        while listener.remaining > 0 {
            listener.remaining -= 1;
            match self.kernel.sockets_mut().accept(&listener.socket) {
                Ok(socket) => {
                    self.metrics.accepted += 1;
                    return Poll::Ready(Ok((socket, listener.family)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    (listener.remaining, listener.batch) = (0, (listener.batch / 2).max(1));
                }
                Err(error) if error.raw_os_error().is_some_and(is_per_connection_error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if !listener.is_watched {
            self.kernel.watch_listener(&listener.socket, Token::new(Kind::Accept, key))?;
            listener.is_watched = true;
        }
        listener.waker.wait(waker);
        Poll::Pending
    }

    #[inline(never)]
    pub(super) fn on_pending_connections(&mut self, key: Key, wakes: &mut WakeQueue) {
        let Some(listener) = self.listeners.get_mut(key) else {
            return self.on_late_event(self.listeners.is_earlier(key));
        };
        if !listener.waker.is_waiting() {
            listener.is_watched = false;
            if let Err(error) = self.kernel.unwatch(&listener.socket) {
                log_event!(DEBUG, %error, "cannot remove a listener from epoll");
            }
            return;
        }
        let turn = self.metrics.turns;
        if listener.remaining == 0 && turn == listener.event_turn + 1 {
            listener.batch = (listener.batch * 2).min(MAX_ACCEPT_BATCH);
        }
        (listener.remaining, listener.event_turn) = (listener.batch, turn);
        listener.waker.wake(wakes);
    }
}
