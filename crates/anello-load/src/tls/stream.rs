//! One connection under TLS.
//!
//! Invariants:
//! - what the session wants to send is on its way before anything is waited for;
//! - ciphertext that has come is taken in piece by piece, and the plaintext of one taken out before the next goes in, so that
//!   the session never holds more than one piece;
//! - plaintext goes out in memory that belongs to the thread, not to the connection: idle connections hold none.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use anello::net::Chunk;
use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::{Negotiated, TlsError};
use crate::stream::{Stream, Transport};

/// Plaintext that is handed on at a time, about.
const PLAINTEXT_BYTES: usize = 64 * 1024;

/// What a piece of ciphertext may add to that.
const RECORD_BYTES: usize = 16 * 1024;

/// What all connections of a thread share.
pub(crate) struct TlsConnector {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    /// Memory for plaintext while nobody has it.
    spare_buffer: Cell<Vec<u8>>,
}

impl TlsConnector {
    pub fn new(config: Arc<ClientConfig>, server_name: ServerName<'static>) -> Self {
        Self { config, server_name, spare_buffer: Cell::default() }
    }

    /// Makes the handshake. Cancel-safe: dropping the future closes the connection.
    ///
    /// # Errors
    /// Those of [`TlsError`], and those of the transport.
    pub async fn handshake(self: Rc<Self>, transport: Transport) -> io::Result<Stream> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.server_name.clone());
        let mut tls = tls.map_err(|error| TlsError::from_rustls(&error))?;
        // What is written is passed on at once, and the transport bounds what it accepts.
        tls.set_buffer_limit(None);
        let mut stream = TlsStream {
            connector: self,
            transport,
            tls,
            outgoing: Bytes::new(),
            incoming: None,
            plaintext: Vec::new(),
            pending_error: None,
            close_state: CloseState::Open,
        };
        poll_fn(|context| stream.poll_handshake(context)).await?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsConnector").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// How the server's side has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    Open,
    /// By a close_notify.
    CloseNotify,
    /// Without one.
    Truncated,
}

/// A connection under TLS.
pub(crate) struct TlsStream {
    connector: Rc<TlsConnector>,
    transport: Transport,
    tls: ClientConnection,
    /// Ciphertext that the transport has not accepted yet.
    outgoing: Bytes,
    /// Ciphertext that has come, as far as the session has not taken it in.
    incoming: Option<Chunk>,
    /// What was decrypted and not handed on yet.
    plaintext: Vec<u8>,
    /// What went wrong after that.
    pending_error: Option<io::Error>,
    close_state: CloseState,
}

impl TlsStream {
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.is_handshaking() {
            if let Poll::Ready(Err(error)) = self.poll_flush(context) {
                return Poll::Ready(Err(error));
            }
            if self.incoming.is_none() {
                self.incoming = ready!(self.transport.poll_receive(context))?;
                if self.incoming.is_none() {
                    return Poll::Ready(Err(TlsError::unexpected_eof()));
                }
            }
            self.decrypt();
            if let Some(error) = self.pending_error.take() {
                self.send_alert(context);
                return Poll::Ready(Err(error));
            }
        }
        self.poll_flush(context)
    }

    /// Hands what the session wants to send to the transport.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.outgoing.is_empty() {
                // A clone of it shares its memory.
                ready!(self.transport.poll_send(self.outgoing.clone(), context))?;
                self.outgoing = Bytes::new();
            }
            if !self.tls.wants_write() {
                return Poll::Ready(Ok(()));
            }
            let mut ciphertext = Vec::new();
            self.tls.write_tls(&mut ciphertext)?;
            self.outgoing = ciphertext.into();
        }
    }

    /// All or nothing, as those of other streams.
    pub fn poll_send(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        self.tls.writer().write_all(bytes)?;
        // Accepted now. Whatever the transport does not take at once goes on when something is received.
        match self.poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// The next plaintext; none at the end.
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            self.decrypt();
            if !self.plaintext.is_empty() {
                return Poll::Ready(Ok(Some(std::mem::take(&mut self.plaintext))));
            }
            if let Some(error) = self.pending_error.take() {
                self.send_alert(context);
                return Poll::Ready(Err(error));
            }
            if self.close_state != CloseState::Open {
                return Poll::Ready(Ok(None));
            }
            // That it cannot be sent at once keeps nothing from being received.
            if let Poll::Ready(Err(error)) = self.poll_flush(context) {
                return Poll::Ready(Err(error));
            }
            self.incoming = ready!(self.transport.poll_receive(context))?;
            if self.incoming.is_none() {
                self.close_state = CloseState::Truncated;
            }
        }
    }

    /// Takes in what has come, to its end or until there is enough plaintext to be handed on.
    fn decrypt(&mut self) {
        while let Some(chunk) = &mut self.incoming {
            if chunk.is_empty() || self.pending_error.is_some() || self.close_state != CloseState::Open {
                self.incoming = None;
                return;
            }
            if self.plaintext.len() >= PLAINTEXT_BYTES {
                return;
            }
            let mut rest: &[u8] = chunk;
            match self.tls.read_tls(&mut rest) {
                Ok(count) => chunk.advance(count),
                Err(error) => self.pending_error = Some(error),
            }
            if let Err(error) = self.tls.process_new_packets() {
                self.pending_error = Some(TlsError::from_rustls(&error));
            }
            self.read_plaintext();
        }
    }

    fn read_plaintext(&mut self) {
        let mut reader = self.tls.reader();
        loop {
            let count = match reader.fill_buf() {
                Ok([]) => {
                    self.close_state = CloseState::CloseNotify;
                    return;
                }
                Ok(part) => {
                    if self.plaintext.capacity() == 0 {
                        self.plaintext = self.connector.spare_buffer.take();
                        self.plaintext.reserve(PLAINTEXT_BYTES + RECORD_BYTES);
                    }
                    self.plaintext.extend_from_slice(part);
                    part.len()
                }
                // There is no more now; what else can go wrong has been told when it was decrypted.
                Err(_) => return,
            };
            reader.consume(count);
        }
    }

    /// Takes the memory of a plaintext that nobody needs any more.
    pub fn recycle(&self, mut plaintext: Vec<u8>) {
        plaintext.clear();
        self.connector.spare_buffer.set(plaintext);
    }

    /// Waits until the server has closed its side of the transport, too; how many bytes came instead, if any. A server that
    /// waits for our close_notify first gets it.
    pub fn poll_eof(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        if self.close_state == CloseState::Open
            && let Some(plaintext) = ready!(self.poll_receive(context))?
        {
            return Poll::Ready(Ok(Some(plaintext.len())));
        }
        if self.close_state == CloseState::Truncated {
            return Poll::Ready(Ok(None));
        }
        self.tls.send_close_notify();
        if let Poll::Ready(Err(error)) = self.poll_flush(context) {
            return Poll::Ready(Err(error));
        }
        while ready!(self.transport.poll_receive(context))?.is_some() {}
        Poll::Ready(Ok(None))
    }

    /// Tells the server why it is left; who cannot be told is left all the same.
    fn send_alert(&mut self, context: &mut Context<'_>) {
        let flushed = self.poll_flush(context);
        tracing::debug!(?flushed, "a server was left because of TLS");
    }

    /// Tells the server that nothing more will come, as far as that can be sent at once.
    pub fn send_close_notify(&mut self) {
        self.tls.send_close_notify();
        // Nobody is there to wait for it.
        let flushed = self.poll_flush(&mut Context::from_waker(Waker::noop()));
        tracing::trace!(?flushed, "close_notify");
    }

    /// Whether the server's side has ended without a close_notify, so that something may be missing.
    pub fn is_truncated(&self) -> bool {
        self.close_state == CloseState::Truncated
    }

    /// What the handshake has come to.
    pub fn negotiated(&self) -> Negotiated {
        Negotiated::of(&self.tls)
    }

    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    pub fn into_transport(self) -> Transport {
        self.transport
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsStream")
            .field("transport", &self.transport)
            .field("close_state", &self.close_state)
            .finish_non_exhaustive()
    }
}
