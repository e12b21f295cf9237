//! Connecting and accepting. A listener accepts connections until its queue is full.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};

use super::state::{Proactor, cancel_token};
use super::stream::{Connect, Listener};
use crate::driver::accept_sink::AcceptSink;
use crate::driver::catch_panic::log;
use crate::driver::completion_kernel::{CompletionKernel, Socket};
use crate::driver::op::{Completion, Op};
use crate::driver::sockets::{Family, ListenOptions, Sockets, gone, is_per_connection_error, kernel_error};
use crate::driver::token::{Key, Kind, Token};
use crate::driver::wake::{WakeQueue, WakerSlot};

impl<K: CompletionKernel> Proactor<K> {
    pub fn connect(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().open_stream(peer, source)?;
        let key = self.insert(socket, Family::Internet, Connect::InFlight);
        if let Some(stream) = self.streams.get(key) {
            let op = Op::Connect { socket: &stream.socket, address: peer };
            self.kernel.push(Token::new(Kind::Connect, key), op);
        }
        Ok(key)
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        match stream.connect {
            Connect::Done => Poll::Ready(Ok(())),
            Connect::Failed(result) => Poll::Ready(Err(kernel_error(result))),
            Connect::InFlight => {
                stream.send_waker.wait(waker);
                Poll::Pending
            }
        }
    }

    #[inline(never)]
    pub(super) fn on_connect(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        stream.connect = match completion.result {
            0.. => Connect::Done,
            result => Connect::Failed(result),
        };
        stream.send_waker.wake(wakes);
        if stream.released {
            self.finish(key);
        }
    }

    pub fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Key> {
        let socket = self.kernel.sockets_mut().listen(address, options)?;
        self.attach_listener(socket, Family::Internet)
    }

    pub fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.listeners.insert(Listener {
            socket,
            family,
            shared: false,
            armed: false,
            accepts_ahead: true,
            cancelling: false,
            released: false,
            accept_sink: None,
            error: None,
            queue: VecDeque::new(),
            waker: WakerSlot::default(),
        }))
    }

    /// Marks the listener as shared with other workers. The kernel wakes the worker that has waited longest. A
    /// multishot accept would keep its position in the wait queue and get every connection; an accept that is armed
    /// again moves to the end of the queue.
    pub fn share_listener(&mut self, key: Key) {
        if let Some(listener) = self.listeners.get_mut(key) {
            listener.shared = true;
        }
    }

    pub fn poll_accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Key>> {
        let (socket, family) = ready!(self.poll_accepted(key, waker))?;
        Poll::Ready(self.attach_accepted(socket, family))
    }

    pub fn attach_accepted(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        self.attach(socket, family)
    }

    /// Accepts the next connection, without attaching it as a stream.
    pub fn poll_accepted(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<(Socket<K>, Family)>> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(socket) = listener.queue.pop_front() {
            let family = listener.family;
            return Poll::Ready(Ok((socket, family)));
        }
        if let Some(result) = listener.error.take() {
            return Poll::Ready(Err(kernel_error(result)));
        }
        listener.waker.wait(waker);
        if !listener.armed {
            listener.armed = true;
            let multishot = listener.accepts_ahead && !listener.shared;
            let op = Op::Accept { listener: &listener.socket, multishot };
            self.kernel.push(Token::new(Kind::Accept, key), op);
        }
        Poll::Pending
    }

    /// Sets whether the kernel may accept connections before the application polls for them. If not, each accept
    /// operation accepts one connection, so that at most one open connection has not been returned to the application.
    /// A multishot accept would take all connections in the backlog before it can be cancelled.
    pub fn set_accept_ahead(&mut self, key: Key, accepts_ahead: bool) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if std::mem::replace(&mut listener.accepts_ahead, accepts_ahead) && !accepts_ahead {
            self.stop_accepting(key);
        }
    }

    /// Rejects the pending connections of a listener when no descriptors are left. Returns their number.
    pub fn refuse(&mut self, key: Key) -> usize {
        let Some(listener) = self.listeners.get(key) else { return 0 };
        let rejected = self.kernel.sockets_mut().refuse(&listener.socket);
        self.metrics.refused += rejected as u64;
        rejected
    }

    pub fn release_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.released = true;
        listener.waker = WakerSlot::default();
        listener.queue.clear();
        if listener.armed {
            self.stop_accepting(key);
        } else {
            self.listeners.remove(key);
        }
    }

    /// Releases a listener. Connections that the kernel has accepted for it, or accepts before the accept operation
    /// ends, go to the sink.
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

    fn stop_accepting(&mut self, key: Key) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if listener.armed && !listener.cancelling {
            listener.cancelling = true;
            self.kernel.push(cancel_token(), Op::Cancel { target: Token::new(Kind::Accept, key) });
        }
    }

    #[inline(never)]
    pub(super) fn on_accept(&mut self, key: Key, completion: &Completion, wakes: &mut WakeQueue) {
        // A late completion may carry a socket. Create its owner first, so that it is closed on every path.
        let socket = (completion.result >= 0).then(|| self.kernel.accepted(completion.result));
        let Some(listener) = self.listeners.get_mut(key) else {
            self.metrics.late_completions += 1;
            return;
        };
        if !completion.has_more() {
            listener.armed = false;
            listener.cancelling = false;
        }
        if let Some(socket) = socket {
            self.metrics.accepted += 1;
            match &listener.accept_sink {
                None if listener.released => {}
                None => listener.queue.push_back(socket),
                Some(accept_sink) => {
                    pass_to_sink(self.kernel.sockets_mut(), socket, &**accept_sink);
                    wakes.extend(accept_sink.wakers());
                }
            }
        } else {
            let errno = -completion.result;
            // The other errors are caused by a single connection or by a cancellation, and accepting continues.
            if !is_per_connection_error(errno) && !matches!(errno, libc::ECANCELED | libc::EAGAIN) {
                listener.error = Some(completion.result);
            }
        }
        listener.waker.wake(wakes);
        let full = listener.queue.len() >= self.limits.max_accept_queue;
        if listener.released && !listener.armed {
            if let Some(accept_sink) = self.listeners.remove(key).and_then(|listener| listener.accept_sink) {
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
        Ok(descriptor) => accept_sink.accept(descriptor),
        Err(error) => log(|| tracing::warn!(%error, "closing a connection accepted for a released listener")),
    }
}
