//! The bytes of an HTTP/2 connection, as the traits that the crate `h2` requires.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::observe::metrics::WorkerMetrics;
use crate::server::deadline::Phase;
use crate::server::timer::ConnectionTimer;
use crate::transport::{PollSender, Receiver};

/// Frames are collected up to this size and then passed to the socket, so that small responses share a system call. Holds
/// three full frames. With a buffer for four, responses of 64 KiB took 10 % more CPU time.
const BUFFER_BYTES: usize = 64 * 1024;

thread_local! {
    /// Output buffer, shared by all connections of the thread. A connection holds one only while its socket is not
    /// writable.
    static SPARE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) struct Transport<R: Receiver, W> {
    receiver: R,
    /// Bytes that were received before the protocol was known.
    received: Vec<u8>,
    received_pos: usize,
    chunk: Option<R::Chunk>,
    chunk_pos: usize,
    output: Rc<RefCell<Output<W>>>,
    state: Rc<TransportState>,
    timer: Rc<ConnectionTimer>,
    metrics: Option<Rc<WorkerMetrics>>,
}

/// The frames to send.
///
/// `h2` flushes after each `DATA` frame. Such a flush has no effect: the connection's task calls [`poll_flush`] after
/// `h2` has made all progress that it can, so that the frames of all streams share system calls and TLS records.
///
/// [`poll_flush`]: Self::poll_flush
pub(super) struct Output<W> {
    sender: W,
    bytes: Vec<u8>,
    /// Number of bytes of `bytes` that the socket has accepted.
    written: usize,
    /// `true` if `h2` has more frames than fit.
    is_full: bool,
    timer: Rc<ConnectionTimer>,
}

/// The state that the transport shares with the task of the connection.
#[derive(Debug)]
pub(super) struct TransportState {
    /// The waker of the task, for which the socket has a faster path than for the waker that `h2` passes on.
    task: RefCell<Waker>,
    pub eof: Cell<Eof>,
    /// `true` after the handshake: GOAWAY can be sent, and the connection's task flushes the output.
    pub is_established: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eof {
    NotReceived,
    /// The client has shut down its write half, or the server its read half.
    Received,
    /// `h2` may learn of EOF. It then drops all streams, so it must not before they are complete.
    Reported,
}

impl TransportState {
    pub fn new() -> Self {
        Self {
            task: RefCell::new(Waker::noop().clone()),
            eof: Cell::new(Eof::NotReceived),
            is_established: Cell::default(),
        }
    }

    /// Sets the waker of the task that is polling.
    pub fn set_task(&self, waker: &Waker) {
        if !self.task.borrow().will_wake(waker) {
            // Cloning and dropping a waker can run arbitrary code, so the cell is not borrowed meanwhile.
            let replaced = self.task.replace(waker.clone());
            drop(replaced);
        }
    }
}

impl<R: Receiver, W> Unpin for Transport<R, W> {}

impl<W: PollSender> Output<W> {
    pub fn new(sender: W, timer: Rc<ConnectionTimer>) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { sender, bytes: Vec::new(), written: 0, is_full: false, timer }))
    }

    /// Passes the collected frames to the socket. Completes when that has accepted them all, and `h2` has no more that
    /// it could send.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_out(context))?;
        ready!(self.sender.poll_drive(context))?;
        if std::mem::take(&mut self.is_full) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Passes the collected frames to the sender. The send timeout applies while it does not accept them.
    fn poll_write_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let Poll::Ready(result) = self.sender.poll_write(&self.bytes[self.written..], context) else {
                self.timer.deadlines.start_send(self.timer.now());
                return Poll::Pending;
            };
            let count = result?;
            self.written += count;
            self.timer.note_send_progress(count as u64);
        }
        if self.bytes.capacity() > 0 {
            self.written = 0;
            self.bytes.clear();
            let bytes = std::mem::take(&mut self.bytes);
            // The destructor of another thread-local value can run a server after the buffer has been freed.
            SPARE_BUFFER.try_with(|spare| spare.set(bytes)).ok();
        }
        Poll::Ready(Ok(()))
    }

    /// Completes when `wanted` bytes fit, or the buffer is empty. A frame that does not fit is not split: its end would
    /// be a short message, which the socket sends in the next turn, and until then it would queue copies of what follows.
    fn poll_space(&mut self, wanted: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.bytes.is_empty() && self.bytes.len() + wanted > BUFFER_BYTES {
            self.is_full = true;
            ready!(self.poll_write_out(context))?;
            self.is_full = false;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE_BUFFER.try_with(Cell::take).unwrap_or_default();
        }
        Poll::Ready(Ok(()))
    }

    /// Appends as many bytes as fit, and returns their number.
    fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(BUFFER_BYTES - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..count]);
        count
    }
}

impl<R: Receiver, W: PollSender> Transport<R, W> {
    pub fn new(
        receiver: R,
        output: Rc<RefCell<Output<W>>>,
        received: Vec<u8>,
        state: Rc<TransportState>,
        timer: Rc<ConnectionTimer>,
        metrics: Option<Rc<WorkerMetrics>>,
    ) -> Self {
        Self { receiver, received, received_pos: 0, chunk: None, chunk_pos: 0, output, state, timer, metrics }
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<R::Chunk>>> {
        let chunk = ready!(self.receiver.poll_receive(context))?;
        if let (Some(chunk), Some(metrics)) = (&chunk, &self.metrics) {
            metrics.add_received_bytes(chunk.len() as u64);
        }
        Poll::Ready(Ok(chunk))
    }
}

impl<R: Receiver, W: PollSender> AsyncRead for Transport<R, W> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let received = &this.received[this.received_pos..];
        if !received.is_empty() {
            let count = received.len().min(buffer.remaining());
            buffer.put_slice(&received[..count]);
            this.received_pos += count;
            if this.received_pos == this.received.len() {
                (this.received, this.received_pos) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        let state = Rc::clone(&this.state);
        let task = state.task.borrow();
        let waker = if state.is_established.get() { &*task } else { context.waker() };
        let mut context = Context::from_waker(waker);
        loop {
            match this.state.eof.get() {
                Eof::NotReceived => {}
                Eof::Received if this.state.is_established.get() => return Poll::Pending,
                Eof::Received | Eof::Reported => return Poll::Ready(Ok(())),
            }
            if let Some(chunk) = &this.chunk {
                let rest = &chunk[this.chunk_pos..];
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                this.chunk_pos += count;
                if this.chunk_pos == chunk.len() {
                    this.chunk = None;
                }
                return Poll::Ready(Ok(()));
            }
            this.chunk = match ready!(this.poll_receive(&mut context)) {
                Ok(Some(chunk)) => Some(chunk),
                Ok(None) => {
                    this.state.eof.set(Eof::Received);
                    continue;
                }
                Err(error) => return Poll::Ready(Err(error)),
            };
            this.chunk_pos = 0;
        }
    }
}

impl<R: Receiver, W: PollSender> AsyncWrite for Transport<R, W> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut output = self.output.borrow_mut();
        ready!(output.poll_space(bytes.len(), context))?;
        Poll::Ready(Ok(output.append(bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut output = self.output.borrow_mut();
        ready!(output.poll_space(slices.iter().map(|slice| slice.len()).sum(), context))?;
        Poll::Ready(Ok(slices.iter().map(|slice| output.append(slice)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.is_established.get() {
            return Poll::Ready(Ok(()));
        }
        self.output.borrow_mut().poll_flush(context)
    }

    /// Shuts down the connection, and then discards what the client is still sending, because closing with unread bytes
    /// would reset the connection before the client has read the last frames.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        {
            let mut output = this.output.borrow_mut();
            ready!(output.poll_write_out(context))?;
            ready!(output.sender.poll_shutdown(context))?;
        }
        while this.state.eof.get() == Eof::NotReceived {
            this.timer.deadlines.enter(Phase::Linger, this.timer.now());
            if ready!(this.poll_receive(context)).map_or(true, |chunk| chunk.is_none()) {
                this.state.eof.set(Eof::Received);
            }
        }
        Poll::Ready(Ok(()))
    }
}
