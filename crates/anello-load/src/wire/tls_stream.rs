//! TLS connection.
//!
//! # Invariants
//!
//! - Pending output of the TLS session is passed to the transport before the stream waits for input.
//! - The plaintext of each part of the ciphertext is read before the next part is passed to the session, so the session
//!   never buffers more than one part.
//! - Plaintext is returned in a buffer owned by the thread, so idle connections hold no plaintext buffer.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use anello::compat::TlsSession;
use anello::log_event;
use anello::net::Chunk;
use rustls::ClientConnection;

use crate::model::tls::{Tls, TlsError};
use crate::wire::transport::Transport;

/// Approximate maximum amount of plaintext that is returned at a time.
const PLAINTEXT_BYTES: usize = 64 * 1024;

/// Maximum amount by which the plaintext can exceed [`PLAINTEXT_BYTES`] after one part of the ciphertext is decrypted.
const RECORD_BYTES: usize = 16 * 1024;

/// State shared by all TLS connections of a thread.
pub(crate) struct TlsConnector {
    tls: Tls,
    /// Plaintext buffer, unless a connection is using it.
    spare_buffer: Cell<Vec<u8>>,
}

impl TlsConnector {
    pub fn new(tls: &Tls) -> Self {
        Self { tls: tls.clone(), spare_buffer: Cell::default() }
    }

    /// Performs the handshake. Fails with an error that contains a [`TlsError`], or with an error from the transport.
    pub async fn handshake(self: Rc<Self>, transport: Transport) -> io::Result<TlsStream> {
        let tls = ClientConnection::new(Arc::clone(&self.tls.config), self.tls.server_name.clone());
        let tls = tls.map_err(|error| TlsError::from_rustls(&error))?;
        let mut stream = TlsStream {
            connector: self,
            transport,
            tls: TlsSession::new(tls),
            incoming: None,
            plaintext: Vec::new(),
            pending_error: None,
            close_state: CloseState::Open,
        };
        poll_fn(|context| stream.poll_handshake(context)).await?;
        Ok(stream)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    Open,
    /// The server sent a close_notify.
    CloseNotify,
    /// The server closed the transport without a close_notify.
    Truncated,
}

pub(crate) struct TlsStream {
    connector: Rc<TlsConnector>,
    pub transport: Transport,
    pub tls: TlsSession<ClientConnection>,
    /// Received ciphertext that has not been passed to the session yet.
    incoming: Option<Chunk>,
    /// Decrypted data that has not been returned yet.
    plaintext: Vec<u8>,
    /// Error to return after the data in `plaintext`.
    pending_error: Option<io::Error>,
    close_state: CloseState,
}

impl TlsStream {
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.is_handshaking() {
            self.try_flush(context)?;
            if self.incoming.is_none() {
                self.incoming = ready!(self.transport.poll_receive(context))?;
                if self.incoming.is_none() {
                    let text = "TLS: the server closed the connection during the handshake (check that this is a TLS port)";
                    return Poll::Ready(Err(TlsError::io_error(io::ErrorKind::InvalidData, text, None)));
                }
            }
            self.decrypt();
            self.take_error(context)?;
        }
        self.poll_flush(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.poll_flush(|slices| self.transport.poll_write_vectored(slices, context))
    }

    /// Accepts all of `bytes` or none, like the other streams.
    pub fn poll_send(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        self.tls.encrypt(bytes)?;
        // Output that the transport does not accept now is flushed by the next receive.
        Poll::Ready(self.try_flush(context))
    }

    /// Passes as much of the pending output to the transport as it accepts now.
    fn try_flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Poll::Ready(flushed) = self.poll_flush(context) { flushed } else { Ok(()) }
    }

    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            self.decrypt();
            if !self.plaintext.is_empty() {
                return Poll::Ready(Ok(Some(std::mem::take(&mut self.plaintext))));
            }
            self.take_error(context)?;
            if self.close_state != CloseState::Open {
                return Poll::Ready(Ok(None));
            }
            // A pending flush does not prevent receiving.
            self.try_flush(context)?;
            self.incoming = ready!(self.transport.poll_receive(context))?;
            if self.incoming.is_none() {
                self.close_state = CloseState::Truncated;
            }
        }
    }

    /// Decrypts received ciphertext until none is left or `plaintext` has reached [`PLAINTEXT_BYTES`].
    fn decrypt(&mut self) {
        while let Some(chunk) = &mut self.incoming {
            if chunk.is_empty() || self.pending_error.is_some() || self.close_state != CloseState::Open {
                self.incoming = None;
                return;
            }
            if self.plaintext.len() >= PLAINTEXT_BYTES {
                return;
            }
            if self.plaintext.capacity() == 0 {
                self.plaintext = self.connector.spare_buffer.take();
                self.plaintext.reserve(PLAINTEXT_BYTES + RECORD_BYTES);
            }
            match self.tls.decrypt(chunk, &mut self.plaintext) {
                Ok(count) => chunk.advance(count),
                Err(error) => self.pending_error = Some(TlsError::from_rustls(&error)),
            }
            if self.tls.is_peer_closed() {
                self.close_state = CloseState::CloseNotify;
            }
            if self.plaintext.is_empty() {
                self.connector.spare_buffer.set(std::mem::take(&mut self.plaintext));
            }
        }
    }

    pub fn recycle(&self, mut plaintext: Vec<u8>) {
        plaintext.clear();
        self.connector.spare_buffer.set(plaintext);
    }

    /// Responds to a close_notify from the server, because some servers wait for the response before they close the
    /// transport.
    pub fn poll_eof(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        if self.close_state == CloseState::Open
            && let Some(plaintext) = ready!(self.poll_receive(context))?
        {
            return Poll::Ready(Ok(Some(plaintext.len())));
        }
        if self.close_state == CloseState::Truncated {
            return Poll::Ready(Ok(None));
        }
        self.tls.close();
        self.try_flush(context)?;
        while ready!(self.transport.poll_receive(context))?.is_some() {}
        Poll::Ready(Ok(None))
    }

    /// Returns the pending error, if any. Also tries to send the server a TLS alert that reports the error.
    fn take_error(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(error) = self.pending_error.take() else { return Ok(()) };
        let flushed = self.try_flush(context);
        log_event!(DEBUG, ?flushed, "connection closed because of a TLS error");
        Err(error)
    }

    pub fn send_close_notify(&mut self) {
        self.tls.close();
        // No task is waiting for the result, so the waker does nothing.
        let flushed = self.try_flush(&mut Context::from_waker(Waker::noop()));
        log_event!(TRACE, ?flushed, "sent close_notify");
    }

    pub fn is_truncated(&self) -> bool {
        self.close_state == CloseState::Truncated
    }
}
