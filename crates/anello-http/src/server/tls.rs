//! TLS by rustls, over the same sockets.
//!
//! ```text
//!   received ciphertext ──► session ──► plaintext ──► Input
//!   Output ──► plaintext ──► session ──► ciphertext ──► the socket's own send queue
//! ```
//!
//! The handshake is done by the first receive: until the first head has come, the deadline of heads counts.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker, ready};

use anello::fs::File;
use anello::net::{Chunk, OwnedReadHalf, OwnedWriteHalf, Stream};
use bytes::Bytes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::transport::{Receiver, Sender};

/// Plaintext that is taken out of a session at a time: what a record holds.
const RECORD_BYTES: usize = 16 * 1024;

/// Plaintext that is encrypted, and bytes of a file that are read, at a time: several records, which go out together. No more
/// is encrypted before the kernel has taken it, so that a client that does not read holds little memory.
const ENCRYPT_CHUNK_BYTES: usize = 64 * 1024;

thread_local! {
    /// Where a step of a file is read to: one for all connections, of which none holds it while it waits for its client.
    static FILE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Certificate and key of a server, for TLS 1.2 and 1.3 with ALPN `http/1.1`. Clones are the same one, also in other
/// threads: they share the cache of sessions, and what they are [replaced](Self::replace) by.
#[derive(Clone)]
pub struct TlsConfig(Arc<RwLock<Arc<ServerConfig>>>);

impl TlsConfig {
    /// Reads a chain of certificates and the key of the first of them, both in PEM.
    ///
    /// # Errors
    /// When a file cannot be read, holds nothing of the kind, or the two do not belong together.
    pub fn from_pem_files(certificates: &Path, key: &Path) -> io::Result<Self> {
        let file_error = |path: &Path, why: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
        };
        let chain: Vec<_> = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect)
            .map_err(|error| file_error(certificates, format!("no certificates in PEM: {error}")))?;
        if chain.is_empty() {
            return Err(file_error(certificates, "no certificates in it: give a chain in PEM".to_owned()));
        }
        let private_key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| file_error(key, format!("no private key in PEM: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private_key))
            .map_err(|error| {
                file_error(key, format!("not the key of {}: {error}", certificates.display()))
            })?;
        Ok(Self::new(config))
    }

    /// With a configuration of rustls; ALPN becomes `http/1.1` and `http/1.0`, which is all that is spoken here.
    #[must_use]
    pub fn new(mut config: ServerConfig) -> Self {
        // Some clients that are told to speak HTTP/1.0 offer nothing else, and would be refused.
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// Has connections that are accepted from now on, by every server with a clone of this, speak TLS as another one does:
    /// with a new certificate.
    pub fn replace(&self, other: &Self) {
        let new = other.current();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn current(&self) -> Arc<ServerConfig> {
        // It is replaced in one step.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsConfig").finish_non_exhaustive()
    }
}

/// What both sides of a connection share.
struct Session<S: Stream> {
    tls: ServerConnection,
    writer: OwnedWriteHalf<S>,
    /// Bytes that have come and were not taken out.
    plaintext_bytes: usize,
    /// The client has said that it sends no more.
    is_peer_closed: bool,
    close_notify_sent: bool,
    /// The task of the sending side, while that waits for room or for all to have gone.
    send_waker: Option<Waker>,
}

/// The two sides of a connection under TLS.
pub(super) fn split<S: Stream>(stream: S, config: &TlsConfig) -> io::Result<(TlsReceiver<S>, TlsSender<S>)> {
    let mut tls = ServerConnection::new(config.current()).map_err(io::Error::other)?;
    // The socket's send queue bounds what is accepted; the session passes it on at once.
    tls.set_buffer_limit(None);
    let (reader, writer) = stream.into_split();
    let session = Session {
        tls,
        writer,
        plaintext_bytes: 0,
        is_peer_closed: false,
        close_notify_sent: false,
        send_waker: None,
    };
    let session = Rc::new(RefCell::new(session));
    Ok((
        TlsReceiver { reader, session: Rc::clone(&session), ciphertext: None },
        TlsSender { session, unflushed_bytes: 0 },
    ))
}

impl<S: Stream> Session<S> {
    /// Hands what the session wants to send to the socket.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = SocketWriter { writer: &mut self.writer, context };
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// As [`poll_flush`](Self::poll_flush), on behalf of the receiving side, which may belong to another task. The socket
    /// knows one waker of who waits to send: if the sending side waits, it is not to be forgotten.
    fn poll_flush_for_receiver(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.tls.wants_write() {
            return Poll::Ready(Ok(()));
        }
        let Some(sender) = self.send_waker.take() else { return self.poll_flush(context) };
        let flushed = if sender.will_wake(context.waker()) {
            self.poll_flush(context)
        } else {
            let both = Waker::from(Arc::new(WakeBoth(sender.clone(), context.waker().clone())));
            self.poll_flush(&mut Context::from_waker(&both))
        };
        match flushed {
            Poll::Pending => self.send_waker = Some(sender),
            Poll::Ready(_) => sender.wake(),
        }
        flushed
    }

    /// As [`poll_flush`](Self::poll_flush), on behalf of the sending side.
    fn poll_flush_for_sender(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll_flush(context);
        self.update_send_waker(flushed, context)
    }

    /// Notes whether the sending side waits.
    fn update_send_waker<T>(&mut self, polled: Poll<T>, context: &Context<'_>) -> Poll<T> {
        match &self.send_waker {
            _ if polled.is_ready() => self.send_waker = None,
            Some(before) if before.will_wake(context.waker()) => {}
            _ => self.send_waker = Some(context.waker().clone()),
        }
        polled
    }

    /// Plaintext that has come; `None` when there is none yet, nothing of it at its end.
    fn read_plaintext(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.plaintext_bytes == 0 && !self.is_peer_closed {
            return Ok(None);
        }
        // Behind the last byte, a look tells which end it is.
        let mut plaintext = vec![0; self.plaintext_bytes.clamp(1, RECORD_BYTES)];
        match self.tls.reader().read(&mut plaintext) {
            Ok(count) => {
                plaintext.truncate(count);
                self.plaintext_bytes = self.plaintext_bytes.saturating_sub(count);
                Ok(Some(plaintext))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes some ciphertext in, now that the plaintext before it was taken out; how many bytes.
    fn process_ciphertext(&mut self, mut ciphertext: &[u8]) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut ciphertext)?;
        match self.tls.process_new_packets() {
            Ok(state) => {
                self.plaintext_bytes = state.plaintext_bytes_to_read();
                self.is_peer_closed = state.peer_has_closed();
                Ok(count)
            }
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// Wakes two tasks.
struct WakeBoth(Waker, Waker);

impl Wake for WakeBoth {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

/// The socket, as sessions want it: what has to wait is an error, and the task is woken when there is room.
struct SocketWriter<'a, 'c, S: Stream> {
    writer: &'a mut OwnedWriteHalf<S>,
    context: &'a mut Context<'c>,
}

impl<S: Stream> Write for SocketWriter<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Records go to the kernel from where the session has encrypted them, together.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // Cancel-safe: the future keeps nothing from one poll to the next.
        match pin!(self.writer.write_vectored(slices)).poll(self.context) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The receiving side.
pub(super) struct TlsReceiver<S: Stream> {
    reader: OwnedReadHalf<S>,
    session: Rc<RefCell<Session<S>>>,
    /// Ciphertext that was received, as far as the session has not taken it in.
    ciphertext: Option<Chunk>,
}

impl<S: Stream> Receiver for TlsReceiver<S> {
    type Chunk = Vec<u8>;

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            let mut session = self.session.borrow_mut();
            if let Some(plaintext) = session.read_plaintext()? {
                return Poll::Ready(Ok((!plaintext.is_empty()).then_some(plaintext)));
            }
            // Answers of the handshake. That they cannot be sent at once keeps nothing from being received.
            if let Poll::Ready(Err(error)) = session.poll_flush_for_receiver(context) {
                return Poll::Ready(Err(error));
            }
            let Some(chunk) = &mut self.ciphertext else {
                self.ciphertext = ready!(pin!(self.reader.recv()).poll(context))?;
                if self.ciphertext.is_none() {
                    // Without a close_notify the end may be an attacker's doing; but requests are framed.
                    return Poll::Ready(Ok(None));
                }
                continue;
            };
            match session.process_ciphertext(chunk) {
                Ok(count) => chunk.advance(count),
                Err(error) => {
                    // The alert says why.
                    let result = session.poll_flush_for_receiver(context);
                    tracing::debug!(?result, %error, "a client was refused by TLS");
                    return Poll::Ready(Err(error));
                }
            }
            if chunk.is_empty() {
                self.ciphertext = None;
            }
        }
    }
}

/// The sending side.
pub(super) struct TlsSender<S: Stream> {
    session: Rc<RefCell<Session<S>>>,
    /// Plaintext that was encrypted since the kernel is known to have taken everything.
    unflushed_bytes: usize,
}

impl<S: Stream> TlsSender<S> {
    /// Waits until at least half of a step may be encrypted.
    async fn wait_writable(&mut self) -> io::Result<()> {
        if self.unflushed_bytes > ENCRYPT_CHUNK_BYTES / 2 {
            poll_fn(|context| self.poll_flush(context)).await?;
        }
        poll_fn(|context| self.poll_drive(context)).await
    }
}

impl<S: Stream> Sender for TlsSender<S> {
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.unflushed_bytes >= ENCRYPT_CHUNK_BYTES {
            ready!(self.poll_flush(context))?;
        }
        let mut session = self.session.borrow_mut();
        ready!(session.poll_flush_for_sender(context))?;
        let room = ENCRYPT_CHUNK_BYTES - self.unflushed_bytes;
        let count = session.tls.writer().write(&bytes[..bytes.len().min(room)])?;
        self.unflushed_bytes += count;
        match session.poll_flush_for_sender(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = self.session.borrow_mut();
        ready!(session.poll_flush_for_sender(context))?;
        let flushed = pin!(session.writer.flush()).poll(context);
        if flushed.is_ready() {
            self.unflushed_bytes = 0;
        }
        session.update_send_waker(flushed, context)
    }

    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.borrow_mut().poll_flush_for_sender(context)
    }

    fn poll_close_notify(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = self.session.borrow_mut();
        if !session.close_notify_sent {
            session.close_notify_sent = true;
            session.tls.send_close_notify();
        }
        session.poll_flush_for_sender(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_close_notify(context))?;
        // Until the kernel has taken all of it, the deadline for writes holds.
        ready!(self.poll_flush(context))?;
        pin!(self.session.borrow_mut().writer.shutdown()).poll(context)
    }

    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.write_all(&bytes).await
    }

    async fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        mut on_progress: impl FnMut(u64),
    ) -> io::Result<u64> {
        let mut sent = 0;
        while sent < length {
            self.wait_writable().await?;
            let room = ENCRYPT_CHUNK_BYTES - self.unflushed_bytes;
            let step = (length - sent).min(room as u64) as usize;
            let mut buffer = FILE_BUFFER.take();
            buffer.resize(step.max(buffer.len()), 0);
            let count = file.read_at(&mut buffer[..step], offset + sent).await?;
            if count == 0 {
                break;
            }
            self.write_all(&buffer[..count]).await?;
            FILE_BUFFER.set(buffer);
            sent += count as u64;
            on_progress(count as u64);
        }
        Ok(sent)
    }
}
