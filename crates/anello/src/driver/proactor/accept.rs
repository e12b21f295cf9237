//! Connecting and accepting. A listener accepts connections until its queue is full.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::Proactor;
use super::stream::{Connect, Listener};
use crate::driver::errors::impossible::report_impossible;
use crate::driver::errors::log::log_event;
use crate::driver::kernel::op::{Completion, Op};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{CompletionKernel, Socket};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Family, Sockets, gone, is_per_connection_error};
use crate::driver::stream::accepted::AcceptSink;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

impl<K: CompletionKernel> Proactor<K> {
    pub fn connect(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().open_stream(peer, source)?;
        self.connect_socket(socket, peer)
    }

    pub fn connect_socket(&mut self, socket: Socket<K>, peer: SocketAddr) -> io::Result<Key> {
        let key = self.insert(socket, Family::Internet, Connect::InFlight);
        if let Some(stream) = self.streams.get(key) {
            let op = Op::Connect { socket: &stream.socket, address: peer };
            self.kernel.push(Token::new(Kind::Connect, key), op);
        }
        Ok(key)
    }

    pub fn listener(&self, key: Key) -> Option<&Socket<K>> {
        self.listeners.get(key).filter(|listener| !listener.released).map(|listener| &listener.socket)
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        match stream.connect {
            Connect::Done => Poll::Ready(Ok(())),
            Connect::Failed(errno) => Poll::Ready(Err(io::Error::from_raw_os_error(errno.into()))),
            Connect::InFlight => {
                stream.sends.waker.wait(waker);
                Poll::Pending
            }
        }
    }

    #[inline(never)]
    pub(super) fn on_connect(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if stream.connect != Connect::InFlight {
            let message = "invariant 8: completion of a connect that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        stream.connect = match completion.result {
            0.. => Connect::Done,
            result => Connect::Failed(result.unsigned_abs() as u16),
        };
        stream.sends.waker.wake(wakes);
        if stream.released {
            self.finish(key);
        }
    }

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.released = true;
        listener.waker = WakerSlot::default();
        listener.queue.drain(..).for_each(|socket| self.kernel.sockets().close(socket));
        if listener.armed {
            self.stop_accepting(key);
        } else {
            self.remove_listener(key);
        }
    }

    fn remove_listener(&mut self, key: Key) -> Option<Listener<Socket<K>>> {
        let listener = self.listeners.remove(key)?;
        debug_assert!(!listener.armed, "invariant 2: a listener is removed while an accept is in flight");
        Some(listener)
    }

    /// Releases a listener. Connections that the kernel has already accepted for it, or accepts before the accept
    /// operation ends, are passed to the sink.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        let Some(listener) = self.listeners.get_mut(key) else { return accept_sink.listener_released() };
        for socket in listener.queue.drain(..) {
            pass_to_sink(self.kernel.sockets_mut(), socket, &*accept_sink);
        }
        if listener.armed {
            listener.accept_sink = Some(accept_sink);
        } else {
            accept_sink.listener_released();
        }
        self.release_listener(key);
    }

    pub(super) fn stop_accepting(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if listener.armed && !listener.cancelling {
            listener.cancelling = true;
            self.cancel(Kind::Accept, key);
        }
    }

    #[inline(never)]
    pub(super) fn on_accept(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        // A late completion may carry a socket. Take ownership of the socket first, so that it is closed on every path.
        let socket = (completion.result >= 0).then(|| self.kernel.accepted(completion.result));
        let Some(listener) = self.listeners.get_mut(key) else {
            // Invariant 7: dropping the socket closes it.
            return self.on_late_completion(self.listeners.is_earlier(key));
        };
        if !listener.armed {
            // A connection that is accepted twice as often as requested is served like any other.
            report_impossible("invariant 8: completion of an accept that is not in flight");
        }
        if !completion.has_more() {
            (listener.armed, listener.cancelling, listener.in_doubt) = (false, false, false);
        }
        if let Some(socket) = socket {
            self.metrics.accepted += 1;
            match &listener.accept_sink {
                None if listener.released => self.kernel.sockets().close(socket),
                None => listener.queue.push_back(socket),
                Some(accept_sink) => {
                    pass_to_sink(self.kernel.sockets_mut(), socket, &**accept_sink);
                    wakes.extend(accept_sink.wakers());
                }
            }
        } else {
            let errno = -completion.result;
            // All other errors are caused by a single connection or by a cancellation, so accepting continues.
            if !is_per_connection_error(errno) && !matches!(errno, libc::ECANCELED | libc::EAGAIN) {
                listener.error = Some(errno);
            }
        }
        listener.waker.wake(wakes);
        let full = listener.queue.len() >= self.limits.max_accept_queue;
        if listener.released && !listener.armed {
            if let Some(accept_sink) = self.remove_listener(key).and_then(|listener| listener.accept_sink) {
                accept_sink.listener_released();
                wakes.extend(accept_sink.wakers());
            }
        } else if full {
            self.stop_accepting(key);
        }
    }
}

fn pass_to_sink<S: Sockets>(sockets: &mut S, socket: S::Socket, accept_sink: &dyn AcceptSink) {
    match sockets.export(socket) {
        Ok(connection) => accept_sink.accept(connection),
        Err(error) => {
            log_event!(WARN, %error, "cannot transfer a connection of a released listener; closing it")
        }
    }
}
