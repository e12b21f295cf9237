//! The tables of the state machine, and its other state.

use std::io;
use std::rc::Rc;
use std::task::Waker;

use super::stream::{Connect, Listener, Stream};
use crate::driver::buffer::Pools;
use crate::driver::completion_kernel::{Capabilities, CompletionKernel, Socket};
use crate::driver::counters::DriverMetrics;
use crate::driver::op::SendMode;
use crate::driver::options::{DriverOptions, ZeroCopy};
use crate::driver::send_queue::Queued;
use crate::driver::sockets::{Family, gone};
use crate::driver::table::Table;
use crate::driver::token::{Key, Kind, Token};

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
    /// Set if a task waits for an unconfirmed send. The next turn must confirm sends before it sleeps, because a
    /// successful inline send wakes no task.
    pub(super) confirm_without_sleeping: bool,
    /// Set if the receive ring has grown since the last enter.
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
/// Its memory moves here once the kernel has taken all of it or the stream was aborted. The stream then continues or
/// closes. The notification frees the memory; it arrives when the peer has acknowledged the data or the connection was
/// reset.
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
    /// Generation of the tokens of these cancellations; the index of such a token is the index of its target in
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

    pub fn attach(&mut self, socket: Socket<K>, family: Family) -> io::Result<Key> {
        Ok(self.insert(socket, family, Connect::Done))
    }

    pub(super) fn insert(&mut self, socket: Socket<K>, family: Family, connect: Connect) -> Key {
        let direct = !self.capabilities.ring_receive || family != Family::Internet;
        let key = self.streams.insert(Stream::new(socket, family, connect, direct));
        if let Some(stream) = self.streams.get(key) {
            self.kernel.attached(key, &stream.socket);
        }
        key
    }

    pub fn holds(&self, key: Key) -> bool {
        self.streams.get(key).is_some()
    }

    /// Takes the wakers of the tasks waiting to read from or write to a stream.
    pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        let Some(stream) = self.streams.get_mut(key) else { return [None, None] };
        [stream.receive_waker.take(), stream.send_waker.take()]
    }

    /// Returns the socket of a stream and the `Sockets` implementation to use it with.
    pub fn stream_socket(&self, key: Key) -> io::Result<(&K::Sockets, &Socket<K>)> {
        Ok((self.kernel.sockets(), &self.streams.get(key).ok_or_else(gone)?.socket))
    }

    /// Returns the socket of a listener and the `Sockets` implementation to use it with.
    pub fn listener_socket(&self, key: Key) -> io::Result<(&K::Sockets, &Socket<K>)> {
        Ok((self.kernel.sockets(), &self.listeners.get(key).ok_or_else(gone)?.socket))
    }

    pub fn metrics(&self) -> DriverMetrics {
        let mut metrics = self.metrics;
        metrics.sockets = (self.streams.len() + self.listeners.len()) as u64;
        self.kernel.count(&mut metrics);
        metrics
    }
}

pub(super) fn cancel_token() -> Token {
    Token::internal(Kind::Cancel)
}
