//! Tables and other state of the state machine.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::{Connect, Listener, Stream};
use crate::driver::buffer::Pools;
use crate::driver::completion_kernel::{Capabilities, CompletionKernel, Socket};
use crate::driver::counters::DriverMetrics;
use crate::driver::machine::Machine;
use crate::driver::op::{Op, SendMode};
use crate::driver::options::{DriverOptions, ZeroCopy};
use crate::driver::send_queue::Queued;
use crate::driver::sockets::{Family, gone};
use crate::driver::table::Table;
use crate::driver::token::{Key, Kind, Token};
use crate::driver::wake::{PollIo, WakerSlot};

/// Maximum number of bytes per send.
pub(super) const MAX_SEND_BYTES: usize = 1 << 30;

#[derive(Debug)]
pub(crate) struct Proactor<K: CompletionKernel> {
    pub(crate) kernel: K,
    pub(super) capabilities: Capabilities,
    pub(super) streams: Table<Stream<Socket<K>>>,
    pub(super) listeners: Table<Listener<Socket<K>>>,
    pub(super) zero_copy_sends: Table<ZeroCopySend>,
    /// Inline sends that are not yet confirmed, in submission order: the slot of the stream and the submission index.
    pub(super) unconfirmed_sends: Vec<(u32, u32)>,
    /// Empty list that replaces `unconfirmed_sends` while its entries are processed.
    pub(super) unconfirmed_scratch: Vec<(u32, u32)>,
    /// Set if a task is waiting for an unconfirmed send. The next turn must confirm sends before it blocks, because a
    /// successful inline send does not wake any task.
    pub(super) confirm_without_sleeping: bool,
    /// Set if the receive ring has grown since the last call to `enter`.
    pub(super) ring_grown: bool,
    pub(super) limits: DriverOptions,
    pub(super) zero_copy_bytes: usize,
    /// Mode of sends that are submitted to the ring and are not zero-copy sends.
    pub(super) default_send_mode: SendMode,
    /// Maximum size of messages on the fast path for inline sends; zero if inline sends are not used.
    pub(super) inline_send_bytes: usize,
    pub(super) pools: Rc<Pools>,
    pub(super) metrics: DriverMetrics,
    /// Operations that were in flight when the kernel dropped completions.
    pub(super) recovery: RecoveryCancels,
}

/// A zero-copy send whose last completion has not arrived.
///
/// Its memory moves here once the kernel has taken all of it or the stream was aborted. The stream can then continue or
/// be closed. The memory is freed on the notification, which arrives when the peer has acknowledged the data or the
/// connection has been reset.
#[derive(Debug)]
pub(super) struct ZeroCopySend {
    pub stream: Key,
    /// Result of a short send. The stream continues when the memory is no longer in use.
    pub short_result: Option<i32>,
    pub memory: Option<Queued>,
}

/// Operations that were cancelled because their completions may have been dropped.
#[derive(Debug, Default)]
pub(super) struct RecoveryCancels {
    /// Generation in the tokens of these cancellations; the index in such a token is the position of its target in
    /// `targets`. Other cancellations have generation zero.
    pub round: u32,
    pub targets: Vec<Token>,
}

impl<K: CompletionKernel> Proactor<K> {
    pub fn new(kernel: K, options: &DriverOptions) -> Self {
        let zero_copy_bytes = match options.zero_copy {
            ZeroCopy::Never => usize::MAX,
            ZeroCopy::RemoteOnly { threshold_bytes } | ZeroCopy::Always { threshold_bytes } => {
                threshold_bytes
            }
        };
        let capabilities = kernel.capabilities();
        // Larger messages are sent directly by a system call or as zero-copy sends.
        let small_bytes =
            options.direct_send_threshold_bytes.min(zero_copy_bytes).min(MAX_SEND_BYTES).saturating_sub(1);
        let inline_sends = capabilities.inline_sends;
        Self {
            capabilities,
            pools: Rc::clone(kernel.pools()),
            kernel,
            default_send_mode: if inline_sends { SendMode::Inline } else { SendMode::Async },
            inline_send_bytes: if inline_sends { small_bytes } else { 0 },
            streams: Table::new(),
            listeners: Table::new(),
            zero_copy_sends: Table::new(),
            unconfirmed_sends: Vec::new(),
            unconfirmed_scratch: Vec::new(),
            confirm_without_sleeping: false,
            ring_grown: false,
            // With a limit of zero, no bytes would ever be accepted.
            limits: DriverOptions {
                max_send_queue_bytes: options.max_send_queue_bytes.max(1),
                ..options.clone()
            },
            zero_copy_bytes,
            metrics: DriverMetrics::default(),
            recovery: RecoveryCancels::default(),
        }
    }

    pub(super) fn insert(&mut self, socket: Socket<K>, family: Family, connect: Connect) -> Key {
        let direct = !self.capabilities.ring_receive || family != Family::Internet;
        let key = self.streams.insert(Stream::new(socket, family, connect, direct));
        if let Some(stream) = self.streams.get(key) {
            self.kernel.attached(key, &stream.socket);
        }
        key
    }
}

pub(super) fn cancel_token() -> Token {
    Token::internal(Kind::Cancel)
}

impl<K: CompletionKernel> Machine for Proactor<K> {
    type Sockets = K::Sockets;

    #[inline]
    fn sockets(&self) -> &K::Sockets {
        self.kernel.sockets()
    }

    #[inline]
    fn sockets_mut(&mut self) -> &mut K::Sockets {
        self.kernel.sockets_mut()
    }

    fn stream(&self, key: Key) -> Option<&Socket<K>> {
        self.streams.get(key).map(|stream| &stream.socket)
    }

    fn listener(&self, key: Key) -> Option<&Socket<K>> {
        self.listeners.get(key).map(|listener| &listener.socket)
    }

    fn wakers(&mut self, key: Key) -> Option<[&mut WakerSlot; 2]> {
        self.streams.get_mut(key).map(|stream| [&mut stream.receive_waker, &mut stream.sends.waker])
    }

    fn metrics(&self) -> DriverMetrics {
        let sockets = (self.streams.len() + self.listeners.len()) as u64;
        let mut metrics = DriverMetrics { sockets, ..self.metrics };
        self.kernel.count(&mut metrics);
        metrics
    }

    fn listener_parts(&mut self, key: Key) -> Option<(&mut K::Sockets, &Socket<K>, &mut DriverMetrics)> {
        let listener = self.listeners.get(key)?;
        Some((self.kernel.sockets_mut(), &listener.socket, &mut self.metrics))
    }

    fn attach(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.insert(socket, family, Connect::Done))
    }

    fn attach_listener(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.listeners.insert(Listener {
            socket,
            family,
            shared: false,
            armed: false,
            accepts_ahead: true,
            cancelling: false,
            in_doubt: false,
            released: false,
            accept_sink: None,
            error: None,
            queue: VecDeque::new(),
            waker: WakerSlot::default(),
        }))
    }

    fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(Socket<K>, Family)> {
        let Some(listener) = self.listeners.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if let Some(socket) = listener.queue.pop_front() {
            let family = listener.family;
            return Poll::Ready(Ok((socket, family)));
        }
        if let Some(errno) = listener.error.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
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

    /// Marks the listener as shared with other workers. The kernel wakes the worker that has been waiting longest. A
    /// multishot accept would keep its position in the wait queue and receive every connection; an accept that is armed
    /// again moves to the end of the queue.
    fn share_listener(&mut self, key: Key) {
        if let Some(listener) = self.listeners.get_mut(key) {
            listener.shared = true;
        }
    }

    /// Sets whether the kernel may accept connections before the application polls for them. If not, each accept
    /// operation accepts one connection, so that at most one open connection has not been returned to the application.
    /// A multishot accept would take all connections in the backlog before it could be cancelled.
    fn set_accept_ahead(&mut self, key: Key, accepts_ahead: bool) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        if std::mem::replace(&mut listener.accepts_ahead, accepts_ahead) && !accepts_ahead {
            self.stop_accepting(key);
        }
    }
}
